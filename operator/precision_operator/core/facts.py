"""Everything about one pass, worked out once: who is selected, how each can be moved, what each reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from precision_operator.api.mitigation import Mitigation, in_bf16
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Criterion, Delivery, PolicySpec
from precision_operator.api.status import Failing, Member, Phase, Status
from precision_operator.api.steps import Stage
from precision_operator.core.assess import Verdict, assess, trains_in, update_failing
from precision_operator.core.cohorts import cohort_size, extend_cohort
from precision_operator.core.model import Evaluation, Observation, PodView, WorkloadView
from precision_operator.core.plan import highest_generation
from precision_operator.core.progress import accepted_modes, live_pods, resolve_delivery

REDUCED = (Mode.FP16, Mode.BF16)


@dataclass(frozen=True)
class Facts:
    """The input of a phase. Without slots: what is asked of it once a workload is worked out once a pass."""

    policy: Policy
    status: Status
    observation: Observation
    now: float
    movable: tuple[tuple[WorkloadView, Delivery], ...]
    """Selected workloads with the way in which each can be moved, by name."""
    stuck: tuple[str, ...]
    """Selected workloads that no delivery can move."""
    verdicts: tuple[Verdict, ...]
    """Members that train in the target precision (or crash in it), judged."""
    failing: tuple[Failing, ...]
    """The breaches that stand after this evaluation."""

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
        """The cohort as it is now, without workloads that were rolled back by themselves."""
        inside = {m.uid for m in self.status.members} - {h.uid for h in self.status.held}
        return tuple((w, d) for w, d in self.movable if w.uid in inside)

    @property
    def residual(self) -> tuple[tuple[WorkloadView, Delivery], ...]:
        """Workloads outside of the cohort that we once moved and that still train in reduced precision.

        A change of ``spec.target`` leaves them: the fleet stays where it is until its turn comes, and is guarded there.
        """
        known = {m.uid for m in self.status.members} | {h.uid for h in self.status.held}
        safe = accepted_modes(self.spec.fallback, rollback=True)
        return tuple(
            (w, d)
            for w, d in self.movable
            if w.uid not in known
            and w.touched
            and d is not Delivery.NEW_ONLY
            and any(p.effective_mode not in (*safe, None) for p in live_pods(w))
        )

    @property
    def target(self) -> Mode:
        """What members train in: while a changed ``spec.target`` has not been taken up, still the old one."""
        return self.status.precision if self.status.precision in REDUCED else self.spec.target

    def wanted(self, workload: WorkloadView) -> Mode:
        """What this member should train in: the target, or BF16 where that is tried against its overflow, or helped."""
        return Mode.BF16 if workload.uid in self._in_bf16 else self.target

    @cached_property
    def _in_bf16(self) -> frozenset[str]:
        return in_bf16(self.status.mitigations)

    @cached_property
    def windows(self) -> Mapping[tuple[str, Signal], Mitigation]:
        """The windows of mitigation, open or not, by the workload's uid and the signal."""
        return {(m.uid, m.signal): m for m in self.status.mitigations}

    @cached_property
    def verdict_of(self) -> Mapping[str, Verdict]:
        """The verdicts, by the workload's uid."""
        return {verdict.workload.uid: verdict for verdict in self.verdicts}

    def lags(self, workload: WorkloadView) -> bool:
        """Its pods have been rolled back, and its template, which we wrote, still says reduced precision."""
        safe = accepted_modes(self.spec.fallback, rollback=True)
        down = all(pod.effective_mode in safe for pod in live_pods(workload))
        return workload.has_original and down and workload.template_mode not in (*safe, None)

    def reduced(self, workload: WorkloadView) -> bool:
        """A pod of it is told to train in less than the fallback, or says that it does."""
        safe = accepted_modes(self.spec.fallback, rollback=True)
        seen = self.evaluation.pods if self.evaluation is not None else {}
        said = {signals.mode for pod in workload.pods if (signals := seen.get(pod.name)) is not None}
        told = {pod.effective_mode for pod in workload.pods}
        return bool((told | said) - safe - {None})

    @property
    def moved_count(self) -> int:
        """How many workloads a fleet's share is taken of: all that were moved, held ones included."""
        inside = {m.uid for m in self.status.members} | {h.uid for h in self.status.held}
        return sum(w.uid in inside for w, _ in self.movable) + len(self.residual)

    @property
    def rescuable(self) -> tuple[tuple[WorkloadView, Delivery], ...]:
        """Stuck workloads whose running pods can still be asked: a template without the contract must not save them."""
        return tuple(
            (w, Delivery.HOT)
            for w in self.observation.workloads
            if w.name in self.stuck and any(pod.hot for pod in live_pods(w))
        )

    @property
    def next_generation(self) -> int:
        """Above everything that this policy, or one before it, has ever written."""
        return max(self.status.generation, highest_generation(self.observation.workloads)) + 1

    def in_cohort(self, step_index: int, members: Sequence[Member], *, latched: bool = False) -> tuple[Member, ...]:
        """The cohort of a step: who is in it stays, gone workloads leave, the next in order join up to the weight.

        ``latched``: whether workloads may join that a rollback still holds. Without a person's word they may not.
        """
        kept = {m.uid for m in members}
        joinable = [w for w, _ in self.movable if latched or w.latch is None or w.uid in kept]
        # A member that cannot be moved any more keeps its place: another in its stead would be one too many.
        joinable += [w for w in self.observation.workloads if w.name in self.stuck and w.uid in kept]
        # What an earlier policy of the same target left moved is its canary already.
        moved = {w.uid for w, _ in self.residual if live_pods(w)[0].effective_mode is self.spec.target}
        return extend_cohort(self.policy.uid, members, joinable, size=self.cohort_size(step_index), first=moved)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The steps of this attempt."""
        return self.spec.reenable.stages_after(self.spec.stages) if self.status.attempts else self.spec.stages

    @cached_property
    def promotion(self) -> Mapping[Signal, Criterion]:
        """What readings are held against for a promotion; another attempt asks for more runs that end well."""
        found = {criterion.signal: criterion for criterion in self.spec.criteria}
        failures, most = found.get(Signal.FAILURES), 1.0 - self.spec.reenable.success
        if failures is not None and failures.promote_below is not None and self.status.attempts:
            found[Signal.FAILURES] = replace(failures, promote_below=min(failures.promote_below, most))
        return found

    @property
    def failure_limit(self) -> int:
        """Breached evaluations in a row that are tolerated: none in another attempt, the fault is known by then."""
        again = self.status.attempts > 0 and self.status.phase in (Phase.PROGRESSING, Phase.PAUSED)
        return 0 if again else self.spec.evaluation.failure_limit

    def cohort_size(self, step_index: int) -> int:
        """How many workloads the step's weight is."""
        return cohort_size(self.stages[step_index].weight, len(self.movable))

    @property
    def window_clear(self) -> bool:
        """The metrics' window no longer reaches back into the last rollback: its old breaches are not new ones."""
        incident = self.status.incident
        if incident is None:
            return True
        over = incident.last_ack_at or incident.decided_at
        return self.evaluation is not None and self.evaluation.at - over >= self.spec.evaluation.window_seconds

    @property
    def unknown(self) -> tuple[tuple[str, str], ...]:
        """(workload, why) for each judged member without believable data."""
        return tuple((v.workload.name, f"{signal}: {why}") for v in self.verdicts for signal, why in v.unknown[:1])


def look(policy: Policy, status: Status, observation: Observation, now: float) -> Facts:
    """Work out the facts of a pass."""
    observation = _resolved(observation)
    movable: list[tuple[WorkloadView, Delivery]] = []
    stuck: list[str] = []
    for workload in sorted(observation.workloads, key=lambda w: w.name):
        delivery = resolve_delivery(policy.spec.delivery, workload)
        if delivery is None:
            stuck.append(workload.name)
        else:
            movable.append((workload, delivery))
    facts = Facts(policy, status, observation, now, tuple(movable), tuple(stuck), (), status.failing)
    verdicts = _judge(facts)
    failing = facts.failing
    if facts.evaluation is not None:
        failing = update_failing(status.failing, verdicts, policy.spec, at=facts.evaluation.at)
    return replace(facts, verdicts=verdicts, failing=failing)


def _resolved(observation: Observation) -> Observation:
    """Pods whose environment takes the mode from a reference are in what their own process says, where it says anything.

    What the ConfigMap holds now may not be what they started with; so it is not asked, and needs no right to be read.
    """
    seen = observation.evaluation.pods if observation.evaluation is not None else {}
    if all(pod.started_mode is not None for workload in observation.workloads for pod in workload.pods):
        return observation

    def said(pod: PodView) -> PodView:
        signals = seen.get(pod.name)
        return pod if pod.started_mode is not None or signals is None else replace(pod, started_mode=signals.mode)

    workloads = tuple(replace(w, pods=tuple(map(said, w.pods))) for w in observation.workloads)
    return replace(observation, workloads=workloads)


def _judge(facts: Facts) -> tuple[Verdict, ...]:
    evaluation = facts.evaluation
    if evaluation is None:
        return ()
    failing: dict[str, set[Signal]] = {}
    standing = {entry.uid for entry in facts.status.failing}
    for entry in facts.status.failing:
        if entry.severity is facts.spec.criterion(entry.signal).severity:
            failing.setdefault(entry.uid, set()).add(entry.signal)
    guarding = facts.status.phase in (Phase.HEALTHY, Phase.DEGRADED)
    verdicts = []
    inside = {m.uid for m in facts.status.members} - {h.uid for h in facts.status.held}
    stranded = tuple((w, d) for w, d in facts.rescuable if w.uid in inside)
    for workload, _ in (*facts.members, *stranded):
        pods = live_pods(workload)
        # On its way to BF16 it is judged in what it still trains in; with BF16 as fallback, in what the others have left.
        for mode in dict.fromkeys((facts.wanted(workload), facts.target, facts.spec.target)):
            told = bool(pods) and all(pod.effective_mode is mode for pod in pods)
            crashing = told and any(pod.crashing for pod in pods)
            # What was promoted, or breaches, stays judged even when its metrics are lost: that is Unknown, not gone.
            unseen = any(pod.name not in evaluation.pods for pod in pods)
            watched = told and (guarding or unseen or workload.uid in standing)
            if watched or crashing or trains_in(workload, evaluation.pods, mode):
                known = frozenset(failing.get(workload.uid, ()))
                verdicts.append(assess(workload, facts.spec, evaluation, mode=mode, failing=known))
                break
    for workload, _ in facts.residual:
        mode = next(m for p in live_pods(workload) if (m := p.effective_mode) not in (Mode.FP32, None))
        known = frozenset(failing.get(workload.uid, ()))
        verdicts.append(assess(workload, facts.spec, evaluation, mode=mode, failing=known))
    return tuple(verdicts)
