"""What holds a restart up on a real API server: another program's finalizer, a node that is lost, and a replacement that
finds no node.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from precision_operator.api.wire import parse_time
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import (
    NO_SPEED,
    PATIENCE_SECONDS,
    Scene,
    assert_all_in_fallback,
    reading_nodes,
    staged,
)
from tests.support.shadow_trainers import ShadowTrainers

KEPT, ASTRAY, PLACELESS = "kept", "astray", "placeless"
FINALIZER = "example.com/backup"
LOST_NODE = "lost-node"


def kept() -> Json:
    """Restart-only, and each of its pods has a finalizer of another program."""
    body = deployment(KEPT, hot=False, enabled="true")
    body["spec"]["template"]["metadata"]["finalizers"] = [FINALIZER]
    body["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    return body


def astray() -> Json:
    """Restart-only, and its pods are bound to a node whose kubelet never reports: nobody confirms that they have ended."""
    body = deployment(ASTRAY, hot=False, enabled="true")
    body["spec"]["template"]["spec"] |= {"nodeName": LOST_NODE, "terminationGracePeriodSeconds": 1}
    return body


@pytest.fixture
def lost_node(kubectl: Kubectl) -> Iterator[None]:
    """A node that the control plane has no word of."""
    labels = {"kubernetes.io/hostname": LOST_NODE}
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": LOST_NODE, "labels": labels}})
    with reading_nodes(kubectl):
        yield
    kubectl("delete", "node", LOST_NODE)


def terminating(scene: Scene, workload: str) -> list[str]:
    items = scene.kubectl.json("get", "pods", "-n", scene.namespace, "-l", f"app={workload}")["items"]
    return [item["metadata"]["name"] for item in items if "deletionTimestamp" in item["metadata"]]


def let_go(scene: Scene) -> None:
    """The other program ends its work on all pods, and a person says of the lost node's that they have ended."""
    names = (KEPT, ASTRAY)
    scene.kubectl("delete", "deployment", *names, "-n", scene.namespace, "--cascade=orphan", "--ignore-not-found")
    scene.kubectl("delete", "pods", "-n", scene.namespace, "-l", f"app={ASTRAY}", "--grace-period=0", "--force")
    items = scene.kubectl.json("get", "pods", "-n", scene.namespace, "-l", f"app={KEPT}")["items"]
    for name in (item["metadata"]["name"] for item in items):
        patch = '{"metadata":{"finalizers":null}}'
        scene.kubectl("patch", "pod", name, "-n", scene.namespace, "--type=merge", "-p", patch, check=False)


@pytest.fixture
def scene(
    kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path, lost_node: None
) -> Iterator[Scene]:
    """All three in an emergency whose deadline is seconds away; of one no replacement finds a node."""
    everyone = {KEPT, ASTRAY, PLACELESS}
    with staged(kubectl, ShadowTrainers(kubectl, namespace), tmp_path, operator=operator_kubeconfig) as scene:
        scene.apply(kept(), astray(), deployment(PLACELESS, hot=False, enabled="true"))
        try:
            wait_for(lambda: scene.in_mode("fp16") == everyone, what="pods of all", seconds=PATIENCE_SECONDS)
            scene.operators.start("one")
            scene.apply(policy(criteria=NO_SPEED, rollback={"deadlines": {"P0": "5s", "P1": "5s"}, "ackTimeout": "2s"}))
            scene.wait_phase("Healthy")
            scene.shadow.capacity = {PLACELESS: 0}
            scene.shadow.overflow = dict.fromkeys(everyone, 0.8)
            yield scene
        finally:
            let_go(scene)


def blocked_by(scene: Scene, *causes: str) -> None:
    """Wait until the condition names all of these causes."""

    def message() -> str:
        found = [c for c in scene.status().get("conditions", []) if c["type"] == "Blocked" and c["status"] == "True"]
        return found[0]["message"] if found else ""

    wait_for(
        lambda: all(cause in message() for cause in causes),
        what=f"Blocked by {causes}",
        seconds=2 * PATIENCE_SECONDS,
        found=lambda: f"{scene.status()}\n{scene.operators.logs()}",
    )


def test_a_foreign_finalizer_and_a_lost_node_are_named_outside_of_the_deadline_and_a_lack_of_nodes_is_lost_capacity(
    scene: Scene,
) -> None:
    blocked_by(scene, f"ForeignFinalizer {FINALIZER}", f"NodeUnreachable {LOST_NODE}")
    lost = scene.condition("CapacityLost", "ReplacementPending", seconds=2 * PATIENCE_SECONDS)
    assert lost["status"] == "True"
    assert PLACELESS in lost["message"]

    status = scene.status()
    deadline = parse_time(status["incident"]["deadlineAt"]) or 0.0
    assert (parse_time(lost["lastTransitionTime"]) or 0.0) > deadline, "it has long passed"
    assert (status["phase"], status["reason"]) == ("RollingBack", "Blocked")
    assert terminating(scene, KEPT), "nothing took the finalizer away"
    assert terminating(scene, ASTRAY), "nothing said that the lost node had ended its pod"

    scene.shadow.capacity = {}
    (name,) = terminating(scene, ASTRAY)
    scene.kubectl("delete", "pod", name, "-n", scene.namespace, "--grace-period=0", "--force")
    (name,) = terminating(scene, KEPT)
    patch = '{"metadata":{"finalizers":null}}'
    scene.kubectl("patch", "pod", name, "-n", scene.namespace, "--type=merge", "-p", patch)
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
