"""From what a phase decides to what is written: the modes are assigned, and what is missing is planned.

Restarts go on and begin as urgently as the incident asks. Nothing is asked for that a trainer would ignore.
"""

from collections.abc import Mapping
from dataclasses import replace

from precision_operator.api.spec import Delivery, OnPendingRevision, Strategy
from precision_operator.api.state import Phase, Restart, State
from precision_operator.core.actions import Action, Notify, RequestPod
from precision_operator.core.assigning import assign
from precision_operator.core.desired import Desired
from precision_operator.core.facts import Facts
from precision_operator.core.fleet import Fleet
from precision_operator.core.leaving import noticed
from precision_operator.core.memory import shortage_events
from precision_operator.core.outcome import Outcome
from precision_operator.core.plan import Plan, plan
from precision_operator.core.progress import complete
from precision_operator.core.restart.pace import CHECKPOINT_SECONDS, KEPT_RESTARTS, Pace
from precision_operator.core.restart.rounds import RESTARTING_SECONDS
from precision_operator.core.rollback.followup import hurry_from
from precision_operator.core.sight import Sight
from precision_operator.reasons import Reason


def missing_writes(facts: Facts, before: State, outcome: Outcome) -> tuple[Outcome, Plan]:
    """The missing writes, under a generation above all that their pods carry or have reported."""
    outcome = _assigned(facts, before, outcome) if facts.acts else replace(outcome, desired=())
    going_on, took = _going_on(facts, outcome) if facts.acts else (outcome.state.restarts, [])
    planned = _planned(facts, outcome, going_on)
    if any(_outranked(facts, action, outcome.state.generation) for action in planned.actions):
        outcome = replace(outcome, state=replace(outcome.state, generation=facts.fleet.next_generation))
        planned = _planned(facts, outcome, going_on)
    state = replace(
        outcome.state,
        restarts=planned.restarts,
        suspensions=planned.suspensions,
        deletable=outcome.state.deletable and not planned.suspensions,
        restart_seconds=(*outcome.state.restart_seconds, *took)[-KEPT_RESTARTS:],
    )
    notices = (*outcome.notices, *shortage_events(facts.workloads, facts.evaluation, before, state))
    return _predicted(facts, replace(outcome, state=state, notices=notices), planned), planned


def _assigned(facts: Facts, before: State, outcome: Outcome) -> Outcome:
    state = assign(facts, before, outcome.state)
    fleet = replace(facts, state=state).fleet
    return replace(outcome, state=state, desired=tuple(_as_assigned(fleet, d) for d in outcome.desired))


def _as_assigned(fleet: Fleet, desired: Desired) -> Desired:
    """Running pods are asked for what new ones are given, also where this commit assigns another mode than was meant.

    Of a member that has moved in part only the moved ones are asked for something else.
    """
    state = fleet.state
    if desired.workload.key in state.shares and not desired.rollback:
        moved = frozenset(pod.uid for pod in fleet.part(desired.workload).pods)
        delivery = desired.delivery if desired.workload.key in fleet.by_index else Delivery.HOT
        return replace(desired, delivery=delivery, pods=moved, rest=fleet.fallback)
    mode = state.assigned(desired.workload.key) or desired.mode
    return desired if mode is desired.mode else replace(desired, mode=mode)


def _planned(facts: Facts, outcome: Outcome, going_on: Mapping[str, Restart]) -> Plan:
    state = outcome.state
    return plan(
        _sight(facts, state),
        outcome.desired,
        pace=_pace(facts, state),
        restarts=going_on,
        suspensions=state.suspensions,
        elsewhere=(*facts.observation.workloads, *facts.observation.suspended),
    )


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
