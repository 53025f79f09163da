"""What must hold of every write, and of every pod: the safety invariants of the delivery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lab.model.fleet import Fleet
from precision_operator.api.modes import Mode, at_least_as_safe, is_safer
from precision_operator.api.spec import Delivery, OnPendingRevision, Strategy
from precision_operator.api.state import Phase, State
from precision_operator.core.actions import Action, DeletePod, EvictPod, RequestPod, ResumeJob, SuspendJob
from precision_operator.core.decide import Decision
from precision_operator.core.leaving import begun
from precision_operator.core.model import Observation, PodSignals, WorkloadView
from precision_operator.core.progress import live_pods
from precision_operator.core.restart.pace import CHECKPOINT_SECONDS
from precision_operator.core.restart.rounds import RESTARTING_SECONDS, ROUNDS

ROLLED_BACK = (Phase.ROLLING_BACK, Phase.HELD)


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold, and where."""

    invariant: str
    text: str
    phase: Phase
    """The phase before."""

    def __str__(self) -> str:
        return f"{self.invariant} ({self.phase}): {self.text}"


@dataclass
class Writes:
    """Collects the violations of one transition: those of its writes."""

    found: list[Violation] = field(default_factory=list)

    def report(self, invariant: str, text: str, before: State) -> None:
        """Note a violation."""
        self.found.append(Violation(invariant, text, before.phase))

    def action(self, fleet: Fleet, decision: Decision, action: Action) -> None:
        """I1, I8, L4, I5: no write asks for less than is assigned, is outranked, or changes nothing."""
        before, after = fleet.state, decision.state
        if not isinstance(action, RequestPod | DeletePod | EvictPod) or _hastens(action):
            return
        assigned = after.assigned(action.workload.key) if after.enforce else None
        if assigned is None:
            self.report("I1", "a pod is written to whose workload is assigned nothing", before)
            return
        if action.generation > after.generation:
            self.report("I8", "a write carries a generation that the state does not know", before)
        if isinstance(action, DeletePod | EvictPod):
            if action.pod.terminating:
                self.report("L4", "a pod that is on its way out is deleted", before)
            self._removal(fleet, after, action)
            return
        if action.generation <= action.pod.generation and action.pod.request is not None:
            self.report("I8", "a request does not outrank the one that the trainer has", before)
        # Of one that moves in part new pods get the fallback, and some are asked for the target.
        partly = action.workload.key in after.shares and action.workload.key not in after.held_keys
        least = fleet.policy.spec.target if partly else assigned
        if is_safer(least, action.mode) and not action.checkpoint:
            self.report("I1", "a pod is asked for something less safe than its workload is assigned", before)
        since = after.changed.get(action.workload.key, 0)
        same = action.pod.effective_mode is action.mode and action.pod.generation >= since
        news = action.checkpoint or _first_tuning(after, action) or _first_rewind(action)
        if same and not news:
            self.report("L4", "a pod is asked for what it was asked for already", before)

    def _removal(self, fleet: Fleet, after: State, action: DeletePod | EvictPod) -> None:
        """I5: budgets are asked, and no change of a template is brought in, but where the policy says otherwise."""
        rules, incident = fleet.policy.spec.rollback, after.incident
        emergency = incident is not None and incident.strategy is Strategy.EMERGENCY
        unfinished = incident is not None and after.phase is Phase.HELD and incident.last_ack_at is None
        emergency = emergency and (after.phase is Phase.ROLLING_BACK or after.alone or unfinished)
        if isinstance(action, DeletePod) and (not emergency or rules.emergency.respect_disruption_budgets):
            self.report("I5", "a pod is deleted where its disruption budget counts", after)
        brings_in = emergency and rules.on_pending_revision is OnPendingRevision.RESTART
        if action.workload.pending_revision and not brings_in and not _is_half_done(action.workload, after):
            self.report("I5", "a restart brings in a change of the template", after)

    def groups(self, decision: Decision) -> None:
        """I5: the pods of a process group are asked, or taken away, in one step, or none of them is."""
        after = decision.state
        done: dict[str, tuple[WorkloadView, set[str], set[str]]] = {}
        for action in decision.actions:
            if isinstance(action, RequestPod | DeletePod | EvictPod) and len(live_pods(action.workload)) > 1:
                _, asked, gone = done.setdefault(action.workload.key, (action.workload, set(), set()))
                if isinstance(action, RequestPod) and not action.checkpoint:
                    asked.add(action.pod.uid)
                elif isinstance(action, DeletePod | EvictPod):
                    gone.add(action.pod.uid)
        for key, (workload, asked, gone) in done.items():
            mode = after.assigned(key) if after.enforce else None
            if mode is None or key in after.shares:
                continue
            back = _rolls_back(after, key)
            wrong = {p.uid for p in live_pods(workload) if not _is_right(p.effective_mode, mode, back=back)}
            if asked and wrong - asked - gone:
                self.report("I5", "a part of a process group is asked for another mode", after)
            if gone & wrong and wrong - gone - asked:
                self.report("I5", "a part of a process group is taken away", after)

    def memory(self, fleet: Fleet, decision: Decision) -> None:
        """I5: what has no room for FP32 is not asked for it while it trains in less, where a restart would do it."""
        for action in decision.actions:
            if not isinstance(action, RequestPod) or action.checkpoint or action.mode is not Mode.FP32:
                continue
            name, pod = action.workload.name, action.pod
            reduced = fleet.modes.get(pod.name, (Mode.FP32, 0))[0] is not Mode.FP32
            seen = name in fleet.crowded and not (fleet.metrics_away or name in fleet.unobservable | fleet.crashing)
            restarts = not action.workload.pending_revision
            if reduced and seen and restarts and pod.effective_mode is not Mode.FP32:
                self.report("I5", "a process is asked for FP32 that its devices have no room for", decision.state)

    def budget(self, fleet: Fleet, observation: Observation, decision: Decision) -> None:
        """I5: workloads that restart at once stay in the cluster's budget; an emergency is not limited."""
        before, after = fleet.state, decision.state
        urgent = after.incident is not None and after.incident.strategy is Strategy.EMERGENCY
        if after.phase is Phase.ROLLING_BACK or (urgent and after.alone):
            return
        active = sum(fleet.now - restart.counts_since < RESTARTING_SECONDS for restart in after.restarts.values())
        if active > max(observation.restart_slots, len(before.restarts)):
            self.report("I5", "more restarts than the cluster's budget", before)
        for action in decision.actions:
            if isinstance(action, SuspendJob) and not _has_its_turn(fleet, after, action.workload):
                self.report("I5", "a Job is suspended that has no turn", before)

    def write(self, fleet: Fleet, action: Action, seen: Mapping[str, PodSignals]) -> None:
        """Check a write before it is carried out: a restart is the last resort, and has an end.

        ``seen``: what the metrics said of each pod when it was decided.
        """
        if isinstance(action, ResumeJob):
            self._resumed(fleet, action)
        if not isinstance(action, DeletePod | EvictPod) or _hastens(action):
            return
        workload = fleet.workloads.get(action.workload.name)
        pod = next((p for p in workload.pods if p.uid == action.pod.uid), None) if workload is not None else None
        if workload is None or pod is None or pod.terminating or not fleet.may_take_away:
            return
        if fleet.times_taken(workload.name, pod.name) >= ROUNDS:
            self.report("I9", "what comes back in the wrong mode is taken away without end", fleet.state)
        if workload.key in fleet.state.indexes and fleet.world_sizes.get(workload.name) != 1:
            self.report("I5", "a process group is divided by the index of its pods", fleet.state)
        if _needless(fleet, action, seen):
            self.report("I5", "a pod is taken away that trains as it is assigned", fleet.state)
        if _unsaved(fleet, action):
            self.report("I5", "a pod is taken away before it has saved the checkpoint that it could save", fleet.state)

    def _resumed(self, fleet: Fleet, action: ResumeJob) -> None:
        """I4: a Job is resumed once it is empty, and only where we suspended it."""
        job = fleet.workloads.get(action.workload.name)
        if job is None or job.uid != action.workload.uid or job.object_generation != action.job_generation:
            return  # the write changes nothing
        if job.suspended and (job.suspended_by or job.pods):
            self.report("I4", "a Job is resumed that others suspended, or that has pods", fleet.state)

    def jobs(self, fleet: Fleet) -> None:
        """I4: what we suspend is recorded, and no pod of a Job is taken away one by one."""
        recorded = {key: record.uid for key, record in fleet.state.suspensions.items()}
        for job in fleet.workloads.values():
            ours = job.suspended and not job.suspended_by
            if ours and recorded.get(job.key) != job.uid and fleet.assignment is not None:
                self.report("I4", "a Job that we suspended is not recorded: nobody will resume it", fleet.state)
        if fleet.used_up:
            self.report("I4", "a pod of a Job is taken away: it uses up the back-off limit", fleet.state)
        if fleet.assignment is None and any(j.suspended and not j.suspended_by for j in fleet.workloads.values()):
            self.report("I4", "the assignment went while it recorded a suspended Job", fleet.state)

    def late(self, fleet: Fleet, action: Action) -> None:
        """Check a write of a leader that was replaced: what it would change must be what is still assigned."""
        if not isinstance(action, RequestPod) or action.checkpoint:
            return
        workload = fleet.workloads.get(action.workload.name)
        stands = workload is not None and any(
            pod.uid == action.pod.uid and pod.request == action.pod.request for pod in workload.pods
        )
        assigned = fleet.state.assigned(action.workload.key)
        if stands and assigned is not None and is_safer(assigned, action.mode):
            self.report("I1", "a late write asks for something less safe than is assigned", fleet.state)

    def pods(self, before: Fleet, after: Fleet, *, bypassed: bool) -> None:
        """I1: what a rollback holds starts in the fallback, however its pods come to be; but for a hole in admission."""
        unassigned = before.assignment is None or after.assignment is None
        if bypassed or unassigned or not (before.echoed and after.echoed):
            return
        known = {pod.uid for workload in before.workloads.values() for pod in workload.pods}
        for name in before.lowered & after.lowered & set(after.workloads):
            workload = after.workloads[name]
            new = [pod for pod in workload.pods if pod.uid not in known and (workload.hot or workload.literal)]
            fallback = after.fallback_of(name)
            if any(pod.effective_mode is not None and is_safer(fallback, pod.effective_mode) for pod in new):
                self.report("I1", "a pod of a workload that is held starts in reduced precision", before.state)


def _hastens(action: Action) -> bool:
    """It gives a pod that is on its way out less time."""
    return isinstance(action, DeletePod) and action.pod.terminating


def _first_rewind(action: RequestPod) -> bool:
    return action.rewind and not action.pod.asked_to_rewind


def _first_tuning(state: State, action: RequestPod) -> bool:
    """It carries an open window's rung, which this pod has not been asked for."""
    windows = [m for m in state.mitigations if m.key == action.workload.key and m.open]
    asked = action.pod.request.generation if action.pod.request is not None else 0
    standing = state.phase not in ROLLED_BACK
    return action.tuning is not None and standing and any(asked < m.generation for m in windows)


def _is_half_done(workload: WorkloadView, state: State) -> bool:
    """Some of its pods went for this restart before its template was changed: the rest follow."""
    restart = state.restarts.get(workload.key)
    return restart is not None and begun(workload, restart)


def _has_its_turn(fleet: Fleet, state: State, workload: WorkloadView) -> bool:
    """It holds one of the cluster's slots, or some of its pods have gone."""
    restart = state.restarts.get(workload.key)
    if restart is None:
        return False
    patience = max(CHECKPOINT_SECONDS, fleet.policy.spec.rollback.gradual.in_flight_seconds)
    return begun(workload, restart) or 0 <= fleet.now - restart.since < patience + RESTARTING_SECONDS


def _is_right(mode: Mode | None, assigned: Mode, *, back: bool) -> bool:
    return mode is None or mode is assigned or (back and at_least_as_safe(mode, assigned))


def _unsaved(fleet: Fleet, action: DeletePod | EvictPod) -> bool:
    """Whether the pod's trainer was not waited for, though it takes requests and a checkpoint of it is worth having."""
    workload, pod, state = action.workload, action.pod, fleet.state
    restart = state.restarts.get(workload.key)
    by_restart = fleet.policy.spec.delivery is Delivery.RESTART or workload.name in fleet.crowded
    if not by_restart or not pod.hot or pod.name not in fleet.modes or restart is None:
        return False
    if workload.key in state.poisoned or workload.name in fleet.poisoned | fleet.crashing | fleet.unresponsive:
        return False
    mode, generation = fleet.modes[pod.name]
    accepted = _is_right(mode, fleet.assigned_to(workload, pod) or mode, back=_rolls_back(state, workload.key))
    patience = min(CHECKPOINT_SECONDS, fleet.policy.spec.rollback.gradual.in_flight_seconds)
    waited = not 0 <= fleet.now - restart.since < patience
    return not accepted and not waited and generation < state.changed.get(workload.key, 0)


def _needless(fleet: Fleet, action: DeletePod | EvictPod, seen: Mapping[str, PodSignals]) -> bool:
    """Whether the pod's process does already what its restart is for, and that could be known."""
    workload, pod, state = action.workload, action.pod, fleet.state
    if pod.name not in fleet.modes:
        return False
    if {workload.name, pod.name} & fleet.unresponsive:
        return False
    incident = state.incident
    unseen = fleet.metrics_away or workload.name in fleet.unobservable
    if unseen and incident is not None and fleet.now > incident.deadline_at:
        return False  # past the deadline, who cannot be seen to have taken it is restarted
    mode, generation = fleet.modes[pod.name]
    signals = seen.get(pod.name)
    if signals is not None and (signals.mode, signals.generation) != (mode, generation):
        return False  # it has obeyed since the metrics were read
    assigned = fleet.assigned_to(workload, pod)
    if assigned is None:
        return True
    asked = pod.request.generation if workload.hot and pod.request is not None else 0
    return (
        at_least_as_safe(mode, assigned) and generation >= asked
        if _rolls_back(state, workload.key)
        else mode is assigned
    )


def _rolls_back(state: State, key: str) -> bool:
    return state.phase in ROLLED_BACK or key in state.held_keys
