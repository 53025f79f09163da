"""How far one workload is on its way to a mode: requested, acknowledged."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from precision_operator.api.modes import Mode, at_least_as_safe
from precision_operator.api.spec import Delivery
from precision_operator.contract import MAX_POD_GENERATION
from precision_operator.core.model import Evaluation, PodSignals, PodView, RestartBy, WorkloadView, pods_seen


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a workload stands on its way to a mode."""

    requested: bool
    """Every pod was asked for it (by request or by its environment)."""
    acknowledged: bool
    """Every running pod's own process reports the mode, and at least the request's generation."""


def resolve_delivery(wanted: Delivery, workload: WorkloadView) -> Delivery | None:
    """How this workload can be moved; None where there is no way.

    That is where it has neither contract nor a switch that admission can set, and where only new pods would help and
    nothing that we may do brings any.
    """
    settable = workload.hot or workload.literal
    restarts = settable and workload.restart_by is not RestartBy.NEVER
    hot = workload.hot and all(pod.hot for pod in live_pods(workload))
    match wanted:
        case Delivery.HOT:
            return Delivery.HOT if hot else None
        case Delivery.RESTART:
            return Delivery.RESTART if restarts else None
        case Delivery.NEW_ONLY:
            return Delivery.NEW_ONLY if settable else None
        case Delivery.AUTO:
            if hot:
                return Delivery.HOT
            return Delivery.RESTART if restarts else None


@cache
def accepted_modes(mode: Mode, *, rollback: bool) -> frozenset[Mode]:
    """What counts as being in ``mode``: in a rollback anything as safe, in a rollout exactly it."""
    return frozenset(m for m in Mode if at_least_as_safe(m, mode)) if rollback else frozenset({mode})


def pod_acknowledged(
    pod: PodView, signals: PodSignals | None, accepted: frozenset[Mode], *, since: int | None = None
) -> bool:
    """Whether the pod's process itself says that all its ranks train in an accepted mode.

    Args:
        since: generation of the workload's last change of mode; 0: it changes by new pods. What was asked for later, a
            rewind or a checkpoint, is not waited for: the process is in the mode. None: the newest request must have been
            carried out, whatever it asks for.
    """
    if signals is None or signals.mode not in accepted:
        return False
    if pod.hot and pod.request is not None:
        due = pod.request.generation
        if since is not None and pod.request.mode in accepted:
            due = min(due, since)
        return signals.generation is not None and signals.generation >= due
    return True


def outran(pod: PodView, signals: PodSignals | None, accepted: frozenset[Mode]) -> bool:
    """Whether the pod's process obeys a younger request than the pod carries, which led it to another mode.

    So it is after a restore of etcd: the process ignores what is older than what it has seen.
    """
    if signals is None or signals.mode is None or signals.mode in accepted:
        return False
    return pod.generation < (signals.generation or 0) <= MAX_POD_GENERATION


def live_pods(workload: WorkloadView) -> tuple[PodView, ...]:
    """The pods that are not on their way out."""
    for pod in workload.pods:
        if pod.terminating:
            return tuple(pod for pod in workload.pods if not pod.terminating)
    return workload.pods  # of most workloads, at most times


def running_pods(workload: WorkloadView, signals: Mapping[str, PodSignals]) -> tuple[PodView, ...]:
    """The live pods in which something trains, as far as is known: started, or with metrics of their own."""
    return tuple(pod for pod in live_pods(workload) if not pod.pending or pod.name in signals)


def observed_mode(workload: WorkloadView, evaluation: Evaluation | None, *, idle: Mode) -> Mode | None:
    """What a workload trains in: of several modes the least safe; ``idle`` where nothing runs; None: not known."""
    seen = pods_seen(evaluation)
    modes = set[Mode | None]()
    for pod in live_pods(workload):
        signals = seen.get(pod.name)
        reported = signals.mode if signals is not None else None
        if reported is None and (pod.pending or pod.stopped):
            continue
        modes.add(reported or pod.effective_mode)
    if None in modes:
        return None
    return next((mode for mode in (Mode.FP16, Mode.BF16, Mode.FP32) if mode in modes), idle)


def complete(workload: WorkloadView) -> bool:
    """As many pods as it should have are there, and all have started."""
    pods = live_pods(workload)
    return len(pods) >= workload.replicas and not any(pod.pending for pod in pods)


def right(pod: PodView, accepted: frozenset[Mode], *, since: int) -> bool:
    """Whether the pod was asked for an accepted mode, and since the workload's mode changed last (by generation)."""
    return pod.effective_mode in accepted and pod.generation >= since


def progress_of(
    workload: WorkloadView,
    accepted: frozenset[Mode],
    evaluation: Evaluation | None,
    delivery: Delivery,
    *,
    since: int = 0,
    replacing: bool = False,
) -> Progress:
    """Where ``workload`` stands on its way to one of the ``accepted`` modes.

    A pod that cannot start holds nothing back: admission, or the request that it carries, says what it will start in. A
    terminating pod does, for as long as its process says that it trains in something else.

    Args:
        since: generation of the workload's last change of mode.
        replacing: its pods were taken away a moment ago: as many must be back.
    """
    if delivery is Delivery.NEW_ONLY:
        return Progress(requested=True, acknowledged=True)
    signals = pods_seen(evaluation)
    requested = all(right(pod, accepted, since=since) for pod in live_pods(workload))
    leaving = [signals.get(pod.name) for pod in workload.pods if pod.terminating]
    left = all(s is None or s.mode is None or s.mode in accepted for s in leaving)
    running = running_pods(workload, signals)
    said = all(pod_acknowledged(pod, signals.get(pod.name), accepted, since=since) for pod in running)
    enough = not replacing or len(running) >= workload.replicas
    return Progress(requested=requested, acknowledged=requested and left and said and enough)


def asked_to_rewind(workload: WorkloadView) -> bool:
    """Whether every live pod was asked to go back to a healthy checkpoint."""
    return all(pod.asked_to_rewind for pod in live_pods(workload))


def rewound(workload: WorkloadView, evaluation: Evaluation) -> bool:
    """Whether every running pod was asked to go back to a healthy checkpoint, and says that it has carried that out."""
    running = running_pods(workload, evaluation.pods)
    return bool(running) and all(
        pod.asked_to_rewind and pod_acknowledged(pod, evaluation.pods.get(pod.name), frozenset(Mode)) for pod in running
    )
