"""Workloads that only a restart moves, with the default strategy of a Deployment, while a GitOps tool re-applies them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.audit import Audit
from lab.cluster.manifests import OPERATOR
from lab.demo.evidence import manager_writes, rollbacks
from lab.demo.report import WRITES_A_ROLLBACK
from lab.waiting import wait_for
from precision_operator.api.wire import parse_time
from precision_operator.contract import REQUEST
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, Scene, assert_all_in_fallback, staged
from tests.support.shadow_trainers import ShadowTrainers

RESTARTED = [f"literal-{index}" for index in range(20)]
WIDE = "wide"
"""A hot workload that is scaled to three pods, of which one never finds a node."""


def rolling(name: str, *, hot: bool = False, replicas: int = 1) -> Json:
    """A Deployment with the default strategy: a change of its template begins with a pod more."""
    body = deployment(name, hot=hot, replicas=replicas)
    del body["spec"]["strategy"]
    return body


@pytest.fixture
def scene(kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """A full cluster: there is room for the pods that there are, and for none more."""
    with staged(kubectl, ShadowTrainers(kubectl, namespace), tmp_path, operator=operator_kubeconfig) as scene:
        scene.shadow.capacity = {**dict.fromkeys(RESTARTED, 1), WIDE: 2}
        scene.apply(*map(rolling, RESTARTED), rolling(WIDE, hot=True, replicas=2))
        wait_for(lambda: len(scene.shadow.modes()) == len(RESTARTED) + 1, what="pods of all", seconds=PATIENCE_SECONDS)
        yield scene


@contextmanager
def reapplied(scene: Scene, names: list[str]) -> Iterator[None]:
    """These Deployments are applied again once a second, as a GitOps tool does."""
    bodies = [rolling(name, hot=name == WIDE) for name in names]
    for body in bodies:
        del body["spec"]["replicas"]  # an autoscaler's, or a person's
    items = [{**body, "metadata": {**body["metadata"], "namespace": scene.namespace}} for body in bodies]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    over = threading.Event()

    def run() -> None:
        while not over.wait(1.0):
            words = ("apply", "--server-side", "--force-conflicts", f"--field-manager={scene.namespace}", "-f", "-")
            scene.kubectl(*words, input=manifest, check=False)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=60)


def pods_of(scene: Scene, workload: str) -> list[Json]:
    items: list[Json] = scene.kubectl.json("get", "pods", "-n", scene.namespace, "-l", f"app={workload}")["items"]
    return items


def test_twenty_with_the_default_strategy_are_rolled_back_in_time_without_a_rollout(
    scene: Scene, control_plane: ControlPlane
) -> None:
    templates, revisions = scene.templates(), scene.revisions()
    with reapplied(scene, [WIDE, *RESTARTED[:3]]):
        scene.operators.start("one")
        rollback = {"ackTimeout": "3s"}
        scene.apply(policy(strategy={"steps": [{"setWeight": 100}]}, criteria=NO_SPEED, rollback=rollback))
        scene.wait_phase("Healthy")
        assert scene.in_mode("fp16") == {*RESTARTED, WIDE}
        scene.kubectl("scale", "deployment", WIDE, "-n", scene.namespace, "--replicas=3")
        wait_for(lambda: len(pods_of(scene, WIDE)) == 3, what="a third pod", seconds=PATIENCE_SECONDS)
        wide, begun = {pod["metadata"]["name"] for pod in pods_of(scene, WIDE)}, time.time()
        scene.shadow.overflow = dict.fromkeys(RESTARTED[:12], 0.8)
        incident = scene.wait_phase("Held")["incident"]
        assert_all_in_fallback(scene)
    assert (incident["scope"], incident["strategy"]) == ("Fleet", "Emergency")
    assert (parse_time(incident["lastAckAt"]) or 0.0) <= (parse_time(incident["deadlineAt"]) or 0.0)

    # No rollout: the templates and the ReplicaSets are what they were, whoever wrote them.
    assert (scene.templates(), scene.revisions()) == (templates, revisions)
    assert len(manager_writes(control_plane.audit_log, scene.namespace)) >= 8
    writes = [w for w in Audit(control_plane.audit_log).writes([OPERATOR]) if w.namespace == scene.namespace]
    written = {write.resource for write in writes}
    # The rollout evicted pods, the emergency deleted them.
    ours = {"precisionassignments", "precisionpolicies/status", "precisionincidents", "events"}
    assert written <= {"pods", "pods/eviction", *ours}
    deleted = {write.name for write in writes if write.verb == "delete" and write.succeeded and write.at >= begun}
    assert len(deleted) == len(RESTARTED)
    in_rollback = [write for write in writes if write.at >= begun]
    # Who breaches first may be rolled back alone first.
    others = WRITES_A_ROLLBACK * len(rollbacks(in_rollback, since=begun))
    assert len(in_rollback) <= len(wide) + 2 * len(RESTARTED) + others

    # The pod that never started was asked, and neither waited for nor taken away.
    assert {pod["metadata"]["name"] for pod in pods_of(scene, WIDE)} == wide
    requests = [json.loads(pod["metadata"]["annotations"][REQUEST])["mode"] for pod in pods_of(scene, WIDE)]
    assert requests == ["fp32"] * 3
    assert sorted(pod["status"]["phase"] for pod in pods_of(scene, WIDE)) == ["Pending", "Running", "Running"]
    conditions = {c["type"]: c["status"] for c in scene.status()["conditions"]}
    assert (conditions["AdmissionEnforced"], conditions["WritesAccepted"], conditions["Stuck"]) == (
        "True",
        "True",
        "False",
    )


def test_a_deadline_that_restarts_cannot_keep_is_announced_with_the_decision_and_the_emergency_begins_all_the_same(
    kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    with staged(kubectl, ShadowTrainers(kubectl, namespace), tmp_path, operator=operator_kubeconfig) as scene:
        names = RESTARTED[:2]
        scene.apply(*(deployment(name, hot=False, enabled="true") for name in names))
        wait_for(lambda: scene.in_mode("fp16") == set(names), what="pods of all", seconds=PATIENCE_SECONDS)
        scene.operators.start("one")
        scene.apply(policy(criteria=NO_SPEED, rollback={"deadlines": {"P0": "5s", "P1": "5s"}}))
        scene.wait_phase("Healthy")
        scene.shadow.overflow = dict.fromkeys(names, 0.8)
        incident = scene.wait_phase("Held")["incident"]
        assert_all_in_fallback(scene)
        selected = ("get", "events", "-n", scene.namespace, "--field-selector=reason=DeadlineUnreachable")
        # It is sent beside the passes.
        (event,) = wait_for(lambda: scene.kubectl.json(*selected)["items"], what="the event", seconds=PATIENCE_SECONDS)
    assert (event["type"], event["involvedObject"]["name"], event.get("count", 1)) == ("Warning", "fleet", 1)
    decided, deadline = (parse_time(incident[at]) or 0.0 for at in ("decidedAt", "deadlineAt"))
    assert decided + incident["predictedSeconds"] > deadline
