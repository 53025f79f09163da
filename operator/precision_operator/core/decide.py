"""``decide``: the whole brain, as a function.

No I/O, no clock, no randomness: the same inputs give the same decision, on the cluster, in a property test, in the model
checker and in a replay.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from precision_operator.api.policy import Policy
from precision_operator.api.status import HeldWorkload, Phase, Status
from precision_operator.api.wire import generation_text
from precision_operator.contract import FINALIZER
from precision_operator.core.actions import (
    Action,
    GuardPolicy,
    Latch,
    Notify,
    ReleasePolicy,
    RequestPod,
    Restore,
    Settle,
    SettleStage,
    WriteTemplate,
)
from precision_operator.core.alerting import told
from precision_operator.core.conditions import conditions
from precision_operator.core.facts import Facts, look
from precision_operator.core.gates import names
from precision_operator.core.model import Observation
from precision_operator.core.outcome import Outcome
from precision_operator.core.phases.guard import guard
from precision_operator.core.phases.pending import pending
from precision_operator.core.phases.rollback import held, rolling_back
from precision_operator.core.phases.rollout import rollout
from precision_operator.core.plan import Budget, conflicted, plan
from precision_operator.core.progress import accepted_modes, progress_of
from precision_operator.core.recovery import looked_after
from precision_operator.core.unfinished import unfinished

IDLE_SECONDS = 60.0
"""How often a policy is looked at that waits for a person or an event, not for a metric."""

HURRY_SECONDS = 5.0
"""How often metrics are read while a rollback waits for acknowledgements, however long the policy's interval is."""

UNACKNOWLEDGED_LIMIT = 100
"""Names of workloads that the status lists: it must stay small."""

RELEASE_AFTER_SECONDS = 20.0
"""A deletion does not wait longer than this for a restore to show."""

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
    """What to do: commit the status first, then act; look again at ``wake_at``."""

    status: Status
    actions: tuple[Action, ...]
    wake_at: float
    """Seconds since the epoch."""


def decide(policy: Policy, status: Status, observation: Observation, now: float) -> Decision:
    """Decide one pass over one policy.

    Args:
        policy: as read from quorum.
        status: what the last pass left behind, read with it.
        observation: everything else that was seen.
        now: seconds since the epoch.
    """
    now = round(now, 3)
    if policy.deleted_at is not None:
        overdue = now - policy.deleted_at > RELEASE_AFTER_SECONDS
        return _delete(policy, status, observation, now, overdue=overdue)
    facts = look(policy, status, observation, now)
    outcome = Outcome(status) if policy.spec.suspend else _HANDLERS[status.phase](facts)
    outcome, actions = _write(facts, outcome)
    after = _describe(facts, outcome)
    notices = (*outcome.notices, *told(status, after)) if after != status else ()
    guards = _finalizer(policy)
    edge = after.transition_id != status.transition_id
    return Decision(after, (*guards, *actions, *notices), now + (0.0 if edge else _wake_in(facts, after)))


def _write(facts: Facts, outcome: Outcome) -> tuple[Outcome, tuple[Action, ...]]:
    """The missing writes, under a generation that every one of them outranks."""
    if facts.spec.suspend:
        outcome = replace(outcome, desired=())
    outcome = replace(outcome, desired=(*outcome.desired, *unfinished(facts, outcome)))
    if _escalates(facts.status, outcome.status):
        # A template that a settle brought to the generation before has restarted nobody.
        outcome = replace(outcome, status=replace(outcome.status, generation=facts.next_generation))
    for _ in range(2):
        budget = Budget(restarts=facts.observation.restart_slots, settles=facts.observation.settle_slots)
        actions = plan(
            outcome.desired,
            facts.evaluation,
            generation=outcome.status.generation,
            budget=budget,
            settle=outcome.settle,
        )
        if not any(_outranked(action, outcome.status.generation) for action in actions):
            break
        outcome = replace(outcome, status=replace(outcome.status, generation=facts.next_generation))
    quarrels = [d.workload.name for d in outcome.desired if conflicted(d, outcome.status.generation)]
    return replace(outcome, conflicts=tuple(sorted(quarrels))), tuple(actions)


def _escalates(before: Status, after: Status) -> bool:
    """From here on who has not acknowledged is restarted, once."""
    escalated = before.incident is not None and before.incident.escalated
    return after.incident is not None and after.incident.escalated and not escalated


def _outranked(action: Action, generation: int) -> bool:
    """The object carries a later generation: a trainer would ignore the request, the adapter would refuse the write."""
    match action:
        case RequestPod():
            return action.pod.request is not None and action.pod.request.generation >= generation
        case WriteTemplate() | Latch() | Settle(stage=SettleStage.PAUSE):
            return (generation_text(action.workload.generation_raw) or 0) > generation
    return False


def _describe(facts: Facts, outcome: Outcome) -> Status:
    """Counts, times and conditions around what the phase decided; an edge raises the transition id."""
    before, status = facts.status, outcome.status
    if facts.evaluation is not None and facts.failing != before.failing and status.failing == before.failing:
        status = replace(status, failing=facts.failing)
    edge = edge_key(status) != edge_key(before)
    stages = facts.stages
    index = min(status.step_index, len(stages) - 1)
    weight = stages[index].weight
    rolled = status.phase in (Phase.ROLLING_BACK, Phase.HELD)
    moved, silent = _moved(facts, status)
    no_data = facts.evaluation is not None and bool(facts.unknown or facts.evaluation.errors)
    status = replace(
        status,
        observed_generation=facts.policy.generation,
        transition_id=before.transition_id + (1 if edge else 0),
        phase_since=facts.now if status.phase is not before.phase or before.phase_since is None else before.phase_since,
        step=f"{index + 1}/{len(stages)} {weight}%" if status.phase is not Phase.PENDING and not rolled else "",
        weight=0 if status.phase is Phase.PENDING or rolled else weight,
        no_data_since=(before.no_data_since or facts.now) if no_data else None,
        total=len(facts.observation.workloads),
        moved=moved,
        unacknowledged=silent,
        incident=looked_after(facts, status),
        breached=len({f.uid for f in status.failing} | {h.uid for h in status.held}),
        unknown=len(facts.unknown),
    )
    if facts.spec.suspend:
        status = replace(status, reason="Suspended", message="spec.suspend is true: nothing is decided or written")
    elif status.reason == "Suspended":
        status = replace(status, reason="Resumed", message="")
    elif status.phase is Phase.PENDING and outcome.waiting is not None:
        status = replace(status, reason=outcome.waiting.reason, message=outcome.waiting.message)
    status = replace(status, conditions=conditions(facts, status, outcome.waiting, conflicts=outcome.conflicts))
    if status != before:
        status = replace(status, writer=facts.observation.writer, epoch=facts.observation.epoch)
    return status


def edge_key(status: Status) -> tuple[Phase, int, tuple[HeldWorkload, ...]]:
    """What the transition id counts the changes of.

    A step that waits for a person is the same step while its evidence wavers: the answer that was just given stays good.
    """
    phase = Phase.PROGRESSING if status.phase is Phase.PAUSED else status.phase
    return phase, status.step_index, status.held


def _moved(facts: Facts, status: Status) -> tuple[int, tuple[str, ...]]:
    """How many workloads are where the policy wants them, by their own word while moving, by their orders while guarded;
    and the names of those whose own word is missing."""
    rollback = status.phase in (Phase.ROLLING_BACK, Phase.HELD)
    if status.phase is Phase.PENDING or status.precision is None:
        return 0, ()
    inside = {m.uid for m in status.members} - {h.uid for h in status.held}
    facts, count, silent = replace(facts, status=status), 0, list[str]()
    for workload, delivery in facts.movable:
        if not rollback and workload.uid not in inside:
            continue
        accepted = accepted_modes(status.precision if rollback else facts.wanted(workload), rollback=rollback)
        progress = progress_of(workload, accepted, facts.evaluation, delivery)
        steady = status.phase in (Phase.HEALTHY, Phase.DEGRADED, Phase.HELD)
        count += progress.told if steady else progress.acknowledged
        if not progress.acknowledged:
            silent.append(workload.name)
    return count, tuple(sorted(silent)[:UNACKNOWLEDGED_LIMIT])


def _wake_in(facts: Facts, status: Status) -> float:
    idle = status.phase is Phase.HELD and (status.incident is None or status.incident.settled_at is not None)
    if idle or facts.spec.suspend:
        return IDLE_SECONDS
    interval = facts.spec.evaluation.interval_seconds
    # A canary that is down is watched for hours, and no answer is waited for.
    began = status.comparison is not None and (status.comparison.since or status.comparison.ended_at)
    hurries = status.phase is Phase.ROLLING_BACK and not (status.by_canary and began)
    return min(interval, HURRY_SECONDS) if hurries else interval


def _finalizer(policy: Policy) -> tuple[Action, ...]:
    present = FINALIZER in policy.finalizers
    if policy.spec.restore_on_delete and not present:
        return (GuardPolicy(),)
    if not policy.spec.restore_on_delete and present:
        return (ReleasePolicy(),)
    return ()


def _delete(policy: Policy, status: Status, observation: Observation, now: float, *, overdue: bool) -> Decision:
    """Restore what we changed, where the policy says so, then let go: within seconds, with or without metrics."""
    if FINALIZER not in policy.finalizers:
        return Decision(status, (), now + IDLE_SECONDS)
    changed = [w for w in observation.workloads if w.has_original] if policy.spec.restore_on_delete else []
    if changed and not overdue:
        slots, restores = observation.restart_slots, list[Action]()
        for workload in changed:
            if not workload.pods or slots > 0:
                slots -= bool(workload.pods)
                restores.append(Restore(workload))
        return Decision(status, tuple(restores), now + 1.0)
    text = f"not restored in time, they keep precision and latch: {names([w.name for w in changed])}"
    notices = (Notify("RestoreIncomplete", text, warning=True),) if changed else ()
    return Decision(status, (*notices, ReleasePolicy()), now + IDLE_SECONDS)
