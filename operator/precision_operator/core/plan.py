"""From what should be to the writes that are missing. Level-triggered: the same difference gives the same writes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Restart, Suspension
from precision_operator.core.actions import Action, RequestPod
from precision_operator.core.desired import Desired
from precision_operator.core.model import PodSignals, PodView, WorkloadView
from precision_operator.core.progress import live_pods, outran, right
from precision_operator.core.restart.pace import Pace
from precision_operator.core.restart.rounds import Restarting
from precision_operator.core.sight import Sight
from precision_operator.reasons import Cause


@dataclass(frozen=True, slots=True)
class Plan:
    """The missing writes, the urgent ones first: running pods, then those that are taken away."""

    actions: tuple[Action, ...] = ()
    restarts: Mapping[str, Restart] = field(default_factory=dict)
    """The workloads that are restarting, after these writes."""
    suspensions: Mapping[str, Suspension] = field(default_factory=dict)
    """The Jobs that we suspend, after these writes."""
    restarting: tuple[float, ...] = ()
    """Until when at most each of those that take up a slot does so, in seconds since the epoch."""
    stuck: tuple[str, ...] = ()
    """Names of workloads whose pods came back in the wrong mode more often than is tried."""
    pending: tuple[str, ...] = ()
    """Names of those that are not restarted, because a change of their template has not reached their pods."""
    lost: tuple[str, ...] = ()
    """Names of those whose replacements find no place."""
    blocked: tuple[tuple[str, Cause], ...] = ()
    """(name, why) of those with a pod that does not go."""
    predicted_seconds: float | None = None
    """Until all that is rolled back by restarts is back; None: nothing is, or it is not urgent."""


def plan(
    sight: Sight,
    wanted: Iterable[Desired],
    *,
    pace: Pace,
    restarts: Mapping[str, Restart] | None = None,
    suspensions: Mapping[str, Suspension] | None = None,
    elsewhere: Iterable[WorkloadView] = (),
) -> Plan:
    """The missing writes.

    Args:
        sight: what they are worked out from.
        wanted: what every workload should be in.
        pace: what bounds the restarts.
        restarts: the workloads that are restarting.
        suspensions: the Jobs that we suspend.
        elsewhere: those of them of which nothing is wanted any more.
    """
    wanted = tuple(wanted)
    requests = [request for desired in wanted for request in _requests(sight, desired)]
    restarting = Restarting(sight, pace, restarts or {}, suspensions or {})
    restarting.carry_on(wanted, elsewhere)
    restarting.begin()
    removal = restarting.removal
    return Plan(
        actions=(*removal.jobs.resumptions, *requests, *removal.checkpoints, *removal.actions),
        restarts=restarting.restarts,
        suspensions=removal.jobs.records,
        restarting=tuple(sorted(restarting.holding.values())),
        stuck=tuple(sorted(restarting.stuck)),
        pending=tuple(sorted(restarting.pending)),
        lost=tuple(sorted(restarting.lost.values())),
        blocked=tuple(sorted(removal.blocked)),
        predicted_seconds=restarting.predicted_seconds,
    )


def _requests(sight: Sight, desired: Desired) -> list[Action]:
    """What is asked of running pods; never waits for anything."""
    since = sight.changed.get(desired.workload.key, 0)
    return [
        RequestPod(one.workload, pod, _asked(one, pod), sight.generation, one.rewind, one.tuning)
        for pod, one in ((pod, desired.of(pod)) for pod in live_pods(desired.workload))
        if pod.hot and _owed(one, pod, sight.pods.get(pod.name), since=since)
    ]


def _asked(desired: Desired, pod: PodView) -> Mode:
    """The mode of a request: what is as safe already is asked to stay as it is."""
    mode = pod.effective_mode
    return mode if mode in desired.accepted else desired.mode


def _owed(desired: Desired, pod: PodView, signals: PodSignals | None, *, since: int) -> bool:
    """Whether a pod that can read requests lacks one.

    What came back from a restart has its mode, but its checkpoint may be poisoned.
    """
    in_place = right(pod, desired.accepted, since=since) and not outran(pod, signals, desired.accepted)
    if desired.delivery is Delivery.HOT and (not in_place or _untuned(desired, pod)):
        return True
    may_ask = desired.delivery is not Delivery.NEW_ONLY
    return desired.rewind and may_ask and in_place and not pod.asked_to_rewind


def _untuned(desired: Desired, pod: PodView) -> bool:
    return desired.tuning is not None and (pod.request is None or pod.request.generation < desired.tuned_by)
