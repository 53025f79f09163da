"""Restarts: pods are taken away and their controller makes others, or a Job is suspended until it is empty, and resumed.

Ask for a checkpoint first, take away what is in the wrong mode, in rounds of which there are two, within the pace.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Restart, Suspension
from precision_operator.core.actions import Action, DeletePod, EvictPod, RequestPod
from precision_operator.core.desired import Desired
from precision_operator.core.leaving import begun, blocked, late
from precision_operator.core.model import Evaluation, PodSignals, PodView, RestartBy, WorkloadView, pods_seen
from precision_operator.core.progress import live_pods, pod_acknowledged
from precision_operator.core.restart.pace import SLOTS_LIMIT, Pace
from precision_operator.core.restart.suspensions import Suspensions
from precision_operator.reasons import Cause

CHECKPOINT_SECONDS = 30.0
"""How long a pod that is to be taken away is waited for to save a checkpoint, where nothing says otherwise."""

ROUNDS = 2
"""How often a workload's pods are taken away for one change of its mode."""

YOUNG_SECONDS = 2.0
"""A pod that is younger is not taken away yet: creation times have whole seconds, its replacement's must be a later one."""

ROUND_SECONDS = 10.0
"""Replacements that came back in the wrong mode are collected this long, and taken away together."""

RESTARTING_SECONDS = 600.0
"""How long a workload takes up a slot: while its pods may not go yet, and again from when they went until they are back."""

PLACELESS_SECONDS = 120.0
"""A replacement that has not started after this, though no old pod is in its place, finds none."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the writes of a pass are worked out from."""

    evaluation: Evaluation | None
    generation: int
    """What the writes carry."""
    changed: Mapping[str, int]
    """Workload → the generation of its last change of mode."""
    now: float
    certain: bool = True
    """New pods do get the assigned mode: only then is it worth to take away what came back in another one."""
    nodes_away: frozenset[str] = frozenset()
    """See :class:`~precision_operator.core.model.Observation`."""
    unseen: frozenset[str] = frozenset()
    """See there."""

    @property
    def pods(self) -> Mapping[str, PodSignals]:
        """What each pod says of itself; nothing before the first reading."""
        return pods_seen(self.evaluation)


@dataclass(slots=True)
class Restarting:
    """The restarts of one pass: what is under way goes on, what is missing begins within the pace."""

    sight: Sight
    pace: Pace
    known: Mapping[str, Restart]
    recorded: Mapping[str, Suspension]
    restarts: dict[str, Restart] = field(init=False)
    jobs: Suspensions = field(init=False)
    requests: list[Action] = field(default_factory=list)
    removals: list[Action] = field(default_factory=list)
    stuck: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    lost: dict[str, str] = field(default_factory=dict)
    """Key → name of the workloads whose replacements find no place."""
    blocked: set[tuple[str, Cause]] = field(default_factory=set)
    predicted_seconds: float | None = None
    holding: dict[str, float] = field(default_factory=dict)
    """Workloads that take up a slot, and until when at most it counts for other policies."""
    _waiting: list[tuple[Desired, list[PodView]]] = field(default_factory=list)
    """Who has no slot, and which of its pods have to go."""
    _asking: list[tuple[Desired, list[PodView], Restart]] = field(default_factory=list)
    """Who has a slot, and waits for a budget, a checkpoint or admission before its pods go."""
    _pods: int = 0
    """Of what is restarting."""
    _placeless_keys: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.restarts, self.jobs = dict(self.known), Suspensions(self.sight.generation, self.sight.now)

    def carry_on(self, wanted: Iterable[Desired], elsewhere: Iterable[WorkloadView]) -> None:
        """Take forward what is under way; what has to restart besides is collected for :meth:`begin`."""
        seen: dict[str, Desired] = {}
        still_wanted: dict[str, Desired] = {}
        for desired in wanted:
            workload = desired.workload
            seen[workload.key] = desired
            pods = self._to_take_away(desired)
            if workload.key in self.recorded:
                still_wanted.update({workload.uid: desired} if pods else {})
            elif workload.key in self.known and not (pods and self._overtaken(desired)):
                if pods and self._has_waited(desired):
                    self._waiting.append((desired, pods))
                else:
                    self._continue(desired, pods)
            elif pods and workload.restart_by is not RestartBy.NEVER:
                self.restarts.pop(workload.key, None)
                self._waiting.append((desired, pods))
            if desired.rollback and workload.key not in self.recorded:
                self._hurry(workload, unless=desired.accepted)
        # A Job is known by its uid: its key may be another's by now, or that of several together.
        jobs = {view.uid: view for view in (*(desired.workload for desired in seen.values()), *elsewhere)}
        for key, record in self.recorded.items():
            if (job := jobs.get(record.uid)) is not None:
                self._go_on(key, record, job, still_wanted.get(record.uid))
            elif record.uid in self.sight.unseen:
                self.jobs.records[key] = record
        for key, restart in self.restarts.items():
            self._count(key, restart, seen.get(key))

    def _count(self, key: str, restart: Restart, desired: Desired | None) -> None:
        """What this restart takes up: a slot for a bounded time, and the pods that are not back."""
        workload = desired.workload if desired is not None else None
        if workload is not None and any(self._held_up(pod) for pod in workload.pods):
            return  # for how long is not known: others do not wait for it
        if desired is not None and not begun(desired.workload, restart):
            until = self._turn_ends(desired, restart)
            # Who still has its pods after that waits for a budget: an emergency does not wait with it.
            recent = 0 <= self.sight.now - restart.since < CHECKPOINT_SECONDS
            self._pods += desired.workload.replicas if recent else 0
        elif key not in self._placeless_keys:
            until = restart.counts_since + RESTARTING_SECONDS
            if restart.counts_since <= self.sight.now < until:
                self._pods += _not_back(workload, restart) if workload is not None else 1
        elif key in self.lost:  # where there is no room, a workload of another policy would be lost in its place
            until = restart.counts_since + 2 * RESTARTING_SECONDS
        else:
            return
        if restart.counts_since <= self.sight.now < until:
            self._hold(key, restart, until)

    def _hold(self, key: str, restart: Restart, until: float) -> None:
        """A policy may wait a day for a checkpoint: those of others do not wait with it."""
        self.holding[key] = min(until, restart.counts_since + 2 * RESTARTING_SECONDS)

    def _turn_ends(self, desired: Desired, restart: Restart) -> float:
        """Until when it may ask for its pods, after it was waited for to save a checkpoint."""
        asks = any(pod.hot for pod in desired.workload.pods)
        patience = max(self._patience(desired), CHECKPOINT_SECONDS) if asks else 0.0
        return restart.since + patience + RESTARTING_SECONDS

    def _patience(self, desired: Desired) -> float:
        """How long a pod of it is waited for to save a checkpoint, in seconds."""
        return self.pace.checkpoint_seconds if desired.rollback else CHECKPOINT_SECONDS

    def _has_waited(self, desired: Desired) -> bool:
        """None of its pods could go in its turn: it gets another one after the others. What is urgent takes no turns."""
        restart = self.known[desired.workload.key]
        if (desired.rollback and self.pace.urgent) or begun(desired.workload, restart):
            return False
        return not restart.since <= self.sight.now < self._turn_ends(desired, restart)

    def _held_up(self, pod: PodView) -> bool:
        """Its node is away, or a finalizer of somebody else keeps it."""
        return blocked(pod, self.sight.now, self.sight.nodes_away) is not None

    def begin(self) -> None:
        """Begin what may begin: of what is urgent as much as the deadline needs, else as many as there are slots."""
        urgent = [(d, pods) for d, pods in self._waiting if d.rollback and self.pace.urgent]
        waits = [(d, pods) for d, pods in self._waiting if not (d.rollback and self.pace.urgent)]
        if urgent:
            sizes = [len(pods) for _, pods in urgent]
            at_once = self.pace.pods_at_once(sum(sizes) + self._pods)
            kept = [self._kept_seconds(d.workload, pods) for d, pods in urgent]
            self.predicted_seconds = max(self.pace.predicted_seconds(sizes), *kept)
            for desired, pods in urgent:
                if self._pods and self._pods + len(pods) > at_once:
                    break  # in this order: smaller ones would overtake a large one for ever
                self._pods += self._begin(desired, pods) * len(pods)
        slots = 0 if self.lost else min(self.pace.slots, SLOTS_LIMIT) - len(self.holding)
        for desired, pods, restart in self._asking if not self.lost else ():
            self._take(desired, pods, restart)
        waits.sort(key=self._since)  # who has had no turn first, then who had it the longest ago
        for desired, pods in waits:
            if slots > 0:
                slots -= self._begin(desired, pods)
            elif desired.workload.pending_revision:
                self.pending.add(desired.workload.name)

    def _since(self, waiting: tuple[Desired, list[PodView]]) -> float:
        """When its last turn began; 0: it had none."""
        before = self.restarts.get(waiting[0].workload.key)
        return before.since if before is not None else 0.0

    def _begin(self, desired: Desired, pods: list[PodView]) -> bool:
        """Whether its restart begins, or another turn of it."""
        workload = desired.workload
        if self._brings_change_in(desired):
            self.pending.add(workload.name)
            return False
        before = self.restarts.get(workload.key)
        restart = self._round(workload, before.rounds if before is not None else 1, pods)
        self._hold(workload.key, restart, self._turn_ends(desired, restart))
        if not self._young(restart):
            self._take(desired, pods, restart)
        return True

    def _round(self, workload: WorkloadView, rounds: int, taken: list[PodView]) -> Restart:
        """A replacement is younger than all that run now, also than those that stay."""
        running = [pod for pod in live_pods(workload) if not pod.pending]
        newest = max(pod.created_at for pod in (*taken, *running))
        restart = self.restarts[workload.key] = Restart(rounds, self.sight.now, newest, len(running))
        return restart

    def _young(self, restart: Restart) -> bool:
        return 0 <= self.sight.now - restart.newest < YOUNG_SECONDS

    def _brings_change_in(self, desired: Desired) -> bool:
        """A restart would bring a change of its template in, and nothing allows that."""
        allowed = desired.rollback and self.pace.brings_changes_in
        return desired.workload.pending_revision and not allowed

    def _overtaken(self, desired: Desired) -> bool:
        """Its template was changed before a pod of it had gone: the restart has to wait, as if it had not begun."""
        restart = self.known[desired.workload.key]
        return self._brings_change_in(desired) and not begun(desired.workload, restart)

    def _continue(self, desired: Desired, pods: list[PodView]) -> None:
        """What goes of a workload that is restarting."""
        workload = desired.workload
        restart = self.known[workload.key]
        if self._placeless(workload, restart):
            self._placeless_keys.add(workload.key)
            ran = restart.pods if restart.pods >= 0 else workload.replicas
            # Who had no place before has lost none.
            if sum(not pod.pending for pod in workload.pods) < min(ran, workload.replicas):
                self.lost[workload.key] = workload.name
        if not pods:
            return
        replacements = [pod for pod in pods if pod.created_at > restart.newest]
        taken = [] if self._young(restart) else pods
        if replacements:
            # Who was restarted because it did not answer is not restarted again: its new pods have started in the mode.
            again = desired.delivery is Delivery.RESTART and restart.rounds < ROUNDS and self.sight.certain
            if again and self.sight.now - restart.counts_since >= ROUND_SECONDS:
                restart, taken = self._round(workload, restart.rounds + 1, pods), pods
            else:
                taken = [pod for pod in pods if pod.created_at <= restart.newest]
        if begun(workload, self.known[workload.key]) or (desired.rollback and self.pace.urgent):
            self._take(desired, taken, restart)
        else:
            self._asking.append((desired, taken, restart))
        if not taken and restart.rounds >= ROUNDS:
            self.stuck.add(workload.name)

    def _take(self, desired: Desired, pods: list[PodView], restart: Restart) -> None:
        """They may be one process group, and go together: once each has saved its checkpoint, or has had its time."""
        workload, ready = desired.workload, list[PodView]()
        for pod in pods:
            waits = self._checkpoint_first(desired, pod, restart)
            if waits is None:
                ready.append(pod)
            else:
                self.requests += waits
        if len(ready) < len(pods):
            return
        if workload.restart_by is RestartBy.SUSPENSION:
            if ready and not workload.suspended:
                self._suspend(desired)
            return
        if workload.restart_by is RestartBy.NEVER:
            return
        if self._evicts(desired):
            follows = begun(workload, restart)
            self.removals += [EvictPod(workload, pod, self.sight.generation, follows) for pod in ready]
        else:
            self.removals += [DeletePod(workload, pod, self.sight.generation, self._grace(pod)) for pod in ready]

    def _grace(self, pod: PodView) -> int | None:
        """No longer than is waited for; None: the pod's own. A kubelet that waits already cannot be hastened."""
        patience = self.pace.leaving_seconds
        return max(1, round(patience)) if patience is not None and pod.own_grace_seconds > patience else None

    def _kept_seconds(self, workload: WorkloadView, pods: list[PodView]) -> float:
        """How long a Job's pods may take to go where an emergency would give others less; 0: no longer than others."""
        by_suspension = workload.restart_by is RestartBy.SUSPENSION
        longer = (pod.own_grace_seconds for pod in pods if by_suspension and self._grace(pod) is not None)
        return max(longer, default=0.0)

    def _evicts(self, desired: Desired) -> bool:
        return self.pace.evicts or not desired.rollback

    def _suspend(self, desired: Desired, *, since: float | None = None) -> None:
        respects_budgets = self._evicts(desired)
        self.removals.append(self.jobs.begin(desired.workload, respects_budgets=respects_budgets, since=since))

    def _go_on(self, key: str, record: Suspension, job: WorkloadView, desired: Desired | None) -> None:
        """The next step of a suspension that we recorded. Without ``desired`` it is not wanted any more."""
        if job.suspended_by:
            return  # somebody else's suspension, who ends it too
        self._hurry(job)
        again = desired is not None and self._may_go_on(desired)
        if self.jobs.go_on(key, record, job, again=again) and desired is not None:
            self._suspend(desired, since=record.since)

    def _may_go_on(self, desired: Desired) -> bool:
        """Whether a recorded suspension goes on: in its turn, unless capacity is lost; begun or urgent in any case."""
        if desired.workload.restart_by is not RestartBy.SUSPENSION:
            return False
        restart = self.known.get(desired.workload.key)
        if desired.rollback and self.pace.urgent:
            return True
        if restart is None:
            return False
        return begun(desired.workload, restart) or not (self.lost or self._has_waited(desired))

    def _hurry(self, workload: WorkloadView, *, unless: frozenset[Mode] = frozenset()) -> None:
        """Pods that should be gone are given one second, once; those that do not go for all that are named.

        It helps against a kubelet that has not begun: one that already waits for a process to end waits out its grace.
        ``unless``: pods that were asked for one of these modes may take their time.
        """
        for pod in workload.pods:
            if pod.effective_mode in unless:
                continue
            why = blocked(pod, self.sight.now, self.sight.nodes_away)
            if why is not None:
                self.blocked.add((workload.name, why))
            elif pod.grace_seconds > 1 and late(pod, self.sight.now, leaving_seconds=self.pace.leaving_seconds):
                self.removals.append(DeletePod(workload, pod, self.sight.generation, grace_seconds=1))

    def _placeless(self, workload: WorkloadView, restart: Restart) -> bool:
        """A replacement waits for a place that no pod of its own workload takes up, or a quota lets none be created."""
        if any(pod.terminating for pod in workload.pods):
            return False
        pods, since = workload.pods, restart.gone
        if workload.restart_by is RestartBy.SUSPENSION:
            since = 0.0 if pods else workload.makes_pods_since
        if since and len(pods) < workload.replicas and all(pod.ready for pod in pods):
            # A StatefulSet may make the next pod only once the newest one has been ready for a while.
            return self.sight.now - max((since, *(pod.created_at for pod in pods))) >= PLACELESS_SECONDS
        return any(
            pod.pending and pod.created_at > restart.newest and self.sight.now - pod.created_at >= PLACELESS_SECONDS
            for pod in pods
        )

    def _to_take_away(self, desired: Desired) -> list[PodView]:
        """Pods that only a restart brings into the mode: those that cannot be asked, or did not answer."""
        pods = live_pods(desired.workload)
        if desired.delivery is Delivery.RESTART:
            return [pod for pod in pods if pod.effective_mode not in desired.of(pod).accepted]
        if desired.delivery is Delivery.HOT and desired.escalate:
            return self._unresponsive(desired, pods)
        return []

    def _unresponsive(self, desired: Desired, pods: tuple[PodView, ...]) -> list[PodView]:
        """Asked, running, and seen not to have done it. Missing metrics do not count as that before the deadline.

        Past it, who could not even be asked goes too: the API server may refuse a pod's annotation for ever. Ranks of a
        process group go together, those that did answer too.
        """
        seen, since = self.sight.pods, self.sight.changed.get(desired.workload.key, 0)
        found = [
            pod
            for pod in pods
            if (pod.effective_mode in desired.accepted or (desired.force and self._lasts(pod)))
            and not (pod.pending or pod.stopped)
            and not pod_acknowledged(pod, seen.get(pod.name), desired.accepted, since=since)
        ]
        if not found or not (desired.force or any(pod.name in seen for pod in found)):
            return []
        return list(pods) if any(pod.name in seen and seen[pod.name].in_a_group for pod in pods) else found

    def _lasts(self, pod: PodView) -> bool:
        """Not one that appeared a moment ago, and is asked now."""
        return self.sight.now - pod.created_at >= CHECKPOINT_SECONDS

    def _checkpoint_first(self, desired: Desired, pod: PodView, restart: Restart) -> list[Action] | None:
        """What a pod that can save a checkpoint is asked before it goes; None: it goes now."""
        can = pod.hot and desired.delivery is Delivery.RESTART and not pod.pending and not pod.stopped
        # Of poisoned weights another checkpoint is no help.
        if (
            not can
            or desired.rewind
            or pod.effective_mode is None
            or not 0 <= self.sight.now - restart.since < self._patience(desired)
        ):
            return None
        since = self.sight.changed.get(desired.workload.key, 1)
        asked = pod.request is not None and pod.request.generation >= since
        if not asked:
            return [RequestPod(desired.workload, pod, pod.effective_mode, self.sight.generation, checkpoint=True)]
        return None if pod_acknowledged(pod, self.sight.pods.get(pod.name), frozenset(Mode)) else []


def _not_back(workload: WorkloadView, restart: Restart) -> int:
    back = sum(not pod.pending and pod.created_at > restart.newest for pod in live_pods(workload))
    return max(0, workload.replicas - back)
