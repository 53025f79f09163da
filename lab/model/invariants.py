"""What must hold in every decision and after every write: S1–S5 and S7 of the safety invariants, on the world's own truth.

``decide`` sees metrics, caches and annotations; the checks here look at what the processes really do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lab.model.fleet import Fleet, asked_mode, less_safe, restarts
from precision_operator.api.canary import Verdict
from precision_operator.api.commands import acknowledged
from precision_operator.api.modes import at_least_as_safe, is_safer
from precision_operator.api.state import Phase, State, parse_state, state_to_wire
from precision_operator.contract import RETRY
from precision_operator.core.actions import Action, RequestPod, Settle, WriteTemplate
from precision_operator.core.cohorts import cohort_size
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
"""S3: the only edges between phases."""

_MOVING = (Phase.PROGRESSING, Phase.PAUSED)
_GUARDED = (Phase.HEALTHY, Phase.DEGRADED)


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
        self._latch(fleet, decision)
        self._promotion(fleet, observation, decision)
        self._canary(fleet, decision)
        self._edge(before, after)
        self._cause(fleet, before, after)
        self._said(after, before)
        self._writes(decision, before)
        self._flap(fleet, decision.actions)
        if sum(map(restarts, decision.actions)) > observation.restart_slots:
            self.report("S5", "more restarts than the cluster's budget", before)

    def _wire(self, after: State, before: State) -> None:
        if after != before and parse_state(state_to_wire(after)) != after:
            self.report("S3", "the state does not survive the API server", before)

    def _latch(self, fleet: Fleet, decision: Decision) -> None:
        """S1: with the gate closed nothing of ours asks for less than the fallback; a person's retry opens it."""
        before, after, spec = fleet.state, decision.state, fleet.policy.spec
        if after.gate_closed and any(less_safe(action, spec.fallback) for action in decision.actions):
            self.report("S1", "a write asks for less than the fallback while the gate is closed", before)
        if before.gate_closed and not after.gate_closed:
            answer = fleet.policy.annotations.get(RETRY)
            if answer is None or int(answer) > before.transition_id:
                self.report("S1", "the gate opened without a person's word", before)
            given = acknowledged(fleet.policy.annotations, transition_id=before.transition_id)
            if set(spec.reenable.prerequisites) - given:
                self.report("S1", "the gate opened with a prerequisite missing", before)

    def _promotion(self, fleet: Fleet, observation: Observation, decision: Decision) -> None:
        """S2: promoted is on fresh, good data of every member, watched by this process for as long as the step asks."""
        before, after = fleet.state, decision.state
        promoted = after.step_index > before.step_index or (before.phase in _MOVING and after.phase in _GUARDED)
        if not promoted:
            return
        if fleet.down or {m.name for m in before.members} & (fleet.blind | fleet.crashing):
            self.report("S2", "promoted without data of every member", before)
        alive = {m.name for m in before.members} & set(fleet.workloads)
        if {n for n in alive if n in fleet.really_in(fleet.due(n))} & (set(fleet.bad) | fleet.poisoned):
            self.report("S2", "promoted with a member in breach", before)
        if not alive & fleet.really_in(fleet.policy.spec.target):
            self.report("S2", "promoted without one member that trains in the target", before)
        watched = fleet.now - max(fleet.continuous_since, fleet.stage_since)
        stage = fleet.policy.spec.stages[min(before.step_index, len(fleet.policy.spec.stages) - 1)]
        if watched < stage.soak_seconds:
            self.report("S2", "promoted before the step's pause was over", before)

    def _canary(self, fleet: Fleet, decision: Decision) -> None:
        """S5: before its verdict a canary is all that is told. S2: promoted is what was seen to fare better, or a word."""
        before, after = fleet.state, decision.state
        inside = {member.key for member in after.canary}
        for action in decision.actions if after.by_canary else ():
            told = action.workload if isinstance(action, RequestPod | WriteTemplate) else None
            if told is not None and told.pods and told.uid not in inside:
                self.report("S5", "more than the canary is told before its verdict", before)
        comparison = after.comparison
        if not before.by_canary or comparison is None or comparison.ended_at != fleet.now:
            return
        rest = {w.name for w in fleet.workloads.values() if w.key not in inside}
        worse = rest & (set(fleet.bad) | fleet.poisoned | fleet.crashing)
        unseen = fleet.down or {member.name for member in before.canary} & fleet.blind
        if comparison.verdict is Verdict.BETTER and (unseen or not worse):
            self.report("S2", "a canary is promoted without a rest that is seen to fare worse", before)

    def _edge(self, before: State, after: State) -> None:
        """S3: at most one edge a pass, and it is counted."""
        if after.phase is not before.phase and after.phase not in EDGES[before.phase]:
            self.report("S3", f"no edge leads from {before.phase} to {after.phase}", before)
        edge = edge_key(after) != edge_key(before)
        if after.transition_id != before.transition_id + edge:
            self.report("S3", "the transition id does not count the edge", before)
        if after.step_index > before.step_index + 1:
            self.report("S3", "a step was skipped", before)
        if after.generation < before.generation:
            self.report("S3", "the generation went back", before)

    def _cause(self, fleet: Fleet, before: State, after: State) -> None:
        """S2: a rollback for a breach has one that is seen now: missing data is no breach."""
        begun = after.phase is Phase.ROLLING_BACK is not before.phase or len(after.held) > len(before.held)
        incident = after.incident
        if not begun or incident is None or incident == before.incident or incident.reason in ("Aborted", "NoData"):
            return
        seen = set(fleet.bad) | fleet.poisoned if not fleet.down else set()
        if not set(incident.workloads) & ((seen - fleet.blind) | fleet.crashing):
            self.report("S2", f"rolled back for {incident.reason} without a breach that is seen", before)

    def _said(self, after: State, before: State) -> None:
        """S3: phase, gate and conditions agree."""
        said = {condition.type: condition.state == "True" for condition in after.conditions}
        truth = {
            "Healthy": after.phase is Phase.HEALTHY,
            "RolledBack": after.phase is Phase.HELD,
            "GateClosed": after.gate_closed,
        }
        wrong = [kind for kind, true in truth.items() if said and said.get(kind) is not true]
        if wrong:
            self.report("S3", f"condition {wrong[0]} does not agree with the phase", before)
        if after.gate_closed is not (after.phase in (Phase.ROLLING_BACK, Phase.HELD)):
            self.report("S3", f"the gate is {'closed' if after.gate_closed else 'open'} in {after.phase}", before)

    def _writes(self, decision: Decision, before: State) -> None:
        """S8: every write outranks what stands; L4: none says what is so already; a crash-looping one is not paused."""
        for action in decision.actions:
            match action:
                case RequestPod(pod=pod):
                    if pod.request is not None and pod.request.generation >= action.generation:
                        self.report("S8", "a request does not outrank the one that the trainer has", before)
                    if pod.effective_mode is action.mode and not _first_tuning(decision.state, action):
                        self.report("L4", "a pod is told what it was told already", before)
                case Settle(workload=workload) if workload.settle is None:
                    if any(pod.crashing for pod in workload.pods):
                        self.report("S4", "a Deployment whose pods crash is paused", before)
                    if not workload.rolled_out:
                        self.report("S4", "a Deployment is paused in the middle of a rollout", before)
            if asked_mode(action) is not None and decision.state.generation < _generation(action):
                self.report("S8", "a write carries a generation that the state does not know", before)

    def _flap(self, fleet: Fleet, actions: Iterable[Action]) -> None:
        """S7: what was moved down is not moved up again without a person's word."""
        spec = fleet.policy.spec
        begun = (
            a for a in actions if isinstance(a, RequestPod | WriteTemplate | Settle) and less_safe(a, spec.fallback)
        )
        raised = {action.workload.name for action in begun}
        if raised & fleet.lowered:
            self.report("S7", "a workload that was rolled back is moved up again without a person's word", fleet.state)

    def acted(self, fleet: Fleet, done: Iterable[Action], *, told_before: frozenset[str]) -> None:
        """Check what the writes made of the world."""
        state, spec = fleet.state, fleet.policy.spec
        for action in done:
            written = fleet.workloads.get(action.workload.name) if isinstance(action, WriteTemplate | Settle) else None
            if written is not None and written.generation_raw is not None and not written.has_original:
                self.report("S4", "a template was written without its original being kept", state)
        told = fleet.told(spec.target)
        if state.phase in _MOVING and told - told_before:
            stage = spec.stages[min(state.step_index, len(spec.stages) - 1)]
            if len(told - fleet.left_over) > cohort_size(stage.weight, max(fleet.stage_total, len(fleet.workloads))):
                self.report("S5", "more of the fleet is told to move than the step's weight", state)
            if fleet.unstaged:
                self.report("S5", "a new target without a canary", state)
        for action in done:
            _remember(fleet, action)
            if restarts(action) and _needless(fleet, action):
                self.report("S5", "a trainer that had taken the request is restarted", state)

    def after(self, fleet: Fleet, observation: Observation, before: State) -> None:
        """S1p: a rollback is complete only when every process trains in the fallback. S5: so does all outside of it."""
        if before.phase is Phase.PENDING and fleet.state.phase is Phase.PROGRESSING:
            members = {member.name for member in fleet.state.members}
            if fleet.told(fleet.policy.spec.target) - members - fleet.left_over:
                self.report("S5", "a rollout begins while workloads outside of its canary are on the target", before)
        if before.phase is not Phase.ROLLING_BACK or fleet.state.phase is not Phase.HELD:
            return
        fallback = fleet.policy.spec.fallback
        seen = {pod.name for workload in observation.workloads for pod in workload.pods}
        for name, workload in fleet.workloads.items():
            modes = [fleet.modes[pod.name][0] for pod in workload.pods if pod.name in seen]
            if not all(at_least_as_safe(mode, fallback) for mode in modes) and name not in fleet.crashing:
                self.report("S1", "Held while a process still trains below the fallback", before)


def _generation(action: Action) -> int:
    return action.generation if isinstance(action, RequestPod | WriteTemplate | Settle) else 0


def _first_tuning(state: State, action: RequestPod) -> bool:
    """It carries an open window's rung, which this pod has not been told of."""
    windows = [m for m in state.mitigations if m.key == action.workload.key and m.open]
    told = action.pod.request.generation if action.pod.request is not None else 0
    return action.tuning is not None and not state.gate_closed and any(told < m.generation for m in windows)


def _needless(fleet: Fleet, action: Action) -> bool:
    """Whether all processes of a hot workload had done already what its restart is for."""
    if not isinstance(action, WriteTemplate) or not action.workload.hot or action.workload.name in fleet.deaf:
        return False
    incident = fleet.state.incident
    unseen = fleet.down or action.workload.name in fleet.blind
    if unseen and incident is not None and fleet.now > incident.deadline_at:
        return False  # past the deadline, who cannot be seen to have taken it is restarted
    return all(
        pod.request is not None and fleet.modes.get(pod.name) == (action.mode, pod.request.generation)
        for pod in action.workload.pods
    )


def _remember(fleet: Fleet, action: Action) -> None:
    """What was told to leave the target is remembered as moved down."""
    if not isinstance(action, RequestPod | WriteTemplate | Settle) or action.workload.name not in fleet.workloads:
        return
    state = fleet.state
    standing = state.phase in (Phase.ROLLING_BACK, Phase.HELD) or action.workload.name in {h.name for h in state.held}
    if not standing or fleet.policy.annotations.get(RETRY) == str(state.transition_id):
        return  # finished on the way out of a rollback, at a person's word
    told = action.pod.effective_mode if isinstance(action, RequestPod) else action.workload.template_mode
    fallback = fleet.policy.spec.fallback
    up = told is None or is_safer(fallback, told)
    if up and asked_mode(action) is not None and at_least_as_safe(action.mode, fallback):
        fleet.lowered |= {action.workload.name}
