"""Admission by the operator's webhook, on real API servers that serve no MutatingAdmissionPolicy: the lab's own with that
API switched off, and with ``--older-minor`` one of an older minor, which never had it.

The operator is a process beside it, with the rights that the chart gives in webhook mode, and its certificates are its own.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.cluster.webhook import CONFIGURATION, ROUTING, SERVICE, SYSTEM, WITHOUT_POLICIES, install, refusal, version
from lab.setup.older import VERSION as OLDER
from lab.setup.older import older_control_plane
from lab.waiting import wait_for
from precision_operator.contract import ADMITTED
from precision_operator.webhook.certificates import read_certificates
from precision_operator.workloads.identity import workload_key
from tests.support.api import Api, Place
from tests.support.bodies import Json, assignment, found, pod
from tests.support.cluster_fleet import deployment, policy
from tests.support.cluster_scene import (
    HOT,
    NO_SPEED,
    PATIENCE_SECONDS,
    Operators,
    Scene,
    assert_all_in_fallback,
    break_two,
    staged,
)
from tests.support.comparison import MARKER, MARKING, differences, measured, plainly, wait_for_marker
from tests.support.corpus import concerned, corpus, scenes
from tests.support.shadow_trainers import ShadowTrainers
from tests.support.webhooks import Endpoints

CORPUS = corpus()
SCENES = scenes({name: workload_key(body) for name, body in CORPUS.items()})
LITERAL = "literal"
ADMISSION = {"port": 0, "refreshSeconds": 0.25}
SHORT_LIVED = {"leafSeconds": 20, "authoritySeconds": 60}
"""Seconds: a rotation of each is seen within a test, and a busy machine has a third of them to renew in time."""


@pytest.fixture(scope="module", params=["switched-off", pytest.param("older", marks=pytest.mark.older_minor)])
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    older = request.param == "older"
    programs, flags = (older_control_plane(), (ROUTING,)) if older else (None, WITHOUT_POLICIES)
    with ControlPlane(tmp_path_factory.mktemp("webhook"), api_flags=flags, programs=programs) as cluster:
        if older:
            assert version(cluster) == OLDER
        yield cluster


@pytest.fixture(autouse=True)
def _of_the_older_minor(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Leave in the report what ran on which older version."""
    if request.node.get_closest_marker("older_minor") is not None:
        record_property("older_minor", version(request.getfixturevalue("plane")))


@pytest.fixture(scope="module")
def credentials(plane: ControlPlane) -> Path:
    return install(plane)


@pytest.fixture(scope="module")
def api(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    client = Api(plane.kubeconfig, tmp_path_factory.mktemp("api"))
    yield client
    client.close()


def admission(**settings: object) -> Json:
    """Settings of an operator whose Secret is looked at often."""
    return {"admission": {**ADMISSION, **settings}}


@pytest.fixture
def alone(plane: ControlPlane, credentials: Path, tmp_path: Path) -> Iterator[Operators]:
    """Operators without a fleet: admission needs no metrics."""
    operators = Operators(credentials, tmp_path, "http://127.0.0.1:9", SYSTEM, settings=admission())
    yield operators
    operators.stop()
    Endpoints(plane.kubectl, operators).clear()


def served_by_a_follower(plane: ControlPlane, operators: Operators, **settings: object) -> None:
    """The replica that serves does not lead, and the leader sees no namespace of the test's: it would delete assignments
    that have no policy.
    """
    operators.settings = {**admission(**settings), "watchNamespaces": ["default"]}
    operators.start("leader")
    endpoints = Endpoints(plane.kubectl, operators)
    endpoints.port("leader")
    operators.settings = admission(**settings)
    operators.start("follower")
    endpoints.add("follower")


def secret(plane: ControlPlane) -> dict[str, bytes]:
    data = plane.kubectl.json("get", "secret", SERVICE, "-n", SYSTEM)["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}


def bundles(plane: ControlPlane) -> set[bytes]:
    webhooks = plane.kubectl.json("get", "mutatingwebhookconfiguration", CONFIGURATION)["webhooks"]
    return {base64.b64decode(webhook["clientConfig"].get("caBundle", "")) for webhook in webhooks}


def test_a_command_needs_its_verb(plane: ControlPlane, credentials: Path) -> None:
    """Validating policies are served from 1.30 on."""
    assert credentials.exists()
    kubectl, place = plane.kubectl, f"verbs-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", place)
    kubectl.apply({**policy(), "metadata": {"name": "fleet", "namespace": place}})
    for role in ("edit", "admin"):
        kubectl("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}", "-n", place)

    def said(role: str, command: str) -> str:
        words = ("annotate", "--overwrite", "--dry-run=server", "ppol", "fleet", f"precision.genesis.ai/{command}=4")
        done = kubectl(*words, "-n", place, "--as", role, check=False)
        return done.stderr if done.returncode else "accepted"

    wait_for(lambda: said("admin", "promote") == "accepted", what="the roles to be taken in", seconds=60)
    assert [said("edit", command) for command in ("rollback", "abort")] == ["accepted", "accepted"]
    assert "the verb promote on precisionpolicies/fleet is needed, and edit lacks it" in said("edit", "promote")
    assert "the verb retry on precisionpolicies/fleet is needed, and edit lacks it" in said("edit", "ack-fix")
    kubectl("delete", "namespace", place, "--wait=false")


def test_every_pod_becomes_what_the_function_says_and_none_is_refused(
    plane: ControlPlane, api: Api, alone: Operators, record_property: Callable[[str, object], None]
) -> None:
    assert len(CORPUS) >= 300
    plain = Place(api)
    stored = plainly(plain, CORPUS)
    served_by_a_follower(plane, alone)
    wrong: dict[str, object] = {}
    for name, assignments in SCENES.items():
        place = Place(api)
        place.assign(*assignments, MARKING)
        wait_for_marker(place)
        for pod_name, difference in differences(place, concerned(name, CORPUS), stored, assignments).items():
            wrong[f"{name}: {pod_name}"] = difference
        place.leave()
    plain.leave()
    measured(record_property, "webhook", len(CORPUS), wrong)
    assert not wrong, json.dumps(wrong)[:5_000]


def test_pods_of_the_system_are_not_sent_to_the_webhook(plane: ControlPlane, api: Api, alone: Operators) -> None:
    served_by_a_follower(plane, alone)
    system, other = Place(api, "kube-system"), Place(api)
    system.assign(assignment("all", selector={"matchLabels": MARKER}, default="fp32"))
    try:
        other.assign(MARKING)
        wait_for_marker(other)
        assert found(system.tried(pod(labels=MARKER))) == {}
    finally:
        system.release("all")
        other.leave()


def test_the_fence_leaves_of_the_configuration_only_whom_to_trust(plane: ControlPlane, credentials: Path) -> None:
    def changing(path: str, value: object, op: str = "add") -> str:
        return refusal(plane.kubectl, {"op": op, "path": path, "value": value})

    elsewhere = {"namespace": "default", "name": "evil", "path": "/admit", "port": 443}
    assert changing("/webhooks/0/clientConfig/caBundle", base64.b64encode(b"x").decode()) == ""
    for path, value in (
        ("/webhooks/0/clientConfig/service", elsewhere),
        ("/webhooks/0/failurePolicy", "Fail"),
        ("/webhooks/0/rules/0/resources", ["pods", "secrets"]),
        ("/webhooks/1/name", "other.precision.genesis.ai"),
        ("/metadata/labels/mine", "yes"),
    ):
        assert "the operator may change nothing of its MutatingWebhookConfiguration" in changing(path, value), path
    assert "the operator may change nothing" in changing("/webhooks/1", None, "remove")


def test_certificates_rotate_under_load_and_no_pod_is_missed(plane: ControlPlane, api: Api, alone: Operators) -> None:
    plane.kubectl("delete", "secret", SERVICE, "-n", SYSTEM, "--ignore-not-found")
    served_by_a_follower(plane, alone, **SHORT_LIVED)
    place = Place(api)
    place.assign(MARKING)
    wait_for_marker(place)
    leaves, authorities, tried = {secret(plane)["tls.crt"]}, {secret(plane)["ca.crt"]}, 0

    def rotated() -> bool:
        nonlocal tried
        for _ in range(50):
            tried += 1
            made = place.tried(pod(labels=MARKER))
            assert "marker/" in found(made).get("admitted", ""), f"pod {tried} was missed\n{alone.logs()}"
        now = secret(plane)
        leaves.add(now["tls.crt"])
        authorities.add(now["ca.crt"])
        signers = {read_certificates(pem)[0] for pem in authorities}
        settled = len(read_certificates(now["ca.crt"])) == 1 and bundles(plane) == {now["ca.crt"]}
        return len(leaves) >= 4 and len(signers) >= 2 and settled

    wait_for(rotated, what="both certificates to rotate", seconds=PATIENCE_SECONDS, every=0.0, found=alone.logs)
    assert any(len(read_certificates(pem)) == 2 for pem in authorities), "both authorities were trusted for a time"
    place.leave()


# ---- fleets


@pytest.fixture
def scene(plane: ControlPlane, credentials: Path, tmp_path: Path) -> Iterator[Scene]:
    """Five trainers that have trained in FP16 from the start: what no admission sees starts in it too."""
    kubectl, name = plane.kubectl, f"test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl.wait_for_namespace(name)
    with staged(kubectl, ShadowTrainers(kubectl, name), tmp_path, operator=credentials, settings=admission()) as scene:
        scene.operators.system = SYSTEM
        scene.apply(*(deployment(hot, enabled="true") for hot in HOT), deployment(LITERAL, hot=False, enabled="true"))
        wait_for(lambda: scene.in_mode("fp16") == {*HOT, LITERAL}, what="pods of all five", seconds=PATIENCE_SECONDS)
        yield scene
        Endpoints(kubectl, scene.operators).clear()
        kubectl("delete", "namespace", name, "--wait=false")


def started(scene: Scene, *replicas: str) -> Endpoints:
    endpoints = Endpoints(scene.kubectl, scene.operators)
    for replica in replicas:
        scene.operators.start(replica)
    for replica in replicas:
        endpoints.add(replica)
    return endpoints


def kill(scene: Scene, name: str) -> None:
    scene.operators.running[name].kill()
    scene.operators.running[name].wait(timeout=10)


def uid_of(scene: Scene, workload: str) -> str:
    return str(scene.pods()[workload]["metadata"]["uid"])


def test_a_fleet_is_rolled_out_and_an_emergency_restarts_who_must_be_restarted(scene: Scene) -> None:
    scene.kubectl("set", "env", f"deployment/{LITERAL}", "-n", scene.namespace, "ENABLE_FP16_TRAINING=false")
    wait_for(lambda: scene.in_mode("fp32") == {LITERAL}, what="one in FP32", seconds=PATIENCE_SECONDS)
    started(scene, "one")
    scene.apply(policy(criteria=NO_SPEED))
    scene.wait_phase("Healthy")
    assert scene.in_mode("fp16") == {*HOT, LITERAL}
    assert "by the operator's webhook" in scene.condition("AdmissionEnforced", "Enforcing")["message"]
    before = uid_of(scene, LITERAL)
    assert ADMITTED in scene.pods()[LITERAL]["metadata"]["annotations"]
    break_two(scene)
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    assert uid_of(scene, LITERAL) != before


def test_pods_that_start_without_the_webhook_are_put_right_when_it_is_back(scene: Scene) -> None:
    endpoints = started(scene, "one")
    scene.apply(policy(criteria=NO_SPEED))
    scene.wait_phase("Healthy")
    break_two(scene)
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    kill(scene, "one")
    endpoints.remove("one")
    scene.kubectl("delete", "pods", "--all", "-n", scene.namespace, "--timeout=60s")
    wait_for(lambda: scene.in_mode("fp16") == {*HOT, LITERAL}, what="them to start by their templates", seconds=60)
    assert all(ADMITTED not in item["metadata"].get("annotations", {}) for item in scene.pods().values())
    started(scene, "two")
    assert_all_in_fallback(scene)
    scene.condition("AdmissionEnforced", "Enforcing")


def test_another_replica_takes_over_and_one_that_cannot_be_asked_shows(scene: Scene) -> None:
    endpoints = started(scene, "one", "two")
    scene.apply(policy(criteria=NO_SPEED))
    scene.wait_phase("Healthy")
    scene.condition("AdmissionEnforced", "Enforcing")
    kill(scene, "one" if leads(scene, "one") else "two")
    gone = next(name for name, process in scene.operators.running.items() if process.poll() is not None)
    shown = scene.condition("AdmissionEnforced", "WebhookUnreachable")
    assert shown["status"] == "Unknown"
    assert f":{endpoints.port(gone)} does not answer" in shown["message"]
    endpoints.remove(gone)
    break_two(scene)
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    scene.condition("AdmissionEnforced", "Enforcing")


def leads(scene: Scene, name: str) -> bool:
    holder = scene.kubectl.json("get", "lease", "precision-operator", "-n", SYSTEM)["spec"]["holderIdentity"]
    return bool(holder.startswith(f"{name}_"))
