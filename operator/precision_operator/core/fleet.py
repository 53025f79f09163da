"""The fleet of one pass: who is selected, who is moved, what of each, and what is watched there."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.spec import Delivery, PolicySpec
from precision_operator.api.state import State
from precision_operator.contract import MAX_POD_GENERATION
from precision_operator.core.cohorts.units import asked_for_less, by_index, moved_pods, trains_alone
from precision_operator.core.model import Evaluation, Observation, PodView, WorkloadView, pods_seen
from precision_operator.core.progress import live_pods, observed_mode, running_pods

Parts = dict[tuple[int, int, Mode], tuple[WorkloadView, WorkloadView]]
"""Identity of a workload, share and fallback → that workload, and the part of it."""


@dataclass(frozen=True)
class Fleet:
    """The selected workloads beside what the state says of them. Without slots: each answer is worked out once."""

    policy: Policy
    state: State
    observation: Observation
    workloads: tuple[WorkloadView, ...]
    """What the selector in force matches."""
    movable: tuple[tuple[WorkloadView, Delivery], ...]
    """Selected workloads with the way in which each can be moved, by name."""
    stuck: tuple[str, ...]
    """Keys of selected workloads that no delivery can move."""
    parts: Parts = field(default_factory=dict, compare=False, repr=False)
    """What ``part`` has found, shared by the states that a pass goes through."""

    @property
    def spec(self) -> PolicySpec:
        """The policy's spec."""
        return self.policy.spec

    @property
    def fallback(self) -> Mode:
        """In which pods are that have not moved: an edited one counts once it is assigned, which may have to wait."""
        return self.state.fallback or self.spec.fallback

    @property
    def evaluation(self) -> Evaluation | None:
        """The newest reading of the metrics."""
        return self.observation.evaluation

    @cached_property
    def members(self) -> tuple[tuple[WorkloadView, Delivery], ...]:
        """The cohort as it is now, without workloads that were rolled back by themselves; of some only a part has moved."""
        inside = frozenset(self.state.members) - self.state.held_keys
        return tuple((self.part(w), d) for w, d in self.movable if w.key in inside)

    def part(self, workload: WorkloadView) -> WorkloadView:
        """The workload with the pods that have moved, or are to; all of them where it has no share."""
        share = self.state.shares.get(workload.key)
        if share is None:
            return workload
        known = id(workload), share, self.fallback
        if known not in self.parts:
            self.parts[known] = workload, self._part(workload, share)
        return self.parts[known][1]

    def _part(self, workload: WorkloadView, share: int) -> WorkloadView:
        if workload.key in self.by_index:
            below = tuple(pod for pod in workload.pods if 0 <= pod.index < workload.first_index + share)
            return replace(workload, pods=below, replicas=min(share, workload.replicas))
        pods = moved_pods(
            self.policy.uid,
            workload,
            share,
            fallback=self.fallback,
            evaluation=self.evaluation,
            may_join=self.may_join,
        )
        return replace(workload, pods=pods, replicas=len(pods))

    @cached_property
    def by_index(self) -> frozenset[str]:
        """Keys of the workloads whose share is moved by index."""
        return frozenset(w.key for w, delivery in self.movable if by_index(w, delivery))

    def asked_part(self, member: tuple[WorkloadView, Delivery]) -> tuple[WorkloadView, Delivery]:
        """Of one that has moved in part, the pods that were asked already: who joins must not hide what they suffer."""
        workload, delivery = member
        if workload.key not in self.state.shares:
            return member
        return replace(workload, pods=tuple(filter(self.has_moved, workload.pods))), delivery

    def has_moved(self, pod: PodView) -> bool:
        """It was asked for, or has started in, what is less safe than the fallback."""
        return asked_for_less(pod, self.fallback)

    def may_join(self, pod: PodView) -> bool:
        """It can be moved without the others of its workload, and watched there."""
        return pod.hot and not pod.pending and trains_alone(pod, self.evaluation) and self.is_watched(pod)

    @cached_property
    def unmoved(self) -> tuple[WorkloadView, ...]:
        """What was not moved: workloads outside of the cohort, and the other pods of those that have moved in part."""
        inside = {*self.state.members, *self.state.held_keys}
        partly = [w for w, _ in self.movable if w.key in self.state.shares and w.key not in self.state.held_keys]
        rest = ((w, {pod.uid for pod in self.part(w).pods}) for w in partly)
        parts = (replace(w, pods=tuple(pod for pod in w.pods if pod.uid not in moved)) for w, moved in rest)
        return (*(w for w, _ in self.movable if w.key not in inside), *parts)

    @property
    def moved_count(self) -> int:
        """How many workloads a fleet's share is taken of: all that were moved, held ones included."""
        inside = {*self.state.members, *self.state.held_keys}
        return sum(w.key in inside for w, _ in self.movable) + len(self.residual)

    @cached_property
    def residual(self) -> tuple[tuple[WorkloadView, Delivery], ...]:
        """Workloads outside of the cohort that are assigned reduced precision: found in it, or moved for another target.

        They stay in it until their turn comes, and are guarded there.
        """
        known = {*self.state.members, *self.state.held_keys}
        return tuple(
            (w, d)
            for w, d in self.movable
            if w.key not in known and w.key in self.state.modes and d is not Delivery.NEW_ONLY and live_pods(w)
        )

    @cached_property
    def rescuable(self) -> tuple[tuple[WorkloadView, Delivery], ...]:
        """Stuck workloads whose running pods can still be asked: a template without the contract must not save them."""
        return tuple(
            (w, Delivery.HOT)
            for w in self.workloads
            if w.key in self.stuck_keys and any(pod.hot for pod in live_pods(w))
        )

    @cached_property
    def stranded(self) -> tuple[tuple[WorkloadView, Delivery], ...]:
        """Stuck workloads that cannot be asked either: how they train is their owners' affair, and still matters."""
        asked = {w.key for w, _ in self.rescuable}
        left = self.stuck_keys - asked
        return tuple((w, Delivery.NEW_ONLY) for w in self.workloads if w.key in left)

    @cached_property
    def hot_members(self) -> frozenset[str]:
        """Keys of those of the cohort that a request reaches."""
        return frozenset(w.key for w, delivery in self.members if delivery is Delivery.HOT)

    @cached_property
    def stuck_keys(self) -> frozenset[str]:
        """The same as ``stuck``, to be asked for one workload at a time."""
        return frozenset(self.stuck)

    @cached_property
    def changing(self) -> frozenset[str]:
        """Keys of those to which the contract is being brought."""
        return frozenset(w.key for w, _ in self.movable if _is_changing(w))

    @cached_property
    def watched(self) -> frozenset[str]:
        """Keys of the workloads of which something runs, and every running pod has samples of enough steps of its own.

        Who has just begun has no FP32 baseline yet: moved now, it would never have one, and could not be judged. So where
        the contract is being brought to a workload, the pods that come have yet to begin.
        """
        signals = pods_seen(self.evaluation)
        running = ((w.key, running_pods(w, signals)) for w, _ in self.movable if w.key not in self.changing)
        least_steps = self.spec.evaluation.min_steps
        return frozenset(
            key
            for key, pods in running
            if pods and all(self.is_watched(pod) and signals[pod.name].has_made(least_steps) for pod in pods)
        )

    def is_watched(self, pod: PodView) -> bool:
        """A pod that was made anew under its name, as a StatefulSet's is, has those of the one before it at first."""
        evaluation, signals = self.evaluation, pods_seen(self.evaluation).get(pod.name)
        if evaluation is None or signals is None or signals.sampled_at is None:
            return False
        fresh = evaluation.at - signals.sampled_at <= self.spec.evaluation.max_sample_age_seconds
        # Made in our future, by the API server's clock: the clocks cannot be compared.
        return fresh and (signals.sampled_at >= pod.created_at or pod.created_at > evaluation.at)

    @cached_property
    def next_generation(self) -> int:
        """Above everything that this policy, or one before it, has ever written, also where a restored etcd forgot it."""
        reported = (self.reported_generation(pod) for workload in self.workloads for pod in workload.pods)
        return max(self.state.generation, highest_generation(self.workloads), *reported, 0) + 1

    def reported_generation(self, pod: PodView) -> int:
        """Of the youngest request that the pod's process says it has seen; 0: none, or one that is not believed."""
        signals = pods_seen(self.evaluation).get(pod.name)
        found = signals.generation if signals is not None else None
        return found if pod.hot and found is not None and found <= MAX_POD_GENERATION else 0

    def observed(self, workload: WorkloadView) -> Mode | None:
        """What its processes report that they train in, else what its pods were started in; None: not known.

        Of several modes the least safe; one in which nothing runs is in the fallback.
        """
        return observed_mode(workload, self.evaluation, idle=self.spec.fallback)


def highest_generation(workloads: Iterable[WorkloadView]) -> int:
    """The highest generation found on any pod: what the next one must exceed."""
    return max((pod.generation for workload in workloads for pod in workload.pods), default=0)


def _is_changing(workload: WorkloadView) -> bool:
    """Some pods have the contract, others are from before it, and those that take their place are on the way."""
    pods = live_pods(workload)
    return len({pod.hot for pod in pods}) > 1 and (workload.pending_revision or any(pod.pending for pod in pods))
