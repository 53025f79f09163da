"""Which workloads are in a cohort.

The order is a hash of the policy's uid and the workload's key: deterministic, so that a restart of the operator chooses the
same; nested, so that 10 % is part of 25 %; and spread over nodes, so that a canary sees every kind of hardware it can.
"""

import hashlib
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence

from precision_operator.core.model import WorkloadView


def cohort_size(weight: int, total: int) -> int:
    """How many workloads a weight (percent) of ``total`` is: rounded down, at least one, all at 100."""
    if total == 0:
        return 0
    return max(1, total * weight // 100)


def rank(policy_uid: str, key: str) -> str:
    """The place of a workload in the policy's order."""
    return hashlib.sha256(f"{policy_uid}/{key}".encode()).hexdigest()


def canary_order(policy_uid: str, workloads: Iterable[WorkloadView]) -> list[WorkloadView]:
    """All workloads in the order in which they join: one of each node in turn, by rank within a node."""
    by_node: dict[str, list[WorkloadView]] = defaultdict(list)
    for workload in sorted(workloads, key=lambda w: rank(policy_uid, w.key)):
        node = min((pod.node for pod in workload.pods if pod.node), default="")
        by_node[node].append(workload)
    queues = sorted(by_node.values(), key=lambda queue: rank(policy_uid, queue[0].uid))
    order: list[WorkloadView] = []
    for turn in range(max((len(queue) for queue in queues), default=0)):
        order.extend(queue[turn] for queue in queues if turn < len(queue))
    return order


def extend_cohort(
    policy_uid: str,
    members: Sequence[str],
    workloads: Sequence[WorkloadView],
    *,
    size: int,
    first: Container[str] = (),
) -> tuple[str, ...]:
    """The cohort of ``size``, as keys: who is in it stays in it, the next in order join. Gone workloads leave.

    ``first``: keys of workloads that join before all others.
    """
    alive = {w.key for w in workloads}
    kept = [key for key in members if key in alive]
    if len(kept) >= size:
        return tuple(sorted(kept))
    inside = set(kept)
    joining = [w.key for w in canary_order(policy_uid, workloads) if w.key not in inside]
    joining.sort(key=lambda key: key not in first)
    kept.extend(joining[: size - len(kept)])
    return tuple(sorted(kept))
