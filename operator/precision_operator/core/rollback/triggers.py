"""What calls for a rollback, how urgently, and how far it reaches."""

from dataclasses import dataclass, replace

from precision_operator.api.commands import Answer, Command
from precision_operator.api.incident import Scope
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Failing, Phase
from precision_operator.api.text import bounded, names
from precision_operator.api.workload import name_of
from precision_operator.core.breaches import standing
from precision_operator.core.cohorts.shares import at_least
from precision_operator.core.commands import allowed
from precision_operator.core.facts import Facts
from precision_operator.core.mitigation.windows import spared
from precision_operator.core.model import Evaluation
from precision_operator.core.progress import live_pods
from precision_operator.core.rollback.attribution import only_place
from precision_operator.reasons import Reason


@dataclass(frozen=True, slots=True)
class Trigger:
    """A rollback that is called for."""

    severity: Severity
    scope: Scope
    reason: Reason
    message: str
    workloads: tuple[str, ...]
    """Keys of the breached ones."""
    detected_at: float
    strategy: Strategy
    poisoned: tuple[str, ...] = ()
    """Keys of those whose weights are to be taken back to a healthy checkpoint."""
    command: Command | None = None
    """What a person gave for it; None: nobody did."""
    due_from: float | None = None
    """From when on its deadline counts, in seconds since the epoch; None: from its detection."""


def find_trigger(facts: Facts) -> Trigger | None:
    """The rollback that this pass must start, or None. The highest severity wins."""
    gradual = None
    if allowed(Command.ABORT, facts.policy, facts.state) and (abort := facts.asked(Command.ABORT)):
        return _whole_fleet(facts, abort, Command.ABORT)
    if allowed(Command.ROLLBACK, facts.policy, facts.state) and (asked := facts.asked(Command.ROLLBACK)):
        gradual = _whole_fleet(facts, asked, Command.ROLLBACK)
    evaluation = facts.evaluation
    if evaluation is None:
        return gradual
    breaches = [f for f in standing(facts) if not spared(facts, f)]
    found = _from_breaches(facts, breaches) if breaches else _no_data(facts, evaluation)
    if found is not None and found.strategy is Strategy.CANARY and _comes_first(facts):
        found = None
    if found is None or gradual is None:
        return found or gradual
    # What a person asked for reaches the whole fleet, also where the evidence alone would not, and without a canary.
    strategy = Strategy.GRADUAL if found.strategy is Strategy.CANARY else found.strategy
    return replace(found, scope=Scope.FLEET, strategy=strategy, command=gradual.command)


def _comes_first(facts: Facts) -> bool:
    """What is held alone is brought into the fallback before a canary is compared, unless its promise is broken anyway."""
    incident = facts.state.unacknowledged_alone
    return incident is not None and facts.now <= incident.deadline_at + facts.spec.rollback.ack_timeout_seconds


def _whole_fleet(facts: Facts, asked: Answer, command: Command) -> Trigger:
    emergency = command is Command.ABORT
    everyone = facts.state.members
    message = f"{asked.by or 'a person'} asked for the {'emergency ' if emergency else ''}rollback"
    return Trigger(
        Severity.P0 if emergency else Severity.P2,
        Scope.FLEET,
        Reason.ABORTED if emergency else Reason.ROLLBACK_REQUESTED,
        bounded(f"{message}: {asked.message}" if asked.message else message),
        everyone,
        facts.now,
        Strategy.EMERGENCY if emergency else Strategy.GRADUAL,
        command=command,
    )


def _from_breaches(facts: Facts, standing: list[Failing]) -> Trigger:
    severity = min(f.severity for f in standing)
    worst = min(standing, key=lambda f: (f.severity, f.since, f.name))
    breached = {f.key: f.name for f in standing}
    breached.update({h.key: h.name for h in facts.state.held})
    rollback = facts.spec.rollback
    moved = facts.fleet.moved_count
    # A fleet of one is a fleet: its rollback is no smaller matter than any other's.
    share = max(min(rollback.fleet_minimum, max(1, moved)), at_least(rollback.fleet_share, moved))
    place = only_place(facts, breached, worst.signal)
    where = f", {place}" if place is not None else ""
    if len(breached) >= share and place is None:
        scope = Scope.FLEET
    elif facts.state.phase in (Phase.PROGRESSING, Phase.PAUSED) and place is None:
        scope = Scope.COHORT
    else:
        scope = Scope.WORKLOAD
        breached = {f.key: f.name for f in standing}
    criterion, strategy = facts.spec.criterion(worst.signal), rollback.strategies[severity]
    detected_at = min(_since(facts, f) for f in standing if f.severity is severity)
    sustained_at = min(f.since for f in standing if f.severity is severity) + rollback.gradual.sustain_seconds
    level = criterion.enter if worst.severity is criterion.severity else criterion.warn
    return Trigger(
        severity=severity,
        scope=scope,
        reason=SIGNALS[worst.signal].reason,
        message=bounded(
            f"{worst.signal} beyond {level:g} in {names(list(breached.values()))}{where}{_tried(facts, worst)}"
        ),
        workloads=tuple(sorted(breached)),
        detected_at=detected_at,
        strategy=strategy,
        poisoned=tuple(sorted({f.key for f in standing if SIGNALS[f.signal].of_loss})),
        # What must have stood for a time before it is answered has its whole deadline after that.
        due_from=None if strategy is Strategy.EMERGENCY else max(detected_at, sustained_at),
    )


def _since(facts: Facts, failing: Failing) -> float:
    """From when on its deadline counts: a window that spared it has moved that to the window's end."""
    window = facts.windows.get((failing.key, failing.signal))
    if window is None or not window.open or failing.severity is not Severity.P2:
        return failing.since
    return max(failing.since, min(window.until, facts.now))


def _tried(facts: Facts, failing: Failing) -> str:
    window = facts.windows.get((failing.key, failing.signal))
    return f"; tried before in {window.name}: {', '.join(window.found)}" if window is not None and window.found else ""


def _no_data(facts: Facts, evaluation: Evaluation) -> Trigger | None:
    """Each workload for its own silence, as far as we have watched it; the fleet where nobody else is left in it."""
    limit_seconds, watched = facts.spec.evaluation.no_data_limit_seconds, evaluation.continuous_since
    since = {
        key: max(at, watched) for key, at in facts.silent.items() if evaluation.at - max(at, watched) >= limit_seconds
    }
    if not since:
        return None
    rest = any(w.key not in since and live_pods(w) for w, _ in facts.fleet.members)
    keys = tuple(sorted(since)) if rest else facts.state.members
    who = f" of {names([name_of(key) for key in keys])}" if rest else ""
    message = bounded(f"no believable metrics{who} for {limit_seconds:g} s, and onNoData is Rollback")
    scope = Scope.WORKLOAD if rest else Scope.FLEET
    return Trigger(Severity.P1, scope, Reason.NO_DATA, message, keys, min(since.values()), Strategy.EMERGENCY)
