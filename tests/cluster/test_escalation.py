"""A trainer that takes no request any more, on a real API server with real Prometheus data: the rollback restarts it, and it
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from tests.support.cluster_fleet import deployment
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

STUBBORN = HOT[0]


@pytest.fixture
def scene(kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Four hot trainers."""
    with staged(kubectl, ShadowTrainers(kubectl, namespace), tmp_path, operator=operator_kubeconfig) as scene:
        scene.apply(*(deployment(name) for name in HOT))
        wait_for(lambda: len(scene.shadow.modes()) == len(HOT), what="pods of all", seconds=PATIENCE_SECONDS)
        yield scene


def uids(scene: Scene) -> dict[str, str]:
    """Workload → its pod's uid."""
    return {workload: pod["metadata"]["uid"] for workload, pod in scene.pods().items()}


def escalations(scene: Scene) -> dict[str, str]:
    """Reason → severity of the operator's own count."""
    samples = scene.samples()
    found = [s.labels for s in samples if s.name == "precision_rollback_escalations_total" and s.value > 0]
    return {labels["reason"]: labels["severity"] for labels in found}


def test_who_does_not_acknowledge_is_restarted_and_nobody_else_and_a_missed_deadline_shows(scene: Scene) -> None:
    promoted(scene, rollback={"ackTimeout": "40s", "deadlines": {"P1": "20s"}})
    before = uids(scene)
    scene.shadow.unresponsive = {STUBBORN}
    break_two(scene)
    assert STUBBORN in scene.condition("Progressing", "DeadlineExceeded")["message"]
    incident = scene.wait_phase("Held")["incident"]
    assert (incident["severity"], incident["strategy"], incident["escalated"]) == ("P1", "Emergency", True)
    assert incident["lastPatchAt"] < incident["deadlineAt"] < incident["lastAckAt"]
    assert_all_in_fallback(scene)
    after = uids(scene)
    assert {workload for workload in HOT if before[workload] != after[workload]} == {STUBBORN}
    events = scene.kubectl.json("get", "events", "-n", scene.namespace)["items"]
    (message,) = [event["message"] for event in events if event["reason"] == "RollbackEscalated"]
    assert STUBBORN in message
    assert escalations(scene) == {"DeadlineExceeded": "P1", "RollbackEscalated": "P1"}
