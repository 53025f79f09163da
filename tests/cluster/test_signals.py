"""Signals on a real API server with a real Prometheus: alerts, PromQL of a policy's own, and modes that a ConfigMap says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, Scene, staged
from tests.support.shadow_trainers import Fault, ShadowTrainers

OWN = (
    "sum by (pod) (increase(genesis_fp16_overflow_steps_total[$window]))"
    " / (sum by (pod) (increase(genesis_fp16_training_steps_total[$window])) >= $minSteps)"
)
"""The built-in query, without its namespace."""


@pytest.fixture
def scene(kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Nothing but metrics and an operator that takes policies' own PromQL."""
    with staged(kubectl, ShadowTrainers(kubectl, namespace), tmp_path, settings={"allowRawQueries": True}) as scene:
        yield scene


def trainers(scene: Scene, names: list[str]) -> None:
    scene.apply(*map(deployment, names))
    wait_for(lambda: len(scene.shadow.modes()) == len(names), what="pods of all", seconds=60)


def test_mild_divergence_is_told_then_the_policys_own_query_finds_the_overflow(scene: Scene) -> None:
    names = ["a", "b"]
    trainers(scene, names)
    scene.operators.start("one")
    criteria = {**NO_SPEED, "divergence": {"alertAfter": "2s"}, "overflow": {"promql": OWN}}
    scene.apply(policy(criteria=criteria))
    scene.wait_phase("Healthy")
    scene.shadow.faults = {"a": Fault(divergence=0.12)}
    told = scene.condition("Alerting", "LossDiverging")
    assert told["status"] == "True"
    assert "divergence beyond 0.05 for 2 s or longer in a" in told["message"]
    assert scene.status()["phase"] == "Healthy"
    events = scene.kubectl.json("get", "events", "-n", scene.namespace)["items"]
    assert [e["type"] for e in events if e["reason"] == "LossDiverging"] == ["Warning"]

    scene.shadow.faults = {name: Fault(overflow=0.6) for name in names}
    held = scene.wait_phase("Held")
    assert held["incident"]["reason"] == "OverflowRateHigh"
    assert set.union(*scene.shadow.modes().values()) == {"fp32"}


def test_what_a_config_map_says_is_overridden_rolled_back_and_given_back_and_the_map_never_edited(scene: Scene) -> None:
    names = [f"ref-{index}" for index in range(4)]
    scene.shadow.flag = "true"
    flags: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "flags"}, "data": {"fp16": "true"}}
    scene.apply(flags)
    version = _map(scene)["metadata"]["resourceVersion"]
    reference = {"name": "ENABLE_FP16_TRAINING", "valueFrom": {"configMapKeyRef": {"name": "flags", "key": "fp16"}}}
    bodies = [deployment(name, hot=False) for name in names]
    for body in bodies:
        body["spec"]["template"]["spec"]["containers"][0]["env"] = [reference]
    scene.apply(*bodies)
    wait_for(lambda: len(scene.shadow.modes()) == 4, what="pods of all four", seconds=60)
    scene.operators.start("one")
    steps = {"steps": [{"setWeight": 25}, {"pause": {}}, {"setWeight": 100}]}
    scene.apply(policy(strategy=steps, criteria=NO_SPEED, deletionPolicy="Restore"))
    (moved,) = [m["name"] for m in scene.wait_phase("Paused")["members"]]
    assert {name: entry(scene, name) for name in names} == {
        name: {"name": "ENABLE_FP16_TRAINING", "value": "true"} if name == moved else reference for name in names
    }

    scene.shadow.faults = {moved: Fault(non_finite=0.1)}
    scene.wait_phase("Held")
    # The others were never moved, and said themselves that they trained in FP16.
    assert {entry(scene, name).get("value") for name in names} == {"false"}
    assert set.union(*scene.shadow.modes().values()) == {"fp32"}

    scene.kubectl("delete", "pp", "fleet", "-n", scene.namespace, "--timeout=60s")
    assert all(entry(scene, name) == reference for name in names)
    assert _map(scene)["metadata"]["resourceVersion"] == version


def entry(scene: Scene, name: str) -> Json:
    """The switch in the template of a Deployment."""
    spec = scene.kubectl.json("get", "deploy", name, "-n", scene.namespace)["spec"]["template"]["spec"]
    found: Json = next(e for e in spec["containers"][0]["env"] if e["name"] == "ENABLE_FP16_TRAINING")
    return found


def _map(scene: Scene) -> Json:
    found: Json = scene.kubectl.json("get", "configmap", "flags", "-n", scene.namespace)
    return found
