"""What a window of mitigation spares, until which moment, and on whom something can be tried in it."""

from dataclasses import replace
from typing import Any

import pytest

from lab.model.world import World
from precision_operator.api.mitigation import Mitigation, MitigationResult, Rung
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, Phase
from precision_operator.core.derive import derive_facts
from precision_operator.core.facts import Facts
from precision_operator.core.mitigation.windows import TUNINGS, promotion_waits, rungs_left, spared, tuning_of
from tests.support.fleets import promoted
from tests.support.views import key

MILD = {Signal.OVERFLOW: 0.25}


def breached(*, window: str = "10m", left: float = 300.0, **spec: object) -> Facts:
    """hot-1 overflows mildly; its window has so many seconds left."""
    world = promoted(rollback={"mitigation": {"overflow": {"window": window}}}, **spec)
    world.bad = {"hot-1": MILD}
    return with_window(world, left)


def with_window(world: World, left: float) -> Facts:
    began, until = world.now - 60.0, world.now + left
    opened = Mitigation(key("hot-1"), Signal.OVERFLOW, began, until, Rung.HALVE_SCALE, 7, rung_since=began)
    world.state = replace(world.state, mitigations=(opened,))
    return derive_facts(world.policy, world.state, world.observe(), world.now)


def breach(severity: Severity = Severity.P2) -> Failing:
    return Failing(key("hot-1"), Signal.OVERFLOW, severity, 0.0)


@pytest.mark.parametrize(
    ("window", "left", "severity", "expected"),
    [
        ("1s", 1.0, Severity.P2, True),
        ("0s", 1.0, Severity.P2, False),
        ("10m", 1.0, Severity.P1, False),
        ("10m", 0.001, Severity.P2, True),
        ("10m", 0.0, Severity.P2, False),
    ],
    ids=[
        "however short it is",
        "the policy has none any more",
        "a graver breach",
        "until its last moment",
        "it is over",
    ],
)
def test_a_window_spares_a_mild_breach_until_it_ends(
    window: str, left: float, severity: Severity, expected: bool
) -> None:
    assert spared(breached(window=window, left=left), breach(severity)) is expected


@pytest.mark.parametrize(
    ("strategy", "expected"), [("Gradual", True), ("Canary", True), ("Emergency", False), ("Hold", False)]
)
def test_a_window_comes_before_a_patient_answer_only(strategy: str, expected: bool) -> None:
    world = promoted(rollback={"strategies": {"P2": strategy}})
    assert spared(with_window(world, 300.0), breach()) is expected


@pytest.mark.parametrize(
    ("attempts", "phase", "expected"),
    [
        (0, Phase.PROGRESSING, True),
        (1, Phase.PROGRESSING, False),
        (1, Phase.PAUSED, False),
        (1, Phase.HEALTHY, True),
        (1, Phase.DEGRADED, True),
    ],
)
def test_what_returns_in_another_attempt_is_spared_only_once_that_has_come_to_its_end(
    attempts: int, phase: Phase, expected: bool
) -> None:
    facts = breached()
    facts = replace(facts, state=replace(facts.state, attempts=attempts, phase=phase))
    assert spared(facts, breach()) is expected


@pytest.mark.parametrize(
    ("fields", "asks"),
    [
        ({}, True),
        ({"result": MitigationResult.FAILED}, False),
        ({"acknowledged_at": 1.0}, False),
        ({"rung": Rung.BF16}, False),
    ],
    ids=["open", "over", "applied", "a mode is no tuning"],
)
def test_a_loss_scaler_is_asked_until_it_has_applied_what_is_tried(fields: dict[str, Any], asks: bool) -> None:
    facts = breached()
    state = replace(facts.state, mitigations=(replace(facts.state.mitigations[0], **fields),))
    facts = replace(facts, state=state)
    view = next(w for w in facts.workloads if w.name == "hot-1")
    assert tuning_of(facts, view) == ((TUNINGS[Rung.HALVE_SCALE], 7) if asks else (None, 0))


@pytest.mark.parametrize(("left", "reason"), [(0.001, "Mitigating"), (0.0, "MitigationExhausted")])
def test_what_a_promotion_waits_for_changes_in_the_moment_in_which_the_window_ends(left: float, reason: str) -> None:
    waits = promotion_waits(breached(left=left))
    assert waits is not None
    assert waits.reason == reason


def test_a_promotion_that_waits_for_several_windows_names_all_of_their_workloads() -> None:
    world = promoted(rollback={"mitigation": {"overflow": {"window": "10m"}}})
    found = with_window(world, 300.0)
    (opened,) = found.state.mitigations
    both = replace(found.state, mitigations=(opened, replace(opened, key=key("hot-2"))))
    one, waits = promotion_waits(found), promotion_waits(replace(found, state=both))
    assert one is not None
    assert waits is not None
    assert waits.message == f"{one.message} (hot-1, hot-2)"


@pytest.mark.parametrize("value", [0.25, 0.251])
def test_overflow_that_the_policy_tolerates_is_spared_after_its_window_too(value: float) -> None:
    world = promoted(rollback={"mitigation": {"overflow": {"window": "10m", "rollbackAbove": 0.25}}})
    world.bad = {"hot-1": {Signal.OVERFLOW: value}}
    assert spared(with_window(world, -1.0), breach()) is (value <= 0.25)


@pytest.mark.parametrize(
    ("name", "target", "fallback", "after", "left"),
    [
        ("hot-1", Mode.FP16, Mode.FP32, None, tuple(Rung)),
        ("hot-1", Mode.FP16, Mode.FP32, Rung.HALVE_SCALE, (Rung.GROWTH_INTERVAL, Rung.BF16)),
        ("hot-1", Mode.FP16, Mode.FP32, Rung.BF16, ()),
        ("hot-1", Mode.FP16, Mode.BF16, None, (Rung.HALVE_SCALE, Rung.GROWTH_INTERVAL)),
        ("hot-1", Mode.BF16, Mode.FP32, None, ()),
        ("literal", Mode.FP16, Mode.FP32, None, ()),
        ("gone", Mode.FP16, Mode.FP32, None, ()),
    ],
    ids=[
        "nothing was tried",
        "one was tried",
        "all were tried",
        "BF16 would be a rollback",
        "BF16 has no loss scale",
        "no request reaches it",
        "not selected",
    ],
)
def test_what_may_still_be_tried_is_what_a_running_process_with_a_loss_scale_can_do(
    name: str, target: Mode, fallback: Mode, after: Rung | None, left: tuple[Rung, ...]
) -> None:
    found = breached()
    spec = replace(found.spec, target=target, fallback=fallback)
    found = replace(found, policy=replace(found.policy, spec=spec))
    assert rungs_left(found, key(name), after) == left
