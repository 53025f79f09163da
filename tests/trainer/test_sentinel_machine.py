"""The sentinel's pure core: when a level rises, when it falls, and what it never does."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_trainer.errors import ConfigError
from precision_trainer.sentinel.machine import Sample, SentinelState, Transition, cleared, dwell, is_unexplained, judge
from precision_trainer.values.levels import Level, Reason, safer
from precision_trainer.values.modes import PrecisionMode
from precision_trainer.values.sentinel import SentinelConfig

FP32, BF16, FP16 = PrecisionMode.FP32, PrecisionMode.MIXED_BF16, PrecisionMode.MIXED_FP16
WINDOW = 16
CONFIG = SentinelConfig(window_steps=WINDOW, dwell_steps=64, max_dwell_steps=512, max_pins=2)


def sample(clock: int, mode: PrecisionMode = FP16, **what: Any) -> Sample:  # noqa: ANN401 - fields of it
    return Sample(clock=clock, mode=mode, tried=WINDOW, **what)


class Run:
    """Windows one after the other, each in the mode that the level allows, as the trainer runs them."""

    def __init__(self, config: SentinelConfig = CONFIG, requested: PrecisionMode = FP16) -> None:
        self.config, self.requested = config, requested
        self.state, self.clock = SentinelState(), 0
        self.seen: list[tuple[int, Transition]] = []

    def window(self, **what: object) -> Transition | None:
        self.clock += WINDOW
        mode = safer(self.requested, self.state.level.cap)
        self.state, transition = judge(self.config, self.state, sample(self.clock, mode, **what))
        if transition is not None:
            self.seen.append((self.clock, transition))
        return transition

    def until(self, limit: int = 100, /, **what: object) -> Transition:
        for _ in range(limit):
            transition = self.window(**what)
            if transition is not None:
                return transition
        raise AssertionError(f"nothing in {limit} windows")


_WINDOWS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "skipped": st.integers(0, WINDOW),
            "nonfinite": st.integers(0, WINDOW),
            "nonfinite_streak": st.sampled_from([0, 3, 60]),
            "at_floor": st.booleans(),
            "forward_overflow": st.booleans(),
            "fp32_finite": st.sampled_from([None, True, False]),
            "weights_finite": st.sampled_from([True, True, True, False]),
            "guilty": st.sampled_from([(), (1, 2), (3,)]),
            "drift": st.booleans(),
            "can_rewind": st.booleans(),
            "can_exit": st.booleans(),
        },
    ),
    max_size=60,
)
_CALM = st.integers(0, 40)


@st.composite
def _stories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Trouble and calm in turns."""
    story: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 5))):
        story += draw(_WINDOWS)
        story += [{}] * draw(_CALM)
    return story


@settings(max_examples=150, deadline=None)
@given(story=_stories(), bf16=st.booleans(), requested=st.sampled_from([FP16, BF16, FP32]))
def test_the_level_falls_by_one_after_a_clean_dwell_and_never_swings_faster(
    story: list[dict[str, Any]], bf16: bool, requested: PrecisionMode
) -> None:
    config = SentinelConfig(window_steps=WINDOW, dwell_steps=64, max_dwell_steps=512, bf16_available=bf16)
    run = Run(config, requested)
    last_dirty = 0
    for what in story:
        before, strikes = run.state.level, dwell(config, run.state)
        transition = run.window(**what)
        if transition is not None and transition.after < transition.before:
            assert transition.reason is Reason.RECOVERED
            assert run.clock - last_dirty >= strikes
            # One level at a time, those left out that mean nothing here.
            between = {Level(n) for n in range(transition.after + 1, before)}
            assert between <= {Level.BF16, Level.PIN}
        elif transition is not None:
            assert transition.after > transition.before or transition.pin is not None
        if what.get("skipped", 0) > 1 or what.get("nonfinite") or transition is not None:
            last_dirty = run.clock
    for (first, down), (second, up) in pairwise(run.seen):
        # Down after up: a whole dwell lies between them.
        if down.after > down.before and up.after < up.before:
            assert second - first >= config.dwell_steps


@settings(max_examples=150, deadline=None)
@given(story=_stories())
def test_it_only_ever_goes_towards_the_safe_side_of_a_request(story: list[dict[str, Any]]) -> None:
    for requested in (FP32, BF16, FP16):
        run = Run(requested=requested)
        for what in story:
            run.window(**what)
            assert safer(requested, run.state.level.cap).code <= requested.code


@given(level=st.sampled_from(list(Level)[:5]), mode=st.sampled_from([FP32, BF16, FP16]), skipped=st.integers(0, 16))
def test_non_finite_weights_rewind_at_once_from_every_level(level: Level, mode: PrecisionMode, skipped: int) -> None:
    state = SentinelState(level=level)
    after, transition = judge(
        CONFIG, state, sample(WINDOW, mode, weights_finite=False, can_rewind=True, skipped=skipped)
    )
    assert transition == Transition(level, Level.REWIND, Reason.NONFINITE_WEIGHTS)
    assert after.level.cap is FP32


def test_weights_still_not_finite_after_a_rewind_or_without_a_checkpoint_end_the_process() -> None:
    run = Run()
    assert run.until(1, weights_finite=False, can_rewind=True).after is Level.REWIND
    assert run.window(weights_finite=False, can_rewind=True) is None  # not in force yet
    assert run.until(1, weights_finite=False, can_rewind=True).after is Level.EXIT
    assert Run().until(1, weights_finite=False).after is Level.EXIT


def test_nothing_ends_the_process_where_nobody_asked_for_that() -> None:
    run = Run()
    assert run.window(weights_finite=False, can_exit=False) is None
    assert run.until(1, weights_finite=False, can_rewind=True, can_exit=False).after is Level.REWIND
    for _ in range(4):
        assert run.window(weights_finite=False, can_rewind=True, can_exit=False) is None


def test_a_loss_that_stays_non_finite_in_fp32_rewinds_but_is_left_alone_without_a_checkpoint() -> None:
    bad = {"nonfinite": WINDOW, "nonfinite_streak": CONFIG.diverged_steps, "fp32_finite": False}
    assert Run(requested=FP32).until(1, can_rewind=True, **bad).after is Level.REWIND
    assert Run(requested=FP32).window(**bad) is None


def test_persistent_overflow_climbs_scale_module_bf16_fp32() -> None:
    run = Run()
    overflow = {"skipped": 4, "guilty": (5, 6)}
    climbed = [run.until(**overflow) for _ in range(4)]
    assert [(step.after, step.pin) for step in climbed] == [
        (Level.LOWER_SCALE, None),
        (Level.PIN, 5),
        (Level.PIN, 6),
        (Level.BF16, None),
    ]
    assert run.until(nonfinite=1, fp32_finite=True).after is Level.FP32
    assert run.seen[-1][1].reason is Reason.PRECISION_FAULT


@pytest.mark.parametrize(
    ("what", "level", "reason"),
    [
        ({"skipped": 8, "forward_overflow": True, "guilty": (2,)}, Level.PIN, Reason.FORWARD_OVERFLOW),
        ({"skipped": 8, "forward_overflow": True}, Level.BF16, Reason.FORWARD_OVERFLOW),
        ({"skipped": 8, "at_floor": True}, Level.BF16, Reason.SCALE_AT_FLOOR),
        ({"drift": True}, Level.FP32, Reason.LOSS_DRIFT),
    ],
)
def test_levels_that_cannot_help_are_left_out(what: dict[str, object], level: Level, reason: Reason) -> None:
    assert Run().until(**what) == Transition(Level.NOMINAL, level, reason, 2 if level is Level.PIN else None)


def test_without_bf16_fp16_falls_back_to_fp32_and_comes_back_without_it() -> None:
    run = Run(SentinelConfig(window_steps=WINDOW, dwell_steps=64, bf16_available=False))
    assert run.until(skipped=8, at_floor=True).after is Level.FP32
    assert [run.until().after for _ in range(2)] == [Level.LOWER_SCALE, Level.NOMINAL]


@pytest.mark.parametrize("what", [{"skipped": 8}, {"nonfinite": 8}])
def test_a_batch_that_is_bad_in_fp32_too_changes_nothing(what: dict[str, object]) -> None:
    run = Run(requested=FP16 if "skipped" in what else BF16)
    for _ in range(20):
        assert run.window(fp32_finite=False, **what) is None


@pytest.mark.parametrize("mode", [BF16, FP16])
def test_non_finite_steps_that_nobody_computed_again_leave_a_mode_only_where_hardly_any_other_is_left(
    mode: PrecisionMode,
) -> None:
    run = Run(requested=mode)
    for _ in range(20):
        assert run.window(nonfinite=WINDOW // 2) is None
        assert is_unexplained(CONFIG, sample(WINDOW, mode, nonfinite=WINDOW // 2))
    assert run.until(CONFIG.patience_windows, nonfinite=WINDOW).reason is Reason.NONFINITE_UNEXPLAINED
    assert run.state.level is (Level.BF16 if mode is FP16 else Level.FP32)


@pytest.mark.parametrize(
    "what", [{"nonfinite": 1}, {"nonfinite": 8, "fp32_finite": False}, {"nonfinite": 8, "weights_finite": False}]
)
def test_one_non_finite_step_and_those_of_a_known_cause_are_explained(what: dict[str, object]) -> None:
    assert not is_unexplained(CONFIG, sample(WINDOW, BF16, **what))
    assert not is_unexplained(CONFIG, sample(WINDOW, FP32, nonfinite=8))


def test_one_bad_window_is_not_yet_trouble() -> None:
    run = Run()
    for number in range(40):
        assert run.window(skipped=10 if number % 2 else 0) is None


def test_each_relapse_doubles_the_dwell_up_to_its_limit() -> None:
    run = Run()
    waits = []
    for _ in range(6):
        run.until(skipped=8, at_floor=True)
        at = run.clock
        assert run.until().after < Level.BF16
        waits.append(run.clock - at)
        run.until()
    assert waits == sorted(waits)
    assert waits[1] >= 2 * CONFIG.dwell_steps
    assert waits[-1] <= CONFIG.max_dwell_steps + 2 * WINDOW


def test_a_request_clears_the_level_and_keeps_the_back_off() -> None:
    run = Run()
    run.until(skipped=8, at_floor=True)
    run.state, transition = cleared(run.state, run.clock)
    assert transition == Transition(Level.BF16, Level.NOMINAL, Reason.REQUESTED)
    run.until(skipped=8, at_floor=True)
    assert run.state.strikes == 2
    assert cleared(SentinelState(), 5) == (SentinelState(), None)


def test_what_a_window_shows_that_began_before_the_change_is_not_judged() -> None:
    state = SentinelState(level=Level.LOWER_SCALE, since=100)
    assert judge(CONFIG, state, sample(110, skipped=16)) == (state, None)


@pytest.mark.parametrize("field", ["window_steps", "patience_windows", "overflow_ratio", "dwell_steps", "probe_steps"])
def test_wrong_settings_are_refused_with_their_range(field: str) -> None:
    wrong: dict[str, Any] = {field: 0}
    with pytest.raises(ConfigError, match=f"{field}=0: expected a number in"):
        SentinelConfig(**wrong)
