"""When two worlds are the same to ``decide``: names, uids and absolute numbers do not matter, their relations do.

Folded are: workloads' names (symmetry: the explorer tries every order of the canary, see ``policy_uids``), pods' names,
times (kept as distances from now, up to a limit beyond which every deadline has passed), generations (kept as ranks), texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields

from lab.model.fleet import AWAY_SECONDS, TICK_SECONDS, Fleet
from precision_operator.contract import ABORT, FINALIZER, PROMOTE, RETRY
from precision_operator.core.model import WorkloadView

_IGNORED = frozenset(
    {
        "message",
        "conditions",
        "id",
        "observed_generation",
        "writer",
        "epoch",
        "step",
        "namespace",
        "kind",
        "name",
        "uid",
    }
    | {"measured", "unacknowledged", "checks"}
    | {"total", "moved", "breached", "unknown", "weight", "request_raw", "transition_id", "workloads"}
)
"""Fields that only describe or name: ``decide`` draws no conclusion from what they say."""

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
        self._status = self._encode_status()

    def key(self) -> object:
        fleet = self._fleet
        policy, number = fleet.policy, str(fleet.state.transition_id)
        alive = {workload.key for workload in fleet.workloads.values()}
        return (
            self._status,
            tuple(sorted(self.local(name) for name in fleet.workloads)),
            tuple(sorted(hash(tuple(said)) for uid, said in self._entries.items() if uid not in alive)),
            number == "0",
            tuple(policy.annotations.get(command) == number for command in (PROMOTE, RETRY, ABORT)),
            FINALIZER in policy.finalizers,
            None if policy.deleted_at is None else self._ago(policy.deleted_at),
            fleet.edits,
            fleet.down,
            self._ago(fleet.continuous_since),
            self._ago(fleet.now - (fleet.state.step_since or fleet.stage_since) + fleet.stage_since),
            fleet.stage_total,
            fleet.unstaged,
        )

    def local(self, name: str) -> int:
        fleet = self._fleet
        workload = fleet.workloads[name]
        said, generations = _shape(workload)
        return hash(
            (
                said,
                tuple(self._ranks[number] for number in generations),
                tuple(
                    sorted((mode, self._ranks[number]) for mode, number in (fleet.modes[p.name] for p in workload.pods))
                ),
                tuple(fleet.bad.get(name, {}).items()),
                tuple(name in known for known in (fleet.blind, fleet.deaf, fleet.crashing, fleet.poisoned)),
                name in fleet.lowered,
                name in fleet.left_over,
                fleet.originals.get(name),
                tuple(self._entries.get(workload.key, ())),
            )
        )

    def _encode_status(self) -> object:
        """The state without what it says of single workloads: that goes to the workloads."""
        state, said = self._fleet.state, []
        for name in _names_of(type(state)):
            value = getattr(state, name)
            if isinstance(value, tuple) and value and hasattr(value[0], "uid"):
                for entry in value:
                    self._entries[entry.key].append((name, self.encode(entry)))
            else:
                said.append(self._field(name, value))
        if state.canary and state.incident is not None:
            for workload in self._fleet.workloads.values():  # whom the canary is compared with
                self._entries[workload.key].append(workload.name in state.incident.workloads)
        return tuple(said)

    def encode(self, value: object) -> object:
        if isinstance(value, tuple):
            return tuple(self.encode(item) for item in value)
        if isinstance(value, str | int | float | None):
            return value
        return tuple(self._field(name, getattr(value, name)) for name in _names_of(type(value)))

    def _field(self, name: str, value: object) -> object:
        if name == "generation" and isinstance(value, int):
            return self._ranks[value]
        if isinstance(value, float) and name.endswith(_TIMES):
            return self._ago(value)
        if name == "attempts" and isinstance(value, int):
            return min(value, _ATTEMPTS)
        return self.encode(value)

    def _ago(self, then: float) -> int:
        """Ticks since ``then``; never negative, for hash(-1) equals hash(-2)."""
        return min(max(round((self._fleet.now - then) / TICK_SECONDS), -_LIMIT), _LIMIT) + _LIMIT


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
        known = (workload, hash(_flat(workload, generations)), tuple(generations))
        _shapes[id(workload)] = known
    return known[1:]


def _flat(value: object, generations: list[int]) -> object:
    if isinstance(value, tuple):
        return tuple(_flat(item, generations) for item in value)
    if isinstance(value, str | int | float | None):
        return value
    said: list[object] = []
    for name in _names_of(type(value)):
        item = getattr(value, name)
        if name in ("generation", "generation_raw") and item is not None:
            generations.append(int(item))
            item = True
        said.append(_flat(item, generations))
    return tuple(said)


def _generations(fleet: Fleet) -> Iterator[int]:
    yield from (0, fleet.state.generation)
    yield from (applied for _, applied in fleet.modes.values())
    yield from (window.generation for window in fleet.state.mitigations)
    for workload in fleet.workloads.values():
        yield from _shape(workload)[1]
