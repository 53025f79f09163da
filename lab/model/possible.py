"""Which events make a difference in a state: what the explorer goes through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from lab.model.canonical import local_keys
from lab.model.cluster import Room
from lab.model.events import BREACHES, Edit, Event, writes
from lab.model.fleet import Fleet, policy_uids
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Unit
from precision_operator.api.state import Phase
from precision_operator.core.cohorts.order import rank
from precision_operator.core.model import RestartBy

MOST_PODS = 2
"""A person scales a workload to at most so many."""


def enabled(fleet: Fleet, kinds: frozenset[str], edits: Mapping[str, Edit]) -> Iterator[Event]:
    """Every event of these kinds that makes a difference here; one of each set of interchangeable workloads."""
    if fleet.gone:
        if "recreate-policy" in kinds:
            yield Event("recreate-policy")
        return
    yield from _passes_enabled(fleet, kinds)
    yield from (Event(kind) for kind, possible in _possible(fleet).items() if possible and kind in kinds)
    if "edit" in kinds and not fleet.policy.deleted:
        yield from (Event("edit", choice=name) for name in edits)
    for name in {key: name for name, key in local_keys(fleet).items()}.values():
        yield from (event for event in _of_workload(fleet, name) if event.kind in kinds)
    if "join" in kinds:
        free = [name for name in ("a", "b", "c") if name not in fleet.workloads][:1]
        yield from (Event("join", name, mode) for name in free for mode in (Mode.FP32, Mode.FP16))


def _possible(fleet: Fleet) -> dict[str, bool]:
    """What can happen to the whole."""
    state = fleet.state
    standing = not fleet.policy.deleted
    moving = state.phase in (Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY, Phase.DEGRADED)
    return {
        "promote": standing and (state.phase is Phase.PAUSED or state.by_canary),
        "retry": standing and (state.phase in (Phase.HELD, Phase.DEGRADED) or state.by_canary),
        "abort": standing and (moving or state.by_canary),
        "drill": standing and state.phase is Phase.HEALTHY and not state.drilled,
        "away": not fleet.metrics_away,
        "back": fleet.metrics_away,
        "lag": not fleet.lagging,
        "catch-up": fleet.lagging,
        "stranger": not fleet.strangers,
        "delete-policy": standing,
        "recreate-policy": fleet.assignment is not None,
        "lose": standing and fleet.assignment is not None,
        "release": fleet.policy.deleted and state.deletable,
    }


def _passes_enabled(fleet: Fleet, kinds: frozenset[str]) -> Iterator[Event]:
    decision = fleet.decide()
    chosen = set(decision.state.members) - set(fleet.state.members)
    by_pods = fleet.policy.spec.unit is Unit.POD
    yield Event("pass")
    if chosen and (by_pods or len(chosen) < len(fleet.workloads)) and not fleet.policy.deleted:
        uids = _orders_of_pods(fleet) if by_pods else policy_uids(frozenset(w.key for w in fleet.workloads.values()))
        yield from (Event("pass", choice=uid) for uid in uids if uid != fleet.policy.uid)
    yield from (Event(kind) for kind in ("late", "clock", "stale") if kind in kinds)
    count = len(writes(decision))
    if count and "zombie" in kinds:
        yield Event("zombie")
    if "crash" in kinds and decision.state != fleet.state:
        for size in range(count + 1) if count <= 4 else (0, 1, count):
            for lost in combinations(range(count), size):
                yield Event("crash", choice=",".join(map(str, lost)))


def _orders_of_pods(fleet: Fleet) -> Iterator[str]:
    """One policy uid for each order of pods that train alone, and of whole workloads, that makes a difference."""
    kinds: dict[str, tuple[str, object]] = {}
    for name, workload in fleet.workloads.items():
        if workload.indexes and not workload.hot and fleet.world_sizes.get(name) == 1:
            kinds |= {f"{workload.key}/{index}": (name, None) for index in range(workload.indexes)}
        elif fleet.world_sizes.get(name) == 1:
            kinds |= {pod.uid: (name, (pod.effective_mode, fleet.modes.get(pod.name))) for pod in workload.pods}
        else:
            kinds[workload.key] = name, None
    orders: dict[tuple[object, ...], str] = {}
    for uid in (fleet.policy.uid, *policy_uids(frozenset(kinds))):
        order = sorted(kinds, key=lambda entry: rank(uid, entry))
        orders.setdefault(tuple(kinds[entry] for entry in order), uid)
    yield from orders.values()


def _of_workload(fleet: Fleet, name: str) -> Iterator[Event]:
    workload = fleet.workloads[name]
    faulty = name in fleet.bad or name in (
        fleet.unobservable | fleet.unresponsive | fleet.crashing | fleet.poisoned | fleet.unreachable | fleet.budgeted
    )
    faulty = faulty or name in fleet.crowded | fleet.finalized or workload.pending_revision
    if name not in fleet.bad:
        yield from (Event("breach", name, signal) for signal in BREACHES)
    if name not in fleet.room:
        yield from (Event("room", name, room) for room in Room if room is not Room.FREE)
    yield from (Event("scale", name, str(count)) for count in range(MOST_PODS + 1) if count != workload.replicas)
    is_job = workload.restart_by is RestartBy.SUSPENSION
    possible = {
        "mild": name not in fleet.bad,
        "poison": name not in fleet.poisoned,
        "unobservable": name not in fleet.unobservable,
        "unresponsive": name not in fleet.unresponsive and workload.hot,
        "unreachable": name not in fleet.unreachable,
        "budget": name not in fleet.budgeted,
        "crowd": name not in fleet.crowded and workload.hot,
        "revise": bool(workload.pods) and not workload.pending_revision,
        "finalizer": name not in fleet.finalized,
        "suspend": is_job and not workload.suspended,
        "resume": is_job and bool(workload.suspended_by),
        "crash-loop": name not in fleet.crashing,
        "heal": faulty or name in fleet.room,
        "drop": True,
        "undeclare": workload.hot or workload.literal,
        "drain": bool(workload.pods),
        "bypass": bool(workload.pods),
    }
    yield from (Event(kind, name) for kind, can in possible.items() if can)
