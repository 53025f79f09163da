"""What can happen to a fleet, one event at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lab.model.cluster import Room
from lab.model.fleet import AWAY_SECONDS, TICK_SECONDS, Fleet
from lab.model.invariants import Checker
from lab.model.policies import written
from lab.model.world import NAN, OVERFLOWS, SLOW
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase, State
from precision_operator.contract import ABORT, DRILL, PROMOTE, RETRY
from precision_operator.core.actions import Action, Notify
from precision_operator.core.decide import Decision, decide
from precision_operator.core.model import Observation

_REPEATS = 6
"""So many passes may follow one another at once, each after an edge."""

BREACHES = OVERFLOWS | NAN | SLOW
"""One breach of each severity."""

_MILD = {Signal.OVERFLOW: 0.25}
"""One that is mitigated first."""

_COMMANDS = {"promote": PROMOTE, "retry": RETRY, "abort": ABORT, "drill": DRILL}
_SAYS = {"drill": ": fleet allow-restarts"}
"""What a command says beside the transition."""


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """One thing that happens."""

    kind: str
    workload: str = ""
    choice: str = ""
    """A policy uid (the canary's order), the writes that a crash loses, a signal, or the name of an edit."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.workload, self.choice)))


Edit = Mapping[str, object]
"""What a person writes into the spec instead."""


def apply(fleet: Fleet, event: Event, checker: Checker, edits: Mapping[str, Edit]) -> Fleet:
    """The world after the event. Every decision in it is checked."""
    after = fleet.clone()
    match event.kind:
        case "pass" | "late" | "clock" | "crash" | "stale" | "zombie":
            _operator(after, event, checker)
        case (
            "edit" | "delete-policy" | "recreate-policy" | "lose" | "release" | "promote" | "retry" | "abort" | "drill"
        ):
            _person(after, event, edits)
        case _:
            _environment(after, event)
    checker.pods(fleet, after, bypassed=event.kind == "bypass")
    checker.jobs(after)
    return after


def _person(fleet: Fleet, event: Event, edits: Mapping[str, Edit]) -> None:
    match event.kind:
        case "edit":
            _edit(fleet, event.choice, edits)
        case "delete-policy":
            fleet.delete_policy()
        case "recreate-policy":
            fleet.begin_again(written(fleet.written, uid=f"{fleet.policy.uid}'"))
        case "lose":
            fleet.lose_assignment()
            if fleet.state == State():
                fleet.lowered = frozenset()  # the status named none yet: nothing is left that could be noticed
            fleet.lowered &= fleet.selected()  # nothing tells any more what an older selector held
        case "release":
            fleet.release()
        case _:
            said = f"{fleet.state.transition_id}{_SAYS.get(event.kind, '')}"
            fleet.policy = replace(fleet.policy, annotations={_COMMANDS[event.kind]: said})
            fleet.lowered = frozenset() if event.kind == "retry" else fleet.lowered


def _edit(fleet: Fleet, name: str, edits: Mapping[str, Edit]) -> None:
    """A person makes an edit of the policy, or takes it back."""
    old, before = fleet.policy, fleet.selected()
    fleet.edits ^= {name}
    spec = dict(fleet.written)
    for made in sorted(fleet.edits):
        spec |= edits[made]
    new = written(spec, uid=old.uid)
    fleet.policy = replace(old, spec=new.spec, settings=new.settings, generation=old.generation + 1)
    if new.spec.target is not old.spec.target:
        fleet.unstaged = fleet.state.phase is not Phase.PENDING
    fleet.left_over |= fleet.selected() - before


def _breach(fleet: Fleet, event: Event) -> None:
    signal = Signal(event.choice)
    fleet.bad[event.workload] = {signal: BREACHES[signal]}


def _mild_breach(fleet: Fleet, event: Event) -> None:
    fleet.bad[event.workload] = dict(_MILD)


def _room(fleet: Fleet, event: Event) -> None:
    fleet.room[event.workload] = Room(event.choice)


def _lag(fleet: Fleet, _: Event) -> None:
    fleet.lagging = True


def _metrics(fleet: Fleet, event: Event) -> None:
    fleet.metrics_away = event.kind == "away"


_EFFECTS: Mapping[str, Callable[[Fleet, Event], object]] = {
    "breach": _breach,
    "mild": _mild_breach,
    "poison": lambda fleet, event: fleet.poisoned.add(event.workload),
    "unobservable": lambda fleet, event: fleet.unobservable.add(event.workload),
    "unresponsive": lambda fleet, event: fleet.unresponsive.add(event.workload),
    "unreachable": lambda fleet, event: fleet.unreachable.add(event.workload),
    "budget": lambda fleet, event: fleet.budgeted.add(event.workload),
    "suspend": lambda fleet, event: fleet.suspend(event.workload, by="a person"),
    "resume": lambda fleet, event: fleet.resume(event.workload),
    "crash-loop": lambda fleet, event: fleet.crash(event.workload),
    "room": _room,
    "heal": lambda fleet, event: fleet.heal(event.workload),
    "drop": lambda fleet, event: fleet.drop(event.workload),
    "join": lambda fleet, event: fleet.join(event.workload, hot=True, mode=Mode(event.choice)),
    "crowd": lambda fleet, event: fleet.crowded.add(event.workload),
    "revise": lambda fleet, event: fleet.revise(event.workload),
    "finalizer": lambda fleet, event: fleet.keep(event.workload),
    "scale": lambda fleet, event: fleet.scale(event.workload, int(event.choice)),
    "undeclare": lambda fleet, event: fleet.undeclare(event.workload),
    "drain": lambda fleet, event: fleet.replace_pods(event.workload),
    "bypass": lambda fleet, event: fleet.bypass(event.workload),
    "lag": _lag,
    "catch-up": lambda fleet, event: fleet.catch_up(),
    "stranger": lambda fleet, event: fleet.meet_stranger(),
    "away": _metrics,
    "back": _metrics,
}


def _environment(fleet: Fleet, event: Event) -> None:
    effect = _EFFECTS.get(event.kind)
    if effect is None:
        raise ValueError(f"expected an event that this model knows, found {event}; is the trace of another version?")
    effect(fleet, event)


def _operator(fleet: Fleet, event: Event, checker: Checker) -> None:
    """A pass of the operator, in one of the ways in which it can go wrong."""
    match event.kind:
        case "pass":
            if event.choice:
                _reorder(fleet, event.choice)
            _passes(fleet, checker)
        case "late":
            fleet.now += AWAY_SECONDS
            fleet.continuous_since = fleet.now
            _passes(fleet, checker)
        case "clock":
            fleet.now -= AWAY_SECONDS / 2
            fleet.stage_since -= AWAY_SECONDS / 2
            fleet.continuous_since = fleet.now
            _passes(fleet, checker)
        case "crash":
            lost = frozenset(int(number) for number in event.choice.split(",") if number)
            _one(fleet, fleet.observe(), checker, lost=lost, crashes=True)
            fleet.continuous_since = fleet.now + TICK_SECONDS
        case "stale":
            old = fleet.observe()
            _passes(fleet, checker)
            _moment(fleet)
            _one(fleet, replace(fleet.observe(), workloads=old.workloads, matching=old.matching), checker)
        case "zombie":
            # A leader commits and is paused; its successor works; then the old one's writes arrive.
            decision = _one(fleet, fleet.observe(), checker, lost=None, crashes=True)
            _moment(fleet)
            fleet.continuous_since = fleet.now
            _passes(fleet, checker)
            for action in writes(decision):
                checker.late(fleet, action)
                fleet.act(action)
    _moment(fleet)


def _moment(fleet: Fleet) -> None:
    fleet.turn()
    fleet.now += TICK_SECONDS


def _reorder(fleet: Fleet, uid: str) -> None:
    """The policy has this uid, and always had: its canary goes in another order."""
    if fleet.state.policy_uid == fleet.policy.uid:
        fleet.state = replace(fleet.state, policy_uid=uid)
    fleet.policy = replace(fleet.policy, uid=uid)


def _passes(fleet: Fleet, checker: Checker) -> None:
    """One pass, and those that it asks for at once: they see new workloads, but no new metrics."""
    observation = fleet.observe()
    for _ in range(_REPEATS):
        decision = _one(fleet, observation, checker)
        if fleet.gone or decision.wake_at > fleet.now:
            return
        observation = replace(fleet.observe(), evaluation=observation.evaluation)
    checker.report("L4", f"{_REPEATS} passes asked for another one at once", fleet.state)


def _one(
    fleet: Fleet,
    observation: Observation,
    checker: Checker,
    *,
    lost: frozenset[int] | None = frozenset(),
    crashes: bool = False,
) -> Decision:
    """Decide, commit, act, report. ``lost`` are the writes that a crash swallows, None: all; it swallows the report too."""
    before = fleet.state
    decision = decide(fleet.policy, before, observation, fleet.now)
    checker.decision(fleet, observation, decision)
    if fleet.assignment is not None or not fleet.policy.deleted:
        fleet.commit(decision)
    _remember(fleet, before)
    seen = observation.evaluation.pods if observation.evaluation is not None else {}
    done = [] if lost is None else [a for number, a in enumerate(writes(decision)) if number not in lost]
    for action in done:
        checker.write(fleet, action, seen)
        fleet.act(action)
    if not crashes:
        fleet.report(decision)
    checker.acted(fleet, before)
    fleet.train()
    checker.after(fleet, observation, before)
    return decision


def _remember(fleet: Fleet, before: State) -> None:
    """What only the checker knows of the past."""
    state = fleet.state
    if before.by_canary and state.phase is Phase.PENDING:
        fleet.left_over |= fleet.assigned(fleet.policy.spec.target)  # a person ended it: the rest stays where it is
    if state.enforce and (not before.enforce or before.fallback is None):
        target = fleet.policy.spec.target
        fleet.left_over |= fleet.assigned(target) & fleet.really_in(target)  # found in it
    again = before.policy_uid not in ("", fleet.policy.uid)
    if again or before.phase is Phase.PENDING or before.step_index != state.step_index:
        fleet.stage_total, fleet.stage_since = fleet.total_places(), fleet.now
        fleet.unstaged = False


def writes(decision: Decision) -> list[Action]:
    """What the decision does to objects."""
    return [action for action in decision.actions if not isinstance(action, Notify)]
