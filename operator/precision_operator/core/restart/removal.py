"""How pods are taken away: each has time for a checkpoint, then it is evicted or deleted, or its Job is suspended."""

from dataclasses import dataclass, field

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Restart
from precision_operator.core.actions import Action, DeletePod, EvictPod, RequestPod
from precision_operator.core.desired import Desired
from precision_operator.core.leaving import begun, blocked, late
from precision_operator.core.model import PodView, RestartBy, WorkloadView
from precision_operator.core.progress import pod_acknowledged
from precision_operator.core.restart.pace import Pace
from precision_operator.core.restart.suspensions import Suspensions
from precision_operator.core.sight import Sight
from precision_operator.reasons import Cause


@dataclass(slots=True)
class Removal:
    """The writes of one pass that take pods away."""

    sight: Sight
    pace: Pace
    jobs: Suspensions = field(init=False)
    checkpoints: list[Action] = field(default_factory=list)
    """What pods are asked before they go."""
    actions: list[Action] = field(default_factory=list)
    blocked: set[tuple[str, Cause]] = field(default_factory=set)
    """(name of the workload, why) of pods that do not go."""

    def __post_init__(self) -> None:
        self.jobs = Suspensions(self.sight.generation, self.sight.now)

    def take(self, desired: Desired, pods: list[PodView], restart: Restart) -> None:
        """They may be one process group, and go together: once each has saved its checkpoint, or has had its time."""
        workload, ready = desired.workload, list[PodView]()
        for pod in pods:
            waits = self._checkpoint_first(desired, pod, restart)
            if waits is None:
                ready.append(pod)
            else:
                self.checkpoints += waits
        if len(ready) < len(pods):
            return
        if workload.restart_by is RestartBy.SUSPENSION:
            if ready and not workload.suspended:
                self.suspend(desired)
            return
        if workload.restart_by is RestartBy.NEVER:
            return
        if self._evicts(desired):
            follows = begun(workload, restart)
            self.actions += [EvictPod(workload, pod, self.sight.generation, follows) for pod in ready]
        else:
            self.actions += [DeletePod(workload, pod, self.sight.generation, self._grace(pod)) for pod in ready]

    def suspend(self, desired: Desired, *, since: float | None = None) -> None:
        """Its Job. ``since``: when that was recorded before."""
        respects_budgets = self._evicts(desired)
        self.actions.append(self.jobs.begin(desired.workload, respects_budgets=respects_budgets, since=since))

    def hurry(self, workload: WorkloadView, *, unless: frozenset[Mode] = frozenset()) -> None:
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
                self.actions.append(DeletePod(workload, pod, self.sight.generation, grace_seconds=1))

    def kept_seconds(self, workload: WorkloadView, pods: list[PodView]) -> float:
        """How long a Job's pods may take to go where an emergency would give others less; 0: no longer than others."""
        by_suspension = workload.restart_by is RestartBy.SUSPENSION
        longer = (pod.own_grace_seconds for pod in pods if by_suspension and self._grace(pod) is not None)
        return max(longer, default=0.0)

    def _evicts(self, desired: Desired) -> bool:
        return self.pace.evicts or not desired.rollback

    def _grace(self, pod: PodView) -> int | None:
        """No longer than is waited for; None: the pod's own. A kubelet that waits already cannot be hastened."""
        patience = self.pace.leaving_seconds
        return max(1, round(patience)) if patience is not None and pod.own_grace_seconds > patience else None

    def _checkpoint_first(self, desired: Desired, pod: PodView, restart: Restart) -> list[Action] | None:
        """What a pod that can save a checkpoint is asked before it goes; None: it goes now."""
        can = pod.hot and desired.delivery is Delivery.RESTART and not pod.pending and not pod.stopped
        # Of poisoned weights another checkpoint is no help.
        if (
            not can
            or desired.rewind
            or pod.effective_mode is None
            or not 0 <= self.sight.now - restart.since < self.pace.patience_seconds(rollback=desired.rollback)
        ):
            return None
        since = self.sight.changed.get(desired.workload.key, 1)
        asked = pod.request is not None and pod.request.generation >= since
        if not asked:
            return [RequestPod(desired.workload, pod, pod.effective_mode, self.sight.generation, checkpoint=True)]
        return None if pod_acknowledged(pod, self.sight.pods.get(pod.name), frozenset(Mode)) else []
