"""The world as the explorer needs it: copied cheaply, and able to do what an environment does to an operator."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import factorial

from lab.model.cluster import LABELS
from lab.model.world import World
from precision_operator.api.mitigation import MitigationResult, Rung
from precision_operator.api.modes import Mode, at_least_as_safe
from precision_operator.api.policy import Policy
from precision_operator.api.signals import Signal
from precision_operator.api.spec import OnMemoryShortage, Unit
from precision_operator.api.state import State
from precision_operator.core.cohorts.order import rank
from precision_operator.core.decide import Decision
from precision_operator.core.model import PodView, WorkloadView

TICK_SECONDS = 10.0
"""Abstract time: every limit of the explored policies is a small multiple of it."""

AWAY_SECONDS = 100.0
"""An absence of the operator that is longer than every limit."""

_DICTS: tuple[str, ...] = (
    "workloads",
    "modes",
    "restarts",
    "templates",
    "labels",
    "room",
    "strangers",
    "taken",
    "used_up",
)
_DICTS += ("checkpoints", "world_sizes", "places", "cured_by", "everywhere")
_SETS: tuple[str, ...] = (
    "unobservable",
    "unresponsive",
    "crashing",
    "poisoned",
    "unreachable",
    "leaving",
    "referenced",
    "budgeted",
)
_SETS += ("crowded", "in_order", "numbered", "finalized", "outdated", "unlisted")


@dataclass
class Fleet(World):
    """A world, with what only the checker remembers of its past."""

    written: Mapping[str, object] = field(default_factory=dict)
    """The policy's spec as a person wrote it first."""
    edits: frozenset[str] = frozenset()
    """What a person changed in it since."""
    lowered: frozenset[str] = frozenset()
    """Workloads that a rollback moved since a person last asked for another attempt: I7 forbids to promote them."""
    left_over: frozenset[str] = frozenset()
    """Workloads that were found in the target, or that an earlier policy moved: they are no part of a step's weight."""
    short: frozenset[str] = frozenset()
    """Workloads that a rollback put into BF16 because their devices had no room for FP32: they may stay in it."""
    unstaged: bool = False
    """The target was changed, and the rollout has not begun again."""
    stage_since: float = 0.0
    """When the step really began, whatever the operator's clock says of it."""
    stage_total: int = 0
    """How many workloads, or places of pods, there were when the step began: what its weight is a share of."""
    taken: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Pod → (change of its workload's mode, how many pods the operator took away for that before it came)."""

    def clone(self) -> Fleet:
        """A copy that shares the frozen views only."""
        other = copy.copy(self)
        for name in _DICTS:
            setattr(other, name, dict(getattr(self, name)))
        other.bad = {name: dict(values) for name, values in self.bad.items()}
        for name in _SETS:
            setattr(other, name, set(getattr(self, name)))
        other.log = []
        return other

    def commit(self, decision: Decision) -> None:
        """The state is stored; that it survives the wire is the checker's to say."""
        state = decision.state
        self.commits += state != self.state or self.assignment is None
        if state.generation != self.state.generation:
            self.committed_at = self.now
        self.state = state
        self.publish(state)

    def report(self, decision: Decision) -> None:
        """The summary is stored."""
        if not self.policy.deleted:
            self.summaries += decision.summary != self.summary
            self.summary = decision.summary

    def take_away(self, name: str, uid: str) -> bool:
        """The operator deletes a pod: its replacement inherits how often that was done."""
        old = (
            next((pod for pod in self.workloads[name].pods if pod.uid == uid), None) if name in self.workloads else None
        )
        before = {pod.name for pod in self.workloads[name].pods} if name in self.workloads else set()
        if old is None or not super().take_away(name, uid):
            return False
        change, count = self.change(name), self.times_taken(name, old.name)
        for pod in self.workloads[name].pods:
            if pod.name not in before:
                self.taken[pod.name] = (change, count + 1)
        return True

    def change(self, name: str) -> int:
        """The generation of the last change of a workload's mode."""
        return self.state.changed.get(self.workloads[name].key, 0)

    def times_taken(self, name: str, pod: str) -> int:
        """How many pods in this one's place were taken away for the change that stands."""
        change, count = self.taken.get(pod, (0, 0))
        return count if change == self.change(name) else 0

    def turn(self) -> None:
        """A moment passes; what is gone is forgotten."""
        super().turn()
        alive = {pod.name for workload in self.workloads.values() for pod in workload.pods}
        self.taken = {name: count for name, count in self.taken.items() if name in alive}

    def join(
        self, name: str, *, hot: bool, mode: Mode = Mode.FP32, part: str = "", job: bool = False, pods: int = 1
    ) -> None:
        """A person creates a workload; ``part`` is a label that an edited selector asks for."""
        self.serial += 1
        uid = f"uid-{name}{self.serial}"
        (self.add_job if job else self.add)(name, hot=hot, mode=mode, pods=pods)
        self.workloads[name] = replace(self.workloads[name], uid=uid)
        if part:
            self.labels[name] = {**LABELS, "part": part}

    def bypass(self, name: str) -> None:
        """All its pods are replaced by way of an API server that knows of no assignment yet."""
        self.bypassed = True
        self.replace_pods(name)
        self.bypassed = False

    def drop(self, name: str) -> None:
        """A person deletes a workload."""
        super().drop(name)
        for known in (self.unobservable, self.poisoned, self.crowded):
            known.discard(name)
        self.lowered -= {name}
        self.short -= {name}
        self.bad.pop(name, None)

    def heal(self, name: str) -> None:
        """Every fault of one workload stops."""
        if name in self.crashing:
            self.crash(name, False)
        for known in (self.unobservable, self.unresponsive, self.poisoned, self.unreachable, self.budgeted):
            known.discard(name)
        self.crowded.discard(name)
        if self.workloads[name].pending_revision:
            self.restore_template(name)
        if name in self.finalized:
            self.keep(name, finalizer="")
        self.room.pop(name, None)
        self.bad.pop(name, None)

    def heal_all(self) -> None:
        """Every fault stops."""
        for name in self.workloads:
            self.heal(name)
        self.metrics_away = False
        self.strangers.clear()
        self.catch_up()

    def begin_again(self, policy: Policy) -> None:
        """A policy of that name is created: what stands is what it finds."""
        self.left_over |= self.assigned(policy.spec.target) | self.really_in(policy.spec.target)
        self.edits = frozenset()
        self.recreate_policy(policy)

    def release(self) -> None:
        """A person gives up what a rollback holds: the assignment is deleted."""
        self.state, self.lowered = State(), frozenset()
        self.publish(None)

    def fallback_of(self, name: str) -> Mode:
        """What a rollback may leave a workload in: the fallback, or BF16 where its devices had no room for FP32."""
        in_bf16 = name in self.short and self.policy.spec.rollback.on_memory_shortage is OnMemoryShortage.BF16
        return Mode.BF16 if in_bf16 else self.policy.spec.fallback

    def is_back(self, name: str) -> bool:
        """Something trains in a workload, all of it in what a rollback may leave it in."""
        running = self.processes(name)
        return bool(running) and all(at_least_as_safe(mode, self.fallback_of(name)) for mode, _ in running)

    def places_of(self, name: str) -> int:
        """How many places of a step it takes as a whole: under ``unit: Pod`` one for each of its process groups."""
        if self.policy.spec.unit is not Unit.POD or self.world_sizes.get(name) != 1:
            return 1
        workload = self.workloads[name]
        if workload.indexes and not workload.hot:
            return workload.indexes
        return max(1, sum(not pod.terminating and pod.name in self.modes for pod in workload.pods))

    def total_places(self) -> int:
        """What a step's weight is a share of, now."""
        return sum(map(self.places_of, self.workloads))

    def in_target(self, name: str) -> int:
        """How many places of a workload are assigned the target: all of them, or the pods of its share that were asked."""
        workload, target = self.workloads[name], self.policy.spec.target
        if self.state.enforce and self.state.assigned(workload.key) is target:
            return self.places_of(name)
        if workload.key not in self.state.shares:
            return 0
        asked = sum(not pod.terminating and pod.effective_mode is target for pod in workload.pods)
        return max(asked, self.state.indexes.get(workload.key, 0))

    def assigned_to(self, workload: WorkloadView, pod: PodView) -> Mode | None:
        """What a pod is assigned, by its index where that decides."""
        below = 0 <= pod.index < self.state.indexes.get(workload.key, 0)
        return self.state.index_mode if below else self.state.assigned(workload.key)

    def has_moved(self, name: str) -> bool:
        """All of it trains in what a member is due; of one that moves in part, all of its pods that were asked."""
        due, workload = self.due(name), self.workloads[name]
        if workload.key not in self.state.shares:
            return name in self.really_in(due)
        asked = [pod.name for pod in workload.pods if not pod.terminating and pod.effective_mode is due]
        return bool(asked) and all(self.modes.get(pod, (None, 0))[0] is due for pod in asked)

    def due(self, name: str) -> Mode:
        """What a member is in when the fleet rests: the target; BF16 where a window says that it ended the overflow of FP16.

        It stays there, beside its target, until a person's retry. While BF16 is only tried, or has failed, it does not rest.
        """
        spec, key = self.policy.spec, self.workloads[name].key
        helped = {
            m.key
            for m in self.state.mitigations
            if (m.signal, m.rung, m.result) == (Signal.OVERFLOW, Rung.BF16, MitigationResult.MITIGATED)
        }
        beside = spec.target is Mode.FP16 and spec.fallback is Mode.FP32 and key in helped
        return Mode.BF16 if beside else spec.target

    def assigned(self, mode: Mode) -> frozenset[str]:
        """The workloads that are assigned ``mode``."""
        if not self.state.enforce:
            return frozenset()
        return frozenset(n for n, w in self.workloads.items() if self.state.assigned(w.key) is mode)

    def names_of(self, keys: tuple[str, ...] | frozenset[str]) -> set[str]:
        """The workloads of these keys that are there."""
        inside = frozenset(keys)
        return {name for name, workload in self.workloads.items() if workload.key in inside}

    def selected(self) -> set[str]:
        """The workloads that the policy's own selector matches."""
        return {name for name in self.workloads if self.policy.spec.selector.matches(self.labels[name])}

    def movable(self) -> set[str]:
        """Selected workloads that something of ours reaches."""
        chosen = self.selected()
        return {n for n, w in self.workloads.items() if n in chosen and w.pods and (w.hot or w.literal)}


@lru_cache
def policy_uids(keys: frozenset[str]) -> tuple[str, ...]:
    """One policy uid for each order in which a canary can choose among the workloads of these keys."""
    found: dict[tuple[str, ...], str] = {}
    number = 0
    while len(found) < factorial(len(keys)):
        uid = f"policy-{number}"
        found.setdefault(tuple(sorted(keys, key=lambda key: rank(uid, key))), uid)
        number += 1
    return tuple(found.values())
