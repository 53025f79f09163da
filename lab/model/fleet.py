"""The world as the explorer needs it: copied cheaply, and able to do what an environment does to an operator."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import factorial

from lab.model.world import World
from precision_operator.api.mitigation import Result, Rung
from precision_operator.api.modes import Mode, is_safer
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec
from precision_operator.core.actions import Action, RequestPod, Restore, Settle, WriteTemplate
from precision_operator.core.cohorts import rank
from precision_operator.core.decide import Decision
from precision_operator.core.model import Request

TICK_SECONDS = 10.0
"""Abstract time: every limit of the explored policies is a small multiple of it."""

AWAY_SECONDS = 100.0
"""An absence of the operator that is longer than every limit."""


@dataclass
class Fleet(World):
    """A world, with what only the checker remembers of its past."""

    base: PolicySpec = field(init=False)
    """The spec as it was written first."""
    edits: frozenset[str] = frozenset()
    """What a person changed in it since."""
    lowered: frozenset[str] = frozenset()
    """Workloads that we moved down since a person last asked for another attempt: S7 forbids to move them up."""
    left_over: frozenset[str] = frozenset()
    """Workloads that a policy before this one moved: deleting a policy leaves them where they are."""
    unstaged: bool = False
    """The target was changed, and the rollout has not begun again."""
    stage_since: float = 0.0
    """When the step really began, whatever the operator's clock says of it."""
    stage_total: int = 0
    """How many workloads there were when the step began: what its weight is a share of."""

    def __post_init__(self) -> None:
        self.base = self.policy.spec

    def clone(self) -> Fleet:
        """A copy that shares the frozen views only."""
        other = copy.copy(self)
        for name in ("workloads", "modes", "originals", "restarts"):
            setattr(other, name, dict(getattr(self, name)))
        other.bad = {name: dict(values) for name, values in self.bad.items()}
        for name in ("blind", "deaf", "crashing", "poisoned"):
            setattr(other, name, set(getattr(self, name)))
        other.log = []
        return other

    def commit(self, decision: Decision) -> None:
        """The state is stored; that it survives the wire is the checker's to say."""
        self.state = decision.state

    def _start_pods(self, name: str) -> None:
        """While the gate is closed the API server sends every new pod into the fallback, whatever its template says."""
        super()._start_pods(name)
        if not self.state.gate_closed:
            return
        workload, request = self.workloads[name], Request(self.state.generation, self.state.fallback)
        pods = tuple(replace(p, started_mode=request.mode, request=request if p.hot else None) for p in workload.pods)
        self.workloads[name] = replace(workload, pods=pods)
        self.modes.update({p.name: (request.mode, request.generation if p.hot else 0) for p in pods})

    def join(self, name: str, *, hot: bool, latch: Mode | None = None) -> None:
        """A person creates a workload, or labels one that an earlier policy rolled back and ``latch`` holds."""
        self.add(name, hot=hot)
        self.serial += 1
        self.workloads[name] = replace(
            self.workloads[name], uid=f"uid-{name}{self.serial}", latch=latch, has_original=latch is not None
        )
        if latch is not None:
            self.originals[name] = Mode.FP32
            self.lowered |= {name}

    def undeclare(self, name: str) -> None:
        """Its owner takes the contract out of the template: the pods are rolled, unless the rollout is paused."""
        self.workloads[name] = replace(
            self.workloads[name], hot=False, literal=False, template_mode=Mode.FP32, template_request=None
        )
        if not self.workloads[name].paused:
            self._start_pods(name)

    def resume(self, name: str) -> None:
        """A person unpauses it in the middle of a settle: with its ReplicaSet changed, the controller rolls out."""
        rolls = self.workloads[name].updated_replicas == 0
        self.workloads[name] = replace(self.workloads[name], paused=False)
        if rolls:
            self._start_pods(name)

    def scale(self, name: str, replicas: int) -> None:
        """A person scales a workload."""
        for pod in self.workloads[name].pods:
            del self.modes[pod.name]
        self.workloads[name] = replace(self.workloads[name], replicas=replicas, updated_replicas=replicas, pods=())
        self._start_pods(name)

    def drop(self, name: str) -> None:
        """A person deletes a workload."""
        for pod in self.workloads.pop(name).pods:
            del self.modes[pod.name]
        for known in (self.blind, self.deaf, self.crashing, self.poisoned):
            known.discard(name)
        self.lowered -= {name}
        self.bad.pop(name, None)
        self.originals.pop(name, None)

    def reapply(self, name: str) -> None:
        """Somebody else writes the template's original mode back; its pods are rolled."""
        self.workloads[name] = replace(self.workloads[name], template_mode=self.originals[name], template_request=None)
        self._start_pods(name)

    def crash(self, name: str, crashing: bool) -> None:
        """The pods of a workload begin or cease to crash."""
        (self.crashing.add if crashing else self.crashing.discard)(name)
        workload = self.workloads[name]
        pods = tuple(replace(pod, crashing=crashing, ready=not crashing) for pod in workload.pods)
        self.workloads[name] = replace(workload, pods=pods)

    def heal(self, name: str) -> None:
        """Every fault of one workload stops."""
        if name in self.crashing:
            self.crash(name, False)
        for known in (self.blind, self.deaf, self.poisoned):
            known.discard(name)
        self.bad.pop(name, None)

    def heal_all(self) -> None:
        """Every fault stops."""
        for name in self.workloads:
            self.heal(name)
        self.down = False

    def due(self, name: str) -> Mode:
        """What a member is in when the fleet rests: the target; BF16 where a window says that it ended the overflow of FP16.

        It stays there, beside its target, until a person's retry. While BF16 is only tried, or has failed, it does not rest.
        """
        spec, uid = self.policy.spec, self.workloads[name].uid
        helped = {
            m.key
            for m in self.state.mitigations
            if (m.signal, m.rung, m.result) == (Signal.OVERFLOW, Rung.BF16, Result.MITIGATED)
        }
        beside = spec.target is Mode.FP16 and spec.fallback is Mode.FP32 and uid in helped
        return Mode.BF16 if beside else spec.target

    def told(self, mode: Mode) -> frozenset[str]:
        """The workloads that our own hand told ``mode``."""
        return frozenset(
            workload.name
            for workload in self.workloads.values()
            if any(pod.request is not None and pod.effective_mode is mode for pod in workload.pods)
            or (workload.has_original and workload.template_mode is mode)
        )


def asked_mode(action: Action) -> Mode | None:
    """The mode that a write of ours asks a running pod or a template for. A settle begun before is only finished."""
    match action:
        case RequestPod() | WriteTemplate():
            return action.mode
        case Settle() if action.workload.settle is None:
            return action.mode
    return None


def less_safe(action: Action, than: Mode) -> bool:
    """Whether the write begins something less safe than ``than``."""
    mode = asked_mode(action)
    return mode is not None and is_safer(than, mode)


def restarts(action: Action) -> bool:
    """Whether the write ends running pods."""
    return isinstance(action, WriteTemplate | Restore) and bool(action.workload.pods)


@lru_cache
def policy_uids(uids: frozenset[str]) -> tuple[str, ...]:
    """One policy uid for each order in which a canary can choose among the workloads of these uids."""
    found: dict[tuple[str, ...], str] = {}
    number = 0
    while len(found) < factorial(len(uids)):
        uid = f"policy-{number}"
        found.setdefault(tuple(sorted(uids, key=lambda workload: rank(uid, workload))), uid)
        number += 1
    return tuple(found.values())
