"""What stands below the operator, as values: workloads, their controller, their pods and processes, and admission.

What the real API server, controllers and trainers do with the same writes is held in tests/cluster and tests/e2e.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from precision_operator.api.modes import Mode
from precision_operator.api.state import State
from precision_operator.core.model import PodView, Request, RestartBy, WorkloadView

LABELS = {"fleet": "demo"}
"""What the selector of the policies in ``policies.py`` asks for."""


GRACE_SECONDS = 30.0
"""What every pod says itself of how long it may take to go."""


class Room(StrEnum):
    """How a replacement finds its place."""

    FREE = "Free"
    """It starts at once, beside the old pod."""
    FULL = "Full"
    """It is Pending until the old pod is gone: the node has no room for both."""
    NONE = "None"
    """It stays Pending: no node has room for it."""
    QUOTA = "Quota"
    """It is not created: the namespace's quota is used up."""


@dataclass(kw_only=True)
class Cluster:
    """Workloads, pods, processes and admission."""

    workloads: dict[str, WorkloadView] = field(default_factory=dict)
    """By name."""
    templates: dict[str, Mode] = field(default_factory=dict)
    """Workload → the mode that its template gives its pods. Nobody of us writes it."""
    referenced: set[str] = field(default_factory=set)
    """Workloads whose template takes that mode from a ConfigMap: it cannot be read from the pod."""
    labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    modes: dict[str, tuple[Mode, int]] = field(default_factory=dict)
    """What the process of each started pod really trains in, and the generation that it applied."""
    places: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Workload → the node that all its pods run on, and its pool, where that matters."""
    room: dict[str, Room] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    """Workloads whose node does not answer: a terminating pod stays."""
    leaving: set[str] = field(default_factory=set)
    """Pods that terminate since an earlier turn."""
    unresponsive: set[str] = field(default_factory=set)
    """Workloads, or single pods, whose trainers take no request."""
    crashing: set[str] = field(default_factory=set)
    """Workloads whose pods crash, in any precision: no metrics, no request taken."""
    budgeted: set[str] = field(default_factory=set)
    """Workloads whose PodDisruptionBudget allows none of their pods to go."""
    world_sizes: dict[str, int] = field(default_factory=dict)
    """Workload → ranks of each of its process groups, where its trainers say so."""
    in_order: set[str] = field(default_factory=set)
    """Workloads that get a new pod only once the object of the old one is gone, as a StatefulSet does."""
    numbered: set[str] = field(default_factory=set)
    """Workloads whose pods have an index that admission knows."""
    finalized: set[str] = field(default_factory=set)
    """Workloads whose pods carry another program's finalizer: a pod's object stays after its process has ended."""
    outdated: set[str] = field(default_factory=set)
    """Pods from an older template than their workload's: they are not replaced by themselves."""
    used_up: dict[str, int] = field(default_factory=dict)
    """Job → how often a pod of it was taken away: each counts against its back-off limit."""
    assignment: State | None = None
    """As committed; None: there is none."""
    known: State | None = None
    """As admission knows it."""
    lagging: bool = False
    """Admission does not see what is committed."""
    bypassed: bool = False
    """New pods pass an API server that was started a moment ago, and knows of no assignment."""
    now: float = 1000.0
    serial: int = 0

    def add(self, name: str, *, hot: bool = True, pods: int = 1, mode: Mode = Mode.FP32) -> None:
        """A new workload whose template says ``mode``. Its pods run."""
        self.templates[name], self.labels[name] = mode, LABELS
        self.workloads[name] = WorkloadView(
            namespace="ns",
            key=f"apps/Deployment/{name}",
            uid=f"uid-{name}",
            hot=hot,
            literal=not hot,
            replicas=pods,
        )
        self._complete(name)

    def add_job(self, name: str, *, hot: bool = False, pods: int = 1, mode: Mode = Mode.FP32) -> None:
        """A new Job: its pods are not taken away one by one, it is suspended."""
        self.add(name, hot=hot, pods=pods, mode=mode)
        self.workloads[name] = replace(
            self.workloads[name],
            key=f"batch/Job/{name}",
            restart_by=RestartBy.SUSPENSION,
            object_name=name,
            object_generation=1,
        )

    def number(self, name: str) -> None:
        """Its pods have an index each, as those of a StatefulSet and of an Indexed Job do."""
        self.numbered.add(name)
        workload = self.workloads[name]
        pods = tuple(replace(pod, index=index) for index, pod in enumerate(workload.pods))
        self.workloads[name] = replace(workload, pods=pods, indexes=workload.replicas)

    def suspend(self, name: str, *, by: str = "") -> None:
        """A Job is suspended, by the operator or by somebody else; its pods go."""
        job = self.workloads[name]
        if not job.suspended:
            pods = tuple(self._told_to_go(pod) for pod in job.pods)
            generation = job.object_generation + 1
            job = replace(job, suspended=True, suspended_by=by, object_generation=generation, pods=pods)
            self.workloads[name] = replace(job, emptied=not pods)

    def resume(self, name: str) -> None:
        """A Job is resumed: its controller makes new pods."""
        job = self.workloads[name]
        if job.suspended:
            generation = job.object_generation + 1
            job = replace(job, suspended=False, suspended_by="", emptied=False, object_generation=generation)
            self.workloads[name] = replace(job, makes_pods_since=self.now)
            self._create(name)

    def add_referencing(self, name: str, mode: Mode, *, pods: int = 1) -> None:
        """A new workload that takes its mode from a ConfigMap: only its processes know which it is."""
        self.referenced.add(name)
        self.add(name, hot=False, pods=pods, mode=mode)

    def runs_on(self, name: str, node: str, *, pool: str = "") -> None:
        """All pods of a workload run on one node, now and later."""
        self.places[name] = node, pool
        pods = tuple(replace(pod, node=node, pool=pool) for pod in self.workloads[name].pods)
        self.workloads[name] = replace(self.workloads[name], pods=pods)

    def publish(self, state: State | None) -> None:
        """An assignment was written, or deleted; admission sees it at once, unless it lags."""
        self.assignment = state
        if not self.lagging:
            self.known = state

    def catch_up(self) -> None:
        """Admission sees what is committed, on every API server."""
        self.lagging, self.bypassed = False, False
        self.known = self.assignment

    @property
    def echoed(self) -> bool:
        """Every API server has acknowledged the committed assignment."""
        if self.bypassed or self.known is None or self.assignment is None:
            return not self.bypassed and self.known is self.assignment
        return self.known.generation == self.assignment.generation

    def replace_pods(self, name: str) -> None:
        """A rollout of its owner, a drain, a node that is gone: every pod is replaced."""
        pods = tuple(self._told_to_go(pod) for pod in self.workloads[name].pods)
        self.workloads[name] = replace(self.workloads[name], pods=pods)
        self._complete(name)

    def take_away(self, name: str, uid: str) -> bool:
        """Delete one pod, by its uid; whether it was there. Its controller makes a new one at once."""
        workload = self.workloads.get(name)
        if workload is None or not any(pod.uid == uid and not pod.terminating for pod in workload.pods):
            return False
        if workload.restart_by is RestartBy.SUSPENSION:
            self.used_up[name] = self.used_up.get(name, 0) + 1
        pods = tuple(self._told_to_go(p) if p.uid == uid else p for p in workload.pods)
        self.workloads[name] = replace(workload, pods=pods)
        self._create(name)
        return True

    def _told_to_go(self, pod: PodView) -> PodView:
        """It is deleted with its own grace; once more changes nothing."""
        if pod.terminating:
            return pod
        by = self.now + GRACE_SECONDS
        return replace(pod, terminating=True, ready=False, gone_by=by, grace_seconds=GRACE_SECONDS)

    def hasten(self, name: str, uid: str) -> None:
        """A terminating pod is deleted again, with a grace of one second."""
        pods = tuple(
            replace(pod, gone_by=self.now, grace_seconds=1.0) if pod.uid == uid and pod.terminating else pod
            for pod in self.workloads[name].pods
        )
        self.workloads[name] = replace(self.workloads[name], pods=pods)

    def revise(self, name: str) -> None:
        """A person changes its template, and nothing brings the change to the pods that run."""
        live = [pod.name for pod in self.workloads[name].pods if not pod.terminating]
        self.outdated.update(live)
        self.workloads[name] = replace(self.workloads[name], pending_revision=bool(live))

    def restore_template(self, name: str) -> None:
        """The change is taken back."""
        self.outdated -= {pod.name for pod in self.workloads[name].pods}
        self.workloads[name] = replace(self.workloads[name], pending_revision=False)

    def keep(self, name: str, *, finalizer: str = "example.com/keeps") -> None:
        """Another program puts its finalizer on every pod of a workload, later ones too; empty: it takes it away."""
        (self.finalized.add if finalizer else self.finalized.discard)(name)
        pods = tuple(replace(pod, finalizer=finalizer) for pod in self.workloads[name].pods)
        self.workloads[name] = replace(self.workloads[name], pods=pods)

    def turn(self) -> None:
        """What happens by itself in a moment: old pods go, missing pods are created, pending ones start."""
        for name in self.workloads:
            old = {pod.name for pod in self.workloads[name].pods} & self.outdated
            self._remove(name)
            self._complete(name)
            workload = self.workloads[name]
            if old and not old & {pod.name for pod in workload.pods if not pod.terminating}:
                self.workloads[name] = replace(workload, pending_revision=False)
        if self.outdated:
            self.outdated &= {pod.name for workload in self.workloads.values() for pod in workload.pods}

    def _remove(self, name: str) -> None:
        ended, gone = set[str](), set[str]()
        for pod in self.workloads[name].pods:
            if pod.terminating and pod.name in self.leaving and name not in self.unreachable and self.ends(pod):
                ended.add(pod.name)
                gone.update(() if pod.finalizer else (pod.name,))
            elif pod.terminating:
                self.leaving.add(pod.name)
        if ended:
            self.modes = {pod: mode for pod, mode in self.modes.items() if pod not in ended}
        if gone:
            self.leaving -= gone
            pods = tuple(pod for pod in self.workloads[name].pods if pod.name not in gone)
            emptied = self.workloads[name].suspended and not pods
            self.workloads[name] = replace(self.workloads[name], pods=pods, emptied=emptied)

    def _complete(self, name: str) -> None:
        """Missing pods are created, pending ones start, where there is room."""
        self._create(name)
        workload, room = self.workloads[name], self.room.get(name, Room.FREE)
        full = room is Room.FULL and any(pod.terminating for pod in workload.pods)
        if full or room is Room.NONE or not any(pod.pending for pod in workload.pods):
            return
        starts = (p for p in workload.pods if p.pending and not p.terminating and self.starts(p))
        started = {pod.uid: self._started(name, pod) for pod in starts}
        self.workloads[name] = replace(workload, pods=tuple(started.get(p.uid, p) for p in workload.pods))

    def ends(self, pod: PodView) -> bool:
        """Whether the process of a pod that terminates ends in this turn; a world in which that takes time says no."""
        return True

    def starts(self, pod: PodView) -> bool:
        """Whether a pod that has found its place starts in this turn; a world in which that takes time says no."""
        return True

    def _create(self, name: str) -> None:
        workload = self.workloads[name]
        if workload.suspended:
            return
        missing = workload.replicas - sum(name in self.in_order or not pod.terminating for pod in workload.pods)
        if missing > 0 and self.room.get(name) is not Room.QUOTA:
            taken = {pod.index for pod in workload.pods if name in self.in_order or not pod.terminating}
            free = (index for index in range(workload.replicas) if index not in taken)
            pods = tuple(self._new_pod(name, next(free) if name in self.numbered else -1) for _ in range(missing))
            self.workloads[name] = replace(workload, pods=(*workload.pods, *pods))

    def _new_pod(self, name: str, index: int) -> PodView:
        """As its template has it, or as admission makes it."""
        workload = self.workloads[name]
        self.serial += 1
        node, pool = self.places.get(name, ("", ""))
        pod = PodView(
            name=f"{name}-{self.serial}",
            uid=f"pod-{self.serial}",
            node=node,
            pool=pool,
            hot=workload.hot,
            index=index,
            has_annotations=True,
            started_mode=None if name in self.referenced else self.templates[name],
            created_at=self.now,
            pending=True,
            finalizer="example.com/keeps" if name in self.finalized else "",
        )
        given = self._given(name, index)
        if given is None:
            return pod
        pod = replace(pod, admitted=(("fleet", given.generation),))
        if not (workload.hot or workload.literal):
            return pod  # annotations that nothing in it reads
        return replace(pod, started_mode=given.mode, request=given if workload.hot else None)

    def _given(self, name: str, index: int) -> Request | None:
        """What admission gives a new pod."""
        known = self.known
        if self.bypassed or known is None or not known.enforce or not known.selector.matches(self.labels[name]):
            return None
        key = self.workloads[name].key
        below = key not in known.modes and 0 <= index < known.indexes.get(key, 0)
        mode = known.index_mode if below else known.assigned(key)
        return Request(known.generation, mode) if mode is not None else None

    def _started(self, name: str, pod: PodView) -> PodView:
        """Its process begins."""
        generation = pod.request.generation if pod.request is not None else 0
        self.modes[pod.name] = (pod.effective_mode or self.templates[name], generation)
        crashes = name in self.crashing
        return replace(pod, pending=False, ready=not crashes, crashing=crashes)

    def train(self, name: str | None = None) -> None:
        """Trainers take the request at their next step boundary; those of a process group the one of its first rank."""
        for workload in self.workloads.values():
            if name not in (None, workload.name) or workload.name in self.unresponsive | self.crashing:
                continue
            if self.world_sizes.get(workload.name, 0) > 1:
                self._train_together(workload)
                continue
            for pod in workload.pods:
                if pod.name not in self.modes or not pod.hot or pod.name in self.unresponsive:
                    continue
                if pod.request is not None and pod.request.generation > self.modes[pod.name][1]:
                    self.modes[pod.name] = (pod.request.mode, pod.request.generation)

    def _train_together(self, group: WorkloadView) -> None:
        ranks = [pod for pod in group.pods if pod.name in self.modes and pod.hot and not pod.terminating]
        request = ranks[0].request if ranks else None
        for pod in ranks:
            if request is not None and request.generation > self.modes[pod.name][1]:
                self.modes[pod.name] = (request.mode, request.generation)

    def crash(self, name: str, crashing: bool = True) -> None:
        """The pods of a workload begin or cease to crash."""
        (self.crashing.add if crashing else self.crashing.discard)(name)
        pods = tuple(
            p if p.pending else replace(p, crashing=crashing, ready=not crashing) for p in self.workloads[name].pods
        )
        self.workloads[name] = replace(self.workloads[name], pods=pods)

    def scale(self, name: str, replicas: int) -> None:
        """A person scales a workload."""
        workload = replace(self.workloads[name], replicas=replicas)
        live = [pod for pod in workload.pods if not pod.terminating]
        gone = {pod.uid for pod in live[replicas:]}
        if name in self.numbered:
            workload = replace(workload, indexes=replicas)
            gone = {pod.uid for pod in live if pod.index >= replicas}
        pods = tuple(self._told_to_go(p) if p.uid in gone else p for p in workload.pods)
        self.workloads[name] = replace(workload, pods=pods)
        self._complete(name)

    def undeclare(self, name: str) -> None:
        """Its owner takes the contract out of the template: the pods are replaced by some that nothing of us reaches."""
        self.templates[name] = Mode.FP32
        self.workloads[name] = replace(self.workloads[name], hot=False, literal=False)
        self.replace_pods(name)

    def drop(self, name: str) -> None:
        """A person deletes a workload."""
        for pod in self.workloads.pop(name).pods:
            self.modes.pop(pod.name, None)
            self.leaving.discard(pod.name)
        for known in (self.unresponsive, self.crashing, self.unreachable, self.referenced, self.budgeted):
            known.discard(name)
        for known in (self.finalized, self.in_order, self.numbered):
            known.discard(name)
        self.room.pop(name, None)

    def processes(self, name: str) -> list[tuple[Mode, int]]:
        """What trains in a workload, terminating pods included."""
        return [self.modes[pod.name] for pod in self.workloads[name].pods if pod.name in self.modes]

    def really_in(self, mode: Mode) -> set[str]:
        """The workloads in which something trains, all of it in ``mode``."""
        running = {name: [found for found, _ in self.processes(name)] for name in self.workloads}
        return {name for name, modes in running.items() if modes and all(found is mode for found in modes)}
