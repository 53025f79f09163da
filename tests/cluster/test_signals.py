"""Signals on a real API server with a real Prometheus: alerts, PromQL of a policy's own, and modes from a ConfigMap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, Scene, staged
from tests.support.shadow_trainers import Fault, ShadowTrainers

OWN = (
    "sum by (pod) (increase(genesis_fp16_overflow_steps_total[$window]))"
    " / (sum by (pod) (increase(genesis_fp16_training_steps_total[$window])) >= $minSteps)"
)
"""The built-in query, without its namespace."""


@pytest.fixture
def scene(kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Nothing but metrics and an operator that takes policies' own PromQL."""
    shadow, settings = ShadowTrainers(kubectl, namespace), {"allowRawQueries": True}
    with staged(kubectl, shadow, tmp_path, operator=operator_kubeconfig, settings=settings) as scene:
        yield scene


def trainers(scene: Scene, bodies: list[Json]) -> None:
    scene.apply(*bodies)
    wait_for(lambda: len(scene.shadow.modes()) == len(bodies), what="pods of all", seconds=PATIENCE_SECONDS)


def test_mild_divergence_alerts_then_the_policys_own_query_finds_the_overflow(scene: Scene) -> None:
    names = ["a", "b"]
    trainers(scene, [deployment(name) for name in names])
    scene.operators.start("one")
    criteria = {**NO_SPEED, "divergence": {"alertAfter": "2s"}, "overflow": {"promql": OWN}}
    scene.apply(policy(criteria=criteria))
    scene.wait_phase("Healthy")
    scene.shadow.faults = {"a": Fault(divergence=0.12)}
    alert = scene.condition("Alerting", "LossDiverging")
    assert alert["status"] == "True"
    assert "divergence beyond 0.05 for 2 s or longer in a" in alert["message"]
    assert scene.status()["phase"] == "Healthy"
    selected = ("get", "events", "-n", scene.namespace, "--field-selector=reason=LossDiverging")
    # It is sent beside the pass that writes the condition.
    events = wait_for(lambda: scene.kubectl.json(*selected)["items"], what="the event", seconds=PATIENCE_SECONDS)
    assert [event["type"] for event in events] == ["Warning"]

    scene.shadow.faults = {name: Fault(overflow=0.6) for name in names}
    held = scene.wait_phase("Held")
    assert held["incident"]["reason"] == "OverflowRateHigh"
    assert set.union(*scene.shadow.modes().values()) == {"fp32"}


def test_what_a_config_map_says_is_overridden_in_pods_and_neither_map_nor_template_is_edited(scene: Scene) -> None:
    names = [f"ref-{index}" for index in range(4)]
    scene.shadow.flag = "true"
    flags: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "flags"}, "data": {"fp16": "true"}}
    scene.apply(flags)
    reference = {"name": "ENABLE_FP16_TRAINING", "valueFrom": {"configMapKeyRef": {"name": "flags", "key": "fp16"}}}
    bodies = [deployment(name, hot=False) for name in names]
    for body in bodies:
        body["spec"]["template"]["spec"]["containers"][0]["env"] = [reference]
    trainers(scene, bodies)
    before, templates, uids = _map(scene), scene.templates(), _uids(scene)
    scene.operators.start("one")
    scene.apply(policy(criteria=NO_SPEED, deletionPolicy="Release"))
    scene.wait_phase("Healthy")
    # They trained in FP16 before: they are kept, and watched.
    assert (scene.members(), _uids(scene)) == (names, uids)

    scene.shadow.faults = {name: Fault(non_finite=0.1) for name in names}
    scene.wait_phase("Held")
    assert scene.in_mode("fp32") == set(names)
    assert all(switch(pod) == {"name": "ENABLE_FP16_TRAINING", "value": "false"} for pod in scene.pods().values())

    scene.kubectl("delete", "ppol", "fleet", "-n", scene.namespace, "--timeout=60s")
    wait_for(lambda: not scene.assignment(), what="the assignment to go", seconds=60, found=scene.operators.logs)
    scene.kubectl("delete", "pods", "--all", "-n", scene.namespace, "--timeout=60s")
    wait_for(lambda: scene.in_mode("fp16") == set(names), what="pods as their templates have them", seconds=60)
    assert all(switch(pod) == reference for pod in scene.pods().values())
    assert (_map(scene), scene.templates()) == (before, templates)


def switch(pod: Json) -> Json:
    """The entry that turns reduced precision on."""
    entries = pod["spec"]["containers"][0]["env"]
    found: Json = next(entry for entry in entries if entry["name"] == "ENABLE_FP16_TRAINING")
    return found


def _uids(scene: Scene) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in scene.pods().items()}


def _map(scene: Scene) -> Json:
    found: Json = scene.kubectl.json("get", "configmap", "flags", "-n", scene.namespace)
    return found
