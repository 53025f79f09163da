"""Everything about one pass, worked out once: who is selected, how each can be moved, what each reads."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from precision_operator.api.assignment import OBJECT_LIMIT_BYTES, RESERVE_BYTES, fleet_bytes
from precision_operator.api.canary import Choice
from precision_operator.api.commands import Answer, Command, answered
from precision_operator.api.mitigation import Mitigation, in_bf16
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Criterion, Delivery, Fallback, PolicySpec, Unit
from precision_operator.api.state import Failing, Phase, State
from precision_operator.api.steps import Stage
from precision_operator.api.text import names
from precision_operator.contract import MAX_POD_GENERATION
from precision_operator.core.cohorts.order import cohort_size, extend_cohort
from precision_operator.core.cohorts.units import (
    Cohort,
    asked_for_less,
    extend_units,
    moved_pods,
    one_group,
    trains_alone,
)
from precision_operator.core.evidence.assessment import Assessment, lost
from precision_operator.core.leaving import blocked
from precision_operator.core.memory import lacks_memory
from precision_operator.core.model import Evaluation, Observation, PodSignals, PodView, WorkloadView
from precision_operator.core.progress import (
    Progress,
    accepted_modes,
    asked_to_rewind,
    live_pods,
    observed_mode,
    progress_of,
    running_pods,
)
from precision_operator.reasons import Cause, Reason

REDUCED = (Mode.FP16, Mode.BF16)

SILENCES_LIMIT = 50
"""So many different times of silences are kept; beyond, they lie on a grid of as many within ``noDataLimit``."""

_WATCHED = (Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY, Phase.DEGRADED)


@dataclass(frozen=True)
class Facts:
    """The input of a phase. Without slots: what is asked of it once a workload is worked out once a pass."""

    policy: Policy
    state: State
    observation: Observation
    now: float
    workloads: tuple[WorkloadView, ...]
    """What the selector in force matches."""
    selector: Selector
    """The selector in force: the policy's, or the one that it had before, while workloads are held under that."""
    movable: tuple[tuple[WorkloadView, Delivery], ...]
    """Selected workloads with the way in which each can be moved, by name."""
    stuck: tuple[str, ...]
    """Keys of selected workloads that no delivery can move."""
    verdicts: tuple[Assessment, ...]
    """Members that train in the target precision (or crash in it), judged."""
    failing: tuple[Failing, ...]
    """The breaches that stand after this evaluation."""
    bf16_keys: frozenset[str] = frozenset()
    """Keys of the workloads whose fallback is BF16, for want of memory; settled at the start of a pass."""

    @property
    def spec(self) -> PolicySpec:
        """The policy's spec."""
        return self.policy.spec

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
        pods = moved_pods(
            self.policy.uid,
            workload,
            share,
            fallback=self.state.fallback or self.spec.fallback,
            evaluation=self.evaluation,
            may_join=self._may_join,
        )
        return replace(workload, pods=pods, replicas=len(pods))

    def asked_part(self, member: tuple[WorkloadView, Delivery]) -> tuple[WorkloadView, Delivery]:
        """Of one that has moved in part, the pods that were asked already: who joins must not hide what they suffer."""
        workload, delivery = member
        fallback = self.state.fallback or self.spec.fallback
        if workload.key not in self.state.shares:
            return member
        return replace(workload, pods=tuple(p for p in workload.pods if asked_for_less(p, fallback))), delivery

    def _may_join(self, pod: PodView) -> bool:
        """It can be moved without the others of its workload, and watched there."""
        return pod.hot and not pod.pending and trains_alone(pod, self.evaluation) and self._is_watched(pod)

    @cached_property
    def unmoved(self) -> tuple[WorkloadView, ...]:
        """What was not moved: workloads outside of the cohort, and the other pods of those that have moved in part."""
        inside = {*self.state.members, *self.state.held_keys}
        partly = [w for w, _ in self.movable if w.key in self.state.shares and w.key not in self.state.held_keys]
        rest = ((w, {pod.uid for pod in self.part(w).pods}) for w in partly)
        parts = (replace(w, pods=tuple(pod for pod in w.pods if pod.uid not in moved)) for w, moved in rest)
        return (*(w for w, _ in self.movable if w.key not in inside), *parts)

    @cached_property
    def indivisible(self) -> tuple[WorkloadView, ...]:
        """Under ``unit: Pod``: workloads of several pods that a restart would move, which no share of them can be."""
        return tuple(w for w, d in self.movable if self._is_indivisible(w, d)) if self._by_pods else ()

    def _is_indivisible(self, workload: WorkloadView, delivery: Delivery) -> bool:
        several = max(workload.replicas, len(live_pods(workload))) > 1
        return several and delivery is not Delivery.HOT and one_group(workload, self.evaluation) is not True

    @cached_property
    def unknown_groups(self) -> tuple[WorkloadView, ...]:
        """Under ``unit: Pod``: workloads of several pods of which nobody says whether they train together."""
        if not self._by_pods:
            return ()
        known = {*self.state.shares, *(w.key for w in self.indivisible)}
        several = [w for w, _ in self.movable if max(w.replicas, len(live_pods(w))) > 1 and w.key not in known]
        return tuple(w for w in several if one_group(w, self.evaluation) is None)

    @property
    def _by_pods(self) -> bool:
        """Steps count pods. What leaves reduced precision goes as a whole."""
        return self.spec.unit is Unit.POD and self.spec.target in REDUCED

    @cached_property
    def joinable(self) -> tuple[tuple[WorkloadView, Delivery], ...]:
        """What can be in a cohort."""
        refused = {w.key for w in self.indivisible} - {*self.state.members}
        return self.movable if not refused else tuple((w, d) for w, d in self.movable if w.key not in refused)

    def units(self, workload: WorkloadView) -> int:
        """How many places of a step it takes as a whole."""
        if not self._by_pods:
            return 1
        divided = workload.key in self.state.shares or one_group(workload, self.evaluation) is False
        seen = self.evaluation.pods if self.evaluation is not None else {}
        return max(1, len(running_pods(workload, seen))) if divided else 1

    def moved_units(self, cohort: Cohort) -> int:
        """How many places of a step are taken."""
        if not self._by_pods:
            return len(cohort.members)
        known = {w.key: self.units(w) for w, _ in self.movable}
        return sum(cohort.shares.get(key, known.get(key, 1)) for key in cohort.members)

    @property
    def cohort(self) -> Cohort:
        """The cohort as the state has it."""
        return Cohort(self.state.members, self.state.shares)

    @cached_property
    def poisoned(self) -> frozenset[str]:
        """Keys of the workloads that are rolled back and whose weights are poisoned.

        That is seen in their losses while the metrics' window reaches back into their time in reduced precision, whatever
        the rollback was for: one look is enough, and it may come after they were asked for the fallback.
        """
        state, evaluation = self.state, self.evaluation
        known = frozenset(state.poisoned)
        whole = state.phase in (Phase.ROLLING_BACK, Phase.HELD)
        incident = state.incident
        if evaluation is None or incident is None or not (whole or state.held):
            return known
        over, window_seconds = incident.last_ack_at, self.spec.evaluation.window_seconds
        if over is not None and evaluation.at - over >= window_seconds:
            return known
        keys = state.held_keys.union(state.members if whole else ()) - known
        rolled_back = (w for w in self.workloads if w.key in keys)
        return known | {w.key for w in rolled_back if not asked_to_rewind(w) and lost(w, self.spec, evaluation)}

    @cached_property
    def hot_members(self) -> frozenset[str]:
        """Keys of those of the cohort that a request reaches."""
        return frozenset(w.key for w, delivery in self.members if delivery is Delivery.HOT)

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

    def asked(self, command: Command) -> Answer | None:
        """A person's command that answers this very transition."""
        return answered(self.policy.annotations, command, self.state.transition_id)

    def stood_seconds(self, since: float) -> float:
        """How long something has stood, at the last reading: what a step of the clock adds does not count."""
        evaluation = self.evaluation
        return evaluation.at - max(since, evaluation.clock_since) if evaluation is not None else self.now - since

    def progress(self, workload: WorkloadView, accepted: frozenset[Mode], delivery: Delivery) -> Progress:
        """Where a workload stands on its way to one of the ``accepted`` modes."""
        hot = delivery is Delivery.HOT
        restart = self.state.restarts.get(workload.key)
        patience = self.spec.rollback.ack_timeout_seconds
        found = progress_of(
            workload,
            accepted,
            self.evaluation,
            delivery,
            since=self.state.changed.get(workload.key, 0) if hot else 0,
            replacing=restart is not None and 0 <= self.now - restart.since <= patience,
        )
        return replace(found, acknowledged=False) if self._may_train_on(workload, accepted) else found

    def _may_train_on(self, workload: WorkloadView, accepted: frozenset[Mode]) -> bool:
        """A pod of another mode does not go, and nobody reports from its node: no sample is no proof of its end."""
        away = self.observation.nodes_away
        return any(
            pod.terminating
            and pod.effective_mode not in accepted
            and not pod.finalizer
            and bool(blocked(pod, self.now, away))
            for pod in workload.pods
        )

    def observed(self, workload: WorkloadView) -> Mode | None:
        """What its processes report that they train in, else what its pods were started in; None: not known.

        Of several modes the least safe; one in which nothing runs is in the fallback.
        """
        return observed_mode(workload, self.evaluation, idle=self.spec.fallback)

    def lacks_memory(self, workload: WorkloadView) -> bool:
        """FP32 would run out of device memory in a process that has trained in less."""
        return lacks_memory(workload, self.evaluation)

    def fallback_of(self, workload: WorkloadView) -> Mode:
        """What a rollback puts this workload into. A canary is compared in the policy's own fallback."""
        held_in_bf16 = workload.key in self.bf16_keys and not self._is_canary(workload)
        return Mode.BF16 if held_in_bf16 else self.spec.fallback

    def _is_canary(self, workload: WorkloadView) -> bool:
        return self.state.by_canary and workload.key in self.state.canary

    @property
    def admission_waits(self) -> Cause | None:
        """Why nothing is promoted: it is not certain that new pods get the mode that is assigned to them."""
        found = self.observation.admission
        return None if found.enforced else Cause(found.reason, found.message)

    @cached_property
    def too_large(self) -> Cause | None:
        """Why the fleet cannot be governed: its assignment would not fit into one object."""
        limit = OBJECT_LIMIT_BYTES - RESERVE_BYTES
        contested = (key for key, _ in self.observation.contested)
        needed = fleet_bytes((*(w.key for w in self.workloads), *contested))
        if needed <= limit:
            return None
        text = (
            f"{len(self.workloads)} workloads need {needed} bytes of a PrecisionAssignment, and {limit} is the limit: "
            "divide them among several policies"
        )
        return Cause(Reason.FLEET_TOO_LARGE, text)

    @property
    def target(self) -> Mode:
        """What members train in: while a changed ``spec.target`` has not been taken up, still the old one."""
        return self.state.precision if self.state.precision in REDUCED else self.spec.target

    def wanted(self, workload: WorkloadView) -> Mode:
        """What this member should train in: the target, or BF16 where that is tried against its overflow, or helped."""
        return Mode.BF16 if workload.key in self._in_bf16 else self.target

    @cached_property
    def _in_bf16(self) -> frozenset[str]:
        return in_bf16(self.state.mitigations)

    @cached_property
    def silent(self) -> Mapping[str, float]:
        """Members without believable metrics, and since when; of interest where the policy rolls back for that."""
        rules, evaluation = self.spec.evaluation, self.evaluation
        if rules.on_no_data is not Fallback.ROLLBACK or self.state.phase not in _WATCHED:
            return {}
        if evaluation is None:
            return self.state.silent
        known, now, grid_seconds = self.state.silent, evaluation.at, rules.no_data_limit_seconds / SILENCES_LIMIT
        if len(set(known.values())) > SILENCES_LIMIT:
            now = math.ceil(now / grid_seconds) * grid_seconds  # few times, and none before the silence began
        now, inside = round(now, 3), frozenset(self.state.members) - self.state.held_keys
        unknown = (v.workload.key for v in self.verdicts if v.unknown and v.workload.key in inside)
        return {key: min(known.get(key, now), now) for key in unknown}

    @cached_property
    def windows(self) -> Mapping[tuple[str, Signal], Mitigation]:
        """The windows of mitigation, open or not, by the workload's key and the signal."""
        return {(m.key, m.signal): m for m in self.state.mitigations}

    @cached_property
    def verdict_of(self) -> Mapping[str, Assessment]:
        """The verdicts, by the workload's key."""
        return {verdict.workload.key: verdict for verdict in self.verdicts}

    def reduced(self, workload: WorkloadView) -> bool:
        """A pod of it is asked to train in less than the fallback, or reports that it does."""
        safe = accepted_modes(self.fallback_of(workload), rollback=True)
        seen = self.evaluation.pods if self.evaluation is not None else {}
        reported = {signals.mode for pod in workload.pods if (signals := seen.get(pod.name)) is not None}
        requested = {pod.effective_mode for pod in workload.pods}
        return bool((requested | reported) - safe - {None})

    @property
    def moved_count(self) -> int:
        """How many workloads a fleet's share is taken of: all that were moved, held ones included."""
        inside = {*self.state.members, *self.state.held_keys}
        return sum(w.key in inside for w, _ in self.movable) + len(self.residual)

    @cached_property
    def stuck_keys(self) -> frozenset[str]:
        """The same as ``stuck``, to be asked for one workload at a time."""
        return frozenset(self.stuck)

    @cached_property
    def rescuable(self) -> tuple[tuple[WorkloadView, Delivery], ...]:
        """Stuck workloads whose running pods can still be asked: a template without the contract must not save them."""
        return tuple(
            (w, Delivery.HOT)
            for w in self.workloads
            if w.key in self.stuck_keys and any(pod.hot for pod in live_pods(w))
        )

    @cached_property
    def next_generation(self) -> int:
        """Above everything that this policy, or one before it, has ever written, also where a restored etcd forgot it."""
        reported = (self.reported_generation(pod) for workload in self.workloads for pod in workload.pods)
        return max(self.state.generation, highest_generation(self.workloads), *reported, 0) + 1

    def reported_generation(self, pod: PodView) -> int:
        """Of the youngest request that the pod's process says it has seen; 0: none, or one that is not believed."""
        signals = self.evaluation.pods.get(pod.name) if self.evaluation is not None else None
        found = signals.generation if signals is not None else None
        return found if pod.hot and found is not None and found <= MAX_POD_GENERATION else 0

    @cached_property
    def watched(self) -> frozenset[str]:
        """Keys of the workloads of which something runs, and every running pod has samples of its own."""
        signals: Mapping[str, PodSignals] = self.evaluation.pods if self.evaluation else {}
        running = ((w.key, running_pods(w, signals)) for w, _ in self.movable)
        return frozenset(key for key, pods in running if pods and all(map(self._is_watched, pods)))

    def _is_watched(self, pod: PodView) -> bool:
        """A pod that was made anew under its name, as a StatefulSet's is, has those of the one before it at first."""
        evaluation = self.evaluation
        signals = evaluation.pods.get(pod.name) if evaluation is not None else None
        if evaluation is None or signals is None or signals.sampled_at is None:
            return False
        fresh = evaluation.at - signals.sampled_at <= self.spec.evaluation.max_sample_age_seconds
        # Made in our future, by the API server's clock: the clocks cannot be compared.
        return fresh and (signals.sampled_at >= pod.created_at or pod.created_at > evaluation.at)

    @property
    def unwatched(self) -> Cause | None:
        """Which workloads run, and could not join a cohort for want of samples."""
        known = self.watched | self.state.held_keys | {*self.state.members}.difference(self.state.shares)
        late = [w.name for w, _ in self.joinable if w.key not in known and not all(p.pending for p in live_pods(w))]
        if not late:
            return None
        text = f"Prometheus has no samples of {names(late)}: nothing is moved that could not be watched"
        return Cause(Reason.NO_SAMPLES, text)

    def in_cohort(self, step_index: int, members: Sequence[str]) -> Cohort:
        """The cohort of a step: who is in it stays, gone workloads leave, the next in order join up to the weight.

        What could not be watched does not join, nor what a rollback holds. At 100 % all are in it as a whole.
        """
        all_of_it = self.stages[step_index].weight >= 100
        if self._by_pods and not all_of_it:
            return self._cohort_of_pods(step_index, members)
        found = self._cohort_of_workloads(step_index, members)
        return Cohort(found, {} if all_of_it else {key: n for key, n in self.state.shares.items() if key in found})

    def _cohort_of_pods(self, step_index: int, members: Sequence[str]) -> Cohort:
        """Of pods that train alone as many as there are places, lowest hash first; everything else as a whole.

        Of what nobody says whether it trains together nothing joins.
        """
        held, shares, alive = self.state.held_keys, self.state.shares, {w.key for w in self.workloads}
        together = {w.key: one_group(w, self.evaluation) for w, _ in self.joinable}
        parts = {w.key: self.part(w) for w, _ in self.joinable if w.key in shares and together[w.key] is not True}
        fallback = self.state.fallback or self.spec.fallback
        carried = {key: sum(asked_for_less(pod, fallback) for pod in part.pods) for key, part in parts.items()}
        # A process group that has moved in part goes back, until it joins as a whole.
        stay = {key for key in members if key in alive and (carried.get(key) or key in held or key not in shares)}
        sizes = {key: shares[key] if key in held else carried[key] for key in stay if key in shares}
        kept = Cohort(tuple(sorted(stay)), sizes)
        pods: dict[str, list[PodView]] = {}
        whole: dict[str, int] = {}
        first = frozenset(w.key for w, _ in self.residual if self.state.modes[w.key] is self.spec.target)
        for workload, delivery in self.joinable:
            key = workload.key
            if key in held or (key in stay and key not in shares) or (key not in parts and key not in self.watched):
                continue
            if key not in parts and (key in first or together[key] is True or self._is_single(workload, delivery)):
                whole[key] = self.units(workload)
            elif key in parts or (together[key] is False and delivery is Delivery.HOT):
                inside = {pod.uid for pod in parts[key].pods if asked_for_less(pod, fallback)} if key in parts else ()
                pods[key] = [p for p in live_pods(workload) if p.uid not in inside and self._may_join(p)]
        places = self.cohort_size(step_index) - self.moved_units(kept)
        return extend_units(self.policy.uid, kept, pods=pods, whole=whole, places=places, first=first)

    def _is_single(self, workload: WorkloadView, delivery: Delivery) -> bool:
        """It has one pod: one that changes hot joins as a pod, where it is known to train alone."""
        single = max(workload.replicas, len(live_pods(workload))) <= 1
        return single and (delivery is not Delivery.HOT or one_group(workload, self.evaluation) is None)

    def _cohort_of_workloads(self, step_index: int, members: Sequence[str]) -> tuple[str, ...]:
        kept, joining = set(members), self.watched - self.state.held_keys
        candidates = [w for w, _ in self.joinable if w.key in kept or w.key in joining]
        # A member that cannot be moved any more keeps its place: another in its stead would be one too many.
        candidates += [w for w in self.workloads if w.key in self.stuck_keys and w.key in kept]
        # What trains in the target already is a canary already.
        moved = {w.key for w, _ in self.residual if self.state.modes[w.key] is self.spec.target}
        size, first = cohort_size(self.stages[step_index].weight, len(self.joinable)), frozenset(moved)
        if self.staged is not None and step_index == 0:
            first = self.staged & {w.key for w in candidates}
            size = len(first | kept)
        return extend_cohort(self.policy.uid, members, candidates, size=size, first=first)

    @cached_property
    def staged(self) -> frozenset[str] | None:
        """The workloads that run on labelled nodes alone, where these go first; None: the steps' weights decide."""
        nodes = self.observation.staging_nodes
        if self.spec.staging.by is not Choice.NODE_LABEL:
            return None
        on_labelled = (w.key for w, _ in self.movable if (pods := live_pods(w)) and all(p.node in nodes for p in pods))
        return frozenset(on_labelled)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The steps of this attempt."""
        staged = self.spec.staging.by is Choice.NODE_LABEL
        again = self.state.attempts > 0
        return self.spec.reenable.stages_after(self.spec.stages, staged=staged) if again else self.spec.stages

    @cached_property
    def promotion(self) -> Mapping[Signal, Criterion]:
        """What readings are held against for a promotion; another attempt asks for more: runs that end well, and speed."""
        found, rules = {criterion.signal: criterion for criterion in self.spec.criteria}, self.spec.reenable
        if not self.state.attempts:
            return found
        failures, speed = found.get(Signal.FAILURES), found.get(Signal.SPEED)
        if failures is not None and failures.promote_below is not None:
            found[Signal.FAILURES] = replace(failures, promote_below=min(failures.promote_below, 1.0 - rules.success))
        if speed is not None and rules.speed > 0.0:
            found[Signal.SPEED] = replace(speed, promote_above=max(speed.promote_above or 0.0, rules.speed))
        return found

    @property
    def failure_limit(self) -> int:
        """Breached evaluations in a row that are tolerated: none in another attempt, the fault is known by then."""
        again = self.state.attempts > 0 and self.state.phase in (Phase.PROGRESSING, Phase.PAUSED)
        return 0 if again else self.spec.evaluation.failure_limit

    def cohort_size(self, step_index: int) -> int:
        """How many places the step's weight is."""
        return cohort_size(self.stages[step_index].weight, self.total_units)

    @cached_property
    def total_units(self) -> int:
        """How many places all of the fleet takes."""
        return sum(self.units(w) for w, _ in self.joinable) if self._by_pods else len(self.movable)

    @property
    def window_clear(self) -> bool:
        """The metrics' window no longer reaches back into the last rollback: its old breaches are not new ones."""
        incident = self.state.incident
        if incident is None:
            return True
        over = incident.last_ack_at or incident.decided_at
        return self.evaluation is not None and self.evaluation.at - over >= self.spec.evaluation.window_seconds

    @cached_property
    def unknown(self) -> tuple[tuple[str, Signal, Reason], ...]:
        """(workload, why) for each judged member without believable data. In mid-rollback none is missed."""
        if self.state.phase is Phase.ROLLING_BACK and not self.state.by_canary:
            return ()
        return tuple((v.workload.name, signal, why) for v in self.verdicts for signal, why in v.unknown[:1])


def highest_generation(workloads: Iterable[WorkloadView]) -> int:
    """The highest generation found on any pod: what the next one must exceed."""
    return max((pod.generation for workload in workloads for pod in workload.pods), default=0)
