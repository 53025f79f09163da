"""Restarts: which begin and which go on in a pass, in rounds of which there are two, within the pace.

Pods are taken away and their controller makes others, or a Job is suspended until it is empty, and resumed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from precision_operator.api.spec import Delivery
from precision_operator.api.state import Restart, Suspension
from precision_operator.core.desired import Desired
from precision_operator.core.leaving import begun, blocked
from precision_operator.core.model import PodView, RestartBy, WorkloadView
from precision_operator.core.progress import live_pods
from precision_operator.core.restart.pace import CHECKPOINT_SECONDS, SLOTS_LIMIT, Pace
from precision_operator.core.restart.pods import pods_to_restart
from precision_operator.core.restart.removal import Removal
from precision_operator.core.sight import Sight

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


@dataclass(slots=True)
class Restarting:
    """The restarts of one pass: what is under way goes on, what is missing begins within the pace."""

    sight: Sight
    pace: Pace
    known: Mapping[str, Restart]
    recorded: Mapping[str, Suspension]
    restarts: dict[str, Restart] = field(init=False)
    removal: Removal = field(init=False)
    stuck: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    lost: dict[str, str] = field(default_factory=dict)
    """Key → name of the workloads whose replacements find no place."""
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
        self.restarts, self.removal = dict(self.known), Removal(self.sight, self.pace)

    def carry_on(self, wanted: Iterable[Desired], elsewhere: Iterable[WorkloadView]) -> None:
        """Take forward what is under way; what has to restart besides is collected for :meth:`begin`."""
        seen: dict[str, Desired] = {}
        still_wanted: dict[str, Desired] = {}
        for desired in wanted:
            workload = desired.workload
            seen[workload.key] = desired
            pods = pods_to_restart(desired, self.sight)
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
                self.removal.hurry(workload, unless=desired.accepted)
        # A Job is known by its uid: its key may be another's by now, or that of several together.
        jobs = {view.uid: view for view in (*(desired.workload for desired in seen.values()), *elsewhere)}
        for key, record in self.recorded.items():
            if (job := jobs.get(record.uid)) is not None:
                self._go_on(key, record, job, still_wanted.get(record.uid))
            elif record.uid in self.sight.unseen:
                self.removal.jobs.records[key] = record
        for key, restart in self.restarts.items():
            self._count(key, restart, seen.get(key))

    def begin(self) -> None:
        """Begin what may begin: of what is urgent as much as the deadline needs, else as many as there are slots."""
        urgent = [(d, pods) for d, pods in self._waiting if self._is_urgent(d)]
        waits = [(d, pods) for d, pods in self._waiting if not self._is_urgent(d)]
        if urgent:
            self._begin_urgent(urgent)
        slots = 0 if self.lost else min(self.pace.slots, SLOTS_LIMIT) - len(self.holding)
        for desired, pods, restart in self._asking if not self.lost else ():
            self.removal.take(desired, pods, restart)
        waits.sort(key=self._since)  # who has had no turn first, then who had it the longest ago
        for desired, pods in waits:
            if slots > 0:
                slots -= self._begin(desired, pods)
            elif desired.workload.pending_revision:
                self.pending.add(desired.workload.name)

    def _begin_urgent(self, urgent: list[tuple[Desired, list[PodView]]]) -> None:
        """As many pods at once as the deadline needs, and how long all of them will take."""
        sizes = [len(pods) for _, pods in urgent]
        at_once = self.pace.pods_at_once(sum(sizes) + self._pods)
        kept = [self.removal.kept_seconds(d.workload, pods) for d, pods in urgent]
        self.predicted_seconds = max(self.pace.predicted_seconds(sizes), *kept)
        for desired, pods in urgent:
            if self._pods and self._pods + len(pods) > at_once:
                break  # in this order: smaller ones would overtake a large one for ever
            self._pods += self._begin(desired, pods) * len(pods)

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
        patience = max(self.pace.patience_seconds(rollback=desired.rollback), CHECKPOINT_SECONDS) if asks else 0.0
        return restart.since + patience + RESTARTING_SECONDS

    def _is_urgent(self, desired: Desired) -> bool:
        """It is rolled back, and waits for no slot."""
        return desired.rollback and self.pace.urgent

    def _has_waited(self, desired: Desired) -> bool:
        """None of its pods could go in its turn: it gets another one after the others. What is urgent takes no turns."""
        restart = self.known[desired.workload.key]
        if self._is_urgent(desired) or begun(desired.workload, restart):
            return False
        return not restart.since <= self.sight.now < self._turn_ends(desired, restart)

    def _held_up(self, pod: PodView) -> bool:
        """Its node is away, or a finalizer of somebody else keeps it."""
        return blocked(pod, self.sight.now, self.sight.nodes_away) is not None

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
            self.removal.take(desired, pods, restart)
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
        if _placeless(workload, restart, self.sight.now):
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
        if begun(workload, self.known[workload.key]) or self._is_urgent(desired):
            self.removal.take(desired, taken, restart)
        else:
            self._asking.append((desired, taken, restart))
        if not taken and restart.rounds >= ROUNDS:
            self.stuck.add(workload.name)

    def _go_on(self, key: str, record: Suspension, job: WorkloadView, desired: Desired | None) -> None:
        """The next step of a suspension that we recorded. Without ``desired`` it is not wanted any more."""
        if job.suspended_by:
            return  # somebody else's suspension, who ends it too
        self.removal.hurry(job)
        again = desired is not None and self._may_go_on(desired)
        if self.removal.jobs.go_on(key, record, job, again=again) and desired is not None:
            self.removal.suspend(desired, since=record.since)

    def _may_go_on(self, desired: Desired) -> bool:
        """Whether a recorded suspension goes on: in its turn, unless capacity is lost; begun or urgent in any case."""
        if desired.workload.restart_by is not RestartBy.SUSPENSION:
            return False
        if self._is_urgent(desired):
            return True
        restart = self.known.get(desired.workload.key)
        if restart is None:
            return False
        return begun(desired.workload, restart) or not (self.lost or self._has_waited(desired))


def _not_back(workload: WorkloadView, restart: Restart) -> int:
    back = sum(not pod.pending and pod.created_at > restart.newest for pod in live_pods(workload))
    return max(0, workload.replicas - back)


def _placeless(workload: WorkloadView, restart: Restart, now: float) -> bool:
    """A replacement waits for a place that no pod of its own workload takes up, or a quota lets none be created."""
    if any(pod.terminating for pod in workload.pods):
        return False
    pods, since = workload.pods, restart.gone
    if workload.restart_by is RestartBy.SUSPENSION:
        since = 0.0 if pods else workload.makes_pods_since
    if since and len(pods) < workload.replicas and all(pod.ready for pod in pods):
        # A StatefulSet may make the next pod only once the newest one has been ready for a while.
        return now - max((since, *(pod.created_at for pod in pods))) >= PLACELESS_SECONDS
    return any(
        pod.pending and pod.created_at > restart.newest and now - pod.created_at >= PLACELESS_SECONDS for pod in pods
    )
