"""A breach that precision is not to blame for, on a real API server with real Prometheus data: no mass action follows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import HOT, NO_SPEED, PATIENCE_SECONDS, Scene
from tests.support.shadow_trainers import Fault
from tests.support.side_by_side import LITERAL, bind, requested, side_by_side

HALF: Json = {"steps": [{"setWeight": 40}, {"pause": {}}, {"setWeight": 100}]}
POLICIES: dict[str, Json] = {
    "everywhere": {
        "criteria": NO_SPEED,
        "strategy": HALF,
        # All of them fail at the same time, but one window crosses the level an evaluation before another.
        "evaluation": {"interval": "500ms", "window": "4s", "failureLimit": 4, "maxSampleAge": "5s"},
    },
    "one-node": {"criteria": NO_SPEED, "strategy": {"steps": [{"setWeight": 100}]}},
}
BAD_NODE = HOT[:2]


@pytest.fixture(scope="module")
def fleets(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Scene]]:
    """A fleet of which two train in FP16, and one that does as a whole, with two on a node of their own."""
    directory = tmp_path_factory.mktemp("causes")
    with side_by_side(control_plane, directory, POLICIES, operator=operator_kubeconfig, hot=len(HOT)) as scenes:
        # Not the literal one: without a kubelet a pod on a node never ends.
        place = {workload: "bad" if workload in BAD_NODE else "good" for workload in HOT}
        nodes = bind(scenes["one-node"], place, label="rack")
        for name, scene in scenes.items():
            scene.apply(policy(**POLICIES[name]))
        yield scenes
        control_plane.kubectl("delete", "node", *nodes)


def test_failures_of_fp32_workloads_too_hold_the_rollout_and_roll_nothing_back(fleets: dict[str, Scene]) -> None:
    scene = fleets["everywhere"]
    scene.wait_phase("Paused")
    moved = set(scene.members())
    assert len(moved) == 2
    scene.shadow.faults = dict.fromkeys([*HOT, LITERAL], Fault(failures=0.8, everywhere=True))
    held = scene.condition("Progressing", "CauseNotPrecision")
    assert "FP32 workloads too" in held["message"]
    wait_for(lambda: len(scene.state().failing) == 2, what="both to be in breach", seconds=PATIENCE_SECONDS)
    assert "incident" not in scene.status()
    assert scene.in_mode("fp16") == moved


def test_breaches_on_one_node_roll_back_its_workloads_and_leave_the_fleet(fleets: dict[str, Scene]) -> None:
    scene = fleets["one-node"]
    scene.wait_phase("Healthy")
    scene.shadow.faults = dict.fromkeys(BAD_NODE, Fault(overflow=0.8))

    def both_held() -> bool:
        return [held.name for held in scene.state().held] == BAD_NODE and scene.status().get("held") == 2

    wait_for(both_held, what="both to be rolled back", seconds=PATIENCE_SECONDS, found=scene.operators.logs)
    status = scene.status()
    assert (status["phase"], status["held"], status["incident"]["scope"]) == ("Degraded", 2, "Workload")
    wait_for(
        lambda: scene.in_mode("fp32") == set(BAD_NODE),
        what="these two to train in FP32",
        seconds=PATIENCE_SECONDS,
    )
    assert {name for name, request in requested(scene).items() if request["mode"] == "fp16"} == set(HOT) - set(BAD_NODE)
