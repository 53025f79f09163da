"""Independent replicas whose pods are moved one by one, on a real API server: hot, or by their index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from precision_operator.contract import MODE
from tests.support.cluster_fleet import LABELS, Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, Scene, staged
from tests.support.shadow_trainers import ShadowTrainers

SERVERS = "servers"
PODS = 5


@pytest.fixture
def scene(kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Five pods that say that each is a process group of its own, and a step of 40 % that nobody leaves."""
    shadow = ShadowTrainers(kubectl, namespace)
    shadow.world_size = 1
    with staged(kubectl, shadow, tmp_path, operator=operator_kubeconfig) as scene:
        scene.apply(deployment(SERVERS, replicas=PODS))
        wait_for(lambda: len(in_mode(scene, "fp32")) == PODS, what="five pods", seconds=PATIENCE_SECONDS)
        scene.operators.start("one")
        scene.apply(policy(unit="Pod", criteria=NO_SPEED, strategy={"steps": [{"setWeight": 40}, {"pause": {}}]}))
        wait_for(
            lambda: len(in_mode(scene, "fp16")) >= 2,
            what="two pods in FP16",
            seconds=PATIENCE_SECONDS,
            found=lambda: f"{scene.status()}\n{scene.operators.logs()}",
        )
        scene.wait_phase("Paused")
        yield scene


def pods(scene: Scene) -> list[Json]:
    items: list[Json] = scene.kubectl.json("get", "pods", "-n", scene.namespace)["items"]
    return [item for item in items if "deletionTimestamp" not in item["metadata"]]


def in_mode(scene: Scene, mode: str) -> set[str]:
    """Pods that train in it."""
    names = (pod["metadata"]["name"] for pod in pods(scene))
    return {name for name in names if scene.shadow.mode(name) == mode}


def test_two_of_five_pods_move_at_40_percent_new_ones_start_in_the_fallback_and_a_breach_takes_them_back(
    scene: Scene,
) -> None:
    before = {pod["metadata"]["name"] for pod in pods(scene)}
    moved = in_mode(scene, "fp16")
    assert len(moved) == 2

    scene.kubectl("scale", "deployment", SERVERS, "-n", scene.namespace, f"--replicas={PODS + 1}")
    wait_for(lambda: len(in_mode(scene, "fp32")) == PODS - 1, what="a sixth pod", seconds=PATIENCE_SECONDS)
    (new,) = [pod for pod in pods(scene) if pod["metadata"]["name"] not in before]
    assert new["metadata"]["annotations"][MODE] == "fp32"
    assert in_mode(scene, "fp16") == moved, "of six pods 40 % are still two"

    scene.shadow.overflow = {SERVERS: 0.8}
    scene.wait_phase("Held")
    wait_for(lambda: len(in_mode(scene, "fp32")) == PODS + 1, what="all in the fallback", seconds=PATIENCE_SECONDS)
    assert {pod["metadata"]["name"] for pod in pods(scene)} == {*before, new["metadata"]["name"]}


# ---- by index

NUMBERED = "numbered"
INDEX = {"StatefulSet": "apps.kubernetes.io/pod-index", "Job": "batch.kubernetes.io/job-completion-index"}


def numbered(kind: str) -> Json:
    """Five pods that only a restart moves. A Job that fails with the first of them that is disrupted."""
    template = deployment(NUMBERED, hot=False)["spec"]["template"]
    metadata = {"name": NUMBERED, "labels": LABELS}
    if kind == "StatefulSet":
        selector = {"matchLabels": {"app": NUMBERED}}
        spec = {"serviceName": NUMBERED, "replicas": PODS, "selector": selector, "podManagementPolicy": "Parallel"}
        return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {**spec, "template": template}}
    template["spec"]["restartPolicy"] = "Never"
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    spec = {"completionMode": "Indexed", "completions": PODS, "parallelism": PODS, "backoffLimit": 0}
    spec |= {"podFailurePolicy": {"rules": [disrupted]}, "template": template}
    return {"apiVersion": "batch/v1", "kind": kind, "metadata": metadata, "spec": spec}


def by_index(scene: Scene, kind: str) -> dict[str, tuple[str, str | None]]:
    """Index → the uid of its pod, and what that trains in."""
    found = [(pod["metadata"], pod["metadata"]["labels"][INDEX[kind]]) for pod in pods(scene)]
    return {index: (metadata["uid"], scene.shadow.mode(metadata["name"])) for metadata, index in found}


@pytest.mark.parametrize("kind", INDEX)
def test_pods_that_only_a_restart_moves_are_moved_by_their_index(
    kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path, kind: str
) -> None:
    shadow = ShadowTrainers(kubectl, namespace)
    shadow.world_size = 1
    with staged(kubectl, shadow, tmp_path, operator=operator_kubeconfig) as scene:
        scene.apply(numbered(kind))
        wait_for(lambda: len(in_mode(scene, "fp32")) == PODS, what="five pods", seconds=PATIENCE_SECONDS)
        before = by_index(scene, kind)
        scene.operators.start("one")
        scene.apply(policy(unit="Pod", criteria=NO_SPEED, strategy={"steps": [{"setWeight": 40}, {"pause": {}}]}))
        scene.wait_phase("Paused")
        moved = by_index(scene, kind)
        assert {index: mode for index, (_, mode) in moved.items()} == dict(
            zip("01234", ["fp16", "fp16", "fp32", "fp32", "fp32"], strict=True)
        )
        stayed = {index for index in moved if moved[index][0] == before[index][0]}
        assert stayed == (set("234") if kind == "StatefulSet" else set()), "a Job restarts as a whole"

        scene.shadow.overflow = {NUMBERED: 0.8}
        scene.wait_phase("Held")
        wait_for(lambda: len(in_mode(scene, "fp32")) == PODS, what="all in the fallback", seconds=PATIENCE_SECONDS)
        (found,) = scene.kubectl.json("get", kind.lower(), "-n", namespace)["items"]
        assert found["status"].get("failed", 0) == 0
