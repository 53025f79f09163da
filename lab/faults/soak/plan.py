"""What dies when: a sequence of faults from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lab.errors import LabError


class Kind(StrEnum):
    """What is killed, each by SIGKILL; but for the network, which is cut."""

    OPERATOR = "operator"
    APISERVER = "apiserver"
    ETCD = "etcd"
    PROMETHEUS = "prometheus"
    KUBELET = "kubelet"
    NETWORK = "network"
    """Of pods of the node, in their own network namespaces."""


OUTAGE_SECONDS: Mapping[Kind, tuple[float, float]] = {
    Kind.OPERATOR: (0.0, 0.0),
    Kind.PROMETHEUS: (0.0, 0.0),
    Kind.APISERVER: (0.0, 45.0),
    Kind.ETCD: (0.0, 45.0),
    Kind.KUBELET: (0.0, 45.0),
    Kind.NETWORK: (3.0, 12.0),
}
"""Least and most time until the lab brings it back; what runs in a pod is brought back by the kubelet.

An API server is away for longer than the operator's watches try again by themselves (9 s). A kubelet is away for less than
an unresponsive trainer is waited for (90 s): after that the operator restarts it, as it should.

The network may be away for longer than the operator's Lease lasts (6 s), and is for less than the three liveness probes
(20 s) after which the kubelet would restart the operator for it.
"""

LEAST_SLOT_SECONDS = 20.0
"""Between two faults; less, and one begins before the last is over."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault."""

    at_seconds: float
    """Since the soak began. It begins later where the one before took long to get over."""
    kind: Kind
    outage_seconds: float
    leader: bool
    """Whether the operator's leader is killed, or another; whether its network alone is cut, or that of all pods."""


def plan(*, seed: int, minutes: float, kills: int) -> tuple[Planned, ...]:
    """Faults in order, each kind as often as the others, spread over the time given.

    The operator's leader is killed first, then another, in turn; the network is cut of all pods first, then of the leader.

    Raises:
        LabError: too few for all kinds, or too many for the time.
    """
    slot = minutes * 60 / max(kills, 1)
    if kills < len(Kind) or slot < LEAST_SLOT_SECONDS:
        raise LabError(
            f"at least {len(Kind)} kills, one each {LEAST_SLOT_SECONDS:g} s at most",
            f"{kills} in {minutes:g} minutes",
            "change --kills or --minutes",
        )
    dice = random.Random(seed)
    kinds: list[Kind] = []
    while len(kinds) < kills:
        kinds += dice.sample(list(Kind), len(Kind))
    return tuple(
        Planned(
            at_seconds=slot * (index + dice.uniform(0.0, 0.5)),
            kind=kind,
            outage_seconds=dice.uniform(*OUTAGE_SECONDS[kind]),
            leader=(kinds[:index].count(kind) + (kind is Kind.NETWORK)) % 2 == 0,
        )
        for index, kind in enumerate(kinds[:kills])
    )
