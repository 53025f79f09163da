"""The windows of ``state.mitigations``: what they spare, what they ask for, and what may still be tried."""

from precision_operator.api.mitigation import Mitigation, Rung
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Failing, Phase
from precision_operator.api.text import names
from precision_operator.api.wire import format_time
from precision_operator.core.actions import Tuning
from precision_operator.core.evidence.readings import Breach, Reading, Unknown
from precision_operator.core.facts import Facts
from precision_operator.core.model import WorkloadView
from precision_operator.reasons import Cause, Reason

TUNINGS = {Rung.HALVE_SCALE: Tuning(loss_scale_factor=0.5), Rung.GROWTH_INTERVAL: Tuning(growth_interval=4000)}
"""What the rungs ask of the loss scaler; a growth interval of 2000 is PyTorch's default."""

_PATIENT = (Strategy.GRADUAL, Strategy.CANARY)
"""Answers that a window may come before: who asked for an emergency, or for none, gets no window."""


def reading_of(facts: Facts, key: str, signal: Signal) -> Reading:
    """What the signal reads now; Unknown where the workload is not judged."""
    verdict = facts.verdict_of.get(key)
    return (
        verdict.readings.get(signal, Unknown(Reason.NOT_JUDGED)) if verdict is not None else Unknown(Reason.NOT_JUDGED)
    )


def spared(facts: Facts, failing: Failing) -> bool:
    """A mild breach that calls for no rollback: its window is open, or ended with little enough overflow."""
    window = facts.windows.get((failing.key, failing.signal))
    if window is None or not window.open or window_seconds(facts, failing) <= 0:
        return False
    return facts.now < window.until or _tolerated(facts, window)


def _tolerated(facts: Facts, window: Mitigation) -> bool:
    reading = reading_of(facts, window.key, window.signal)
    limit = facts.spec.rollback.mitigation.rollback_above
    return window.signal is Signal.OVERFLOW and isinstance(reading, Breach) and reading.value <= limit


def window_seconds(facts: Facts, failing: Failing) -> float:
    """How long a breach may be mitigated; 0: it is answered at once."""
    rollback, state = facts.spec.rollback, facts.state
    again = state.attempts > 0 and state.phase in (Phase.PROGRESSING, Phase.PAUSED)
    # In another attempt the fault is known: what returns is rolled back.
    if again or failing.severity is not Severity.P2 or rollback.strategies[Severity.P2] not in _PATIENT:
        return 0.0
    return length_seconds(facts, failing.signal)


def length_seconds(facts: Facts, signal: Signal) -> float:
    """How long the policy makes a window of this signal."""
    rules = facts.spec.rollback.mitigation
    windows = {Signal.OVERFLOW: rules.overflow_window_seconds, Signal.SPEED: rules.speed_window_seconds}
    return windows.get(signal, 0.0)


def rungs_left(facts: Facts, key: str, after: Rung | None) -> tuple[Rung, ...]:
    """What may still be tried on a workload: nothing where a request does not reach it, or no loss scale runs."""
    if key not in facts.fleet.hot_members or facts.spec.target is not Mode.FP16:
        return ()
    # To the fallback goes a rollback, never a mitigation.
    ladder = [
        r for r in facts.spec.rollback.mitigation.ladder if r is not Rung.BF16 or facts.spec.fallback is Mode.FP32
    ]
    order = list(Rung)
    return tuple(r for r in ladder if after is None or order.index(r) > order.index(after))


def tuning_of(facts: Facts, workload: WorkloadView) -> tuple[Tuning | None, int]:
    """What is asked of a member's loss scaler and in which generation; nothing once its processes have applied it.

    Not again of a pod that comes later: the tuning is part of the checkpoint that it resumes from.
    """
    window = facts.windows.get((workload.key, Signal.OVERFLOW))  # the ladder is overflow's
    if window is not None and window.open and window.acknowledged_at is None and window.rung in TUNINGS:
        return TUNINGS[window.rung], window.generation
    return None, 0


def promotion_waits(facts: Facts) -> Cause | None:
    """Nothing is promoted while a window is open; the message has times that stand still."""
    windows = [m for m in facts.state.mitigations if m.open]
    if not windows:
        return None
    first = min(windows, key=lambda m: (m.until, m.name))
    over = facts.now >= first.until
    until = format_time(first.until)
    if over:
        text = f"the window of {first.name} is over; a breach of {first.signal} that is rolled back was not seen since"
        return Cause(Reason.MITIGATION_EXHAUSTED, f"{text}: it waits for good data, or for a person (rollback)")
    same = names([m.name for m in windows])
    if first.rung is None:
        text = f"{same}: slow training may be investigated until {until}, then it is rolled back"
        return Cause(Reason.INVESTIGATING, text)
    rung = f"{first.rung} in {first.name} since {format_time(first.rung_since)}"
    dwell = facts.spec.rollback.mitigation.dwell_seconds
    text = f"{rung}: {first.signal} must be good for {dwell:g} s by {until}, else it is rolled back"
    return Cause(Reason.MITIGATING, text if len(windows) == 1 else f"{text} ({same})")
