"""Each trigger of a rollback, with the severities, strategies and deadlines of the documented table, on a real API server
with real Prometheus data. Nothing of the table is set by these policies, and no clock is mocked: only the windows are short.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.waiting import wait_for
from precision_operator.api.wire import parse_time
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import HOT, NO_SPEED, PATIENCE_SECONDS, Scene
from tests.support.shadow_trainers import Fault
from tests.support.side_by_side import LITERAL, reported, requested, side_by_side

FAULTY = HOT[:2]
AT_ONCE: Json = {"steps": [{"setWeight": 100}]}
SPEED_APART: Json = {"criteria": NO_SPEED, "strategy": AT_ONCE}
SUSTAIN_SECONDS = 6
"""A mild breach must stand for longer than the window, so that a start is none."""
NO_WINDOW: Json = {"overflow": {"window": "0s"}, "speed": {"window": "0s"}}  # what comes before: test_mitigation.py
MILD: Json = {
    "rollback": {"gradual": {"sustain": f"{SUSTAIN_SECONDS}s", "inFlight": "3s"}, "mitigation": NO_WINDOW},
    "strategy": AT_ONCE,
}


@dataclass(frozen=True)
class Trigger:
    """A fault, and what the table says of it."""

    fault: Fault
    reason: str
    severity: str
    strategy: str
    deadline_seconds: float
    rewinds: bool
    spec: Json


TRIGGERS = {
    "failures": Trigger(Fault(failures=0.8), "TrainingFailing", "P0", "Emergency", 300, False, SPEED_APART),
    "non-finite": Trigger(Fault(non_finite=0.2), "LossNotFinite", "P0", "Emergency", 300, True, SPEED_APART),
    "overflow": Trigger(Fault(overflow=0.5), "OverflowRateHigh", "P1", "Emergency", 900, False, SPEED_APART),
    "divergence": Trigger(Fault(divergence=0.4), "LossDiverged", "P1", "Emergency", 900, True, SPEED_APART),
    "speed": Trigger(Fault(speed=0.5), "TrainingSlow", "P2", "Gradual", 1800 + SUSTAIN_SECONDS, False, MILD),
    "mild-overflow": Trigger(
        Fault(overflow=0.2), "OverflowRateHigh", "P2", "Gradual", 1800 + SUSTAIN_SECONDS, False, {**SPEED_APART, **MILD}
    ),
}


@pytest.fixture(scope="module")
def fleets(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Scene]]:
    """A fleet for each trigger: promoted to FP16 by its own policy, then broken; all at the same time."""
    directory = tmp_path_factory.mktemp("triggers")
    with side_by_side(control_plane, directory, TRIGGERS, operator=operator_kubeconfig) as scenes:
        for name, scene in scenes.items():
            scene.apply(policy(**TRIGGERS[name].spec))
        for name, scene in scenes.items():
            scene.wait_phase("Healthy")
            scene.shadow.faults = dict.fromkeys(FAULTY, TRIGGERS[name].fault)
        yield scenes


@pytest.mark.parametrize("name", TRIGGERS)
def test_a_trigger_has_the_documented_severity_and_fp32_is_verified_from_the_processes(
    fleets: dict[str, Scene], name: str
) -> None:
    scene, trigger = fleets[name], TRIGGERS[name]
    incident = scene.wait_phase("Held")["incident"]
    assert (incident["reason"], incident["severity"], incident["strategy"]) == (
        trigger.reason,
        trigger.severity,
        trigger.strategy,
    )
    assert incident["scope"] == "Fleet"
    assert incident["workloads"] == FAULTY
    assert scene.state().poisoned == (), "who was asked to rewind has done it"

    detected, decided, patched, acknowledged, deadline = (
        parse_time(incident[at]) or 0.0 for at in ("detectedAt", "decidedAt", "lastPatchAt", "lastAckAt", "deadlineAt")
    )
    assert deadline - detected == pytest.approx(trigger.deadline_seconds)
    assert detected <= decided <= patched <= acknowledged <= deadline

    requests = requested(scene)
    assert {w: (r["mode"], r.get("rewind", False)) for w, r in requests.items()} == dict.fromkeys(
        FAULTY, ("fp32", trigger.rewinds)
    )
    environment = {e["name"]: e["value"] for e in scene.pods()[LITERAL]["spec"]["containers"][0]["env"]}
    assert environment == {"ENABLE_FP16_TRAINING": "false", "PRECISION_MODE": "fp32"}

    def in_fallback() -> bool:
        alive = {pod["metadata"]["name"]: workload for workload, pod in scene.pods().items()}
        found = {alive[pod]: report for pod, report in reported(scene).items() if pod in alive}
        return found == {**{w: ("fp32", r["generation"]) for w, r in requests.items()}, LITERAL: ("fp32", 0)}

    wait_for(
        in_fallback,
        what="all to be in FP32 by Prometheus",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{requests} {reported(scene)}",
    )


def test_the_operators_own_metrics_count_each_rollback_and_time_its_stages(fleets: dict[str, Scene]) -> None:
    incidents = {name: scene.wait_phase("Held")["incident"] for name, scene in fleets.items()}
    samples = fleets["speed"].samples()
    decided = [s for s in samples if s.name == "precision_rollbacks_total"]
    of_fleets = {
        (s.labels["namespace"], s.labels["severity"], s.labels["reason"]): s.value
        for s in decided
        if s.labels["scope"] == "Fleet"
    }
    assert of_fleets == {(fleets[n].namespace, t.severity, t.reason): 1.0 for n, t in TRIGGERS.items()}

    counts, sums = (
        {s.labels["stage"]: s.value for s in samples if s.name == f"precision_rollback_stage_seconds_{what}"}
        for what in ("count", "sum")
    )
    assert counts["detected_to_decided"] == sum(s.value for s in decided)
    ends = {"detected_to_decided": ("detectedAt", "decidedAt"), "decided_to_patched": ("decidedAt", "lastPatchAt")}
    for stage, (begin, end) in {**ends, "decided_to_acknowledged": ("decidedAt", "lastAckAt")}.items():
        took = [(parse_time(i[end]) or 0.0) - (parse_time(i[begin]) or 0.0) for i in incidents.values()]
        assert counts[stage] >= len(TRIGGERS), stage
        # A workload that was rolled back by itself before the fleet was counts too.
        assert sums[stage] >= sum(took) - 0.001 * len(took), stage
