"""What can happen to a fleet, one event at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from lab.model.canonical import local_keys
from lab.model.fleet import AWAY_SECONDS, TICK_SECONDS, Fleet, policy_uids
from lab.model.invariants import Checker
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec
from precision_operator.api.state import Phase, State
from precision_operator.contract import ABORT, PROMOTE, RETRY
from precision_operator.core.actions import Action, Notify
from precision_operator.core.decide import Decision, decide
from precision_operator.core.model import Observation

_REPEATS = 6
"""So many passes may follow one another at once, each after an edge."""

_BAD = {Signal.OVERFLOW: 0.6, Signal.NON_FINITE: 2.0, Signal.SPEED: 0.1}
"""One breach of each severity."""

_MILD = {Signal.OVERFLOW: 0.25}
"""One that is mitigated first."""


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """One thing that happens."""

    kind: str
    workload: str = ""
    choice: str = ""
    """A policy uid (the canary's order), the writes that a crash loses, a signal, or the name of an edit."""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.workload, self.choice)))


Edit = Callable[[PolicySpec], PolicySpec]


def apply(fleet: Fleet, event: Event, checker: Checker, edits: Mapping[str, Edit]) -> Fleet:
    """The world after the event. Every decision in it is checked."""
    after = fleet.clone()
    match event.kind:
        case "pass" | "late" | "clock" | "crash" | "stale" | "zombie":
            _operator(after, event, checker)
        case "edit":
            _edit(after, event.choice, edits)
        case "delete-policy":
            after.policy = replace(after.policy, deleted_at=after.now)
        case "recreate-policy":
            after.left_over |= after.told(after.policy.spec.target)
            after.state = State()
            after.policy = replace(after.policy, annotations={}, finalizers=())
        case "promote" | "retry" | "abort":
            command = {"promote": PROMOTE, "retry": RETRY, "abort": ABORT}[event.kind]
            after.policy = replace(after.policy, annotations={command: str(after.state.transition_id)})
            after.lowered = frozenset() if event.kind == "retry" else after.lowered
        case _:
            _environment(after, event)
    return after


def _edit(fleet: Fleet, name: str, edits: Mapping[str, Edit]) -> None:
    """A person makes an edit of the policy, or takes it back."""
    target, spec = fleet.policy.spec.target, fleet.base
    fleet.edits ^= {name}
    for made in sorted(fleet.edits):
        spec = edits[made](spec)
    fleet.policy = replace(fleet.policy, spec=spec, generation=fleet.policy.generation + 1)
    if spec.target is not target:
        fleet.lowered, fleet.unstaged = frozenset(), fleet.state.phase is not Phase.PENDING


def _environment(fleet: Fleet, event: Event) -> None:
    name = event.workload
    match event.kind:
        case "breach":
            signal = Signal(event.choice)
            fleet.bad[name] = {signal: _BAD[signal]}
        case "mild":
            fleet.bad[name] = _MILD
        case "poison":
            fleet.poisoned.add(name)
        case "blind":
            fleet.blind.add(name)
        case "deaf":
            fleet.deaf.add(name)
        case "crash-loop":
            fleet.crash(name, True)
        case "heal":
            fleet.heal(name)
        case "drop":
            fleet.drop(name)
        case "join":
            fleet.join(name, hot=True, latch=Mode.FP32 if event.choice == "latched" else None)
        case "scale":
            fleet.scale(name, int(event.choice))
        case "undeclare":
            fleet.undeclare(name)
        case "unpause":
            fleet.resume(name)
        case "reapply":
            fleet.reapply(name)
        case "down" | "up":
            fleet.down = event.kind == "down"
        case _:
            raise ValueError(
                f"expected an event that this model knows, found {event}; is the trace of another version?"
            )


def _operator(fleet: Fleet, event: Event, checker: Checker) -> None:
    """A pass of the operator, in one of the ways in which it can go wrong."""
    match event.kind:
        case "pass":
            if event.choice:
                fleet.policy = replace(fleet.policy, uid=event.choice)
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
            _one(fleet, fleet.observe(), checker, lost=lost)
            fleet.continuous_since = fleet.now + TICK_SECONDS
        case "stale":
            old = fleet.observe().workloads
            _passes(fleet, checker)
            fleet.now += TICK_SECONDS
            _one(fleet, replace(fleet.observe(), workloads=old), checker)
        case "zombie":
            # A leader commits and is paused; its successor works; then the old one's writes arrive.
            decision = _one(fleet, fleet.observe(), checker, lost=None)
            fleet.now += TICK_SECONDS
            fleet.continuous_since = fleet.now
            _passes(fleet, checker)
            for action in decision.actions:
                fleet.act(action)
    fleet.now += TICK_SECONDS


def _passes(fleet: Fleet, checker: Checker) -> None:
    """One pass, and those that it asks for at once: they see new workloads, but no new metrics."""
    observation = fleet.observe()
    for _ in range(_REPEATS):
        decision = _one(fleet, observation, checker)
        if decision.wake_at > fleet.now:
            return
        observation = replace(fleet.observe(), evaluation=observation.evaluation)
    checker.report("L4", f"{_REPEATS} passes asked for another one at once", fleet.state)


def _one(
    fleet: Fleet, observation: Observation, checker: Checker, *, lost: frozenset[int] | None = frozenset()
) -> Decision:
    """Decide, commit, act; ``lost`` are the writes that a crash swallows, None: all."""
    before = fleet.state
    decision = decide(fleet.policy, before, observation, fleet.now)
    checker.decision(fleet, observation, decision)
    fleet.commit(decision)
    if before.by_canary and fleet.state.phase is Phase.PENDING:
        fleet.left_over |= fleet.told(fleet.policy.spec.target)  # a person ended it: the rest stays where it is
    if before.phase is Phase.PENDING or before.step_index != fleet.state.step_index:
        fleet.stage_total, fleet.stage_since = len(fleet.workloads), fleet.now
        fleet.unstaged = False
    done = [] if lost is None else [a for number, a in enumerate(writes(decision)) if number not in lost]
    told = fleet.told(fleet.policy.spec.target)
    for action in done:
        fleet.act(action)
    checker.acted(fleet, done, told_before=told)
    fleet.train()
    checker.after(fleet, observation, before)
    return decision


def writes(decision: Decision) -> list[Action]:
    """What the decision does to objects."""
    return [action for action in decision.actions if not isinstance(action, Notify)]


def enabled(fleet: Fleet, kinds: frozenset[str], edits: Mapping[str, Edit]) -> Iterator[Event]:
    """Every event of these kinds that makes a difference here; one of each set of interchangeable workloads."""
    yield from _passes_enabled(fleet, kinds)
    if fleet.policy.deleted_at is not None:
        return
    commands = {
        "promote": fleet.state.phase is Phase.PAUSED or fleet.state.by_canary,
        "retry": fleet.state.phase in (Phase.HELD, Phase.DEGRADED) or fleet.state.by_canary,
        "abort": fleet.state.phase in (Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY, Phase.DEGRADED)
        or fleet.state.by_canary,
        "down": not fleet.down,
        "up": fleet.down,
        "delete-policy": True,
        "recreate-policy": fleet.state != State(),
    }
    yield from (Event(kind) for kind, possible in commands.items() if possible and kind in kinds)
    if "edit" in kinds:
        yield from (Event("edit", choice=name) for name in edits)
    for name in {key: name for name, key in local_keys(fleet).items()}.values():
        yield from (event for event in _of_workload(fleet, name) if event.kind in kinds)
    if "join" in kinds:
        free = [name for name in ("a", "b", "c") if name not in fleet.workloads][:1]
        yield from (Event("join", name, choice) for name in free for choice in ("new", "latched"))


def _passes_enabled(fleet: Fleet, kinds: frozenset[str]) -> Iterator[Event]:
    decision = fleet.decide()
    chosen = {member.key for member in decision.state.members} - {member.key for member in fleet.state.members}
    yield Event("pass")
    if chosen and len(chosen) < len(fleet.workloads):
        uids = policy_uids(frozenset(workload.key for workload in fleet.workloads.values()))
        yield from (Event("pass", choice=uid) for uid in uids if uid != fleet.policy.uid)
    yield from (Event(kind) for kind in ("late", "clock", "stale") if kind in kinds)
    count = len(writes(decision))
    if count and "zombie" in kinds:
        yield Event("zombie")
    if "crash" in kinds and decision.state != fleet.state:
        for size in range(count + 1) if count <= 3 else (0, 1, count):
            for lost in combinations(range(count), size):
                yield Event("crash", choice=",".join(map(str, lost)))


def _of_workload(fleet: Fleet, name: str) -> Iterator[Event]:
    workload = fleet.workloads[name]
    faulty = name in fleet.bad or name in fleet.blind | fleet.deaf | fleet.crashing | fleet.poisoned
    if name not in fleet.bad:
        yield from (Event("breach", name, signal) for signal in _BAD)
    yield Event("scale", name, "0" if workload.replicas else "1")
    possible = {
        "mild": name not in fleet.bad,
        "poison": name not in fleet.poisoned,
        "blind": name not in fleet.blind,
        "deaf": name not in fleet.deaf and workload.hot,
        "crash-loop": name not in fleet.crashing,
        "heal": faulty,
        "drop": True,
        "undeclare": workload.hot or workload.literal,
        "unpause": workload.paused,
        "reapply": name in fleet.originals
        and workload.settle is None
        and workload.template_mode is not fleet.originals[name],
    }
    yield from (Event(kind, name) for kind, can in possible.items() if can)
