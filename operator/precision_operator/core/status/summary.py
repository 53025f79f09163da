"""What people are shown of a pass: the policy's status."""

from collections.abc import Iterable
from dataclasses import replace

from precision_operator.api.conditions import Condition, merge_conditions
from precision_operator.api.policy import Policy
from precision_operator.api.state import Phase, State
from precision_operator.api.summary import UNACKNOWLEDGED_LIMIT, Summary
from precision_operator.api.text import bounded
from precision_operator.core.facts import Facts
from precision_operator.core.gain import gain
from precision_operator.core.model import WorkloadView
from precision_operator.core.outcome import Outcome
from precision_operator.core.progress import accepted_modes
from precision_operator.core.status.standing import begins
from precision_operator.reasons import Reason

_WAITING_IS_SHOWN = (Phase.PENDING, Phase.PROGRESSING, Phase.PAUSED)
_ROLLED_BACK = (Phase.ROLLING_BACK, Phase.HELD)


def recorded(state: State) -> Summary:
    """What the state alone tells, without a fleet to look at."""
    return Summary(
        observed_generation=state.observed_generation,
        phase=state.phase,
        reason=state.reason,
        message=state.message,
        precision=state.precision,
        fallback=state.fallback,
        generation=state.generation,
        transition_id=state.transition_id,
        step_index=state.step_index,
        phase_since=state.phase_since,
        held=len(state.held),
        attempts=state.attempts,
        incident=state.incident,
        last_drill=state.last_drill,
        conditions=state.conditions,
    )


def begun(policy: Policy, now: float) -> Summary:
    """What is shown of a new policy until its metrics were read once."""
    reason, message = Reason.AWAITING_EVALUATION, "the metrics have not been read yet"
    found = merge_conditions((), begins(reason, message), observed_generation=policy.generation, now=now)
    return Summary(policy.generation, reason=reason, message=message, conditions=found)


def summarize(facts: Facts, outcome: Outcome, found: tuple[Condition, ...]) -> Summary:
    """The summary of what was decided.

    Args:
        facts: with the state before.
        outcome: with the state after.
        found: the conditions, with their messages.
    """
    state, waiting = outcome.state, outcome.waiting
    stages = facts.attempt.stages
    index = min(state.step_index, len(stages) - 1)
    rolled = state.phase in _ROLLED_BACK
    moving = state.phase is not Phase.PENDING and not rolled
    reason, message = state.reason, state.message
    if (paused := facts.paused) is not None:
        reason, message = paused.reason, paused.message
    elif waiting is not None and (facts.observes or state.phase in _WAITING_IS_SHOWN):
        reason, message = waiting.reason, waiting.message
    moved, unacknowledged = _moved(facts, outcome)
    return replace(
        recorded(state),
        reason=reason,
        message=bounded(message),
        step=f"{index + 1}/{len(stages)} {stages[index].weight}%" if moving else "",
        weight=stages[index].weight if moving else 0,
        total=len(facts.workloads),
        moved=moved,
        breached=len({f.key for f in facts.failing} | state.held_keys),
        unknown=len(facts.unknown),
        unacknowledged=unacknowledged,
        gain=None if rolled else gain(facts.verdicts, facts.spec, facts.evaluation),
        conditions=found,
        assignment=facts.policy.name,
    )


def _moved(facts: Facts, outcome: Outcome) -> tuple[int, tuple[str, ...]]:
    """How many workloads are where the policy wants them, and the names of those that do not report it.

    While they move those count that report it, while they are guarded those that were asked.
    """
    state = outcome.state
    rollback = state.phase in _ROLLED_BACK
    at, count, unacknowledged = replace(facts, state=state), 0, list[str]()
    steady = state.phase in (Phase.HEALTHY, Phase.DEGRADED, Phase.HELD)
    counting = _must_report(state, {workload.key for workload, _ in facts.movable})
    for whole, delivery in facts.movable:
        if whole.key not in counting:
            continue
        workload = whole if rollback else at.fleet.part(whole)
        accepted = accepted_modes(at.fallback_of(workload) if rollback else at.wanted(workload), rollback=rollback)
        progress = at.progress(workload, accepted, delivery)
        count += progress.requested if steady else progress.acknowledged
        if not progress.acknowledged:
            unacknowledged.append(workload.name)
    return count, tuple(sorted(unacknowledged)[:UNACKNOWLEDGED_LIMIT])


def _must_report(state: State, keys: Iterable[str]) -> frozenset[str]:
    """Which of the workloads that can be moved count: in a rollback all do, else those that were moved."""
    if state.phase is Phase.PENDING:
        return frozenset()
    return (
        frozenset(keys)
        if state.phase in _ROLLED_BACK
        else frozenset(keys).intersection(state.members) - state.held_keys
    )


def has_acknowledged(summary: Summary, state: State, workload: WorkloadView) -> bool | None:
    """What a summary says of a workload that can be moved; None: nothing, for it does not count, or the list is full."""
    if not _must_report(state, (workload.key,)):
        return None
    if workload.name in summary.unacknowledged:
        return False
    return True if len(summary.unacknowledged) < UNACKNOWLEDGED_LIMIT else None
