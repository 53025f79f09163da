"""A trainer that takes no request any more, on a real API server with real Prometheus data: the rollback restarts it, and it
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json, deployment
from tests.support.cluster_scene import (
    HOT,
    PATIENCE_SECONDS,
    Scene,
    assert_all_in_fallback,
    break_two,
    promoted,
    staged,
)
from tests.support.shadow_trainers import ShadowTrainers
from tests.support.side_by_side import REQUEST, pods

DEAF = HOT[0]


class HardOfHearing(ShadowTrainers):
    """Trainers of which some stop reading their requests: what they read last is what they go on with."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        super().__init__(kubectl, namespace)
        self.deaf: frozenset[str] = frozenset()
        self._heard: dict[str, str | None] = {}

    def _update(self, items: list[Json]) -> None:
        for item in items:
            name, annotations = item["metadata"]["name"], item["metadata"].setdefault("annotations", {})
            if item["metadata"]["labels"]["app"] not in self.deaf or name not in self._heard:
                self._heard[name] = annotations.get(REQUEST)  # a new process reads the file once, at its start
            elif self._heard[name] is not None:
                annotations[REQUEST] = self._heard[name]
            else:
                annotations.pop(REQUEST, None)
        super()._update(items)


@pytest.fixture
def scene(kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Four hot trainers that can be made deaf."""
    with staged(kubectl, HardOfHearing(kubectl, namespace), tmp_path) as scene:
        scene.apply(*(deployment(name) for name in HOT))
        wait_for(lambda: len(scene.shadow.modes()) == len(HOT), what="pods of all", seconds=PATIENCE_SECONDS)
        yield scene


def uids(scene: Scene) -> dict[str, str]:
    """Workload → its pod."""
    return {workload: pod["metadata"]["uid"] for workload, pod in pods(scene).items()}


def escalations(scene: Scene) -> dict[str, str]:
    """Reason → severity of the operator's own count."""
    samples = scene.samples()
    found = [s.labels for s in samples if s.name == "precision_rollback_escalations_total" and s.value > 0]
    return {labels["reason"]: labels["severity"] for labels in found}


def test_who_does_not_acknowledge_is_restarted_and_nobody_else_and_a_missed_deadline_is_said(scene: Scene) -> None:
    promoted(scene, rollback={"ackTimeout": "14s", "deadlines": {"P1": "8s"}})
    before = uids(scene)
    assert isinstance(scene.shadow, HardOfHearing)
    scene.shadow.deaf = frozenset({DEAF})
    break_two(scene)
    assert DEAF in scene.condition("Progressing", "DeadlineExceeded")["message"]
    incident = scene.wait_phase("Held")["incident"]
    assert (incident["severity"], incident["strategy"], incident["escalated"]) == ("P1", "Emergency", True)
    assert incident["lastPatchAt"] < incident["deadlineAt"] < incident["lastAckAt"]
    assert_all_in_fallback(scene)
    after = uids(scene)
    assert {workload for workload in HOT if before[workload] != after[workload]} == {DEAF}
    events = scene.kubectl.json("get", "events", "-n", scene.namespace)["items"]
    (said,) = [event["message"] for event in events if event["reason"] == "RollbackEscalated"]
    assert DEAF in said
    assert escalations(scene) == {"DeadlineExceeded": "P1", "RollbackEscalated": "P1"}
