"""When the sentinel changes its level: a pure state machine over sampled readings (no torch, no clock).

Rules, in the order in which they are asked:

1. Non-finite weights: rewind; within that level again, or with nothing to go back to: exit, where that is wanted. The same
   for a loss that stays non-finite in FP32.
2. Trouble at the present level, in ``patience`` windows in a row, goes to the next level that can help. A scale cannot help
   against an activation above 65504, nor can a module be pinned that nobody found, nor FP32 heal a bad batch.
3. Only a clean *dwell* at a level lets it fall, by one. It doubles with each relapse (``strikes``), up to a limit.

So the level rises by evidence and falls by back-off; the one exception is a request with a higher generation (``cleared``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..values.levels import Level, Reason
from ..values.modes import PrecisionMode
from ..values.sentinel import SentinelConfig

_FP16, _FP32 = PrecisionMode.MIXED_FP16, PrecisionMode.FP32


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One window of steps, of all ranks."""

    clock: int
    """Steps seen in all, at the window's end. Unlike the global step it never goes back, also not by a rewind."""
    mode: PrecisionMode
    """In which the whole window ran."""
    tried: int
    skipped: int = 0
    """By the scaler."""
    nonfinite: int = 0
    """Non-finite where no scaler skipped."""
    nonfinite_streak: int = 0
    """Of the last steps in a row; may be longer than the window."""
    at_floor: bool = False
    """The scale is as low as it can be."""
    forward_overflow: bool = False
    """An activation, not a gradient, was too large."""
    fp32_finite: bool | None = None
    """What a bad batch of the window gave in FP32; None: none was computed again."""
    weights_finite: bool = True
    guilty: tuple[int, ...] = ()
    """Layers that may be what overflows, likeliest first; empty if it is not known."""
    drift: bool = False
    """The loss has left the FP32 baseline (detectors.py)."""
    can_rewind: bool = False
    can_exit: bool = True
    """Whoever runs the training wants it ended where nothing helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelState:
    """What is remembered; plain values, saved with a checkpoint."""

    level: Level = Level.NOMINAL
    pins: tuple[int, ...] = ()
    since: int = 0
    """Clock at which this level began to count."""
    bad_at: int = 0
    """Clock of the last window that was not clean."""
    bad_windows: int = 0
    """In a row."""
    strikes: int = 0
    """Relapses; each doubles the dwell."""
    fell: bool = False
    """The last change was downwards: the next rise is a relapse."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of level, or (from and to equal) one more pinned module."""

    before: Level
    after: Level
    reason: Reason
    pin: int | None = None


_STUCK = 0.75
"""Share of non-finite steps from which on training hardly goes on: worth a safer mode, though nobody knows that it helps."""
SETTLE_STEPS = 4
"""Steps between a decision and its being in force on all ranks, rounded up: what they show is not judged."""


def dwell(config: SentinelConfig, state: SentinelState) -> int:
    """Clean steps until the level falls, relapses counted in."""
    return min(config.dwell_steps * (1 << min(max(state.strikes - 1, 0), 31)), config.max_dwell_steps)


def judge(config: SentinelConfig, state: SentinelState, sample: Sample) -> tuple[SentinelState, Transition | None]:
    """Take one window in.

    Returns:
        The state from now on, and the change of level to carry out, if any.
    """
    if sample.clock - sample.tried < state.since:
        return state, None  # began before the last change was in force
    trouble = _trouble(config, sample)
    if trouble is None:
        return _calm(config, state, sample)
    state = replace(state, bad_at=sample.clock, bad_windows=state.bad_windows + 1)
    catastrophe = trouble in (Reason.NONFINITE_WEIGHTS, Reason.DIVERGED_IN_FP32)
    if not catastrophe and state.bad_windows < config.patience_windows:
        return state, None
    target, pin = _target(config, state, sample, trouble)
    if target is None:
        return state, None
    after = replace(
        state,
        level=target,
        pins=state.pins if pin is None else (*state.pins, pin),
        since=sample.clock + SETTLE_STEPS,
        bad_windows=0,
        strikes=state.strikes + (state.fell or state.strikes == 0),
        fell=False,
    )
    return after, Transition(state.level, target, trouble, pin)


def _trouble(config: SentinelConfig, sample: Sample) -> Reason | None:
    """What is wrong that a level could mend; None if nothing, or if it is the data."""
    if not sample.weights_finite:
        return Reason.NONFINITE_WEIGHTS
    if sample.mode is _FP32:
        return Reason.DIVERGED_IN_FP32 if sample.nonfinite_streak >= config.diverged_steps else None
    if sample.drift:
        return Reason.LOSS_DRIFT
    if sample.fp32_finite is False:
        return None
    if sample.mode is _FP16 and sample.skipped > 1 and sample.skipped >= config.overflow_ratio * sample.tried:
        if sample.forward_overflow:
            return Reason.FORWARD_OVERFLOW
        return Reason.SCALE_AT_FLOOR if sample.at_floor else Reason.PERSISTENT_OVERFLOW
    if sample.nonfinite and sample.fp32_finite:
        return Reason.PRECISION_FAULT
    if is_unexplained(config, sample) and sample.nonfinite >= _STUCK * sample.tried:
        return Reason.NONFINITE_UNEXPLAINED
    return None


def is_unexplained(config: SentinelConfig, sample: Sample) -> bool:
    """Whether low precision had non-finite steps, more than a few, of which none was computed again.

    They are no evidence of precision: BF16 reaches as far as FP32, and what overflows in FP16 is skipped by the scaler. The
    data are likelier, such as batches with every label masked, and training goes on beside them.
    """
    many = sample.nonfinite >= max(2.0, config.overflow_ratio * sample.tried)
    return many and sample.mode is not _FP32 and sample.fp32_finite is None and sample.weights_finite


def _target(
    config: SentinelConfig, state: SentinelState, sample: Sample, trouble: Reason
) -> tuple[Level | None, int | None]:
    """The next level that can help against ``trouble``, with the layer to pin; (None, None) if there is none."""
    level = state.level
    if trouble in (Reason.NONFINITE_WEIGHTS, Reason.DIVERGED_IN_FP32):
        if sample.can_rewind and level < Level.REWIND:
            return Level.REWIND, None
        # Without a checkpoint, finite weights get the time that --diverged-after gives them.
        hopeless = trouble is Reason.NONFINITE_WEIGHTS or sample.can_rewind
        return (Level.EXIT, None) if hopeless and sample.can_exit and level < Level.EXIT else (None, None)
    if sample.mode is _FP16 and trouble is not Reason.LOSS_DRIFT:
        if trouble is Reason.PERSISTENT_OVERFLOW and level < Level.LOWER_SCALE:
            return Level.LOWER_SCALE, None
        pin = _pinnable(config, state, sample)
        if pin is not None and level <= Level.PIN:
            return Level.PIN, pin
        if config.bf16_available and level < Level.BF16:
            return Level.BF16, None
    return (Level.FP32, None) if level < Level.FP32 else (None, None)


def _pinnable(config: SentinelConfig, state: SentinelState, sample: Sample) -> int | None:
    if len(state.pins) >= config.max_pins:
        return None
    return next((index for index in sample.guilty if index not in state.pins), None)


def _calm(config: SentinelConfig, state: SentinelState, sample: Sample) -> tuple[SentinelState, Transition | None]:
    """A window without trouble: count it, and fall by one level after a clean dwell."""
    clean = sample.nonfinite == 0 and sample.skipped <= 1
    state = replace(state, bad_windows=0, bad_at=state.bad_at if clean else sample.clock)
    quiet = sample.clock - max(state.since, state.bad_at)
    if state.level is Level.NOMINAL:
        if state.strikes and quiet >= config.max_dwell_steps:
            state = replace(state, strikes=0, fell=False)
        return state, None
    if not clean or quiet < dwell(config, state):
        return state, None
    after = _below(config, state)
    pins = state.pins if after >= Level.PIN else ()
    fallen = replace(state, level=after, pins=pins, since=sample.clock + SETTLE_STEPS, fell=True)
    return fallen, Transition(state.level, after, Reason.RECOVERED)


def _below(config: SentinelConfig, state: SentinelState) -> Level:
    """The level under the present one that means something here."""
    level = Level(state.level - 1)
    if level is Level.BF16 and not config.bf16_available:
        level = Level.PIN
    return Level.LOWER_SCALE if level is Level.PIN and not state.pins else level


def cleared(state: SentinelState, clock: int) -> tuple[SentinelState, Transition | None]:
    """A request with a higher generation was applied: whoever wrote it had seen the level, and wants the mode.

    The back-off stays: if the trouble comes back, it was a relapse.
    """
    if state.level is Level.NOMINAL:
        return state, None
    after = replace(state, level=Level.NOMINAL, pins=(), since=clock + SETTLE_STEPS, bad_windows=0, fell=True)
    return after, Transition(state.level, Level.NOMINAL, Reason.REQUESTED)
