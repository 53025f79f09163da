"""How far one workload has been moved towards a mode: told, acknowledged, settled."""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_operator.api.modes import Mode, at_least_as_safe
from precision_operator.api.spec import Delivery
from precision_operator.core.model import Evaluation, PodSignals, PodView, WorkloadView


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a workload stands on its way to a mode."""

    told: bool
    """Every pod has been told (by request or by its environment)."""
    acknowledged: bool
    """Every pod's own process reports the mode, and at least the request's generation."""
    settled: bool
    """New pods of the template start in the mode, and no settle is under way."""


def resolve_delivery(wanted: Delivery, workload: WorkloadView) -> Delivery | None:
    """How this workload can be moved; None where there is no way (neither contract nor literal value)."""
    hot = workload.hot and all(pod.hot for pod in workload.pods)
    match wanted:
        case Delivery.HOT:
            return Delivery.HOT if hot else None
        case Delivery.RESTART:
            return Delivery.RESTART if workload.hot or workload.literal else None
        case Delivery.NEW_ONLY:
            return Delivery.NEW_ONLY if workload.hot else None
        case Delivery.AUTO:
            if hot:
                return Delivery.HOT
            return Delivery.RESTART if workload.hot or workload.literal else None


def accepted_modes(mode: Mode, *, rollback: bool) -> frozenset[Mode]:
    """What counts as being in ``mode``: on the way down anything as safe, on the way up exactly it."""
    return frozenset(m for m in Mode if at_least_as_safe(m, mode)) if rollback else frozenset({mode})


def pod_acknowledged(pod: PodView, signals: PodSignals | None, accepted: frozenset[Mode]) -> bool:
    """Whether the pod's process itself says that all its ranks train in an accepted mode."""
    if signals is None or signals.mode not in accepted:
        return False
    if pod.hot and pod.request is not None:
        return signals.generation is not None and signals.generation >= pod.request.generation
    return True


def live_pods(workload: WorkloadView) -> tuple[PodView, ...]:
    """The pods that are not on their way out."""
    return tuple(pod for pod in workload.pods if not pod.terminating)


def progress_of(
    workload: WorkloadView, accepted: frozenset[Mode], evaluation: Evaluation | None, delivery: Delivery
) -> Progress:
    """Where ``workload`` stands on its way to one of the ``accepted`` modes.

    A workload without pods has moved when its template has: there is no process that could say more.
    """
    template = workload.template_mode in accepted
    settled = template and workload.settle is None
    if not workload.pods and workload.replicas == 0:
        return Progress(told=template, acknowledged=template, settled=settled)
    if delivery is Delivery.NEW_ONLY:
        return Progress(told=True, acknowledged=settled, settled=settled)
    signals: Mapping[str, PodSignals] = evaluation.pods if evaluation else {}
    pods = live_pods(workload)
    told = bool(pods) and all(pod.effective_mode in accepted for pod in workload.pods)
    enough = len(pods) >= workload.replicas
    acknowledged = told and enough and all(pod_acknowledged(pod, signals.get(pod.name), accepted) for pod in pods)
    if delivery is Delivery.RESTART:
        told = template and told
        acknowledged = acknowledged and template and workload.rolled_out
    return Progress(told=told, acknowledged=acknowledged, settled=settled)
