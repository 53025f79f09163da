"""``decide``: the whole brain, as a function.

No I/O, no clock, no randomness: the same inputs give the same decision, on the cluster, in a property test, in the model
checker and in a replay.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from precision_operator.api.conditions import Condition, condition_of
from precision_operator.api.modes import Mode, is_safer
from precision_operator.api.policy import Policy
from precision_operator.api.spec import Delivery, OnPendingRevision, Strategy
from precision_operator.api.state import HeldWorkload, Phase, Restart, State
from precision_operator.api.summary import Summary
from precision_operator.api.text import bounded
from precision_operator.core.actions import Action, DeleteAssignment, Notify, RequestPod
from precision_operator.core.alerting import alert_events, told
from precision_operator.core.assigning import assign
from precision_operator.core.derive import derive_facts
from precision_operator.core.desired import Desired
from precision_operator.core.evidence.confirmation import listed
from precision_operator.core.facts import Facts
from precision_operator.core.fleet import Fleet
from precision_operator.core.leaving import noticed
from precision_operator.core.lifecycle import continued, without_policy
from precision_operator.core.memory import shortage_events
from precision_operator.core.model import Evaluation, Observation
from precision_operator.core.notifying import has_news, remembered
from precision_operator.core.observed import observed, would_events
from precision_operator.core.outcome import Outcome
from precision_operator.core.plan import Plan, plan
from precision_operator.core.progress import complete, rewound
from precision_operator.core.promotion.guard import guard
from precision_operator.core.promotion.pending import pending
from precision_operator.core.promotion.rollout import rollout
from precision_operator.core.restart.pace import CHECKPOINT_SECONDS, KEPT_RESTARTS, Pace
from precision_operator.core.restart.rounds import RESTARTING_SECONDS
from precision_operator.core.rollback.drill import left
from precision_operator.core.rollback.followup import hurry_from
from precision_operator.core.rollback.recovery import looked_after
from precision_operator.core.rollback.whole import held, rolling_back
from precision_operator.core.sight import Sight
from precision_operator.core.status.conditions import conditions, without_messages
from precision_operator.core.status.summary import summarize
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
    outcome, planned = _write(facts, before, outcome)
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


def _write(facts: Facts, before: State, outcome: Outcome) -> tuple[Outcome, Plan]:
    """The missing writes, under a generation that every one of them outranks."""
    if facts.acts:
        state = assign(facts, before, outcome.state)
        fleet = replace(facts, state=state).fleet
        desired = tuple(_as_assigned(fleet, d) for d in outcome.desired)
        outcome = replace(outcome, state=state, desired=desired)
    else:
        outcome = replace(outcome, desired=())
    going_on, took = _going_on(facts, outcome) if facts.acts else (outcome.state.restarts, [])
    for _ in range(2):
        state = outcome.state
        planned = plan(
            _sight(facts, state),
            outcome.desired,
            pace=_pace(facts, state),
            restarts=going_on,
            suspensions=state.suspensions,
            elsewhere=(*facts.observation.workloads, *facts.observation.suspended),
        )
        if not any(_outranked(facts, action, state.generation) for action in planned.actions):
            break
        outcome = replace(outcome, state=replace(state, generation=facts.fleet.next_generation))
    state = replace(
        outcome.state,
        restarts=planned.restarts,
        suspensions=planned.suspensions,
        deletable=outcome.state.deletable and not planned.suspensions,
        restart_seconds=(*outcome.state.restart_seconds, *took)[-KEPT_RESTARTS:],
    )
    notices = (*outcome.notices, *shortage_events(facts.workloads, facts.evaluation, before, state))
    return _predicted(facts, replace(outcome, state=state, notices=notices), planned), planned


def _sight(facts: Facts, state: State) -> Sight:
    return Sight(
        facts.evaluation,
        state.generation,
        state.changed,
        facts.now,
        certain=facts.observation.admission.enforced is True,
        nodes_away=facts.observation.nodes_away,
        unseen=facts.observation.unseen,
    )


def _pace(facts: Facts, state: State) -> Pace:
    """What bounds the restarts of this pass: slots, or a deadline."""
    rules, incident = facts.spec.rollback, state.incident
    urgent, emergency = _is_urgent(facts, state), _is_emergency(state)
    return Pace(
        slots=facts.observation.restart_slots,
        left_seconds=incident.deadline_at - facts.now if incident is not None and urgent else None,
        most_pods=rules.emergency.max_concurrent_pods,
        restart_seconds=state.restart_seconds,
        expected_seconds=rules.emergency.expected_restart_seconds,
        evicts=not emergency or rules.emergency.respect_disruption_budgets,
        brings_changes_in=emergency and rules.on_pending_revision is OnPendingRevision.RESTART,
        checkpoint_seconds=CHECKPOINT_SECONDS if urgent else rules.gradual.in_flight_seconds,
        leaving_seconds=rules.ack_timeout_seconds if emergency else None,
        awaited_seconds=rules.ack_timeout_seconds,
    )


def _predicted(facts: Facts, outcome: Outcome, planned: Plan) -> Outcome:
    """A rollback that is decided now says how long it will take, and beforehand that its deadline cannot be kept."""
    incident, seconds = outcome.state.incident, planned.predicted_seconds
    if incident is None or seconds is None or facts.now not in (incident.decided_at, incident.expedited_at):
        return outcome
    incident = replace(incident, predicted_seconds=round(seconds, 3))
    outcome = replace(outcome, state=replace(outcome.state, incident=incident))
    late_seconds = facts.now + seconds - incident.deadline_at
    if late_seconds <= 0:
        return outcome
    text = (
        f"the restarts of this rollback are predicted to take {seconds:.0f} s, {late_seconds:.0f} s longer than its "
        "deadline leaves: raise rollback.emergency.maxConcurrentPods, or carry the contract to change without a restart"
    )
    return replace(outcome, notices=(*outcome.notices, Notify(Reason.DEADLINE_UNREACHABLE, text)))


def _as_assigned(fleet: Fleet, desired: Desired) -> Desired:
    """Running pods are asked for what new ones are given, also where this commit assigns another mode than was meant.

    Of a member that has moved in part only the moved ones are asked for something else.
    """
    state = fleet.state
    if desired.workload.key in state.shares and not desired.rollback:
        moved = frozenset(pod.uid for pod in fleet.part(desired.workload).pods)
        delivery = desired.delivery if desired.workload.key in fleet.by_index else Delivery.HOT
        return replace(desired, delivery=delivery, pods=moved, rest=fleet.fallback)
    return replace(desired, mode=state.assigned(desired.workload.key) or desired.mode)


def _is_emergency(state: State) -> bool:
    """An emergency is under way. What strays once it has ended can wait for its disruption budget."""
    incident = state.incident
    return incident is not None and incident.strategy is Strategy.EMERGENCY and state.returning


def _is_urgent(facts: Facts, state: State) -> bool:
    """An emergency, or a gradual rollback that would miss its deadline: nothing waits for its turn."""
    if _is_emergency(state):
        return True
    incident = state.incident
    if incident is None:
        return False
    return state.phase is Phase.ROLLING_BACK and not state.by_canary and facts.now >= hurry_from(facts, incident)


def _going_on(facts: Facts, outcome: Outcome) -> tuple[Mapping[str, Restart], list[float]]:
    """The restarts that have not come to their end, and how long those took that have.

    One whose pods are back and acknowledged has; so has one of a mode that was changed since. A replacement that cannot
    start is lost capacity until it does, and must not be taken away again for that nothing is known of it. How long its
    pods may have waited for a budget is not how long a restart takes.
    """
    state = outcome.state
    at = replace(facts, state=state)
    found: dict[str, Restart] = {}
    took: list[float] = []
    for desired in outcome.desired:
        workload = desired.workload
        restart = state.restarts.get(workload.key)
        if restart is None or state.changed.get(workload.key) != facts.state.changed.get(workload.key):
            continue
        restart = noticed(workload, restart, facts.now)
        took_seconds = facts.now - restart.counts_since
        seen = workload if desired.pods is None else at.fleet.part(workload)
        acknowledged = at.progress(seen, desired.accepted, desired.delivery).acknowledged
        if acknowledged and complete(workload) and workload.key not in state.suspensions:
            took += [round(took_seconds, 3)] * (0 < took_seconds < RESTARTING_SECONDS)
        else:
            found[workload.key] = restart
    return found, took


def _outranked(facts: Facts, action: Action, generation: int) -> bool:
    """The pod carries a later generation, or its process has seen one: a trainer would ignore the request.

    Not where it has carried this very request out, as a rank does whose own copy was lost: it follows its first rank.
    """
    if not isinstance(action, RequestPod):
        return False
    request, reported = action.pod.request, facts.fleet.reported_generation(action.pod)
    seen = facts.signals.get(action.pod.name)
    followed = seen is not None and seen.mode is action.mode and not action.rewind and action.tuning is None
    if reported == generation and followed:
        reported = 0
    return max(request.generation if request is not None else 0, reported) >= generation


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
