"""A mild overflow and slow training on a real API server with real Prometheus data: what is tried, and for how long,
before a mild breach is rolled back. Time is short by the policies' own settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.waiting import wait_for
from precision_operator.api.mitigation import Mitigation, MitigationResult, Rung
from precision_operator.api.signals import Signal
from precision_operator.api.wire import parse_time
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import HOT, NO_SPEED, PATIENCE_SECONDS, Scene
from tests.support.shadow_trainers import Fault
from tests.support.side_by_side import requested, side_by_side

FAULTY = HOT[:2]
MILD, SEVERE, SLOW = Fault(overflow=0.25), Fault(overflow=0.6), Fault(speed=0.5)
ROLLBACK: Json = {
    "gradual": {"sustain": "6s", "inFlight": "3s"},
    "mitigation": {"overflow": {"window": "2m", "dwell": "10s"}, "speed": {"window": "15s"}},
}
SPEC: Json = {"rollback": ROLLBACK, "strategy": {"steps": [{"setWeight": 100}]}}
POLICIES: dict[str, Json] = {
    "halved": {**SPEC, "criteria": NO_SPEED},
    "lifted": {**SPEC, "criteria": NO_SPEED},
    "helpless": {**SPEC, "criteria": NO_SPEED},
    "risen": {**SPEC, "criteria": NO_SPEED},
    "slow": SPEC,
    "recovered": {
        **SPEC,
        "rollback": {**ROLLBACK, "mitigation": {"speed": {"window": "60s"}}},  # it has to be seen and healed in time
    },
}
UNAIDED = {"helpless": MILD, "slow": SLOW}
"""Faults that nobody does anything about: they begin at once, and are waited for last."""


@pytest.fixture(scope="module")
def fleets(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Scene]]:
    """A promoted fleet for each story."""
    directory = tmp_path_factory.mktemp("mitigation")
    with side_by_side(control_plane, directory, POLICIES, operator=operator_kubeconfig, hot=len(HOT)) as scenes:
        for name, scene in scenes.items():
            scene.apply(policy(**POLICIES[name]))
        for name, scene in scenes.items():
            scene.wait_phase("Healthy")
            scene.shadow.faults = dict.fromkeys(FAULTY, UNAIDED[name]) if name in UNAIDED else {}
        yield scenes


def windows(
    scene: Scene, condition: Callable[[Mitigation], bool], *, what: str, seconds: float = PATIENCE_SECONDS
) -> tuple[Mitigation, ...]:
    """Wait until the windows of all faulty workloads meet a condition; returns them."""

    def probe() -> tuple[Mitigation, ...] | None:
        found = scene.state().mitigations
        return found if [m.name for m in found] == FAULTY and all(map(condition, found)) else None

    return wait_for(probe, what=what, seconds=seconds, found=lambda: f"{scene.status()}\n{scene.operators.logs()}")


def heal_once_requested(scene: Scene, condition: Callable[[Json], bool], *, what: str) -> None:
    """The trainers do well from when their requests meet a condition."""
    wait_for(
        lambda: all(condition(requested(scene).get(name, {})) for name in FAULTY),
        what=what,
        seconds=PATIENCE_SECONDS,
        found=lambda: str(scene.status()),
    )
    scene.shadow.faults = {}


def events(scene: Scene) -> dict[str, str]:
    """Reason → message of the Events."""
    items = scene.kubectl.json("get", "events", "-n", scene.namespace)["items"]
    return {event["reason"]: event["message"] for event in items}


def mitigated(window: Mitigation) -> bool:
    return window.result is MitigationResult.MITIGATED


def test_overflow_that_halving_the_loss_scale_ends_is_not_rolled_back(fleets: dict[str, Scene]) -> None:
    scene = fleets["halved"]
    scene.shadow.faults = dict.fromkeys(FAULTY, MILD)
    heal_once_requested(
        scene, lambda request: request.get("lossScaleFactor") == 0.5, what="the loss scale to be halved"
    )
    assert "HalveScale" in scene.condition("Progressing", "Mitigating")["message"]
    found = windows(scene, mitigated, what="mitigated")
    assert {m.rung for m in found} == {Rung.HALVE_SCALE}
    status = scene.status()
    assert status["phase"] == "Healthy"
    assert "incident" not in status
    assert {name for name, request in requested(scene).items() if "lossScaleFactor" in request} == set(FAULTY)
    scene.condition("Progressing", "Promoted")
    assert {"Mitigating", "Mitigated"} <= set(events(scene))

    def kept() -> bool:
        reports = [item["report"] for item in scene.kubectl.json("get", "pinc", "-n", scene.namespace)["items"]]
        return [(r["phase"], r["reason"], r["workloads"]) for r in reports] == [("Closed", "OverflowRateHigh", FAULTY)]

    wait_for(kept, what="a closed incident", seconds=PATIENCE_SECONDS, found=scene.operators.logs)


def test_overflow_that_only_bf16_ends_leaves_its_workloads_there_without_a_restart(fleets: dict[str, Scene]) -> None:
    scene = fleets["lifted"]
    templates, revisions = scene.templates(), scene.revisions()
    scene.shadow.faults = dict.fromkeys(FAULTY, MILD)
    heal_once_requested(scene, lambda request: request.get("mode") == "bf16", what="bf16")
    found = windows(scene, mitigated, what="mitigated")
    assert [[tried.split(":")[0] for tried in m.found] for m in found] == [["HalveScale", "GrowthInterval"]] * 2
    assert scene.in_mode("bf16") == set(FAULTY)
    # New pods start in it too, and no template says so.
    assigned = scene.assignment()["modes"]
    assert {assigned[f"apps/Deployment/{name}"] for name in FAULTY} == {"bf16"}
    assert (scene.templates(), scene.revisions()) == (templates, revisions)


def test_overflow_that_rises_within_the_window_is_an_emergency(fleets: dict[str, Scene]) -> None:
    scene = fleets["risen"]
    scene.shadow.faults = dict.fromkeys(FAULTY, MILD)
    windows(scene, lambda window: window.open, what="open windows")
    scene.shadow.faults = dict.fromkeys(FAULTY, SEVERE)
    incident = scene.wait_phase("Held")["incident"]
    assert (incident["severity"], incident["strategy"]) == ("P1", "Emergency")
    windows(scene, lambda window: window.result is MitigationResult.FAILED, what="failed windows")


def test_slow_training_that_recovers_while_it_is_investigated_is_left_alone(fleets: dict[str, Scene]) -> None:
    scene = fleets["recovered"]
    scene.shadow.faults = dict.fromkeys(FAULTY, SLOW)
    windows(scene, lambda _: True, what="open windows")
    scene.shadow.faults = {}
    found = windows(scene, mitigated, what="mitigated")
    assert {(m.signal, m.rung) for m in found} == {(Signal.SPEED, None)}
    assert scene.status()["phase"] == "Healthy"


def test_overflow_that_nothing_ends_is_rolled_back_gradually_after_the_ladder(fleets: dict[str, Scene]) -> None:
    scene = fleets["helpless"]
    status = scene.wait_phase("Held", seconds=120)
    incident, found = status["incident"], scene.state().mitigations
    assert (incident["severity"], incident["strategy"], incident["reason"]) == ("P2", "Gradual", "OverflowRateHigh")
    for window in found:
        assert [tried.split(":")[0] for tried in window.found] == ["HalveScale", "GrowthInterval", "BF16"]
        assert window.result is MitigationResult.FAILED
    detected, deadline = (parse_time(incident[at]) or 0.0 for at in ("detectedAt", "deadlineAt"))
    assert detected in [window.until for window in found]
    assert deadline - detected == pytest.approx(1800)


def test_slow_training_may_be_investigated_and_is_then_rolled_back_gradually(fleets: dict[str, Scene]) -> None:
    scene = fleets["slow"]
    status = scene.wait_phase("Held", seconds=120)
    incident, found = status["incident"], scene.state().mitigations
    assert (incident["severity"], incident["strategy"], incident["reason"]) == ("P2", "Gradual", "TrainingSlow")
    for window in found:
        assert window.until - window.since == pytest.approx(15.0)
    checks = events(scene)["InvestigationChecks"]
    assert all(f"{check}: unknown" in checks for check in ("batch", "tensor cores", "CPU")), checks
    assert (parse_time(incident["decidedAt"]) or 0.0) >= min(window.until for window in found)
