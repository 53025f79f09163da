"""A rollback by canary on a real API server with real Prometheus data. Time is short by the policies' own settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.waiting import wait_for
from precision_operator.api.canary import CanaryVerdict
from precision_operator.api.wire import parse_time
from precision_operator.api.workload import name_of
from precision_operator.controller.nodes import Nodes
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.runtime.clock import SystemClock
from precision_operator.signals.queries import BUILT_IN, render
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import HOT, NO_SPEED, Scene, assert_all_in_fallback, reading_nodes
from tests.support.shadow_trainers import Fault
from tests.support.side_by_side import LITERAL, bind, side_by_side

FAULTY = HOT[:2]
MILD, SEVERE, SLOW = Fault(overflow=0.25), Fault(overflow=0.6), Fault(speed=0.5, everywhere=True)
ROLLBACK: Json = {
    "strategies": {"P2": "Canary"},
    "gradual": {"sustain": "6s", "inFlight": "2s", "batchShare": 0.4},
    "canary": {"window": "2m", "limit": "10m", "falseAlarmRate": 0.2},
    "mitigation": {"overflow": {"window": "0s"}, "speed": {"window": "0s"}},
}
SPEC: Json = {"rollback": ROLLBACK, "strategy": {"steps": [{"setWeight": 100}]}, "criteria": NO_SPEED}
LONG: Json = {"window": "5m", "limit": "10m", "falseAlarmRate": 0.001}
"""Compared for longer than the others' fleets are waited for."""
POLICIES: dict[str, Json] = {
    "helps": SPEC,
    "no-help": {
        **SPEC,
        "criteria": {},
        "rollback": {**ROLLBACK, "canary": {"window": "16s", "limit": "10m"}},
        "evaluation": {"interval": "500ms", "window": "8s", "failureLimit": 0, "maxSampleAge": "5s"},
    },
    "nodes": {**SPEC, "rollback": {**ROLLBACK, "canary": {"by": "NodeLabel", **LONG}}},
    # Broken last: the first test looks at it at once.
    "risen": {**SPEC, "rollback": {**ROLLBACK, "canary": LONG}},
}
LABELLED = HOT[1:3]
"""Who runs on nodes with the label. A share of five would choose one."""


@pytest.fixture(scope="module")
def fleets(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Scene]]:
    """Fleets in FP16, hot trainers of them mildly in breach."""
    directory = tmp_path_factory.mktemp("canary")
    fleets = side_by_side(control_plane, directory, POLICIES, operator=operator_kubeconfig, hot=len(HOT))
    with reading_nodes(control_plane.kubectl), fleets as scenes:
        place = {workload: "disabled" if workload in LABELLED else "enabled" for workload in HOT}
        nodes = bind(scenes["nodes"], place, label="fp16")
        for name, scene in scenes.items():
            scene.apply(policy(**POLICIES[name]))
        for name, scene in scenes.items():
            scene.wait_phase("Healthy", seconds=90)
            if name != "nodes":
                scene.shadow.faults = dict.fromkeys(FAULTY, SLOW if name == "no-help" else MILD)
        yield scenes
        control_plane.kubectl("delete", "node", *nodes)


def break_together(scene: Scene, names: list[str]) -> None:
    """Found at one look: the canary is chosen among those who are in breach when two of them are."""
    suspend(scene, True)
    scene.condition("Progressing", "Suspended")
    scene.shadow.faults = dict.fromkeys(names, MILD)
    overflow = render(BUILT_IN["overflow"], scene.namespace, window_seconds=4.0, min_steps=8)

    def broken() -> bool:
        found = [float(series["value"][1]) for series in scene.prometheus.query(overflow)]
        return sum(share > 0.2 for share in found) == len(names)

    wait_for(broken, what="all of them to overflow", seconds=60)
    suspend(scene, False)


def suspend(scene: Scene, value: bool) -> None:
    patch = json.dumps({"spec": {"suspend": value}})
    scene.kubectl("patch", "ppol", "fleet", "-n", scene.namespace, "--type=merge", "-p", patch)


def comparing(scene: Scene) -> str:
    """Wait until the canary is compared, it alone in FP32; returns its name."""
    scene.condition("Progressing", "ComparingCanary")
    status = scene.status()
    assert (status["phase"], status["incident"]["strategy"]) == ("RollingBack", "Canary")
    (first,) = canary(scene)
    assert first in FAULTY
    assert scene.in_mode("fp32") == {first}
    # New pods of the others start as they trained.
    everybody = {f"apps/Deployment/{name}": "fp16" for name in [*HOT, LITERAL] if name != first}
    assert scene.assignment()["modes"] == everybody
    return first


def canary(scene: Scene) -> list[str]:
    return [name_of(key) for key in scene.state().canary]


def test_a_severe_breach_pre_empts_the_comparison(fleets: dict[str, Scene]) -> None:
    scene = fleets["risen"]
    comparing(scene)
    scene.shadow.faults = dict.fromkeys(FAULTY, SEVERE)
    incident = scene.wait_phase("Held")["incident"]
    assert (incident["severity"], incident["strategy"]) == ("P1", "Emergency")
    assert_all_in_fallback(scene)


def test_breached_workloads_on_labelled_nodes_are_the_canary(fleets: dict[str, Scene]) -> None:
    scene = fleets["nodes"]
    break_together(scene, HOT[:3])
    scene.condition("Progressing", "ComparingCanary")
    assert canary(scene) == LABELLED
    assert scene.in_mode("fp32") == set(LABELLED)


def test_a_canary_that_fares_better_takes_the_rest_with_it(fleets: dict[str, Scene]) -> None:
    scene = fleets["helps"]
    if scene.status()["phase"] != "Held":  # its comparison began with the fixture
        scene.wait_phase("Held", seconds=120)
    status = scene.status()
    comparison = scene.state().comparison
    assert comparison is not None
    assert (comparison.verdict, comparison.looks >= 5) == (CanaryVerdict.BETTER, True)
    incident = status["incident"]
    assert (incident["severity"], incident["strategy"]) == ("P2", "Gradual")
    decided, acknowledged, deadline = (parse_time(incident[at]) for at in ("decidedAt", "lastAckAt", "deadlineAt"))
    assert decided < comparison.ended_at <= acknowledged <= deadline  # type: ignore[operator]  # all of them are there
    assert_all_in_fallback(scene)


def test_a_canary_that_fares_no_better_is_held_until_a_person_promotes_it(fleets: dict[str, Scene]) -> None:
    scene = fleets["no-help"]
    held = scene.condition("Progressing", "CanaryNoDifference", seconds=120)
    status = scene.status()
    assert scene.in_mode("fp32") == set(canary(scene))
    assert len(canary(scene)) == 1
    comparison = scene.state().comparison
    assert comparison is not None
    assert comparison.looks == 2
    number = status["transitionId"]
    assert f"kubectl precision promote fleet -n {scene.namespace}" in held["message"]
    scene.kubectl("annotate", "ppol", "fleet", "-n", scene.namespace, f"precision.genesis.ai/promote={number}")
    assert scene.wait_phase("Held")["incident"]["strategy"] == "Gradual"
    assert_all_in_fallback(scene)


async def test_labelled_nodes_are_found_and_none_where_the_right_is_missing(
    control_plane: ControlPlane, namespace: str
) -> None:
    for name, value in ((f"{namespace}-a", "disabled"), (f"{namespace}-b", "enabled")):
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {f"{namespace}/fp16": value}}}
        control_plane.kubectl.apply(node)
    label, found = f"{namespace}/fp16=disabled", []
    for kubeconfig in (control_plane.kubeconfig, control_plane.user_kubeconfig(f"nobody-{namespace}")):
        client = await KubeClient.connect(Access(kubeconfig))
        found.append(await Nodes(client, SystemClock()).names(label))
        await client.close()
    assert found == [(f"{namespace}-a",), ()]
    control_plane.kubectl("delete", "node", f"{namespace}-a", f"{namespace}-b")
