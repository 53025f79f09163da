"""From what should be to the writes that are missing. Level-triggered: the same difference gives the same writes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Restart
from precision_operator.core.actions import Action, DeletePod, RequestPod, Tuning
from precision_operator.core.model import Evaluation, PodView, WorkloadView
from precision_operator.core.progress import accepted_modes, live_pods, pod_acknowledged, right

CHECKPOINT_SECONDS = 30.0
"""How long a pod that is to be taken away is waited for to save a checkpoint."""

ROUNDS = 2
"""How often a workload's pods are taken away for one change of its mode."""

YOUNG_SECONDS = 2.0
"""A pod that is younger is not taken away yet: creation times have whole seconds, its replacement's must be a later one."""

ROUND_SECONDS = 10.0
"""Replacements that came back in the wrong mode are collected this long, and taken away together."""

RESTARTING_SECONDS = 600.0
"""A workload that is not back after this does not count among those that are restarting."""

SLOTS_LIMIT = 500
"""Of one policy, whatever the budget: each restart of a workload that has a mode is remembered beside that."""


@dataclass(frozen=True, slots=True)
class Desired:
    """What one workload should be in."""

    workload: WorkloadView
    mode: Mode
    delivery: Delivery
    rollback: bool = False
    """In a rollback a workload that is already as safe needs no write; in a rollout it must match."""
    rewind: bool = False
    """Its weights are poisoned: another precision alone would not mend them."""
    escalate: bool = False
    """It did not acknowledge in time: its pods are restarted, where they can be seen to train in something else."""
    force: bool = False
    """Past the deadline, restarted also where they cannot be seen."""
    tuning: Tuning | None = None
    """What its loss scaler is asked for."""
    tuned_by: int = 0
    """The generation of that: a pod whose request is older is asked, though its mode is right."""

    @property
    def accepted(self) -> frozenset[Mode]:
        """The modes that need no write."""
        return accepted_modes(self.mode, rollback=self.rollback)


@dataclass(frozen=True, slots=True)
class Plan:
    """The missing writes, the urgent ones first: running pods, then those that are taken away."""

    actions: tuple[Action, ...]
    restarts: Mapping[str, Restart]
    """The workloads that are restarting, after these writes."""
    stuck: tuple[str, ...]
    """Names of workloads whose pods came back in the wrong mode more often than is tried."""


@dataclass(slots=True)
class Budget:
    """How many workloads may still begin to restart in this pass."""

    restarts: int
    urgent: bool
    """What is rolled back waits for no turn."""

    def spend(self, desired: Desired) -> bool:
        """Take one, where there is one."""
        if self.urgent and desired.rollback:
            return True
        self.restarts -= 1
        return self.restarts >= 0


@dataclass(frozen=True, slots=True)
class Planner:
    """What the writes of a pass are worked out from."""

    evaluation: Evaluation | None
    generation: int
    """What the writes carry."""
    changed: Mapping[str, int]
    """Workload → the generation of its last change of mode."""
    now: float
    certain: bool = True
    """New pods do get the assigned mode: only then is it worth to take away what came back in another one."""

    def plan(
        self, wanted: Iterable[Desired], restarts: Mapping[str, Restart], *, slots: int, urgent: bool = False
    ) -> Plan:
        """The missing writes.

        Args:
            wanted: what every workload should be in.
            restarts: those that are restarting.
            slots: how many may be at once.
            urgent: of what is rolled back, any number.
        """
        under_way = sum(self.now - r.since < RESTARTING_SECONDS for r in restarts.values())
        budget = Budget(max(0, min(slots, SLOTS_LIMIT) - under_way), urgent)
        known, stuck = dict(restarts), list[str]()
        requests: list[Action] = []
        deletions: list[Action] = []
        for desired in wanted:
            requests += self._requests(desired)
            pods = self._to_take_away(desired)
            if not pods:
                continue
            found, taken = self._round(desired, known.get(desired.workload.key), pods, budget)
            if found is None:
                continue
            known[desired.workload.key] = found
            for pod in taken:
                waits = self._checkpoint_first(desired, pod, found)
                if waits is not None:
                    requests += waits
                else:
                    deletions.append(DeletePod(desired.workload, pod, self.generation))
            if not taken and found.rounds >= ROUNDS:
                stuck.append(desired.workload.name)
        return Plan((*requests, *deletions), known, tuple(sorted(stuck)))

    def _requests(self, desired: Desired) -> list[Action]:
        """What is asked of running pods; never waits for anything."""
        since = self.changed.get(desired.workload.key, 0)
        return [
            RequestPod(desired.workload, pod, _asked(desired, pod), self.generation, desired.rewind, desired.tuning)
            for pod in live_pods(desired.workload)
            if pod.hot and _owed(desired, pod, since=since)
        ]

    def _to_take_away(self, desired: Desired) -> list[PodView]:
        """Pods that only a restart brings into the mode: those that cannot be asked, or did not answer."""
        pods = live_pods(desired.workload)
        if desired.delivery is Delivery.RESTART:
            return [pod for pod in pods if pod.effective_mode not in desired.accepted]
        if desired.delivery is Delivery.HOT and desired.escalate:
            return self._unresponsive(desired, pods)
        return []

    def _unresponsive(self, desired: Desired, pods: tuple[PodView, ...]) -> list[PodView]:
        """Asked, running, and seen not to have done it. Missing metrics do not count as that before the deadline.

        Past it, who could not even be asked goes too: the API server may refuse a pod's annotation for ever.
        """
        seen = self.evaluation.pods if self.evaluation is not None else {}
        since = self.changed.get(desired.workload.key, 0)
        late = [
            pod
            for pod in pods
            if (pod.effective_mode in desired.accepted or (desired.force and self._lasts(pod)))
            and not (pod.pending or pod.crashing)
            and not pod_acknowledged(pod, seen.get(pod.name), desired.accepted, since=since)
        ]
        return late if desired.force or any(pod.name in seen for pod in late) else []

    def _lasts(self, pod: PodView) -> bool:
        """Not one that appeared a moment ago, and is asked now."""
        return self.now - pod.created_at >= CHECKPOINT_SECONDS

    def _round(
        self, desired: Desired, known: Restart | None, pods: list[PodView], budget: Budget
    ) -> tuple[Restart | None, list[PodView]]:
        """The round that these pods belong to, and which of them go now. None: it must wait for its turn."""
        newest = max(pod.created_at for pod in pods)
        old_enough = [] if 0 <= self.now - newest < YOUNG_SECONDS else pods
        if known is None:
            return (Restart(1, self.now, newest), old_enough) if budget.spend(desired) else (None, [])
        replacements = [pod for pod in pods if pod.created_at > known.newest]
        if not replacements:
            return known, old_enough
        # Who was restarted because it did not answer is not restarted again: its new pods have started in the mode.
        again = desired.delivery is Delivery.RESTART and known.rounds < ROUNDS and self.certain
        if again and self.now - known.since >= ROUND_SECONDS:
            return Restart(known.rounds + 1, self.now, newest), pods
        return known, [pod for pod in pods if pod.created_at <= known.newest]

    def _checkpoint_first(self, desired: Desired, pod: PodView, restart: Restart) -> list[Action] | None:
        """What a pod that can save a checkpoint is asked before it goes; None: it goes now."""
        can = pod.hot and desired.delivery is Delivery.RESTART and not pod.pending and not pod.crashing
        # Of poisoned weights another checkpoint is no help.
        if (
            not can
            or desired.rewind
            or pod.effective_mode is None
            or not 0 <= self.now - restart.since < CHECKPOINT_SECONDS
        ):
            return None
        asked = pod.request is not None and pod.request.generation >= max(1, self.changed.get(desired.workload.key, 0))
        if not asked:
            return [RequestPod(desired.workload, pod, pod.effective_mode, self.generation, checkpoint=True)]
        signals = self.evaluation.pods.get(pod.name) if self.evaluation is not None else None
        return None if pod_acknowledged(pod, signals, frozenset(Mode)) else []


def _asked(desired: Desired, pod: PodView) -> Mode:
    """The mode of a request: what is as safe already is asked to stay as it is."""
    mode = pod.effective_mode
    return mode if mode is not None and mode in desired.accepted else desired.mode


def _owed(desired: Desired, pod: PodView, *, since: int) -> bool:
    """Whether a pod that can read requests lacks one.

    What came back from a restart has its mode, but its checkpoint may be poisoned.
    """
    in_place = right(pod, desired.accepted, since=since)
    if desired.delivery is Delivery.HOT and (not in_place or _untuned(desired, pod)):
        return True
    may_ask = desired.delivery is not Delivery.NEW_ONLY
    return desired.rewind and may_ask and in_place and not pod.asked_to_rewind


def _untuned(desired: Desired, pod: PodView) -> bool:
    return desired.tuning is not None and (pod.request is None or pod.request.generation < desired.tuned_by)


def highest_generation(workloads: Iterable[WorkloadView]) -> int:
    """The highest generation found on any pod: what the next one must exceed."""
    return max((pod.generation for workload in workloads for pod in workload.pods), default=0)
