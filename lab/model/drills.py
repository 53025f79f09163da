"""What must become true from every state that is reached: liveness, each property a short run without further faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lab.model.canonical import fingerprint
from lab.model.cluster import Room
from lab.model.events import Event, apply
from lab.model.fleet import TICK_SECONDS, Fleet
from lab.model.invariants import GUARDED, MOVING, Checker
from precision_operator.api.canary import CanaryVerdict
from precision_operator.api.modes import Mode, at_least_as_safe, is_safer
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery, Strategy
from precision_operator.api.state import Phase
from precision_operator.contract import RETRY
from precision_operator.core.restart.rounds import ROUNDS

CONVERGE_PASSES = 45
"""L1: so many passes without a fault reach a state of rest (a whole rollout with its pauses needs fewer than 30)."""

DELETED_SECONDS = 30.0
"""I10: a deletion is done within this, with Prometheus away."""

RESTART_PASSES = 6
"""A pod that is taken away asks first, terminates, and its replacement reports."""

_EXPLAINED = {"Undeliverable", "CohortInBF16", "AwaitingRetry", "AwaitingPrerequisites"}
"""What only a person can resolve, and is shown."""

_VERDICTS = {f"Canary{v}" for v in (CanaryVerdict.NO_DIFFERENCE, CanaryVerdict.WORSE, CanaryVerdict.INCONCLUSIVE)}
_RESTING = (Phase.HEALTHY, Phase.DEGRADED, Phase.HELD, Phase.PAUSED)
PASS = Event("pass")


@dataclass
class Drills:
    """The drills, each run once for states that are the same to it."""

    _passed: dict[str, set[int]] = field(default_factory=dict)

    def run(self, fleet: Fleet, checker: Checker, kinds: frozenset[str]) -> None:
        """Every drill that applies to this state, and to what the scenario knows."""
        if fleet.gone or fleet.policy.spec.delivery is Delivery.NEW_ONLY:
            return  # its pods change when their owners replace them: what is safe is checked, and nothing comes to rest
        self._once(converge, fleet, checker)
        self._once(answer, fleet, checker)
        if kinds & {"unresponsive", "scale"}:
            self._once(escalate, fleet, checker)
        if kinds & {"room", "delete-policy"}:
            self._once(crowd_out, fleet, checker)
        if "finalizer" in kinds:
            self._once(keep_objects, fleet, checker)
        if "delete-policy" in kinds:
            self._once(delete, fleet, checker)

    def _once(self, drill: Callable[[Fleet, Checker, set[int]], None], fleet: Fleet, checker: Checker) -> None:
        drill(fleet, checker, self._passed.setdefault(drill.__name__, set()))


def _pass(fleet: Fleet, checker: Checker) -> Fleet:
    return fleet if fleet.gone else apply(fleet, PASS, checker, {})


def _written(fleet: Fleet) -> tuple[int, int, int]:
    return fleet.writes, fleet.commits, fleet.summaries


def converge(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """L1, L4: once the faults stop, the fleet comes to rest where it should be, and nothing more is written."""
    now = fleet.clone()
    now.heal_all()
    path: list[int] = []
    for _ in range(CONVERGE_PASSES):
        key = fingerprint(now)
        if key in known or now.gone:
            break
        if path and key == path[-1]:
            _rest(now, checker)
            break
        path.append(key)
        writes = now.writes
        now = _pass(now, checker)
    else:
        what = "keeps writing" if now.writes > writes else "never rests"
        checker.report("L1", f"{what} in {now.state.phase}: {now.summary.reason or now.state.reason}", fleet.state)
    known.update(path)


def _rest(fleet: Fleet, checker: Checker) -> None:
    """What a state may look like that no pass changes any more."""
    state, spec = fleet.state, fleet.policy.spec
    before = _written(fleet)
    fleet = _pass(fleet, checker)
    if _written(fleet) != before:
        checker.report("L4", f"a steady fleet is written to in {state.phase}", state)
    if spec.suspend:
        return
    if fleet.policy.deleted:
        _rest_without_policy(fleet, checker)
        return
    if _stuck(fleet):
        return  # taken away twice, and back in the wrong mode twice: a condition names it, and a person looks
    reason = fleet.summary.reason
    absent = not _running(fleet) & fleet.names_of(state.members)
    # Where no process trains there is nothing to watch: a rollout waits, and says so.
    waits = state.phase in (Phase.PENDING, *MOVING) and (absent or reason in _EXPLAINED)
    explained = state.phase in _RESTING or waits or (state.by_canary and state.reason in _VERDICTS)
    if not explained:
        checker.report("L1", f"stays in {state.phase} without a fault: {reason}", state)
        return
    _counted(fleet, checker)
    _trained(fleet, checker)


def _trained(fleet: Fleet, checker: Checker) -> None:
    """Every process trains in what its workload is assigned, and that is what the phase means."""
    state = fleet.state
    held = fleet.names_of(state.held_keys)
    for name in _running(fleet) & fleet.movable():
        assigned = state.assigned(fleet.workloads[name].key) if state.enforce else None
        if assigned is None:
            continue
        rolled = state.phase is Phase.HELD or name in held or fleet.workloads[name].key not in state.modes
        modes = {mode for mode, _ in fleet.processes(name)}
        if fleet.workloads[name].key in state.indexes:
            modes = _wrong_by_index(fleet, name)
        elif fleet.workloads[name].key in state.shares and name not in held:
            modes.discard(state.precision or assigned)  # of those that move in part some are in the target
        if any(mode is not assigned and not (rolled and at_least_as_safe(mode, assigned)) for mode in modes):
            checker.report("L1", f"at rest in {state.phase} with a process that is not in its assigned mode", state)
    if state.phase is Phase.DEGRADED and not state.held:
        checker.report("L1", "at rest in Degraded though nothing is held", state)
    if state.phase in GUARDED:
        guarded = (fleet.names_of(state.members) - held) & fleet.movable()
        if any(state.assigned(fleet.workloads[name].key) is not fleet.due(name) for name in guarded):
            checker.report("L1", f"at rest in {state.phase} with a member that is not assigned the target", state)
        runs = {fleet.workloads[name].key for name in _running(fleet)}
        if any(window.open and window.key in runs for window in state.mitigations):
            checker.report("L1", f"at rest in {state.phase} with a window that nothing ends", state)


def _wrong_by_index(fleet: Fleet, name: str) -> set[Mode]:
    """What those of its processes train in that are not in what their index gives them."""
    workload = fleet.workloads[name]
    runs = ((pod, fleet.modes[pod.name][0]) for pod in workload.pods if pod.name in fleet.modes)
    return {mode for pod, mode in runs if mode is not fleet.assigned_to(workload, pod)}


def _rest_without_policy(fleet: Fleet, checker: Checker) -> None:
    """I10: only what a rollback holds is assigned anything, and a person may release it."""
    state = fleet.state
    if not state.deletable or state.fallback is not None or set(state.modes) != state.held_keys:
        checker.report(
            "I10", f"a policy is gone, and its assignment is not reduced to what is held: {state.reason}", state
        )
    wrong = fleet.names_of(state.held_keys) & fleet.movable() & _running(fleet)
    if any(is_safer(fleet.policy.spec.fallback, mode) for name in wrong for mode, _ in fleet.processes(name)):
        checker.report("I10", "without its policy a held workload trains in reduced precision", state)


def _counted(fleet: Fleet, checker: Checker) -> None:
    """I3: what the summary counts, and the stages of its incident, are what happened."""
    state, incident, summary = fleet.state, fleet.state.incident, fleet.summary
    held = fleet.names_of(state.held_keys) & set(fleet.workloads)
    inside = (fleet.names_of(state.members) & fleet.movable()) - held
    if state.selector == fleet.policy.spec.selector and summary.total != len(fleet.selected()):
        checker.report("I3", "total does not count the fleet", state)
    if state.phase in GUARDED and not 0 <= summary.moved - len(inside) <= len(fleet.workloads):
        checker.report("I3", "moved does not count the members in the target", state)
    if summary.unknown or state.no_data_since is not None or state.failing:
        checker.report("I3", "at rest, without a fault, with data missing or a breach standing", state)
    if state.phase is Phase.HELD and incident is not None:
        stages = (incident.detected_at, incident.decided_at, incident.last_ack_at)
        if any(at is None for at in stages) and _running(fleet) & fleet.movable():
            checker.report("I3", "an incident is over whose stages were not measured", state)


def _stuck(fleet: Fleet) -> bool:
    """A workload came back in the wrong mode as often as is tried, and the record says so: a policy may be gone."""
    rounds = any(restart.rounds >= ROUNDS for restart in fleet.state.restarts.values())
    shown = any(c.type == "Stuck" and c.status == "True" for c in fleet.state.conditions)
    return rounds and shown


def _running(fleet: Fleet) -> set[str]:
    """Workloads in which something trains."""
    return {name for name in fleet.workloads if fleet.processes(name)}


def _rollback_reaches(fleet: Fleet) -> set[str]:
    state = fleet.state
    if state.by_canary:
        return fleet.names_of(state.canary)
    if state.phase is Phase.ROLLING_BACK:
        return fleet.selected()
    return fleet.names_of(state.held_keys)


def answer(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """L2: a breach of everything that moved is answered within failureLimit + 1 evaluations: all go to the fallback."""
    active = fleet.state.phase in (*MOVING, *GUARDED) or fleet.state.by_canary
    if not active or fleet.policy.spec.suspend or fleet.policy.deleted or fleet.state.policy_uid != fleet.policy.uid:
        return
    now = fleet.clone()
    held = fleet.names_of(now.state.held_keys)
    poisoned = now.poisoned & held  # what was rolled back by itself may go on failing; that excuses nobody else
    now.heal_all()
    now.poisoned = poisoned
    fallback = now.policy.spec.fallback
    moved = {n for n in now.movable() - held if now.has_moved(n) and _is_asked(now, n)}
    moved &= {n for n in moved if all(not pod.pending and not pod.terminating for pod in now.workloads[n].pods)}
    if not moved:
        return
    now.bad = {name: {Signal.NON_FINITE: 2.0} for name in moved}
    key = fingerprint(now)
    if key in known:
        return
    known.add(key)
    for _ in range(now.policy.spec.evaluation.failure_limit + 1):
        now = _pass(now, checker)
    late = {n for n in moved & set(now.workloads) if _above(now, n, fallback)}
    if late:
        checker.report("L2", f"a breach is not answered: {now.state.phase}, {now.summary.reason}", fleet.state)


def _is_asked(fleet: Fleet, name: str) -> bool:
    return fleet.workloads[name].key in fleet.state.shares or name in fleet.assigned(fleet.due(name))


def _above(fleet: Fleet, name: str, fallback: Mode) -> bool:
    """Not assigned the fallback, or a hot pod of it not asked for that."""
    workload = fleet.workloads[name]
    hot = [pod for pod in workload.pods if pod.hot and not pod.terminating] if workload.hot else []
    asked = all(p.effective_mode is not None and at_least_as_safe(p.effective_mode, fallback) for p in hot)
    if workload.key in fleet.state.indexes:
        return True
    return not asked or is_safer(fallback, fleet.state.assigned(workload.key) or Mode.FP16)


def _patience(fleet: Fleet) -> int:
    """Passes until whoever does not answer is restarted, and back."""
    state, rules = fleet.state, fleet.policy.spec.rollback
    seconds = rules.ack_timeout_seconds
    if state.incident is not None and state.incident.strategy is not Strategy.EMERGENCY:
        seconds += max(rules.gradual.in_flight_seconds, state.incident.deadline_at - 3 * seconds - fleet.now)
    return min(int(seconds / TICK_SECONDS) + RESTART_PASSES, CONVERGE_PASSES)


def escalate(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """L2: trainers that take no request are restarted: all that a rollback reaches is in the fallback in time."""
    if fleet.policy.spec.suspend or fleet.policy.annotations.get(RETRY) == str(fleet.state.transition_id):
        return  # a person has them join again
    if fleet.policy.deleted and fleet.state.deletable:
        return
    now = fleet.clone()
    wanted = _rollback_reaches(now) & now.movable()
    now.heal_all()
    now.unresponsive = set(now.workloads)
    key = fingerprint(now)
    if not wanted or key in known:
        return
    known.add(key)
    for _ in range(_patience(fleet)):
        now = _pass(now, checker)
    if any(not now.is_back(name) for name in wanted & _running(now)) and not _stuck(now):
        checker.report("L2", f"trainers that take no request are not restarted: {now.state.phase}", fleet.state)


def crowd_out(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """L3: a rollback comes to its end though no pod of those that are restarted ever starts again."""
    state = fleet.state
    if state.phase is not Phase.ROLLING_BACK or state.by_canary or fleet.policy.spec.suspend:
        return
    now = fleet.clone()
    now.heal_all()
    now.room = dict.fromkeys(now.workloads, Room.NONE)
    key = fingerprint(now)
    if key in known:
        return
    known.add(key)
    for _ in range(CONVERGE_PASSES):
        if now.state.phase is not Phase.ROLLING_BACK or now.gone:
            return
        now = _pass(now, checker)
    if not _stuck(now):
        checker.report("L3", f"a rollback waits for pods that cannot start: {now.summary.message}", state)


def keep_objects(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """L3: a finalizer that keeps the objects of pods holds no rollback up, misses it no deadline, and is named; and L4."""
    state = fleet.state
    if state.phase is not Phase.ROLLING_BACK or state.by_canary or fleet.policy.spec.suspend:
        return
    now = fleet.clone()
    now.heal_all()
    for name in now.workloads:
        now.keep(name)
    key = fingerprint(now)
    if key in known:
        return
    known.add(key)
    for _ in range(CONVERGE_PASSES):
        now = _pass(now, checker)
    if now.state.phase is Phase.ROLLING_BACK and not _stuck(now):
        checker.report("L3", f"a rollback waits for objects that a finalizer keeps: {now.summary.message}", state)
    named = any(c.type == "Blocked" and c.status == "True" for c in now.state.conditions)
    if any(_is_kept(now, name) for name in now.workloads) and not named:
        checker.report("L3", "pods whose objects a finalizer keeps are not named", state)
    before = _written(now)
    if _written(_pass(now, checker)) != before:
        checker.report("L4", "pods whose objects a finalizer keeps are written to without end", state)


def _is_kept(fleet: Fleet, name: str) -> bool:
    """A pod that had to go for its mode has ended, and its object is still there."""
    fallback, ended = fleet.fallback_of(name), (p for p in fleet.workloads[name].pods if p.name not in fleet.modes)
    return any(p.terminating and p.effective_mode is not None and is_safer(fallback, p.effective_mode) for p in ended)


def delete(fleet: Fleet, checker: Checker, known: set[int]) -> None:
    """I10: a policy that is deleted while Prometheus is away leaves in time what a rollback holds, and nothing else.

    A rollback that is in flight is finished first; for its end the metrics are needed. So is the restart of a Job that
    was suspended.
    """
    if fleet.policy.deleted or fleet.assignment is None or fleet.state.policy_uid != fleet.policy.uid:
        return
    now = fleet.clone()
    rolling = now.state.phase is Phase.ROLLING_BACK and not now.state.by_canary
    if rolling:
        now.heal_all()
    suspended = bool(now.state.suspensions)
    now.metrics_away = not rolling
    now.delete_policy()
    if now.policy.spec.delivery is Delivery.NEW_ONLY:
        return  # as the assignment has kept it: its rollback ends with the pods
    key = fingerprint(now)
    if key in known:
        return
    known.add(key)
    for _ in range(CONVERGE_PASSES if rolling else int(DELETED_SECONDS / TICK_SECONDS)):
        now = _pass(now, checker)
    if suspended or now.state.suspensions:  # of before, or because nobody could be seen to answer until the deadline
        now.unreachable.clear()
        now.budgeted.clear()
        now.catch_up()
        for _ in range(2 * RESTART_PASSES):
            now = _pass(now, checker)
    if not now.gone and not now.state.deletable and not _stuck(now):
        checker.report("I10", f"a deletion is not done in time: {now.state.reason}", fleet.state)
