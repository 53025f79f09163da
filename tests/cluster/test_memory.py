"""An emergency of hot workloads, of which one has not the memory for FP32 on its device, on a real API server with real
Prometheus data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import HOT, NO_SPEED, PATIENCE_SECONDS, Scene
from tests.support.side_by_side import LITERAL, side_by_side

ROOMY, CRAMPED = HOT[:2]
HEADROOM_BYTES = {ROOMY: 20e9, CRAMPED: 1e9}
ROLLBACKS: dict[str, Json] = {"restart": {}, "bf16": {"onMemoryShortage": "BF16"}}


@dataclass(frozen=True)
class End:
    """Of a fleet that was rolled back."""

    modes: Mapping[str, set[str]]
    kept: set[str]
    """Workloads that still have the pod that they had before."""
    events: str
    """What was said of memory."""


@pytest.fixture(scope="module")
def ends(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, End]]:
    """One for each answer to a lack of memory."""
    directory = tmp_path_factory.mktemp("memory")
    with side_by_side(control_plane, directory, ROLLBACKS, operator=operator_kubeconfig) as scenes:
        for name, scene in scenes.items():
            scene.shadow.headroom_bytes = HEADROOM_BYTES
            steps = {"steps": [{"setWeight": 100}]}
            scene.apply(policy(criteria=NO_SPEED, strategy=steps, rollback=ROLLBACKS[name]))
        before = {}
        for name, scene in scenes.items():
            scene.wait_phase("Healthy")
            before[name] = uids(scene)
        for scene in scenes.values():
            scene.shadow.overflow = dict.fromkeys(HEADROOM_BYTES, 0.8)
        yield {name: rolled_back(scene, before[name]) for name, scene in scenes.items()}


def uids(scene: Scene) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in scene.pods().items()}


def rolled_back(scene: Scene, before: Mapping[str, str]) -> End:
    scene.wait_phase("Held")
    kept = {name for name, uid in uids(scene).items() if before[name] == uid}

    def said() -> str:
        events = scene.kubectl.json("get", "events", "-n", scene.namespace)["items"]
        return " ".join(event["message"] for event in events if event["reason"] == "MemoryTooSmall")

    return End(
        scene.shadow.modes(),
        kept,
        wait_for(said, what="an Event MemoryTooSmall", seconds=PATIENCE_SECONDS, found=scene.operators.logs),
    )


def test_what_has_no_room_for_fp32_is_restarted_and_its_neighbour_changes_at_a_step_boundary(
    ends: Mapping[str, End],
) -> None:
    end = ends["restart"]
    assert end.modes == {ROOMY: {"fp32"}, CRAMPED: {"fp32"}, LITERAL: {"fp32"}}
    assert end.kept == {ROOMY}
    assert f"FP32 needs more device memory than {CRAMPED} have left: restarted" in end.events


def test_what_has_no_room_for_fp32_is_held_in_bf16_where_the_policy_allows_it(ends: Mapping[str, End]) -> None:
    end = ends["bf16"]
    assert end.modes == {ROOMY: {"fp32"}, CRAMPED: {"bf16"}, LITERAL: {"fp32"}}
    assert end.kept == {ROOMY, CRAMPED}
    assert f"FP32 needs more device memory than {CRAMPED} have left: go to BF16" in end.events
