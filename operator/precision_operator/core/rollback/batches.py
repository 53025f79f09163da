"""The batches of a gradual rollback."""

from collections.abc import Iterable

from precision_operator.api.incident import Incident
from precision_operator.api.policy import Policy
from precision_operator.api.spec import Delivery, Strategy
from precision_operator.api.state import Phase, State
from precision_operator.core import leaving
from precision_operator.core.cohorts.shares import at_most
from precision_operator.core.desired import Desired
from precision_operator.core.facts import Facts
from precision_operator.core.model import PodSignals, WorkloadView
from precision_operator.core.progress import live_pods


def under_way(facts: Facts, incident: Incident, everything: Iterable[Desired]) -> tuple[Desired, ...]:
    """What was asked already, and as many more as one batch leaves room for: the breached first."""
    begun: list[Desired] = []
    waiting: list[Desired] = []
    unacknowledged, moved = 0, frozenset(facts.state.members)
    for desired in everything:
        progress = facts.progress(desired.workload, desired.accepted, desired.delivery)
        if progress.requested or desired.workload.key in facts.state.restarts:
            begun.append(desired)
            # Who was never moved has nothing to acknowledge, though no metrics say what it trains in.
            ours = desired.workload.key in moved or desired.workload.key in facts.state.changed
            unacknowledged += ours and not progress.acknowledged and not _held_up(desired, facts)
        elif desired.workload.pending_revision and desired.delivery is Delivery.RESTART:
            begun.append(desired)  # it is named, not restarted, and takes nobody's place
        else:
            waiting.append(desired)
    size = max(1, at_most(facts.spec.rollback.gradual.batch_share, facts.fleet.moved_count))
    waiting = [desired for desired in waiting if _in_turn(desired, facts, incident)]
    breached = frozenset(facts.state.breached)
    waiting.sort(key=lambda desired: (desired.workload.key not in breached, desired.workload.key))
    return (*begun, *waiting[: max(0, size - unacknowledged)])


def _held_up(desired: Desired, facts: Facts) -> bool:
    """Its restart was begun, and none of its pods may go yet: others need not wait for that."""
    restart = facts.state.restarts.get(desired.workload.key)
    return restart is not None and not leaving.begun(desired.workload, restart)


def _in_turn(desired: Desired, facts: Facts, incident: Incident) -> bool:
    """A hot flip loses nothing, and who can be asked for a checkpoint is asked.

    Other restarts wait until their next checkpoint, or the end of their Job. That is bounded: what has saved none by then,
    or does not say so, is restarted, and loses what it did since the last one.
    """
    patience = facts.spec.rollback.gradual.in_flight_seconds
    asked = all(pod.hot for pod in live_pods(desired.workload))
    late = facts.now - incident.decided_at >= patience
    return desired.delivery is not Delivery.RESTART or asked or late or _saved(desired.workload, facts, incident)


def _saved(workload: WorkloadView, facts: Facts, incident: Incident) -> bool:
    """All of its pods have saved a checkpoint since the decision; of a process group one rank does it for all."""
    seen = facts.signals
    pods = [seen.get(pod.name, PodSignals()) for pod in live_pods(workload)]
    times = [pod.checkpoint_at for pod in pods if not (pod.in_a_group and pod.checkpoint_at is None)]
    return bool(times) and all(time is not None and time > incident.decided_at for time in times)


def awaits_checkpoints(policy: Policy, state: State, now: float) -> bool:
    """Whether it may matter when a pod saved its last checkpoint: else nobody asks."""
    incident, rules = state.incident, policy.spec.rollback
    if incident is None or state.phase is not Phase.ROLLING_BACK:
        return False
    gradual = incident.strategy in (Strategy.GRADUAL, Strategy.CANARY)
    return gradual and 0 <= now - incident.decided_at < rules.gradual.in_flight_seconds
