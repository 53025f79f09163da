"""``decide``: the whole brain, as a function.

No I/O, no clock, no randomness: the same inputs give the same decision, on the cluster, in a property test, in the model
checker and in a replay.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from precision_operator.api.conditions import Condition, condition_of
from precision_operator.api.modes import Mode, is_safer
from precision_operator.api.policy import Policy
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.api.summary import Summary
from precision_operator.api.text import bounded
from precision_operator.core.actions import Action, DeleteAssignment
from precision_operator.core.alerting import alert_events, told
from precision_operator.core.derive import derive_facts
from precision_operator.core.evidence.confirmation import listed
from precision_operator.core.facts import Facts
from precision_operator.core.lifecycle import continued, without_policy
from precision_operator.core.model import Evaluation, Observation
from precision_operator.core.notifying import has_news, remembered
from precision_operator.core.observed import observed, would_events
from precision_operator.core.outcome import Outcome
from precision_operator.core.plan import Plan
from precision_operator.core.progress import rewound
from precision_operator.core.promotion.guard import guard
from precision_operator.core.promotion.pending import pending
from precision_operator.core.promotion.rollout import rollout
from precision_operator.core.rollback.drill import left
from precision_operator.core.rollback.recovery import looked_after
from precision_operator.core.rollback.whole import held, rolling_back
from precision_operator.core.status.conditions import conditions, without_messages
from precision_operator.core.status.summary import summarize
from precision_operator.core.writing import missing_writes
from precision_operator.reasons import Reason

IDLE_SECONDS = 60.0
"""How often a policy is looked at that waits for a person or an event, not for a metric."""

HURRY_SECONDS = 5.0
"""How often metrics are read while a rollback waits for acknowledgements, however long the policy's interval is."""

_HANDLERS: Mapping[Phase, Callable[[Facts], Outcome]] = {
    Phase.PENDING: pending,
    Phase.PROGRESSING: rollout,
    Phase.PAUSED: rollout,
    Phase.HEALTHY: guard,
    Phase.DEGRADED: guard,
    Phase.ROLLING_BACK: rolling_back,
    Phase.HELD: held,
}


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do: commit the state first, then act, then write the summary; look again at ``wake_at``."""

    state: State
    summary: Summary
    actions: tuple[Action, ...]
    wake_at: float
    """Seconds since the epoch."""
    promotes: bool = False
    """It assigns workloads something less safe than they had: only on what is certain to be the newest policy."""
    promoting: frozenset[str] = frozenset()
    """Keys of the workloads that take up a slot of the cluster's cap; empty where there is none."""
    restarting: tuple[float, ...] = ()
    """Until when at most each workload takes up a slot of the cluster's restarts, in seconds since the epoch."""


def decide(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
    """Decide one pass over one policy.

    Args:
        policy: as read from quorum, or what its assignment kept of one that is gone.
        state: what the last pass left behind, read with it.
        observation: everything else that was seen.
        now: seconds since the epoch.
    """
    now = round(now, 3)
    halted = observation.halted is not None
    before, state = state, state if halted else continued(policy, state)
    facts = derive_facts(policy, state, observation, now)
    if policy.deleted and not halted:
        outcome = without_policy(facts)
        if outcome is None:
            summary = summarize(facts, Outcome(state), conditions(facts, Outcome(state), Plan()))
            return Decision(before, summary, (DeleteAssignment(),), now)
    else:
        outcome = Outcome(state) if facts.paused else _HANDLERS[state.phase](facts)
        outcome = observed(facts, outcome) if facts.observes else outcome
    outcome, planned = missing_writes(facts, before, outcome)
    after, found = _finished(facts, before, outcome, planned)
    summary = summarize(replace(facts, state=before), replace(outcome, state=after), found)
    notices = (*outcome.notices, *told(before, found), *alert_events(before, after)) if after != before else ()
    notices += would_events(before, outcome)
    events = (replace(notice, message=bounded(notice.message)) for notice in notices)
    edge = after.transition_id != before.transition_id
    wake_at = now + (0.0 if edge else _wake_in(facts, after))
    capped = facts.observation.promotion_slots is not None and facts.acts
    return Decision(
        after,
        summary,
        (*planned.actions, *events),
        wake_at,
        promotes=_promotes(before, after),
        promoting=replace(facts, state=after).promoting if capped else frozenset(),
        restarting=planned.restarting,
    )


def _finished(facts: Facts, before: State, outcome: Outcome, planned: Plan) -> tuple[State, tuple[Condition, ...]]:
    """Times, counts of transitions and conditions around what the phase decided; and the conditions with their messages."""
    state, policy = outcome.state, facts.policy
    if state.failing == before.failing and _is_news(facts, state):
        state = replace(state, failing=facts.failing)
    no_data = facts.evaluation is not None and bool(facts.unknown or facts.evaluation.errors)
    edge = edge_key(state) != edge_key(before)
    alive = {w.key for w in facts.workloads}
    moved_on = state.phase is not before.phase or before.phase_since is None
    state = replace(
        state,
        message=bounded(state.message),
        failing=listed(state.failing),
        # What a policy of another uid takes over, it takes over once it acts.
        policy_uid=before.policy_uid if not facts.acts and before.policy_uid else policy.uid,
        observed_generation=policy.generation,
        settings=policy.settings,
        hold_on_delete=policy.spec.hold_on_delete,
        transition_id=before.transition_id + (1 if edge else 0),
        phase_since=facts.now if moved_on else before.phase_since,
        no_data_since=(before.no_data_since or facts.now) if no_data else None,
        silent={key: since for key, since in facts.silent.items() if key not in state.held_keys}
        if state.phase not in (Phase.ROLLING_BACK, Phase.HELD)
        else {},
        mitigations=tuple(m for m in state.mitigations if m.key in alive),
        incident=looked_after(facts, state),
        last_drill=left(state, facts.now),
        poisoned=_still_poisoned(facts, state),
    )
    found = conditions(replace(facts, state=before), replace(outcome, state=state), planned)
    state = replace(state, conditions=without_messages(found), waits_since=_waits_since(before, found, facts.now))
    sent = facts.observation.notified
    if state != before or has_news(before, sent):
        state = replace(state, notified=remembered(state, sent, facts.now))
    if state != before:
        state = replace(state, writer=facts.observation.writer, epoch=facts.observation.epoch)
    return state, found


def _waits_since(before: State, found: tuple[Condition, ...], now: float) -> float:
    """Since when Progressing has its reason. The condition's own time is of its status, which may stay the same.

    Where a step's evidence wavers: since it was first poor, until it has been good for as long as the step asks.
    """
    was, waits = (
        Reason.known(progressing.reason) if (progressing := condition_of(conditions, "Progressing")) else None
        for conditions in (before.conditions, found)
    )
    since = before.waits_since
    if since is None or was is waits:
        return now if since is None else since
    mends = waits is Reason.SOAKING and was is not None and was.warns
    again = was is Reason.SOAKING and waits is not None and waits.warns and since < (before.evidence_since or since)
    return since if mends or again else now


def _still_poisoned(facts: Facts, state: State) -> tuple[str, ...]:
    """Without those that have gone back to a healthy checkpoint: what is started later must not lose its steps again."""
    poisoned = replace(facts, state=state).poisoned
    if not poisoned or facts.evaluation is None or state.phase is Phase.ROLLING_BACK:
        return tuple(sorted(poisoned))
    mended = {w.key for w in facts.workloads if w.key in poisoned and rewound(w, facts.evaluation)}
    return tuple(sorted(poisoned - mended))


def _is_news(facts: Facts, state: State) -> bool:
    """Whether the breaches that stand are worth a write. In a rollback those that end are not: they are to end."""
    known = facts.state.failing
    if state.phase is Phase.ROLLING_BACK and not state.by_canary:
        return not frozenset(facts.failing) <= frozenset(known)
    return facts.failing != known


def edge_key(state: State) -> tuple[Phase, int, tuple[HeldWorkload, ...], Mapping[str, int]]:
    """What the transition id counts the changes of: edges, and commands that were carried out, each good for one alone.

    A step that waits for a person is the same step while its evidence wavers: the answer that was just given stays good.
    """
    phase = Phase.PROGRESSING if state.phase is Phase.PAUSED else state.phase
    return phase, state.step_index, state.held, state.commands


def _promotes(before: State, after: State) -> bool:
    """Something less safe is assigned than before. A rollback never is that, whatever else was edited."""
    if not after.enforce or after.fallback is None or after.phase in (Phase.ROLLING_BACK, Phase.HELD):
        return False
    if is_safer(before.fallback or after.fallback, than=after.fallback):
        return True
    if _grew(before.shares, after.shares) or _grew(before.indexes, after.indexes):
        return True
    return any(is_safer(before.assigned(key) or Mode.FP32, than=mode) for key, mode in after.modes.items())


def _grew(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """More pods of a workload may have what is less safe."""
    return any(count > before.get(key, 0) for key, count in after.items())


def _wake_in(facts: Facts, state: State) -> float:
    idle = facts.paused or (state.phase is Phase.HELD and not state.restarts)
    if idle and not state.suspensions:
        return IDLE_SECONDS
    interval = facts.spec.evaluation.interval_seconds
    # A canary in the fallback is watched for hours, and no answer is waited for.
    began = state.comparison is not None and (state.comparison.since or state.comparison.ended_at)
    hurries = bool(state.drilled) or (state.phase is Phase.ROLLING_BACK and not (state.by_canary and began))
    every = min(interval, HURRY_SECONDS) if hurries else interval
    return interval_left(every, facts.evaluation, facts.now)


def interval_left(every_seconds: float, evaluation: Evaluation | None, now: float) -> float:
    """In how many seconds the next reading is due.

    An answer that another policy had asked for may be half an interval old, and is followed by one of its own in time.
    """
    age = now - evaluation.at if evaluation is not None else 0.0
    return every_seconds - min(max(age, 0.0), every_seconds / 2)
