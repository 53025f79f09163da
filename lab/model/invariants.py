"""What must hold in every decision and after every write: the safety invariants, on the world's own truth.

``decide`` sees metrics, caches and annotations; the checks here look at what the processes really do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from lab.model.delivery import ROLLED_BACK, Writes
from lab.model.fleet import Fleet
from precision_operator.api.assignment import OBJECT_LIMIT_BYTES, assignment_to_wire, parse_assignment
from precision_operator.api.canary import CanaryVerdict
from precision_operator.api.commands import acknowledged
from precision_operator.api.modes import Mode, at_least_as_safe, is_safer
from precision_operator.api.policy import Policy
from precision_operator.api.spec import OnMemoryShortage
from precision_operator.api.state import Phase, State
from precision_operator.contract import RETRY
from precision_operator.core.actions import Action, DeleteAssignment, DeletePod, RequestPod
from precision_operator.core.cohorts.order import cohort_size
from precision_operator.core.decide import Decision, edge_key
from precision_operator.core.model import Observation

EDGES = {
    Phase.PENDING: {Phase.PROGRESSING, Phase.HELD, Phase.ROLLING_BACK},
    Phase.PROGRESSING: {Phase.PENDING, Phase.PAUSED, Phase.HEALTHY, Phase.DEGRADED, Phase.ROLLING_BACK},
    Phase.PAUSED: {Phase.PENDING, Phase.PROGRESSING, Phase.HEALTHY, Phase.DEGRADED, Phase.ROLLING_BACK},
    Phase.HEALTHY: {Phase.DEGRADED, Phase.ROLLING_BACK, Phase.PENDING},
    Phase.DEGRADED: {Phase.HEALTHY, Phase.ROLLING_BACK, Phase.PENDING},
    Phase.ROLLING_BACK: {Phase.HELD, Phase.PENDING},
    Phase.HELD: {Phase.PENDING},
}
"""I3: the only edges between phases. A policy that is gone goes to Held besides; one of another uid begins in Pending."""


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
NO_BREACH = ("Aborted", "NoData", "StateLost")
"""Reasons of rollbacks that no metric calls for."""


@dataclass
class Checker(Writes):
    """Collects the violations of one transition."""

    _joined: bool = False
    """A pod of a workload that moves in part is asked for the target, or another index gets it."""

    def decision(self, fleet: Fleet, observation: Observation, decision: Decision) -> None:
        """Check a decision before it is carried out."""
        before, after = fleet.state, decision.state
        self._in_bf16(fleet, before, after)
        self._wire(after, before)
        self._held(fleet, decision)
        self._promotion(fleet, observation, decision)
        self._canary(fleet, decision)
        self._drill(fleet, before, after)
        self._edge(fleet, decision)
        self._cause(fleet, before, after)
        self._conditions(fleet, after, before)
        self._assigned(fleet, decision)
        for action in decision.actions:
            self.action(fleet, decision, action)
        self._joined = any(_joins(action, after) for action in decision.actions)
        self._joined |= any(bound > before.indexes.get(key, 0) for key, bound in after.indexes.items())
        self.groups(decision)
        self.memory(fleet, decision)
        self.budget(fleet, observation, decision)
        self._remember(fleet, before, after)

    def _wire(self, after: State, before: State) -> None:
        if after == before:
            return
        wire = assignment_to_wire(after)
        if parse_assignment(wire) != after:
            self.report("I3", "the state does not survive the API server", before)
        if len(json.dumps(wire)) > OBJECT_LIMIT_BYTES:
            self.report("I3", "the assignment is larger than the API server takes", before)

    def _in_bf16(self, fleet: Fleet, before: State, after: State) -> None:
        """Remember whom a rollback leaves in BF16 because there is no room for FP32; allowed as long as it holds them."""
        allowed = fleet.policy.spec.rollback.on_memory_shortage is OnMemoryShortage.BF16
        whole = after.phase in ROLLED_BACK and not after.by_canary
        for name, workload in fleet.workloads.items():
            key = workload.key
            if not (whole or key in after.held_keys) or after.assigned(key) is not Mode.BF16:
                fleet.short -= {name}
            elif allowed and name in fleet.crowded and before.assigned(key) is Mode.FP16:
                fleet.short |= {name}

    def _held(self, fleet: Fleet, decision: Decision) -> None:
        """I1: only a person's retry ends Held, with every prerequisite; no deadline of who is held moves later.

        I7: nor does anything else promote what was held.
        """
        before, after, spec = fleet.state, decision.state, fleet.policy.spec
        if (
            before.phase is Phase.HELD
            and before.enforce
            and after.phase is Phase.PENDING
            and before.fallback is not None
        ):
            answer = fleet.policy.annotations.get(RETRY)
            if answer is None or int(answer) > before.transition_id:
                self.report("I1", "Held ended without a person's retry", before)
            given = acknowledged(fleet.policy.annotations, transition_id=before.transition_id)
            if set(spec.reenable.prerequisites) - given:
                self.report("I1", "Held ended with a prerequisite missing", before)
        lowered = fleet.lowered & set(fleet.workloads)
        if any(isinstance(action, DeleteAssignment) for action in decision.actions):
            if lowered and before.hold_on_delete:
                self.report("I7", "what a rollback holds is released with its policy", before)
            fleet.lowered = frozenset()
            return
        first, now = before.unacknowledged_alone, after.unacknowledged_alone
        if first is not None and now is not None and now.deadline_at > first.deadline_at:
            self.report("I1", "the deadline of a held workload that has not acknowledged moves later", before)
        for name in lowered:
            mode = after.assigned(fleet.workloads[name].key)
            if mode is None or is_safer(fleet.fallback_of(name), mode):
                self.report("I7", "a workload that was rolled back is assigned another mode without a retry", before)

    def _promotion(self, fleet: Fleet, observation: Observation, decision: Decision) -> None:
        """I2: promoted is on fresh, good data of every member, watched by this process for as long as the step asks."""
        before, after = fleet.state, decision.state
        promoted = after.step_index > before.step_index or (before.phase in MOVING and after.phase in GUARDED)
        begun = before.phase is Phase.PENDING and after.phase is Phase.PROGRESSING
        if (promoted or begun) and observation.admission.enforced is not True:
            self.report("I2", "promoted while it is not certain that admission enforces", before)
        if not promoted:
            return
        members = fleet.names_of(before.members) & fleet.selected()
        asked = {
            n for n in members if fleet.workloads[n].replicas or fleet.workloads[n].pods
        }  # what has none says nothing
        if fleet.metrics_away or asked & (fleet.unobservable | fleet.crashing):
            self.report("I2", "promoted without data of every member", before)
        if {n for n in members if fleet.has_moved(n)} & (set(fleet.bad) | fleet.poisoned):
            self.report("I2", "promoted with a member in breach", before)
        target = fleet.policy.spec.target
        parts = {n for n in members if fleet.workloads[n].key in before.shares and fleet.has_moved(n)}
        if not members & fleet.really_in(target) | parts:
            self.report("I2", "promoted without one member that trains in the target", before)
        watched = fleet.now - max(fleet.continuous_since, fleet.stage_since)
        stage = fleet.policy.spec.stages[min(before.step_index, len(fleet.policy.spec.stages) - 1)]
        if watched < stage.soak_seconds:
            self.report("I2", "promoted before the step's pause was over", before)

    def _canary(self, fleet: Fleet, decision: Decision) -> None:
        """I5: before its verdict the canary alone is moved. I2: promoted is what was seen to fare better, or a command."""
        before, after = fleet.state, decision.state
        for action in decision.actions if after.by_canary else ():
            if isinstance(action, RequestPod | DeletePod) and action.workload.key not in {
                *after.canary,
                *after.held_keys,
            }:
                if action.pod.effective_mode is not after.assigned(action.workload.key):
                    continue  # brought into the mode that it is assigned: somebody else had changed it
                self.report("I5", "more than the rollback canary is moved before its verdict", before)
        comparison = after.comparison
        if not before.by_canary or comparison is None or comparison.ended_at != fleet.now:
            return
        canary = fleet.names_of(before.canary)
        rest = set(fleet.workloads) - canary
        worse = rest & (set(fleet.bad) | fleet.poisoned | fleet.crashing)
        unseen = fleet.metrics_away or canary & fleet.unobservable
        if comparison.verdict is CanaryVerdict.BETTER and (unseen or not worse):
            self.report("I2", "a rollback canary is promoted without a rest that is seen to fare worse", before)

    def _drill(self, fleet: Fleet, before: State, after: State) -> None:
        """I13: a drill is of a fleet in good health, assigns the fallback, and leaves nothing behind for a person to end."""
        begun = bool(after.drilled) and not before.drilled
        if begun and (before.phase is not Phase.HEALTHY or before.held or fleet.bypassed):
            self.report("I13", "a drill began where it is in the way of something", before)
        if after.drilled and after.phase is not Phase.HEALTHY:
            self.report("I13", f"a drill goes on in {after.phase}", before)
        drilled = [name for name in fleet.workloads if fleet.workloads[name].key in after.drilled]
        if any(after.assigned(fleet.workloads[n].key) not in (None, fleet.fallback_of(n)) for n in drilled):
            self.report("I13", "a workload of a drill is assigned another mode than its fallback", before)
        if after.drilled and (after.incident, after.attempts, after.held) != (before.incident, before.attempts, ()):
            self.report("I13", "a drill counts as a rollback", before)

    def _edge(self, fleet: Fleet, decision: Decision) -> None:
        """I3: at most one edge a pass, and it is counted."""
        before, after = fleet.state, decision.state
        allowed = edges_from(before, fleet.policy)
        if after.phase is not before.phase and after.phase not in allowed:
            self.report("I3", f"no edge leads from {before.phase} to {after.phase}", before)
        edge = edge_key(after) != edge_key(before)
        if after.transition_id != before.transition_id + edge:
            self.report("I3", "the transition id does not count the edge", before)
        if after.step_index > before.step_index + 1:
            self.report("I3", "a step was skipped", before)
        if after.generation < before.generation:
            self.report("I3", "the generation went back", before)

    def _cause(self, fleet: Fleet, before: State, after: State) -> None:
        """I2: a rollback for a breach has one that is seen now: missing data is no breach, nor are a stranger's metrics."""
        begun = after.phase is Phase.ROLLING_BACK is not before.phase or len(after.held) > len(before.held)
        incident = after.incident
        if not begun or incident is None or incident == before.incident or incident.reason in NO_BREACH:
            return
        seen = set(fleet.bad) | fleet.poisoned if not fleet.metrics_away else set()
        if not set(incident.workloads) & ((seen - fleet.unobservable) | fleet.crashing):
            self.report("I2", f"rolled back for {incident.reason} without a breach that is seen", before)

    def _conditions(self, fleet: Fleet, after: State, before: State) -> None:
        """I3: phase, assignment and conditions agree."""
        shown = {condition.type: condition.status == "True" for condition in after.conditions}
        truth = {"Healthy": after.phase is Phase.HEALTHY, "RolledBack": after.phase is Phase.HELD}
        wrong = [kind for kind, true in truth.items() if shown and shown.get(kind) is not true]
        if wrong:
            self.report("I3", f"condition {wrong[0]} does not agree with the phase", before)
        fleet_wide = after.phase in ROLLED_BACK and not after.by_canary and after.fallback is not None
        listed = fleet.names_of(frozenset(after.modes)) - fleet.short
        if fleet_wide and (listed or after.indexes or not after.enforce):
            self.report(
                "I1", f"new pods of a fleet in {after.phase} may start in another mode than the fallback", before
            )

    def _assigned(self, fleet: Fleet, decision: Decision) -> None:
        """I8: what admission must do otherwise has a new generation. I2: something less safe is marked as a promotion."""
        before, after = fleet.state, decision.state
        if _read_by_admission(before) != _read_by_admission(after) and after.generation <= before.generation:
            self.report("I8", "admission must do something else under the same generation", before)
        raised = (
            key
            for key, mode in after.modes.items()
            if before.enforce and is_safer(before.assigned(key) or Mode.FP32, mode)
        )
        more = any(bound > before.indexes.get(key, 0) for key, bound in after.indexes.items() if before.enforce)
        if after.enforce and (more or any(raised)) and not decision.promotes:
            self.report("I2", "something less safe is assigned by a decision that does not say so", before)

    def _remember(self, fleet: Fleet, before: State, after: State) -> None:
        """What a rollback takes out of reduced precision is remembered: I7."""
        fallback, inside = fleet.policy.spec.fallback, frozenset(after.canary)
        for name, workload in fleet.workloads.items():
            key = workload.key
            reduced = before.enforce and is_safer(fallback, before.assigned(key) or fallback)
            whole = after.phase in ROLLED_BACK and after.fallback is not None
            reached = key in after.held_keys or (whole and (not after.by_canary or key in inside))
            if reduced and reached and at_least_as_safe(after.assigned(key) or fallback, fleet.fallback_of(name)):
                fleet.lowered |= {name}

    def acted(self, fleet: Fleet, before: State) -> None:
        """I5: no more of the fleet is assigned the target than the step's weight."""
        state, spec = fleet.state, fleet.policy.spec
        if state.phase not in MOVING or fleet.policy.deleted:
            return
        inside = {n: places for n in set(fleet.workloads) - fleet.left_over if (places := fleet.in_target(n))}
        if not self._joined and all(before.enforce and _was_in(before, fleet, name) for name in inside):
            return  # nobody joined
        stage = spec.stages[min(state.step_index, len(spec.stages) - 1)]
        if sum(inside.values()) > cohort_size(stage.weight, max(fleet.stage_total, fleet.total_places())):
            self.report("I5", "more of the fleet is assigned the target than the step's weight", before)
        if inside and fleet.unstaged:
            self.report("I5", "a new target without a canary", before)

    def after(self, fleet: Fleet, observation: Observation, before: State) -> None:
        """I1: a rollback is complete only when every process trains in the fallback."""
        if before.phase is not Phase.ROLLING_BACK or fleet.state.phase is not Phase.HELD or before.by_canary:
            return
        seen = {pod.name for workload in observation.workloads for pod in workload.pods}
        for name, workload in fleet.workloads.items():
            reached = workload.hot or workload.literal
            silent = fleet.metrics_away or name in fleet.unobservable | fleet.crashing or not reached
            pods = [p for p in workload.pods if p.name in seen and p.name in fleet.modes]
            modes = [fleet.modes[p.name][0] for p in pods if not (p.terminating and silent)]
            fallback = fleet.fallback_of(name)
            if not all(at_least_as_safe(mode, fallback) for mode in modes) and name not in fleet.crashing:
                self.report("I1", "Held while a process still trains below the fallback", before)


def _joins(action: Action, after: State) -> bool:
    if not isinstance(action, RequestPod) or action.checkpoint or action.workload.key not in after.shares:
        return False
    return action.pod.effective_mode is not None and is_safer(action.pod.effective_mode, action.mode)


def _was_in(before: State, fleet: Fleet, name: str) -> bool:
    key = fleet.workloads[name].key
    return before.assigned(key) is fleet.policy.spec.target or key in before.shares


def _read_by_admission(state: State) -> tuple[object, ...]:
    return state.selector, state.fallback, state.modes, state.indexes, state.index_mode, state.enforce
