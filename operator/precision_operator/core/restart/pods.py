"""The pods that only a restart brings into their mode: those that cannot be asked, or did not answer."""

from precision_operator.api.spec import Delivery
from precision_operator.core.desired import Desired
from precision_operator.core.model import PodView
from precision_operator.core.progress import live_pods, pod_acknowledged
from precision_operator.core.restart.pace import CHECKPOINT_SECONDS
from precision_operator.core.sight import Sight


def pods_to_restart(desired: Desired, sight: Sight) -> list[PodView]:
    """The pods of a workload that have to go."""
    pods = live_pods(desired.workload)
    if desired.delivery is Delivery.RESTART:
        return [pod for pod in pods if pod.effective_mode not in desired.of(pod).accepted]
    if desired.delivery is Delivery.HOT and desired.escalate:
        return _unresponsive(desired, pods, sight)
    return []


def _unresponsive(desired: Desired, pods: tuple[PodView, ...], sight: Sight) -> list[PodView]:
    """Asked, running, and seen not to have done it. Missing metrics do not count as that before the deadline.

    Past it, who could not even be asked goes too: the API server may refuse a pod's annotation for ever. Ranks of a
    process group go together, those that did answer too.
    """
    seen, since = sight.pods, sight.changed.get(desired.workload.key, 0)
    found = [
        pod
        for pod in pods
        if (pod.effective_mode in desired.accepted or (desired.force and _lasts(pod, sight.now)))
        and not (pod.pending or pod.stopped)
        and not pod_acknowledged(pod, seen.get(pod.name), desired.accepted, since=since)
    ]
    if not found or not (desired.force or any(pod.name in seen for pod in found)):
        return []
    return list(pods) if any(pod.name in seen and seen[pod.name].in_a_group for pod in pods) else found


def _lasts(pod: PodView, now: float) -> bool:
    """Not one that appeared a moment ago, and is asked now."""
    return now - pod.created_at >= CHECKPOINT_SECONDS
