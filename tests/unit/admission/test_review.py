"""What the webhook patches: exactly what the pure function changes."""

from __future__ import annotations

import json

import pytest

from precision_operator.admission.known import KnownAssignments
from precision_operator.admission.pod import admit
from precision_operator.admission.review import difference, patch_for
from precision_operator.contract import INJECT
from precision_operator.workloads.identity import workload_key
from tests.support.bodies import Json, assignment, container, literal, pod
from tests.support.corpus import corpus, scenes
from tests.support.reviews import applied, question, request

CORPUS = corpus()
SCENES = scenes({name: workload_key(body) for name, body in CORPUS.items()})
ECHO = "/metadata/annotations/precision.genesis.ai~1echo"


def knowing(*assignments: Json, namespace: str = "training") -> KnownAssignments:
    known = KnownAssignments()
    for body in assignments:
        metadata = {**body["metadata"], "namespace": namespace, "uid": body["metadata"]["name"]}
        known.observe({**body, "metadata": metadata}, deleted=False)
    return known


def by_name(assignments: list[Json]) -> list[Json]:
    return sorted(assignments, key=lambda body: str(body["metadata"]["name"]))


@pytest.mark.parametrize("scene", SCENES)
def test_the_patched_pod_is_the_one_that_the_function_makes(scene: str) -> None:
    known = knowing(*SCENES[scene])
    for name, body in CORPUS.items():
        patched = applied(body, patch_for(request(body), known))
        assert patched == json.loads(json.dumps(admit(body, by_name(SCENES[scene])))), name


def test_a_pod_that_nothing_concerns_is_not_patched() -> None:
    known = knowing(assignment(default="fp32"))
    assert patch_for(request(pod(labels={"app": "web"})), known) == []
    assert patch_for(request(pod(), namespace="elsewhere"), known) == []


def test_an_admin_may_leave_the_label_unheeded() -> None:
    body = pod(labels={INJECT: "trainer"}, metadata={"name": "p"})
    assert patch_for(request(body), KnownAssignments()) != []
    assert patch_for(request(body), KnownAssignments(), injecting=False) == []


def test_an_admitted_pod_is_not_patched_again() -> None:
    known = knowing(assignment(default="fp32"))
    body = pod(container(env=literal("true")))
    once = applied(body, patch_for(request(body), known))
    assert patch_for(request(once), known) == []


def test_other_requests_are_left_alone() -> None:
    known = knowing(assignment(default="fp32"))
    assert patch_for(request(pod(), operation="UPDATE"), known) == []
    assert (
        patch_for(request(pod(), resource={"group": "apps", "version": "v1", "resource": "deployments"}), known) == []
    )
    assert patch_for({}, known) == []


def test_volumes_mounts_and_ports_are_replaced_as_whole_lists() -> None:
    before = pod(container("a"), container("b", ports=[{"containerPort": 1}]), volumes=[{"name": "v"}])
    after = pod(
        container("a", volumeMounts=[{"name": "w", "mountPath": "/w"}]),
        container("b", ports=[{"containerPort": 1}, {"containerPort": 2}]),
        volumes=[{"name": "v"}, {"name": "w"}],
    )
    patch = difference(before, after)
    assert applied(before, patch) == after
    assert [change["path"] for change in patch] == [
        "/spec/volumes",
        "/spec/containers/0/volumeMounts",
        "/spec/containers/1/ports",
    ]


def test_the_echo_names_the_generation_that_is_known() -> None:
    known = knowing(assignment("fleet", generation=412), assignment("other", generation=3))
    assert patch_for(question("fleet", "5f0c"), known) == [{"op": "add", "path": ECHO, "value": "5f0c/fleet/412"}]


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(question("fleet", None), id="no question"),
        pytest.param(question("fleet", "n", dry_run=False), id="a real write"),
        pytest.param(question("unknown", "n"), id="no assignment"),
        pytest.param(question("fleet", "n", namespace="elsewhere"), id="another namespace"),
    ],
)
def test_nothing_else_is_echoed(asked: Json) -> None:
    assert patch_for(asked, knowing(assignment("fleet", generation=412))) == []
