"""When two worlds are the same to ``decide``: names, uids and absolute numbers do not matter, their relations do.

Folded are: workloads' names (symmetry: the explorer tries every order of the canary, see ``policy_uids``), pods' names,
times (kept as distances from now, up to a limit beyond which every deadline has passed), generations (kept as ranks), texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum

from lab.model.fleet import AWAY_SECONDS, TICK_SECONDS, Fleet
from precision_operator.api.drill import Drill
from precision_operator.api.spec import Unit
from precision_operator.api.state import State
from precision_operator.contract import ABORT, DRILL, PROMOTE, RETRY
from precision_operator.core.cohorts.order import rank
from precision_operator.core.model import PodView, WorkloadView

_IGNORED = frozenset(
    {"message", "conditions", "id", "observed_generation", "writer", "epoch", "key", "workloads", "waits_since"}
    | {"measured", "checks", "predicted_seconds", "transition_id", "policy_uid", "commands", "settings", "selector"}
)
"""Fields that only describe or name: ``decide`` draws no conclusion from what they say, or they are told otherwise below."""

_ROLES = ("members", "canary", "breached", "poisoned", "contested")
_OF_WORKLOADS = ("held", "failing", "mitigations")
_APART = frozenset(
    {*_ROLES, *_OF_WORKLOADS, "silent", "modes", "changed", "shares", "indexes", "restarts", "suspensions"}
)
_TIMES = ("_at", "since", "until")
_LIMIT = int(AWAY_SECONDS / TICK_SECONDS) + 1
_ATTEMPTS = 3
"""From so many failed attempts on, the back-off of the explored policies does not grow any more."""

_SHAPES_KEPT = 100_000

_names: dict[type, tuple[str, ...]] = {}
_shapes: dict[int, tuple[WorkloadView, int, tuple[int, ...]]] = {}
"""By identity, with the view itself, so that no other can take its place."""


def fingerprint(fleet: Fleet) -> int:
    """The same number for worlds between which ``decide`` and its environment cannot tell (64 bits)."""
    return hash(_Encoder(fleet).key())


def local_keys(fleet: Fleet) -> dict[str, int]:
    """Workload → the same number for workloads that are interchangeable."""
    encoder = _Encoder(fleet)
    return {name: encoder.local(name) for name in fleet.workloads}


class _Encoder:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._ranks = {number: rank for rank, number in enumerate(sorted(set(_generations(fleet))))}
        self._entries: dict[str, list[object]] = defaultdict(list)
        self._state = self._encode_state()

    def key(self) -> object:
        fleet = self._fleet
        policy, state = fleet.policy, fleet.state
        number = str(state.transition_id)
        alive = {workload.key for workload in fleet.workloads.values()}
        return (
            self._state,
            tuple(sorted(self.local(name) for name in fleet.workloads)),
            tuple(sorted(hash(tuple(told)) for key, told in self._entries.items() if key not in alive)),
            number == "0",
            tuple(_number(policy.annotations, command) == number for command in (PROMOTE, RETRY, ABORT, DRILL)),
            (policy.deleted, state.policy_uid == policy.uid, state.policy_uid == "", hash(state.settings)),
            (state.selector.empty, state.selector == policy.spec.selector, bool(fleet.summary.assignment)),
            fleet.edits,
            (fleet.metrics_away, bool(fleet.strangers)),
            self._admission(),
            self._ago(fleet.continuous_since),
            self._ago(fleet.now - (state.step_since or fleet.stage_since) + fleet.stage_since),
            fleet.stage_total,
            fleet.unstaged,
            self._order_of_pods(),
        )

    def _order_of_pods(self) -> object:
        """Under ``unit: Pod`` the order in which pods join, which is a hash of their uids, or of their indexes."""
        fleet = self._fleet
        if fleet.policy.spec.unit is not Unit.POD:
            return ()
        alike = {name: self.local(name) for name in fleet.workloads}
        order: list[tuple[str, object]] = []
        for name, workload in fleet.workloads.items():
            if workload.indexes and not workload.hot:
                parts = (f"{workload.key}/{index}" for index in range(workload.indexes))
                order += [(rank(fleet.policy.uid, part), alike[name]) for part in parts]
                continue
            for pod in workload.pods:
                told = alike[name], pod.effective_mode, pod.pending, self._pod(name, pod)
                order.append((rank(fleet.policy.uid, pod.uid), told))
        return tuple(told for _, told in sorted(order, key=lambda entry: entry[0]))

    def _admission(self) -> object:
        """What admission knows, where that is not what is committed."""
        fleet = self._fleet
        known = fleet.known
        behind = None if fleet.echoed else self._ago(fleet.committed_at)
        if known is None or behind is None:
            return fleet.lagging, behind, known is None, fleet.assignment is None
        selects = known.selector == fleet.state.selector
        return fleet.lagging, behind, known.enforce, known.fallback, selects, self._ranks[known.generation]

    def local(self, name: str) -> int:
        fleet = self._fleet
        workload = fleet.workloads[name]
        told, generations = _shape(workload)
        times = {pod.created_at for pod in workload.pods}
        restart = fleet.state.restarts.get(workload.key)
        order = sorted(times | ({restart.newest} if restart is not None else set()))
        behind = fleet.known is not None and not fleet.echoed
        return hash(
            (
                told,
                tuple(self._ranks[number] for number in generations),
                tuple(self._pod(name, pod) for pod in workload.pods),
                tuple(order.index(pod.created_at) for pod in workload.pods),
                order.index(restart.newest) if restart is not None else -1,
                tuple(fleet.bad.get(name, {}).items()),
                tuple(
                    name in known
                    for known in (
                        fleet.unobservable,
                        fleet.unresponsive,
                        fleet.crashing,
                        fleet.poisoned,
                        fleet.unreachable,
                        fleet.budgeted,
                        frozenset(fleet.used_up),
                        fleet.lowered,
                        fleet.left_over,
                        fleet.crowded,
                        fleet.short,
                        fleet.finalized,
                        fleet.in_order,
                    )
                ),
                (fleet.room.get(name), fleet.templates[name], len(fleet.labels[name]), fleet.world_sizes.get(name)),
                fleet.known.assigned(workload.key) if behind and fleet.known is not None else None,
                fleet.known.indexes.get(workload.key) if behind and fleet.known is not None else None,
                tuple(self._entries.get(workload.key, ())),
            )
        )

    def _pod(self, name: str, pod: PodView) -> object:
        fleet = self._fleet
        process = fleet.modes.get(pod.name)
        runs = (process[0], self._ranks[process[1]]) if process is not None else None
        going = (self._ago(pod.gone_by), pod.grace_seconds) if pod.terminating else None
        old = pod.name in fleet.leaving, pod.name in fleet.outdated
        return runs, old, going, fleet.times_taken(name, pod.name)

    def _encode_state(self) -> object:
        """The state without what it says of single workloads: that goes to the workloads."""
        state = self._fleet.state
        self._assign_values(state)
        self._assign_times(state)
        for name in _OF_WORKLOADS:
            for entry in getattr(state, name):
                self._entries[entry.key].append((name, self.encode(entry)))
        if state.canary and state.incident is not None:
            for workload in self._fleet.workloads.values():  # whom the canary is compared with
                self._entries[workload.key].append(workload.name in state.incident.workloads)
        return tuple(self._field(name, getattr(state, name)) for name in _names_of(State) if name not in _APART)

    def _assign_values(self, state: State) -> None:
        for role in _ROLES:
            for key in getattr(state, role):
                self._entries[key].append(role)
        for key, mode in state.modes.items():
            self._entries[key].append(("modes", mode))
        for key, generation in state.changed.items():
            self._entries[key].append(("changed", self._ranks[generation]))
        for key, share in state.shares.items():
            self._entries[key].append(("shares", share))
        for key, bound in state.indexes.items():
            self._entries[key].append(("indexes", bound))

    def _assign_times(self, state: State) -> None:
        for key, restart in state.restarts.items():
            gone = self._ago(restart.gone) if restart.gone else None
            self._entries[key].append(("restarts", restart.rounds, self._ago(restart.since), restart.pods, gone))
        for key, since in state.silent.items():
            self._entries[key].append(("silent", self._ago(since)))
        jobs = {job.key: job.object_generation for job in self._fleet.workloads.values()}
        for key, suspension in state.suspensions.items():
            behind = jobs.get(key, 0) - suspension.generation
            self._entries[key].append(("suspensions", suspension.resuming, behind, self._ago(suspension.since)))

    def encode(self, value: object) -> object:
        if isinstance(value, tuple):
            return tuple(self.encode(item) for item in value)
        if isinstance(value, str | int | float | Enum | None):
            return value
        return tuple(self._field(name, getattr(value, name)) for name in _names_of(type(value)))

    def _field(self, name: str, value: object) -> object:
        if name == "generation" and isinstance(value, int):
            return self._ranks[value]
        if isinstance(value, float) and name.endswith(_TIMES):
            return self._ago(value)
        if name == "restart_seconds" and isinstance(value, tuple):
            return round(max(value, default=0.0) / TICK_SECONDS)
        if isinstance(value, Drill) and not value.running:
            return None  # what is over is only shown
        if name == "attempts" and isinstance(value, int):
            return min(value, _ATTEMPTS)
        return self.encode(value)

    def _ago(self, then: float) -> int:
        """Ticks since ``then``; never negative, for hash(-1) equals hash(-2)."""
        return min(max(round((self._fleet.now - then) / TICK_SECONDS), -_LIMIT), _LIMIT) + _LIMIT


def _number(annotations: Mapping[str, str], command: str) -> str | None:
    return annotations[command].partition(":")[0] if command in annotations else None


def _names_of(kind: type) -> tuple[str, ...]:
    if kind not in _names:
        _names[kind] = tuple(spec.name for spec in fields(kind) if spec.name not in _IGNORED)
    return _names[kind]


def _shape(workload: WorkloadView) -> tuple[int, tuple[int, ...]]:
    """What a view says besides its generations, and those. Views are shared by many worlds: each is read once."""
    known = _shapes.get(id(workload))
    if known is None:
        if len(_shapes) > _SHAPES_KEPT:
            _shapes.clear()
        generations: list[int] = []
        suspended = workload.suspended, bool(workload.suspended_by), workload.emptied
        controlled = (workload.restart_by, *suspended, workload.pending_revision)
        said = [(workload.hot, workload.literal, workload.replicas, workload.indexes, *controlled)]
        said += [_flat(pod, generations) for pod in workload.pods]  # type: ignore[misc]
        known = (workload, hash(tuple(said)), tuple(generations))
        _shapes[id(workload)] = known
    return known[1:]


def _flat(pod: PodView, generations: list[int]) -> tuple[object, ...]:
    if pod.request is not None:
        generations.append(pod.request.generation)
    generations += [generation for _, generation in pod.admitted]
    asked = (pod.request.mode, pod.request.rewind) if pod.request is not None else None
    phase = (pod.ready, pod.pending, pod.terminating, pod.crashing, pod.backing_off, bool(pod.finalizer))
    return pod.hot, pod.index, asked, len(pod.admitted), pod.started_mode, phase


def _generations(fleet: Fleet) -> Iterator[int]:
    yield from (0, fleet.state.generation)
    if fleet.known is not None:
        yield fleet.known.generation
    yield from (applied for _, applied in fleet.modes.values())
    yield from (window.generation for window in fleet.state.mitigations)
    yield from fleet.state.changed.values()
    for workload in fleet.workloads.values():
        yield from _shape(workload)[1]
