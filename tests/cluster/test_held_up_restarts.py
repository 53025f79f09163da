"""What holds a restart up on a real API server: another program's finalizer, and a replacement that finds no node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from precision_operator.api.wire import parse_time
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, Scene, assert_all_in_fallback, staged
from tests.support.shadow_trainers import ShadowTrainers

KEPT, PLACELESS = "kept", "placeless"
FINALIZER = "example.com/backup"


def kept() -> Json:
    """Restart-only, and each of its pods has a finalizer of another program."""
    body = deployment(KEPT, hot=False, enabled="true")
    body["spec"]["template"]["metadata"]["finalizers"] = [FINALIZER]
    return body


def terminating(scene: Scene) -> list[str]:
    items = scene.kubectl.json("get", "pods", "-n", scene.namespace, "-l", f"app={KEPT}")["items"]
    return [item["metadata"]["name"] for item in items if "deletionTimestamp" in item["metadata"]]


def let_go(scene: Scene) -> None:
    """The other program ends its work on all pods."""
    scene.kubectl("delete", "deployment", KEPT, "-n", scene.namespace, "--cascade=orphan", "--ignore-not-found")
    items = scene.kubectl.json("get", "pods", "-n", scene.namespace, "-l", f"app={KEPT}")["items"]
    for name in (item["metadata"]["name"] for item in items):
        patch = '{"metadata":{"finalizers":null}}'
        scene.kubectl("patch", "pod", name, "-n", scene.namespace, "--type=merge", "-p", patch, check=False)


@pytest.fixture
def scene(kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Both in an emergency whose deadline is seconds away; of one no replacement finds a node."""
    with staged(kubectl, ShadowTrainers(kubectl, namespace), tmp_path, operator=operator_kubeconfig) as scene:
        scene.apply(kept(), deployment(PLACELESS, hot=False, enabled="true"))
        try:
            wait_for(lambda: scene.in_mode("fp16") == {KEPT, PLACELESS}, what="pods of both", seconds=PATIENCE_SECONDS)
            scene.operators.start("one")
            scene.apply(policy(criteria=NO_SPEED, rollback={"deadlines": {"P0": "5s", "P1": "5s"}, "ackTimeout": "2s"}))
            scene.wait_phase("Healthy")
            scene.shadow.capacity = {PLACELESS: 0}
            scene.shadow.overflow = dict.fromkeys((KEPT, PLACELESS), 0.8)
            yield scene
        finally:
            let_go(scene)


def test_a_foreign_finalizer_is_named_outside_of_the_deadline_and_a_replacement_without_a_node_is_lost_capacity(
    scene: Scene,
) -> None:
    blocked = scene.condition("Blocked", "ForeignFinalizer")
    assert blocked["status"] == "True"
    assert FINALIZER in blocked["message"]
    lost = scene.condition("CapacityLost", "ReplacementPending", seconds=2 * PATIENCE_SECONDS)
    assert lost["status"] == "True"
    assert PLACELESS in lost["message"]

    status = scene.status()
    deadline = parse_time(status["incident"]["deadlineAt"]) or 0.0
    assert (parse_time(lost["lastTransitionTime"]) or 0.0) > deadline, "it has long passed"
    assert (status["phase"], status["reason"]) == ("RollingBack", "Blocked")
    assert terminating(scene), "nothing took the finalizer away"

    scene.shadow.capacity = {}
    (name,) = terminating(scene)
    patch = '{"metadata":{"finalizers":null}}'
    scene.kubectl("patch", "pod", name, "-n", scene.namespace, "--type=merge", "-p", patch)
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
