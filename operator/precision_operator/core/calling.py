"""What calls for a person: found in a state, whatever was told of it before."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from precision_operator.api.conditions import Condition, condition_of
from precision_operator.api.drill import DrillResult
from precision_operator.api.incident import Incident, predicted_late_seconds
from precision_operator.api.messages import MessageKind
from precision_operator.api.mitigation import Mitigation, MitigationResult
from precision_operator.api.state import Phase, State
from precision_operator.api.text import bounded
from precision_operator.core.rollback.comparing import HELD_FOR
from precision_operator.core.rollback.drill import due, passed_at
from precision_operator.reasons import Reason

SETTLE_SECONDS: Final = 300.0
"""How long a condition must be bad news, for what may pass by itself."""
STEP_SECONDS: Final = 3600.0
"""How long a step must take before people are told of a promotion check that may yet pass by itself."""
NO_DATA_SECONDS: Final = 900.0
RECENT_SECONDS: Final = 3600.0
"""What ended longer ago is no news any more."""
DRILL_SECONDS: Final = 7 * 86400.0

_ATTENTION = {
    "Accepted": "False",
    "AdmissionEnforced": "False",
    "FailSafe": "False",
    "WritesAccepted": "False",
    "InjectionRefused": "True",
    "KindsSupported": "False",
    "Alerting": "True",
    "SpeedupLow": "True",
    "PendingRevision": "True",
    "CapacityLost": "True",
}
"""Condition → the status in which it is bad news; the others have a kind of their own."""
_IN_PART = ("Accepted", "AdmissionEnforced")
"""Those of them that are bad news in any status of which the reason asks a person to look."""
_WAITED_FOR = ("PendingRevision", "CapacityLost", "WritesAccepted")
"""Those of them that keep a rollback from its end: told of at once while there is one."""


@dataclass(frozen=True, slots=True)
class Call:
    """Something that a person should know of, or decide."""

    kind: MessageKind
    occasion: str
    """Which time it is: steady while it stands, another when it comes again."""
    since: float
    """Since when it stands; seconds since the epoch."""
    reason: str
    condition: str = ""
    """The type of the condition that says so, if one does."""

    @property
    def topic(self) -> str:
        """What is told once in a while, however often it comes and goes."""
        return f"{self.kind}/{self.condition}" if self.kind in _BY_CONDITION else str(self.kind)


ONCE_A_STEP: Final = (MessageKind.APPROVAL_WANTED, MessageKind.ROLLOUT_HELD)
"""What comes and goes with the evidence of a step, and is not told of again in it."""

_BY_CONDITION = (MessageKind.ATTENTION, MessageKind.ROLLBACK_WAITING, MessageKind.WORKLOAD_BLOCKED)


def calls(state: State, now: float) -> tuple[Call, ...]:
    """All that stands now, each once, in the order of the table."""
    return tuple(call for find in _TABLE for call in find(state, now))


def _occasion(since: float, *words: object) -> str:
    return bounded("-".join([f"{since:.0f}", *map(str, words)]), 64)


def transition(state: State) -> str:
    """The occasion of what is told of once a transition, or the beginning of it."""
    return f"transition-{state.transition_id}"


def _waits_for(state: State) -> Reason | None:
    found = condition_of(state.conditions, "Progressing")
    return Reason.known(found.reason) if found is not None else None


def _standing(state: State, kind: str, status: str) -> Condition | None:
    found = condition_of(state.conditions, kind)
    return found if found is not None and found.status == status else None


def _by_condition(kind: MessageKind, condition: Condition) -> Call:
    since = condition.last_transition_time
    # Another reason is other news, though the condition has stood all the time.
    return Call(kind, _occasion(since, condition.reason), since, condition.reason, condition.type)


def _since(state: State, now: float) -> float:
    """Since when the phase stands."""
    return state.phase_since if state.phase_since is not None else now


def _awaited(state: State) -> Incident | None:
    """The incident whose trainers are on their way to the fallback, and have not all acknowledged it."""
    incident = state.incident
    return incident if incident is not None and incident.last_ack_at is None and state.returning else None


def _rollback_waiting(state: State, now: float) -> Iterable[Call]:
    statuses = ((kind, _ATTENTION[kind]) for kind in _WAITED_FOR)
    found = (_standing(state, kind, status) for kind, status in statuses) if state.phase is Phase.ROLLING_BACK else ()
    return (_by_condition(MessageKind.ROLLBACK_WAITING, condition) for condition in found if condition is not None)


def _deadline(state: State, now: float) -> Iterable[Call]:
    """Missed, or predicted to be; no deadline is about pods that nothing here can end, and a canary has a limit instead."""
    incident = _awaited(state)
    if incident is None:
        return
    missed = not state.by_canary and now > incident.deadline_at
    if missed and _waits_for(state) is not Reason.BLOCKED:
        since = incident.deadline_at
        yield Call(MessageKind.DEADLINE_MISSED, _occasion(since), since, Reason.DEADLINE_EXCEEDED)
    elif predicted_late_seconds(incident) > 0:
        since = incident.expedited_at or incident.decided_at
        yield Call(MessageKind.DEADLINE_AT_RISK, _occasion(since), since, Reason.DEADLINE_UNREACHABLE)


def _unresponsive(state: State, now: float) -> Iterable[Call]:
    incident = _awaited(state)
    if incident is not None and incident.escalated:
        since = incident.decided_at
        yield Call(MessageKind.UNRESPONSIVE, _occasion(since), since, Reason.ROLLBACK_ESCALATED)


def _blocked(state: State, now: float) -> Iterable[Call]:
    found = (_standing(state, kind, "True") for kind in ("Blocked", "Stuck"))
    return (_by_condition(MessageKind.WORKLOAD_BLOCKED, condition) for condition in found if condition is not None)


def _weights(state: State, now: float) -> Iterable[Call]:
    found = _standing(state, "WeightsSuspect", "True")
    return (_by_condition(MessageKind.WEIGHTS_SUSPECT, found),) if found is not None else ()


def _canary_held(state: State, now: float) -> Iterable[Call]:
    comparison = state.comparison
    if not state.by_canary or comparison is None or comparison.ended_at is None:
        return
    # Of a verdict that another version wrote nothing is told.
    if (reason := HELD_FOR.get(comparison.verdict)) is not None:
        since = comparison.ended_at
        yield Call(MessageKind.ROLLBACK_CANARY_HELD, _occasion(since), since, reason)


def _approval(state: State, now: float) -> Iterable[Call]:
    if state.phase is Phase.PAUSED:
        # The step is the same while its evidence wavers, and so is the approval.
        yield Call(MessageKind.APPROVAL_WANTED, transition(state), _since(state, now), Reason.AWAITING_APPROVAL)


_TOLD_ANYWAY = (Reason.MITIGATING, Reason.INVESTIGATING, Reason.MITIGATION_EXHAUSTED, Reason.CAUSE_NOT_PRECISION)


def _rollout_held(state: State, now: float) -> Iterable[Call]:
    """What does not come by itself, at once; what may come, once it was waited for long, if nothing else tells of it."""
    found = condition_of(state.conditions, "Progressing")
    begun = {Phase.PENDING: state.phase_since, Phase.PROGRESSING: state.step_since}
    if found is None or (reason := Reason.known(found.reason)) is None or state.phase not in begun:
        return
    since = found.last_transition_time
    if not reason.stuck:
        began, patience_seconds = begun[state.phase], SETTLE_SECONDS if state.phase is Phase.PENDING else STEP_SECONDS
        known = any(c.reason == reason for c in _bad_news(state)) or reason in _TOLD_ANYWAY
        if not reason.warns or known or began is None or state.waits_since is None:
            return
        since = state.waits_since
        # One poor reading late in a step is no news.
        if now - began < patience_seconds or now - since < SETTLE_SECONDS:
            return
    yield Call(MessageKind.ROLLOUT_HELD, f"{transition(state)}-{reason}", since, reason, found.type)


def _cause_elsewhere(state: State, now: float) -> Iterable[Call]:
    reason = Reason.CAUSE_NOT_PRECISION
    if _waits_for(state) is reason:
        since = min((failing.since for failing in state.failing), default=now)
        yield Call(MessageKind.CAUSE_NOT_PRECISION, transition(state), since, reason, "Progressing")


def _begun(state: State, now: float) -> Iterable[Call]:
    windows = [window for window in state.mitigations if window.open]
    if windows:
        first = min(windows, key=_order)
        reason = Reason.MITIGATING if first.rung is not None else Reason.INVESTIGATING
        occasion = _occasion(first.since, first.signal)
        if _waits_for(state) is Reason.MITIGATION_EXHAUSTED:
            reason, occasion = Reason.MITIGATION_EXHAUSTED, _occasion(first.since, first.signal, "over")
        yield Call(MessageKind.INVESTIGATION_BEGUN, occasion, first.since, reason)


def _over(state: State, now: float) -> Iterable[Call]:
    if any(window.open for window in state.mitigations):
        return
    good = [w for w in state.mitigations if w.result is MitigationResult.MITIGATED]
    recent = [w for w in good if now - (w.good_since or w.since) < RECENT_SECONDS]
    if recent:
        last = max(recent, key=_order)
        occasion = _occasion(last.since, last.signal)
        yield Call(MessageKind.INVESTIGATION_OVER, occasion, last.since, Reason.MITIGATED)


def _order(window: Mitigation) -> tuple[float, str]:
    return window.since, window.signal


def _no_data(state: State, now: float) -> Iterable[Call]:
    since = state.no_data_since
    found = _standing(state, "MetricsAvailable", "False")
    if since is not None and found is not None and now - since >= NO_DATA_SECONDS:
        yield Call(MessageKind.METRICS_MISSING, _occasion(since), since, found.reason, found.type)


def _bad_news(state: State) -> Iterator[Condition]:
    for found in state.conditions:
        bad = found.status == _ATTENTION.get(found.type)
        reason = Reason.known(found.reason) if found.type in _IN_PART else None
        moved = found.type != "AdmissionEnforced" or state.enforce
        if moved and (bad or (reason is not None and reason.warns)):
            yield found


def _attention(state: State, now: float) -> Iterable[Call]:
    waited_for = _WAITED_FOR if state.phase is Phase.ROLLING_BACK else ()
    for found in _bad_news(state):
        if now - found.last_transition_time >= SETTLE_SECONDS and found.type not in waited_for:
            yield _by_condition(MessageKind.ATTENTION, found)


def _person(kind: MessageKind, reason: Reason, state: State, now: float) -> Iterable[Call]:
    """A fleet that is held, or workloads that were rolled back by themselves: by what they wait for."""
    incident = state.incident
    if _waits_for(state) is not reason:
        return
    if state.phase in (Phase.PENDING, Phase.HELD):
        yield Call(kind, transition(state), _since(state, now), reason)
    elif state.alone and incident is not None and incident.last_ack_at is not None:
        since = max(held.since for held in state.held)
        yield Call(kind, _occasion(since), since, reason)


def _release(state: State, now: float) -> Iterable[Call]:
    if state.phase is Phase.HELD and state.reason == Reason.POLICY_DELETED:
        yield Call(MessageKind.RELEASE_POSSIBLE, transition(state), _since(state, now), Reason.POLICY_DELETED)


def _drill(state: State, now: float) -> Iterable[Call]:
    since = state.phase_since
    if since is not None and now - since >= DRILL_SECONDS and due(state, now):
        last_at = max(state.incident.decided_at if state.incident is not None else 0.0, passed_at(state) or 0.0)
        yield Call(MessageKind.DRILL_PROPOSED, _occasion(last_at) if last_at else "never", since, Reason.DRILLING)


def _drill_failed(state: State, now: float) -> Iterable[Call]:
    drill = state.last_drill
    if drill is not None and drill.result is DrillResult.FAILED and drill.ended_at is not None:
        yield Call(MessageKind.DRILL_FAILED, _occasion(drill.ended_at), drill.ended_at, Reason.DRILL_FAILED)


_TABLE: Final[tuple[Callable[[State, float], Iterable[Call]], ...]] = (
    _deadline,
    _unresponsive,
    _weights,
    _blocked,
    _rollback_waiting,
    _cause_elsewhere,
    _canary_held,
    _approval,
    _rollout_held,
    _begun,
    _over,
    _no_data,
    _attention,
    partial(_person, MessageKind.ACKNOWLEDGEMENTS_WANTED, Reason.AWAITING_PREREQUISITES),
    partial(_person, MessageKind.RETRY_POSSIBLE, Reason.AWAITING_RETRY),
    _release,
    _drill_failed,
    _drill,
)
"""What is found in a state, the most urgent first."""
