"""The places of a step: how many there are, who takes them, and how many each workload takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from precision_operator.api.canary import Choice
from precision_operator.api.spec import Delivery, Unit
from precision_operator.api.text import names
from precision_operator.core.attempt import Attempt
from precision_operator.core.cohorts.order import cohort_size, extend_cohort
from precision_operator.core.cohorts.units import Cohort, extend_units, one_group
from precision_operator.core.fleet import Fleet
from precision_operator.core.model import WorkloadView, pods_seen
from precision_operator.core.progress import live_pods, running_pods
from precision_operator.reasons import Cause, Reason


@dataclass(frozen=True)
class Places:
    """The cohort that a step asks for, by workloads or by pods. Without slots: each answer is worked out once."""

    fleet: Fleet
    attempt: Attempt
    free: int | None = None
    """How many more may join now; None: all."""

    @cached_property
    def indivisible(self) -> tuple[WorkloadView, ...]:
        """Under ``unit: Pod``: workloads of several pods that a restart would move, which no share of them can be."""
        return tuple(w for w, d in self.fleet.movable if self._is_indivisible(w, d)) if self._by_pods else ()

    def _is_indivisible(self, workload: WorkloadView, delivery: Delivery) -> bool:
        divisible = delivery is Delivery.HOT or workload.key in self.fleet.by_index
        return _size(workload) > 1 and not divisible and one_group(workload, self.fleet.evaluation) is not True

    @cached_property
    def unknown_groups(self) -> tuple[WorkloadView, ...]:
        """Under ``unit: Pod``: workloads of several pods of which nobody says whether they train together."""
        if not self._by_pods:
            return ()
        known = {*self.fleet.state.shares, *(w.key for w in self.indivisible)}
        several = [w for w, _ in self.fleet.movable if _size(w) > 1 and w.key not in known]
        return tuple(w for w in several if one_group(w, self.fleet.evaluation) is None)

    @property
    def _by_pods(self) -> bool:
        """Steps count pods. What leaves reduced precision goes as a whole."""
        return self.fleet.spec.unit is Unit.POD and self.fleet.spec.target.reduced

    @cached_property
    def joinable(self) -> tuple[tuple[WorkloadView, Delivery], ...]:
        """What can be in a cohort."""
        refused = {w.key for w in self.indivisible} - {*self.fleet.state.members}
        return tuple((w, d) for w, d in self.fleet.movable if w.key not in refused)

    def units(self, workload: WorkloadView) -> int:
        """How many places of a step it takes as a whole."""
        if not self._by_pods:
            return 1
        divided = workload.key in self.fleet.state.shares or one_group(workload, self.fleet.evaluation) is False
        if divided and workload.key in self.fleet.by_index:
            return workload.indexes
        return max(1, len(running_pods(workload, pods_seen(self.fleet.evaluation)))) if divided else 1

    def moved_units(self, cohort: Cohort) -> int:
        """How many places of a step are taken."""
        if not self._by_pods:
            return len(cohort.members)
        known = {w.key: self.units(w) for w, _ in self.fleet.movable}
        return sum(cohort.shares.get(key, known.get(key, 1)) for key in cohort.members)

    @property
    def cohort(self) -> Cohort:
        """The cohort as the state has it."""
        return Cohort(self.fleet.state.members, self.fleet.state.shares)

    @property
    def unwatched(self) -> Cause | None:
        """Which workloads run, and could not join a cohort for want of samples, or of pods that are all alike."""
        state = self.fleet.state
        known = self.fleet.watched | state.held_keys | {*state.members}.difference(state.shares)
        late = [w for w, _ in self.joinable if w.key not in known and not all(p.pending for p in live_pods(w))]
        if not late:
            return None
        changing = [w.name for w in late if w.key in self.fleet.changing]
        mute = [w.name for w in late if w.key not in self.fleet.changing]
        said = []
        if mute:
            said.append(f"no samples of enough steps of {names(mute)}: nothing is moved that could not be judged")
        if changing:
            said.append(
                f"some pods of {names(changing)} have the contract, and a change brings it to the others: see it through"
            )
        return Cause(Reason.NO_SAMPLES, "; ".join(said))

    def in_cohort(self, step_index: int, members: Sequence[str]) -> Cohort:
        """The cohort of a step: who is in it stays, gone workloads leave, the next in order join up to the weight.

        What could not be watched does not join, nor what a rollback holds. At 100 % all are in it as a whole.
        """
        return self._in_cohort(step_index, members, self.free)

    def uncapped(self, step_index: int, members: Sequence[str]) -> Cohort:
        """The cohort of a step if all might join now."""
        return self._in_cohort(step_index, members, None)

    def _in_cohort(self, step_index: int, members: Sequence[str], free: int | None) -> Cohort:
        all_of_it = self.attempt.stages[step_index].weight >= 100
        if self._by_pods and not all_of_it:
            return self._cohort_of_pods(step_index, members, free)
        found = self._cohort_of_workloads(step_index, members, free)
        return Cohort(found, {} if all_of_it else self.fleet.state.shares)

    def _cohort_of_pods(self, step_index: int, members: Sequence[str], free: int | None) -> Cohort:
        """Of pods that train alone as many as there are places, lowest hash first; everything else as a whole.

        Of what nobody says whether it trains together nothing joins.
        """
        held, shares, alive = self.fleet.state.held_keys, self.fleet.state.shares, {w.key for w in self.fleet.workloads}
        together = {w.key: one_group(w, self.fleet.evaluation) for w, _ in self.joinable}
        parts = {w.key: self.fleet.part(w) for w, _ in self.joinable if w.key in shares and together[w.key] is not True}
        carried = {key: self._carried(part) for key, part in parts.items()}
        # A process group that has moved in part goes back, until it joins as a whole.
        stay = {key for key in members if key in alive and (carried.get(key) or key in held or key not in shares)}
        sizes = {key: shares[key] if key in held else carried[key] for key in stay if key in shares}
        kept = Cohort(tuple(sorted(stay)), sizes)
        places = self.cohort_size(step_index) - self.moved_units(kept)
        places = places if free is None else min(places, free)
        joining: dict[str, Sequence[str]] = {}
        whole: dict[str, int] = {}
        first = frozenset(
            w.key for w, _ in self.fleet.residual if self.fleet.state.modes[w.key] is self.fleet.spec.target
        )
        for workload, delivery in self.joinable:
            key = workload.key
            if (
                key in held
                or (key in stay and key not in shares)
                or (key not in parts and key not in self.fleet.watched)
            ):
                continue
            if key not in parts and (key in first or together[key] is True or self._is_single(workload, delivery)):
                whole[key] = self.units(workload)
            elif key not in parts and together[key] is None:
                continue
            elif key in self.fleet.by_index:
                joining[key] = self._next_indexes(workload, carried.get(key, 0), places)
            else:
                inside = {pod.uid for pod in parts[key].pods if self.fleet.has_moved(pod)} if key in parts else ()
                joining[key] = [p.uid for p in live_pods(workload) if p.uid not in inside and self.fleet.may_join(p)]
        return extend_units(self.fleet.policy.uid, kept, parts=joining, whole=whole, places=places, first=first)

    def _carried(self, part: WorkloadView) -> int:
        """How many places a share still takes: of indexes all that are left, of other pods those that have moved."""
        if part.key in self.fleet.by_index:
            return min(self.fleet.state.shares[part.key], part.indexes)
        return sum(map(self.fleet.has_moved, part.pods))

    def _next_indexes(self, workload: WorkloadView, share: int, places: int) -> Sequence[str]:
        """Names for the indexes that may join, where all of them can be watched; which do, their number alone says."""
        if workload.key not in self.fleet.watched:
            return ()
        return [f"{workload.key}/{index}" for index in range(share, min(workload.indexes, share + places))]

    def _is_single(self, workload: WorkloadView, delivery: Delivery) -> bool:
        """It has one pod: one that changes hot joins as a pod, where it is known to train alone."""
        single = _size(workload) <= 1
        return single and (delivery is not Delivery.HOT or one_group(workload, self.fleet.evaluation) is None)

    def _cohort_of_workloads(self, step_index: int, members: Sequence[str], free: int | None) -> tuple[str, ...]:
        kept, joining = set(members), self.fleet.watched - self.fleet.state.held_keys
        candidates = [w for w, _ in self.joinable if w.key in kept or w.key in joining]
        # A member that cannot be moved any more keeps its place: another in its stead would be one too many.
        candidates += [w for w in self.fleet.workloads if w.key in self.fleet.stuck_keys and w.key in kept]
        # What trains in the target already is a canary already.
        moved = {w.key for w, _ in self.fleet.residual if self.fleet.state.modes[w.key] is self.fleet.spec.target}
        size, first = cohort_size(self.attempt.stages[step_index].weight, len(self.joinable)), frozenset(moved)
        if self.staged is not None and step_index == 0:
            first = self.staged & {w.key for w in candidates}
            size = len(first | kept)
        if free is not None:
            size = min(size, sum(w.key in kept for w in candidates) + free)
        return extend_cohort(self.fleet.policy.uid, members, candidates, size=size, first=first)

    @cached_property
    def staged(self) -> frozenset[str] | None:
        """The workloads that run on labelled nodes alone, where these go first; None: the steps' weights decide."""
        nodes = self.fleet.observation.staging_nodes
        if self.fleet.spec.staging.by is not Choice.NODE_LABEL:
            return None
        on_labelled = (
            w.key for w, _ in self.fleet.movable if (pods := live_pods(w)) and all(p.node in nodes for p in pods)
        )
        return frozenset(on_labelled)

    def cohort_size(self, step_index: int) -> int:
        """How many places the step's weight is."""
        return cohort_size(self.attempt.stages[step_index].weight, self.total_units)

    @cached_property
    def total_units(self) -> int:
        """How many places all of the fleet takes."""
        return sum(self.units(w) for w, _ in self.joinable)


def _size(workload: WorkloadView) -> int:
    """How many pods it has, or is to have."""
    return max(workload.replicas, len(live_pods(workload)))
