"""What people are alerted of without a rollback: P3 breaches that have stood for their time."""

from collections.abc import Iterable

from precision_operator.api.conditions import Condition, if_true
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec, Severity
from precision_operator.api.state import Failing, Phase, State
from precision_operator.api.text import names
from precision_operator.core.actions import Notify
from precision_operator.core.evidence.assessment import Assessment
from precision_operator.core.evidence.readings import Breach, Ok
from precision_operator.core.facts import Facts
from precision_operator.reasons import Reason

ALERTING = "Alerting"
"""Type of the condition."""

SPEEDUP_LOW = Reason.SPEEDUP_LOW
"""Type of the condition, and its reason."""

_LEAVE_SHARE = 1.1
"""Of what is expected: so much it must be before the condition ends (hysteresis)."""


def alerts(facts: Facts) -> tuple[Failing, ...]:
    """P3 breaches that have stood for long enough, the longest first."""
    found = [f for f in facts.failing if f.severity is Severity.P3 and _alerted_seconds(facts, f) >= 0]
    return tuple(sorted(found, key=lambda f: (f.since, f.signal, f.name)))


def _alerted_seconds(facts: Facts, failing: Failing) -> float:
    """How long people have been alerted of it."""
    return facts.stood_seconds(failing.since) - facts.spec.criterion(failing.signal).alert_after_seconds


def alerting(facts: Facts) -> Condition:
    """The condition; the reason is of the newest alert. Its text names no value, so that a steady one costs no write."""
    found = alerts(facts)
    if not found:
        return Condition(ALERTING, "False", Reason.NOTHING_TO_TELL, "")
    texts = []
    for signal in dict.fromkeys(f.signal for f in found):
        level, seconds = _level(facts.spec, signal), facts.spec.criterion(signal).alert_after_seconds
        who = names([f.name for f in found if f.signal is signal and f.key]) or "workloads without data"
        texts.append(f"{signal} beyond {level:g} for {seconds:g} s or longer in {who}")
    text = f"{'; '.join(texts)}: nothing is promoted, nothing rolled back"
    newest = min(found, key=lambda f: _alerted_seconds(facts, f))
    return Condition(ALERTING, "True", _reason(newest.signal), text)


def expected_speed(spec: PolicySpec, state: State) -> float:
    """Below what a gain on CUDA is told of, after what was told before."""
    stands = if_true(state.conditions, SPEEDUP_LOW) is not None
    return spec.criterion(Signal.SPEED).expected * (_LEAVE_SHARE if stands else 1.0)


def speedup(facts: Facts, state: State) -> Condition:
    """Less is gained than can be expected on CUDA: told, and no breach. Of what is rolled back it says nothing."""
    criterion, least = facts.spec.criterion(Signal.SPEED), expected_speed(facts.spec, facts.state)
    moved = state.phase not in (Phase.PENDING, Phase.ROLLING_BACK, Phase.HELD)
    slow = [v.workload.name for v in facts.verdicts if moved and _gains_little(facts, v, least)]
    if not slow:
        return Condition(SPEEDUP_LOW, "False", Reason.NOTHING_TO_TELL, "")
    text = (
        f"less than {criterion.expected:g} times FP32's speed on CUDA in {names(slow)}: see whether tensor cores are used; "
        "sizes and batches are best multiples of 8"
    )
    return Condition(SPEEDUP_LOW, "True", SPEEDUP_LOW, text)


def _gains_little(facts: Facts, verdict: Assessment, least: float) -> bool:
    reading = verdict.readings.get(Signal.SPEED)
    if not isinstance(reading, Ok | Breach) or not reading.value < least:
        return False
    seen = (facts.signals.get(pod.name) for pod in verdict.workload.pods)
    return any(s is not None and s.runs_on is not None and s.runs_on.device == "cuda" for s in seen)


def told(before: State, found: Iterable[Condition]) -> tuple[Notify, ...]:
    """The Event of a small gain, once, when it is first seen."""
    now, was = (if_true(conditions, SPEEDUP_LOW) for conditions in (found, before.conditions))
    return (Notify(SPEEDUP_LOW, now.message),) if now is not None and was is None else ()


def alert_events(before: State, after: State) -> tuple[Notify, ...]:
    """The Event of an alert that is new, or that speaks of others than before."""
    was, now = (if_true(state.conditions, ALERTING) for state in (before, after))
    if now is None or (reason := Reason.known(now.reason)) is None:
        return ()
    known = was is not None and (was.reason, was.message) == (now.reason, now.message)
    return () if known else (Notify(reason, now.message),)


def _reason(signal: Signal) -> Reason:
    record = SIGNALS[signal]
    return record.alert or record.reason


def _level(spec: PolicySpec, signal: Signal) -> float:
    """Where the P3 tier of a signal begins."""
    criterion = spec.criterion(signal)
    return criterion.warn if criterion.warn is not None and criterion.warn_severity is Severity.P3 else criterion.enter
