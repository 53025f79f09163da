"""One emergency over restart-only workloads whose controllers are strict: StatefulSets in each order, and a Job that may not
lose a single pod. The controllers are real.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from precision_operator.api.wire import parse_time
from tests.support.cluster_fleet import LABELS, Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, Scene, staged
from tests.support.shadow_trainers import ShadowTrainers

PODS = 3
PARTITIONED = "partition"
STATEFULSETS: Mapping[str, Json] = {
    "ordered": {"podManagementPolicy": "OrderedReady"},
    "parallel": {"podManagementPolicy": "Parallel"},
    PARTITIONED: {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": PODS}}},
}
JOB = "indexed"
DISRUPTED_FAILS: Json = {
    "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
}
"""An eviction or a preemption of one of its pods ends the whole Job."""


def template(name: str) -> Json:
    """Of a pod that trains in FP16, and that only a restart moves."""
    found: Json = deployment(name, hot=False, enabled="true")["spec"]["template"]
    return found


def statefulset(name: str) -> Json:
    selector = {"matchLabels": {"app": name}}
    spec = {"serviceName": name, "replicas": PODS, "selector": selector, "template": template(name)}
    metadata = {"name": name, "labels": LABELS}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec | STATEFULSETS[name]}


def job() -> Json:
    """It fails with the first pod that fails, and with the first that is disrupted."""
    pod = template(JOB)
    pod["spec"]["restartPolicy"] = "Never"
    spec = {
        "completionMode": "Indexed",
        "completions": PODS,
        "parallelism": PODS,
        "backoffLimitPerIndex": 0,
        "maxFailedIndexes": 0,
        "podFailurePolicy": DISRUPTED_FAILS,
        "activeDeadlineSeconds": 3600,
        "template": pod,
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": JOB, "labels": LABELS}, "spec": spec}


@dataclass
class Restarted:
    """The fleet before and after the emergency."""

    before: Json
    after: Json
    """The Job."""
    old: Mapping[str, frozenset[str]]
    new: Mapping[str, frozenset[str]]
    """Workload → the uids of its pods."""
    modes: Mapping[str, set[str]]
    revisions: set[str]
    """Of the pods below the partition, before and after."""
    status: Json


def the_job(scene: Scene) -> Json:
    found: Json = scene.kubectl.json("get", "job", JOB, "-n", scene.namespace)
    return found


def uids(scene: Scene) -> dict[str, frozenset[str]]:
    """Of the pods that are not on their way out."""
    found: dict[str, set[str]] = {name: set() for name in (*STATEFULSETS, JOB)}
    for pod in scene.kubectl.json("get", "pods", "-n", scene.namespace)["items"]:
        if "deletionTimestamp" not in pod["metadata"]:
            found[pod["metadata"]["labels"]["app"]].add(pod["metadata"]["uid"])
    return {name: frozenset(of) for name, of in found.items()}


def revisions(scene: Scene) -> set[str]:
    """Of the pods below the partition."""
    items = scene.kubectl.json("get", "pods", "-n", scene.namespace, "-l", f"app={PARTITIONED}")["items"]
    return {pod["metadata"]["labels"]["controller-revision-hash"] for pod in items}


def change_the_template(scene: Scene) -> None:
    """No pod gets the change, because all of them are below the partition."""
    scene.kubectl("set", "env", "statefulset", PARTITIONED, "-n", scene.namespace, "CHANGED=yes")

    def seen() -> bool:
        status = scene.kubectl.json("get", "statefulset", PARTITIONED, "-n", scene.namespace)["status"]
        return bool(status["currentRevision"] != status["updateRevision"])

    wait_for(seen, what="a revision that no pod has", seconds=PATIENCE_SECONDS)


def complete(scene: Scene) -> bool:
    return all(len(of) == PODS for of in uids(scene).values())


@pytest.fixture(scope="module")
def restarted(
    kubectl: Kubectl, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Restarted]:
    namespace = "restarted-kinds"
    kubectl("create", "namespace", namespace)
    kubectl.wait_for_namespace(namespace)
    shadow = ShadowTrainers(kubectl, namespace)
    shadow.ready = True
    try:
        with staged(kubectl, shadow, tmp_path_factory.mktemp("kinds"), operator=operator_kubeconfig) as scene:
            scene.apply(*map(statefulset, STATEFULSETS), job())
            wait_for(lambda: complete(scene), what="three pods of each", seconds=PATIENCE_SECONDS)
            change_the_template(scene)
            scene.operators.start("one")
            scene.apply(policy(criteria=NO_SPEED))
            scene.wait_phase("Healthy")
            before, old, of_pods = the_job(scene), uids(scene), revisions(scene)
            shadow.overflow = dict.fromkeys(old, 0.8)
            status = scene.wait_phase("Held")
            wait_for(lambda: complete(scene), what="three pods of each, again", seconds=PATIENCE_SECONDS)
            of_pods |= revisions(scene)
            yield Restarted(before, the_job(scene), old, uids(scene), shadow.modes(), of_pods, status)
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false")


def test_all_pods_of_each_are_new_and_train_in_the_fallback(restarted: Restarted) -> None:
    assert restarted.status["incident"]["strategy"] == "Emergency"
    assert restarted.modes == {name: {"fp32"} for name in restarted.old}
    assert {name: len(of) for name, of in restarted.new.items()} == dict.fromkeys(restarted.old, PODS)
    assert not any(restarted.old[name] & restarted.new[name] for name in restarted.old)


def test_a_job_that_no_pod_may_fail_of_lost_none(restarted: Restarted) -> None:
    found = restarted.after["status"]
    assert found.get("failed", 0) == 0
    assert found.get("failedIndexes", "") == ""
    assert [c for c in found.get("conditions", ()) if c["type"] == "Failed" and c["status"] == "True"] == []
    assert restarted.after["metadata"]["uid"] == restarted.before["metadata"]["uid"]


def test_the_clock_of_its_deadline_begins_anew_with_the_resumption(restarted: Restarted) -> None:
    assert restarted.after["spec"].get("suspend") is False
    before, after = (parse_time(body["status"]["startTime"]) or 0.0 for body in (restarted.before, restarted.after))
    assert after > before > 0


def test_a_change_that_the_partition_keeps_from_the_pods_is_not_brought_in(restarted: Restarted) -> None:
    conditions = {c["type"]: c["status"] for c in restarted.status["conditions"]}
    assert len(restarted.revisions) == 1
    assert conditions["PendingRevision"] == "False"
