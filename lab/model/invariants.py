"""What must hold in every decision and after every write: the safety invariants, on the world's own truth.

``decide`` sees metrics, caches and annotations; the checks here look at what the processes really do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from lab.model.fleet import Fleet, restarts
from precision_operator.api.assignment import OBJECT_LIMIT_BYTES, assignment_to_wire, parse_assignment
from precision_operator.api.canary import Verdict
from precision_operator.api.commands import acknowledged
from precision_operator.api.modes import Mode, at_least_as_safe, is_safer
from precision_operator.api.policy import Policy
from precision_operator.api.spec import Strategy
from precision_operator.api.state import Phase, State
from precision_operator.contract import RETRY
from precision_operator.core.actions import Action, DeleteAssignment, DeletePod, RequestPod
from precision_operator.core.cohorts import cohort_size
from precision_operator.core.decide import Decision, edge_key
from precision_operator.core.model import Observation
from precision_operator.core.plan import RESTARTING_SECONDS, ROUNDS

EDGES = {
    Phase.PENDING: {Phase.PROGRESSING, Phase.HELD, Phase.ROLLING_BACK},
    Phase.PROGRESSING: {Phase.PENDING, Phase.PAUSED, Phase.HEALTHY, Phase.DEGRADED, Phase.ROLLING_BACK},
    Phase.PAUSED: {Phase.PENDING, Phase.PROGRESSING, Phase.HEALTHY, Phase.DEGRADED, Phase.ROLLING_BACK},
    Phase.HEALTHY: {Phase.DEGRADED, Phase.ROLLING_BACK, Phase.PENDING},
    Phase.DEGRADED: {Phase.HEALTHY, Phase.ROLLING_BACK, Phase.PENDING},
    Phase.ROLLING_BACK: {Phase.HELD, Phase.PENDING},
    Phase.HELD: {Phase.PENDING},
}
"""S3: the only edges between phases. A policy that is gone goes to Held besides; one of another uid begins in Pending."""


def edges_from(before: State, policy: Policy) -> set[Phase]:
    """The phases that may follow."""
    allowed = set(EDGES[before.phase])
    if policy.deleted:
        allowed.add(Phase.HELD)
    if before.policy_uid not in ("", policy.uid):
        allowed |= EDGES[Phase.PENDING] | {Phase.PENDING}
    if before.phase is Phase.HELD and not before.enforce:
        allowed.add(Phase.ROLLING_BACK)  # the record was lost: everything goes to the fallback
    return allowed


MOVING = (Phase.PROGRESSING, Phase.PAUSED)
GUARDED = (Phase.HEALTHY, Phase.DEGRADED)
ROLLED_BACK = (Phase.ROLLING_BACK, Phase.HELD)
_NO_BREACH = ("Aborted", "NoData", "StateLost")
"""Reasons of rollbacks that no metric calls for."""


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
class Checker:
    """Collects the violations of one transition."""

    found: list[Violation] = field(default_factory=list)

    def report(self, invariant: str, text: str, before: State) -> None:
        """Note a violation."""
        self.found.append(Violation(invariant, text, before.phase))

    def decision(self, fleet: Fleet, observation: Observation, decision: Decision) -> None:
        """Check a decision before it is carried out."""
        before, after = fleet.state, decision.state
        self._wire(after, before)
        self._held(fleet, decision)
        self._promotion(fleet, observation, decision)
        self._canary(fleet, decision)
        self._edge(fleet, decision)
        self._cause(fleet, before, after)
        self._conditions(after, before)
        self._assigned(fleet, decision)
        for action in decision.actions:
            self._action(fleet, decision, action)
        self._budget(fleet, observation, decision)
        self._remember(fleet, before, after)

    def _wire(self, after: State, before: State) -> None:
        if after == before:
            return
        wire = assignment_to_wire(after)
        if parse_assignment(wire) != after:
            self.report("S3", "the state does not survive the API server", before)
        if len(json.dumps(wire)) > OBJECT_LIMIT_BYTES:
            self.report("S3", "the assignment is larger than the API server takes", before)

    def _held(self, fleet: Fleet, decision: Decision) -> None:
        """S1: only a person's retry ends Held, with every prerequisite. S7: nor does anything else promote what was held."""
        before, after, spec = fleet.state, decision.state, fleet.policy.spec
        if (
            before.phase is Phase.HELD
            and before.enforce
            and after.phase is Phase.PENDING
            and before.fallback is not None
        ):
            answer = fleet.policy.annotations.get(RETRY)
            if answer is None or int(answer) > before.transition_id:
                self.report("S1", "Held ended without a person's retry", before)
            given = acknowledged(fleet.policy.annotations, transition_id=before.transition_id)
            if set(spec.reenable.prerequisites) - given:
                self.report("S1", "Held ended with a prerequisite missing", before)
        lowered = {n: fleet.workloads[n] for n in fleet.lowered & set(fleet.workloads)}
        if any(isinstance(action, DeleteAssignment) for action in decision.actions):
            if lowered and before.hold_on_delete:
                self.report("S7", "what a rollback holds is released with its policy", before)
            return
        for workload in lowered.values():
            mode = after.assigned(workload.key)
            if mode is None or is_safer(spec.fallback, mode):
                self.report("S7", "a workload that was rolled back is assigned another mode without a retry", before)

    def _promotion(self, fleet: Fleet, observation: Observation, decision: Decision) -> None:
        """S2: promoted is on fresh, good data of every member, watched by this process for as long as the step asks."""
        before, after = fleet.state, decision.state
        promoted = after.step_index > before.step_index or (before.phase in MOVING and after.phase in GUARDED)
        begun = before.phase is Phase.PENDING and after.phase is Phase.PROGRESSING
        if (promoted or begun) and observation.admission.enforced is not True:
            self.report("S2", "promoted while it is not certain that admission enforces", before)
        if not promoted:
            return
        members = fleet.names_of(before.members)
        if fleet.metrics_away or members & (fleet.unobservable | fleet.crashing):
            self.report("S2", "promoted without data of every member", before)
        if {n for n in members if n in fleet.really_in(fleet.due(n))} & (set(fleet.bad) | fleet.poisoned):
            self.report("S2", "promoted with a member in breach", before)
        if not members & fleet.really_in(fleet.policy.spec.target):
            self.report("S2", "promoted without one member that trains in the target", before)
        watched = fleet.now - max(fleet.continuous_since, fleet.stage_since)
        stage = fleet.policy.spec.stages[min(before.step_index, len(fleet.policy.spec.stages) - 1)]
        if watched < stage.soak_seconds:
            self.report("S2", "promoted before the step's pause was over", before)

    def _canary(self, fleet: Fleet, decision: Decision) -> None:
        """S5: before its verdict the canary alone is moved. S2: promoted is what was seen to fare better, or a command."""
        before, after = fleet.state, decision.state
        for action in decision.actions if after.by_canary else ():
            if isinstance(action, RequestPod | DeletePod) and action.workload.key not in after.canary:
                if action.pod.effective_mode is not after.assigned(action.workload.key):
                    continue  # brought into the mode that it is assigned: somebody else had changed it
                self.report("S5", "more than the rollback canary is moved before its verdict", before)
        comparison = after.comparison
        if not before.by_canary or comparison is None or comparison.ended_at != fleet.now:
            return
        canary = fleet.names_of(before.canary)
        rest = set(fleet.workloads) - canary
        worse = rest & (set(fleet.bad) | fleet.poisoned | fleet.crashing)
        unseen = fleet.metrics_away or canary & fleet.unobservable
        if comparison.verdict is Verdict.BETTER and (unseen or not worse):
            self.report("S2", "a rollback canary is promoted without a rest that is seen to fare worse", before)

    def _edge(self, fleet: Fleet, decision: Decision) -> None:
        """S3: at most one edge a pass, and it is counted."""
        before, after = fleet.state, decision.state
        allowed = edges_from(before, fleet.policy)
        if after.phase is not before.phase and after.phase not in allowed:
            self.report("S3", f"no edge leads from {before.phase} to {after.phase}", before)
        edge = edge_key(after) != edge_key(before)
        if after.transition_id != before.transition_id + edge:
            self.report("S3", "the transition id does not count the edge", before)
        if after.step_index > before.step_index + 1:
            self.report("S3", "a step was skipped", before)
        if after.generation < before.generation:
            self.report("S3", "the generation went back", before)

    def _cause(self, fleet: Fleet, before: State, after: State) -> None:
        """S2: a rollback for a breach has one that is seen now: missing data is no breach, nor are a stranger's metrics."""
        begun = after.phase is Phase.ROLLING_BACK is not before.phase or len(after.held) > len(before.held)
        incident = after.incident
        if not begun or incident is None or incident == before.incident or incident.reason in _NO_BREACH:
            return
        seen = set(fleet.bad) | fleet.poisoned if not fleet.metrics_away else set()
        if not set(incident.workloads) & ((seen - fleet.unobservable) | fleet.crashing):
            self.report("S2", f"rolled back for {incident.reason} without a breach that is seen", before)

    def _conditions(self, after: State, before: State) -> None:
        """S3: phase, assignment and conditions agree."""
        shown = {condition.type: condition.status == "True" for condition in after.conditions}
        truth = {"Healthy": after.phase is Phase.HEALTHY, "RolledBack": after.phase is Phase.HELD}
        wrong = [kind for kind, true in truth.items() if shown and shown.get(kind) is not true]
        if wrong:
            self.report("S3", f"condition {wrong[0]} does not agree with the phase", before)
        fleet_wide = after.phase in ROLLED_BACK and not after.by_canary and after.fallback is not None
        if fleet_wide and (after.modes or not after.enforce):
            self.report(
                "S1", f"new pods of a fleet in {after.phase} may start in another mode than the fallback", before
            )

    def _assigned(self, fleet: Fleet, decision: Decision) -> None:
        """S8: what admission must do otherwise has a new generation. S2: something less safe is marked as a promotion."""
        before, after = fleet.state, decision.state
        if _read_by_admission(before) != _read_by_admission(after) and after.generation <= before.generation:
            self.report("S8", "admission is told something else under the same generation", before)
        raised = (
            key
            for key, mode in after.modes.items()
            if before.enforce and is_safer(before.assigned(key) or Mode.FP32, mode)
        )
        if after.enforce and any(raised) and not decision.promotes:
            self.report("S2", "something less safe is assigned by a decision that does not say so", before)

    def _action(self, fleet: Fleet, decision: Decision, action: Action) -> None:
        """S1, S8, L4, S5: no write asks for less than is assigned, is outranked, or changes nothing."""
        before, after = fleet.state, decision.state
        if not isinstance(action, RequestPod | DeletePod):
            return
        assigned = after.assigned(action.workload.key) if after.enforce else None
        if assigned is None:
            self.report("S1", "a pod is written to whose workload is assigned nothing", before)
            return
        if action.generation > after.generation:
            self.report("S8", "a write carries a generation that the state does not know", before)
        if isinstance(action, DeletePod):
            if action.pod.terminating:
                self.report("L4", "a pod that is on its way out is deleted", before)
            return
        if action.generation <= action.pod.generation and action.pod.request is not None:
            self.report("S8", "a request does not outrank the one that the trainer has", before)
        if is_safer(assigned, action.mode) and not action.checkpoint:
            self.report("S1", "a pod is asked for something less safe than its workload is assigned", before)
        since = after.changed.get(action.workload.key, 0)
        same = action.pod.effective_mode is action.mode and action.pod.generation >= since
        if same and not action.checkpoint and not _first_tuning(after, action):
            self.report("L4", "a pod is asked for what it was asked for already", before)

    def _budget(self, fleet: Fleet, observation: Observation, decision: Decision) -> None:
        """S5: workloads that restart at once stay in the cluster's budget; an emergency is not limited."""
        before, after = fleet.state, decision.state
        urgent = after.incident is not None and after.incident.strategy is Strategy.EMERGENCY
        if after.phase is Phase.ROLLING_BACK or (urgent and after.phase is Phase.DEGRADED):
            return
        active = sum(fleet.now - restart.since < RESTARTING_SECONDS for restart in after.restarts.values())
        if active > max(observation.restart_slots, len(before.restarts)):
            self.report("S5", "more restarts than the cluster's budget", before)

    def _remember(self, fleet: Fleet, before: State, after: State) -> None:
        """What a rollback takes out of reduced precision is remembered: S7."""
        fallback, inside = fleet.policy.spec.fallback, frozenset(after.canary)
        for name, workload in fleet.workloads.items():
            key = workload.key
            reduced = before.enforce and is_safer(fallback, before.assigned(key) or fallback)
            whole = after.phase in ROLLED_BACK and after.fallback is not None
            reached = key in after.held_keys or (whole and (not after.by_canary or key in inside))
            if reduced and reached and at_least_as_safe(after.assigned(key) or fallback, fallback):
                fleet.lowered |= {name}

    def write(self, fleet: Fleet, action: Action) -> None:
        """Check a write before it is carried out: a restart is the last resort, and has an end."""
        if not isinstance(action, DeletePod):
            return
        workload = fleet.workloads.get(action.workload.name)
        pod = next((p for p in workload.pods if p.uid == action.pod.uid), None) if workload is not None else None
        if workload is None or pod is None or pod.terminating or not fleet.may_take_away:
            return
        if fleet.times_taken(workload.name, pod.name) >= ROUNDS:
            self.report("S9", "what comes back in the wrong mode is taken away without end", fleet.state)
        if _needless(fleet, action):
            self.report("S5", "a pod is taken away that trains as it is assigned", fleet.state)

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
            self.report("S1", "a late write asks for something less safe than is assigned", fleet.state)

    def acted(self, fleet: Fleet, before: State) -> None:
        """S5: no more of the fleet is assigned the target than the step's weight."""
        state, spec = fleet.state, fleet.policy.spec
        if state.phase not in MOVING or fleet.policy.deleted:
            return
        inside = fleet.assigned(spec.target) - fleet.left_over
        stage = spec.stages[min(state.step_index, len(spec.stages) - 1)]
        if len(inside) > cohort_size(stage.weight, max(fleet.stage_total, len(fleet.workloads))):
            self.report("S5", "more of the fleet is assigned the target than the step's weight", before)
        if inside and fleet.unstaged:
            self.report("S5", "a new target without a canary", before)

    def after(self, fleet: Fleet, observation: Observation, before: State) -> None:
        """S1: a rollback is complete only when every process trains in the fallback."""
        if before.phase is not Phase.ROLLING_BACK or fleet.state.phase is not Phase.HELD or before.by_canary:
            return
        fallback = fleet.policy.spec.fallback
        seen = {pod.name for workload in observation.workloads for pod in workload.pods}
        for name, workload in fleet.workloads.items():
            reached = workload.hot or workload.literal
            silent = fleet.metrics_away or name in fleet.unobservable | fleet.crashing or not reached
            pods = [p for p in workload.pods if p.name in seen and p.name in fleet.modes]
            modes = [fleet.modes[p.name][0] for p in pods if not (p.terminating and silent)]
            if not all(at_least_as_safe(mode, fallback) for mode in modes) and name not in fleet.crashing:
                self.report("S1", "Held while a process still trains below the fallback", before)

    def pods(self, before: Fleet, after: Fleet, *, bypassed: bool) -> None:
        """S1: what a rollback holds starts in the fallback, however its pods come to be; but for a hole in admission."""
        if bypassed or not (before.echoed and after.echoed):
            return
        known = {pod.uid for workload in before.workloads.values() for pod in workload.pods}
        fallback = before.policy.spec.fallback
        for name in before.lowered & after.lowered & set(after.workloads):
            workload = after.workloads[name]
            new = [pod for pod in workload.pods if pod.uid not in known and (workload.hot or workload.literal)]
            if any(pod.effective_mode is not None and is_safer(fallback, pod.effective_mode) for pod in new):
                self.report("S1", "a pod of a workload that is held starts in reduced precision", before.state)


def _read_by_admission(state: State) -> tuple[object, ...]:
    return state.selector, state.fallback, state.modes, state.enforce


def _first_tuning(state: State, action: RequestPod) -> bool:
    """It carries an open window's rung, which this pod has not been asked for."""
    windows = [m for m in state.mitigations if m.key == action.workload.key and m.open]
    asked = action.pod.request.generation if action.pod.request is not None else 0
    standing = state.phase not in ROLLED_BACK
    return action.tuning is not None and standing and any(asked < m.generation for m in windows)


def _needless(fleet: Fleet, action: DeletePod) -> bool:
    """Whether the pod's process does already what its restart is for."""
    workload, pod, state = action.workload, action.pod, fleet.state
    if pod.name not in fleet.modes or not restarts(action):
        return False
    if {workload.name, pod.name} & fleet.unresponsive:
        return False
    incident = state.incident
    unseen = fleet.metrics_away or workload.name in fleet.unobservable
    if unseen and incident is not None and fleet.now > incident.deadline_at:
        return False  # past the deadline, who cannot be seen to have taken it is restarted
    mode, generation = fleet.modes[pod.name]
    assigned = state.assigned(workload.key)
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
