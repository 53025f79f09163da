"""What must become true from every state that is reached: liveness, each property a short run without further faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lab.model.canonical import fingerprint
from lab.model.events import Event, apply
from lab.model.fleet import TICK_SECONDS, Fleet
from lab.model.invariants import Checker
from precision_operator.api.canary import Verdict
from precision_operator.api.modes import Mode, is_safer
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Strategy
from precision_operator.api.state import Phase
from precision_operator.contract import FINALIZER, RETRY
from precision_operator.core.model import PodView, WorkloadView

CONVERGE_PASSES = 40
"""L1: so many passes without a fault reach a state of rest (a whole rollout with its pauses needs fewer than 30)."""

RELEASE_SECONDS = 30.0
"""S10: a deletion is done within this, with Prometheus down."""

CORRECTIONS = 3
"""S9: so often a value is corrected that somebody else writes back, within ten minutes."""

_EXPLAINED = {"ConflictedWriter", "LatchedWorkloads", "Undeliverable", "CohortInBF16"}
_VERDICTS = {f"Canary{v}" for v in (Verdict.NO_DIFFERENCE, Verdict.WORSE, Verdict.INCONCLUSIVE)}
"""What only a person can resolve, and is told."""
_RESTING = (Phase.HEALTHY, Phase.DEGRADED, Phase.HELD, Phase.PAUSED)
_ACTIVE = (Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY, Phase.DEGRADED)
PASS = Event("pass")


@dataclass
class Drills:
    """The drills, each run once for states that are the same to it."""

    _passed: dict[str, set[int]] = field(default_factory=dict)

    def run(self, fleet: Fleet, checker: Checker, kinds: frozenset[str]) -> None:
        """Every drill that applies to this state; deletion and fight where the scenario knows them."""
        self._once(converge, fleet, checker)
        self._once(answer, fleet, checker)
        if kinds & {"deaf", "scale"}:
            self._once(escalate, fleet, checker)
        if "delete-policy" in kinds:
            self._once(release, fleet, checker)
        if "reapply" in kinds:
            self._once(fight, fleet, checker)

    def _once(self, drill: Callable[[Fleet, Checker, set[int]], None], fleet: Fleet, checker: Checker) -> None:
        drill(fleet, checker, self._passed.setdefault(drill.__name__, set()))


def _pass(fleet: Fleet, checker: Checker) -> Fleet:
    return apply(fleet, PASS, checker, {})


def converge(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """L1, L4: once the faults stop, the fleet comes to rest where it should be, and nothing more is written."""
    if fleet.policy.deleted_at is not None:
        return
    now = fleet.clone()
    now.heal_all()
    path: list[int] = []
    for _ in range(CONVERGE_PASSES):
        key = fingerprint(now)
        if key in known:
            break
        if path and key == path[-1]:
            _rest(now, checker)
            break
        path.append(key)
        writes = now.writes
        now = _pass(now, checker)
    else:
        what = "keeps writing" if now.writes > writes else "never rests"
        checker.report("L1", f"{what} in {now.state.phase}: {now.state.reason}", fleet.state)
    known.update(path)


def _rest(fleet: Fleet, checker: Checker) -> None:
    """What a state may look like that no pass changes any more."""
    state, spec = fleet.state, fleet.policy.spec
    before = fleet.writes
    fleet = _pass(fleet, checker)
    if fleet.writes > before:
        checker.report("L4", f"a steady fleet is written to in {state.phase}", state)
    if spec.suspend:
        return
    absent = not _running(fleet) & {m.name for m in state.members}
    # Where no process trains there is nothing to watch: a rollout waits, and says so.
    waits = state.phase in (Phase.PENDING, Phase.PROGRESSING) and (absent or state.reason in _EXPLAINED)
    explained = state.phase in _RESTING or waits or (state.by_canary and state.reason in _VERDICTS)
    if not explained:
        checker.report("L1", f"stays in {state.phase} without a fault: {state.reason}", state)
        return
    _counted(fleet, checker)
    stuck = [w.name for w in fleet.workloads.values() if w.settle is not None or w.paused]
    if stuck:
        checker.report("L1", f"at rest in {state.phase} with a Deployment left paused", state)
    down = fleet.really_in(spec.fallback)
    held = {h.name for h in state.held}
    if state.phase is Phase.DEGRADED and not held & set(fleet.workloads):
        checker.report("L1", "at rest in Degraded though nothing is held", state)
    if state.phase is Phase.HELD and any(
        fleet.workloads[name].latch is None for name in fleet.lowered & _movable(fleet)
    ):
        checker.report("S1", "at rest in Held without the latch that outlives the policy", state)
    if state.phase is Phase.HELD and _running(fleet) - down:
        checker.report("L1", "at rest in Held with a process that is not in the fallback", state)
    if state.phase in (Phase.HEALTHY, Phase.DEGRADED):
        guarded = ({m.name for m in state.members} - held) & _movable(fleet) - _fought(fleet)
        if any(name not in fleet.really_in(fleet.due(name)) for name in guarded):
            checker.report("L1", f"at rest in {state.phase} with a member that is not in the target", state)
        if any(fleet.workloads[name].template_mode is not fleet.due(name) for name in guarded):
            checker.report(
                "L1", f"at rest in {state.phase} with a template that does not say its member's mode", state
            )
        if any(window.open for window in state.mitigations):
            checker.report("L1", f"at rest in {state.phase} with a window that nothing ends", state)
        if held & _running(fleet) - down:
            checker.report("L1", f"at rest in {state.phase} with a held workload that is not in the fallback", state)


def _counted(fleet: Fleet, checker: Checker) -> None:
    """S3: what the state counts, and the stages of its incident, are what happened."""
    state, incident = fleet.state, fleet.state.incident
    held = {h.name for h in state.held} & set(fleet.workloads)
    inside = {m.name for m in state.members} & _movable(fleet) - held - _fought(fleet)
    if state.total != len(fleet.workloads):
        checker.report("S3", "total does not count the fleet", state)
    if state.phase in (Phase.HEALTHY, Phase.DEGRADED) and not 0 <= state.moved - len(inside) <= len(fleet.workloads):
        checker.report("S3", "moved does not count the members in the target", state)
    if state.unknown or state.no_data_since is not None or state.failing:
        checker.report("S3", "at rest, without a fault, with data missing or a breach standing", state)
    if state.phase is Phase.HELD and incident is not None:
        stages = (incident.detected_at, incident.decided_at, incident.last_ack_at, incident.settled_at)
        known = [at for at in stages if at is not None]
        if len(known) < len(stages) and _movable(fleet):
            checker.report("S3", "an incident is over whose stages were not measured", state)
    if state.phase is Phase.HELD and any(w.template_mode is not fleet.policy.spec.fallback for w in _templates(fleet)):
        checker.report("S1", "at rest in Held with a template that is not in the fallback", state)


def _templates(fleet: Fleet) -> list[WorkloadView]:
    return [workload for workload in fleet.workloads.values() if workload.name in _movable(fleet)]


def _fought(fleet: Fleet) -> set[str]:
    """Workloads that somebody else wrote to after us: left alone, and named in a condition."""
    accepted = next((c for c in fleet.state.conditions if c.type == "Accepted"), None)
    named = accepted.message if accepted is not None and accepted.reason == "ConflictedWriter" else ""
    return {name for name in fleet.workloads if f" {name}:" in named or f" {name}," in named}


def _running(fleet: Fleet) -> set[str]:
    return {workload.name for workload in fleet.workloads.values() if workload.pods}


def _movable(fleet: Fleet) -> set[str]:
    return {
        workload.name for workload in fleet.workloads.values() if workload.pods and (workload.hot or workload.literal)
    }


def answer(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """L2: a breach of everything that moved is answered within failureLimit + 1 evaluations: all are told to go back."""
    active = fleet.state.phase in _ACTIVE or fleet.state.by_canary
    if not active or fleet.policy.spec.suspend or fleet.policy.deleted_at is not None:
        return
    now = fleet.clone()
    held = {h.name for h in now.state.held}
    poisoned = now.poisoned & held  # what was rolled back by itself may go on failing; that excuses nobody else
    now.heal_all()
    now.poisoned = poisoned
    fallback = now.policy.spec.fallback
    moved = {name for name in _movable(now) - held if name in now.really_in(now.due(name)) & now.told(now.due(name))}
    if not moved:
        return
    now.bad = {name: {Signal.NON_FINITE: 2.0} for name in moved}
    key = fingerprint(now)
    if key in known:
        return
    known.add(key)
    for _ in range(now.policy.spec.evaluation.failure_limit + 1):
        now = _pass(now, checker)
    late = {w.name for w in now.workloads.values() if any(_below(pod, fallback) for pod in w.pods)} & moved
    if late:
        checker.report("L2", f"a breach is not answered: {now.state.phase}, {now.state.reason}", fleet.state)


def _below(pod: PodView, fallback: Mode) -> bool:
    return pod.effective_mode is None or is_safer(fallback, pod.effective_mode)


def escalate(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """Trainers that take no request are restarted: all processes are down in time, whatever the rollback reaches."""
    state, spec = fleet.state, fleet.policy.spec
    reached = set(fleet.workloads) if state.phase is Phase.ROLLING_BACK else {h.name for h in state.held}
    wanted = ({m.name for m in state.canary} if state.by_canary else reached) & _movable(fleet)
    if not wanted or spec.suspend or fleet.policy.deleted_at is not None:
        return
    if fleet.policy.annotations.get(RETRY) == str(state.transition_id):
        return  # a person has them join again
    now = fleet.clone()
    now.heal_all()
    now.deaf = set(now.workloads)
    key = fingerprint(now)
    if key in known:
        return
    known.add(key)
    patience = spec.rollback.ack_timeout_seconds
    if state.incident is not None and state.incident.strategy is not Strategy.EMERGENCY:
        patience += max(spec.rollback.gradual.in_flight_seconds, state.incident.deadline_at - 3 * patience - fleet.now)
    for _ in range(min(int(patience / TICK_SECONDS) + 4, CONVERGE_PASSES)):
        now = _pass(now, checker)
    if wanted - now.really_in(spec.fallback):
        checker.report("L2", f"trainers that take no request are not restarted: {now.state.phase}", state)


def release(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """S10: a policy deleted while Prometheus is down is gone in time, with what it changed restored where it says so."""
    policy = fleet.policy
    if policy.deleted_at is not None or FINALIZER not in policy.finalizers:
        return
    now = fleet.clone()
    now.down = True
    now.policy = replace(policy, deleted_at=now.now)
    originals = dict(now.originals)
    key = fingerprint(now)
    if key in known:
        return
    known.add(key)
    for _ in range(int(RELEASE_SECONDS / TICK_SECONDS)):
        now = _pass(now, checker)
    if now.policy.finalizers:
        checker.report("S10", f"a deletion is not done within {RELEASE_SECONDS:g} s", fleet.state)
    elif policy.spec.restore_on_delete:
        wrong = [name for name, mode in originals.items() if now.workloads[name].template_mode is not mode]
        if wrong:
            checker.report("S10", "a deletion let go before the originals were back", fleet.state)


def fight(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """S9: what somebody else writes back again and again is corrected a few times, then left and reported."""
    if fleet.state.gate_closed or fleet.policy.deleted_at is not None:
        return
    for name in fleet.originals:
        now = fleet.clone()
        now.heal_all()
        key = hash((fingerprint(now), now.originals[name]))
        if key in known:
            continue
        known.add(key)
        corrected = 0
        for _ in range(4 * CORRECTIONS):
            workload = now.workloads.get(name)
            if workload is None or workload.settle is not None or now.state.gate_closed:
                break
            if workload.template_mode is not now.originals[name]:
                corrected += 1
                now.reapply(name)
            now = _pass(now, checker)
        if corrected > CORRECTIONS + 1:
            checker.report("S9", "what somebody else writes back is corrected without end", fleet.state)
