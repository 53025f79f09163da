"""What the weight of a step counts under ``unit: Pod``: pods of independent replicas, and everything else as a whole.

Who has moved stays moved; free places go to the lowest hash of a pod's uid, or of a whole workload's key. So nothing moves
back and forth as pods come and go, and no list of pods is kept: how many of a workload, and what they carry, says which.
Where a restart moves them by index, how many says it alone: those of the lowest indexes, whatever becomes of their pods.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from precision_operator.api.modes import Mode, is_safer, safety
from precision_operator.api.spec import Delivery
from precision_operator.core.cohorts.order import rank
from precision_operator.core.model import Evaluation, PodView, WorkloadView, pods_seen
from precision_operator.core.progress import live_pods, running_pods


@dataclass(frozen=True, slots=True)
class Cohort:
    """Who is in the target."""

    members: tuple[str, ...]
    """Keys, sorted."""
    shares: Mapping[str, int] = field(default_factory=dict)
    """Of those that have moved in part: how many of their pods."""


def one_group(workload: WorkloadView, evaluation: Evaluation | None) -> bool | None:
    """Whether its pods train together, as far as their processes say how many ranks they are; None: not known.

    Several ranks may all be in one pod. That cannot be told from here, so they count as a group.
    """
    sizes = [_world_size(pod, evaluation) for pod in running_pods(workload, pods_seen(evaluation))]
    if any(size > 1 for size in sizes):
        return True
    return None if not sizes or 0 in sizes else False


def trains_alone(pod: PodView, evaluation: Evaluation | None) -> bool:
    """Its process says that it has no other ranks."""
    return _world_size(pod, evaluation) == 1


def _world_size(pod: PodView, evaluation: Evaluation | None) -> int:
    signals = pods_seen(evaluation).get(pod.name)
    return signals.runs_on.world_size if signals is not None and signals.runs_on is not None else 0


def by_index(workload: WorkloadView, delivery: Delivery) -> bool:
    """Its pods move by a restart, and admission knows which of them have moved by their index."""
    indexed = workload.indexes > 1 and all(pod.index >= 0 for pod in live_pods(workload))
    return indexed and delivery is Delivery.RESTART


def moved_pods(
    policy_uid: str,
    workload: WorkloadView,
    share: int,
    *,
    fallback: Mode,
    evaluation: Evaluation | None,
    may_join: Callable[[PodView], bool],
) -> tuple[PodView, ...]:
    """The pods that a share means.

    First those that were asked for less than the fallback, the least safe before others: these may have started in a
    fallback that was edited since. Then those that only report it, then those that may join. Among equals the lowest hash
    decides.
    """
    seen = pods_seen(evaluation)
    asked: dict[Mode, list[PodView]] = {mode: [] for mode in sorted(Mode, key=safety)}
    reporting: list[PodView] = []
    joining: list[PodView] = []
    for pod in sorted(live_pods(workload), key=lambda pod: rank(policy_uid, pod.uid)):
        mode, signals = pod.effective_mode, seen.get(pod.name)
        if mode is not None and is_safer(fallback, than=mode):
            asked[mode].append(pod)
        elif signals is not None and _is_less(signals.mode, fallback):
            reporting.append(pod)
        elif may_join(pod):
            joining.append(pod)
    return (*chain.from_iterable(asked.values()), *reporting, *joining)[:share]


def asked_for_less(pod: PodView, fallback: Mode) -> bool:
    """What it was asked for, or has started in, is less safe than the fallback."""
    return _is_less(pod.effective_mode, fallback)


def _is_less(mode: Mode | None, fallback: Mode) -> bool:
    return mode is not None and is_safer(fallback, than=mode)


def extend_units(
    policy_uid: str,
    kept: Cohort,
    *,
    parts: Mapping[str, Iterable[str]],
    whole: Mapping[str, int],
    places: int,
    first: Container[str] = (),
) -> Cohort:
    """The cohort with the next in order, as long as there are places.

    Args:
        policy_uid: gives each policy an order of its own.
        kept: who is in it.
        parts: uids of the pods that may join, or names for the indexes that may, by the key of their workload.
        whole: workloads that may join as a whole, and how many places each takes.
        places: that are free; what takes more than are left joins all the same, and is the last.
        first: keys of workloads that join before all others.
    """
    joining = [(key not in first, rank(policy_uid, key), key, count, True) for key, count in whole.items()]
    joining += [(True, rank(policy_uid, part), key, 1, False) for key, found in parts.items() for part in found]
    members, shares = set(kept.members), Counter(kept.shares)
    for _, _, key, count, is_whole in sorted(joining):
        if places <= 0:
            break
        places -= count
        members.add(key)
        if not is_whole:
            shares[key] += 1
    return Cohort(tuple(sorted(members)), dict(shares))
