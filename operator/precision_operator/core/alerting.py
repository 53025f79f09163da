"""What people are alerted of without a rollback: P3 breaches that have stood for their time."""

from precision_operator.api.conditions import Condition
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec, Severity
from precision_operator.api.state import Failing, State
from precision_operator.core.actions import Notify
from precision_operator.core.facts import Facts
from precision_operator.core.gates import names
from precision_operator.core.triggers import REASONS

ALERTING = "Alerting"
"""Type of the condition."""

MILD = {Signal.DIVERGENCE: "LossDiverging"}
"""Reasons of P3 breaches, where they differ from those of a rollback."""


def alerts(facts: Facts) -> tuple[Failing, ...]:
    """P3 breaches that have stood for long enough, the longest first."""
    found = [
        f
        for f in facts.failing
        if f.severity is Severity.P3
        and facts.stood_seconds(f.since) >= facts.spec.criterion(f.signal).alert_after_seconds
    ]
    return tuple(sorted(found, key=lambda f: (f.since, f.signal, f.name)))


def alerting(facts: Facts) -> Condition:
    """The condition; its text names no value, so that a steady alert costs no write."""
    found = alerts(facts)
    if not found:
        return Condition(ALERTING, "False", "NothingToTell", "")
    texts = []
    for signal in dict.fromkeys(f.signal for f in found):
        level, seconds = _level(facts.spec, signal), facts.spec.criterion(signal).alert_after_seconds
        who = names([f.name for f in found if f.signal is signal and f.key]) or "workloads without data"
        texts.append(f"{signal} beyond {level:g} for {seconds:g} s or longer in {who}")
    text = f"{'; '.join(texts)}: nothing is promoted, nothing rolled back"
    return Condition(ALERTING, "True", _reason(found[0].signal), text)


def alert_events(before: State, after: State) -> tuple[Notify, ...]:
    """The Event of an alert that is new, or that speaks of others than before."""
    was, now = (next((c for c in s.conditions if c.type == ALERTING), None) for s in (before, after))
    if now is None or now.status != "True":
        return ()
    known = was is not None and (was.status, was.reason, was.message) == (now.status, now.reason, now.message)
    return () if known else (Notify(now.reason, now.message, warning=True),)


def _reason(signal: Signal) -> str:
    return MILD.get(signal, REASONS[signal])


def _level(spec: PolicySpec, signal: Signal) -> float:
    """Where the P3 tier of a signal begins."""
    criterion = spec.criterion(signal)
    return criterion.enter if criterion.severity is Severity.P3 or criterion.warn is None else criterion.warn
