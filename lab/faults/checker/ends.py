"""What must be true at the end of a trace: the liveness that a trace can show, and how a deletion ends."""

from __future__ import annotations

import math
from collections import Counter

from lab.faults.checker.replay import Step, World, annotation, end_of, expected, replay, spec_of, terminating
from lab.faults.trace import Entry, Note, Trace
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.state import Phase, State
from precision_operator.api.wire import mapping, text, texts
from precision_operator.contract import REQUEST
from precision_operator.core.restart.rounds import ROUNDS
from precision_operator.workloads.identity import workload_key

DELETION_SECONDS = 30.0
SELDOM_SECONDS = 2.0
"""What is new in an incident is saved 10 s after its last save, later ever more seldom, and when the operator ends."""
_SAVED = "PUT precisionincidents "
_HARM = frozenset({Note.FAULT, Note.KILL, Note.START, Note.GAP, Note.RESTORED})


def deletion(trace: Trace) -> list[str]:
    """I10: the assignment of a policy that is gone for 30 s is gone too, or reduced to what is held.

    The time counts from the last thing that was harmed, and not while a rollback is under way. At rest there is none,
    and at the end nothing more comes: then it must be reduced, however short the time was.
    """
    since: dict[tuple[str, str], float] = {}
    late: dict[tuple[str, str], None] = {}
    world = World()
    for step in replay(trace):
        entry, at, world = step.entry, step.entry.at_seconds, step.world
        for place, began in since.items():
            stands = step.world.find("PrecisionAssignment", *place)
            if stands is None or _reduced(stands):
                since[place] = at
            elif at - began > DELETION_SECONDS:
                late[place] = None
        place = (entry.namespace, entry.name)
        if entry.kind == "PrecisionPolicy" and entry.deleted:
            since[place] = at
        elif entry.kind == "PrecisionPolicy":
            since.pop(place, None)
        if entry.kind in _HARM:
            since = dict.fromkeys(since, at)
        if entry.kind == Note.REST:
            late |= dict.fromkeys(place for place in since if _governs(world, place))
    late |= dict.fromkeys(place for place in since if _governs(world, place, unfinished=False))
    for expected_place in expected(trace, "reduced"):
        namespace, _, name = expected_place.partition("/")
        if world.find("PrecisionPolicy", namespace, name) is not None or _governs(world, (namespace, name)):
            late[namespace, name] = None
    return [f"{name} is deleted, and its assignment is not reduced" for _, name in late]


def converged(trace: Trace) -> list[str]:
    """L1: every policy ends in a phase that is expected, and every process in the mode that it is assigned."""
    world, wrong = end_of(trace), []
    for place, phases in mapping(trace.header.expectations.get("phases")).items():
        namespace, _, name = place.partition("/")
        entry = world.find("PrecisionAssignment", namespace, name)
        phase = str(parse_assignment(entry.body).phase) if entry is not None else "Gone"
        if phase not in texts(phases):
            wrong.append(f"{place} ends in {phase}, expected {' or '.join(texts(phases))}")
    return [*wrong, *(f"{pod} trains in {mode}, assigned {due}" for pod, mode, due in _misplaced(world))]


def no_fight(trace: Trace) -> list[str]:
    """I9: of the pods of a workload that reported the wrong mode, two rounds are taken away since its last change.

    A pod that was made after one of its workload was taken away is of the next round.
    """
    rounds: Counter[tuple[str, str]] = Counter()
    born: dict[str, tuple[tuple[str, str], int]] = {}
    wrong = []
    for step in replay(trace):
        entry, place = step.entry, step.entry.namespace
        if entry.kind == Note.RESTORED:
            rounds.clear()
            born.clear()
        for key in _changed(step):
            rounds.pop((place, key), None)
            born = {uid: of for uid, of in born.items() if of[0] != (place, key)}
        if entry.kind != "Pod":
            continue
        workload = place, workload_key(entry.body)
        if step.before is None or step.before.uid != entry.uid:
            born[entry.uid] = workload, rounds[workload] + 1
        elif _taken_away(entry, step.before) and _in_wrong_mode(step):
            rounds[workload] = max(rounds[workload], born.get(entry.uid, (workload, 1))[1])
            if rounds[workload] > ROUNDS:
                wrong.append(f"{entry.name} is taken away in round {rounds[workload]}, revision {entry.revision}")
    return wrong


def _changed(step: Step) -> list[str]:
    """Workloads whose mode is another one, or is asked for anew."""
    if step.states is None:
        return []
    before, after = step.states
    keys = {*before.changed, *after.changed, *step.world.fleet(step.entry.namespace, after)}
    return [key for key in keys if _goal(before, key) != _goal(after, key)]


def _goal(state: State, key: str) -> tuple[object, ...]:
    return state.enforce, state.assigned(key), state.changed.get(key)


def _in_wrong_mode(step: Step) -> bool:
    key, mode = step.world.reported.get((step.entry.namespace, step.entry.name), ("", ""))
    return any(mode != state.assigned(key) for state in step.world.governing(step.entry.namespace, key))


def quiescent(trace: Trace) -> list[str]:
    """L4: at rest nothing is written but Leases, and what an incident still has to say, seldom."""
    resting, wrong = False, []
    for step in replay(trace):
        resting = resting or step.entry.kind == Note.REST
        write = text(step.entry.body.get("write"))
        if resting and step.entry.kind == Note.WROTE and not write.startswith(_SAVED):
            wrong.append(f"{write} was sent at rest")
        if resting and _is_write(step):
            wrong.append(f"{step.entry.kind} {step.entry.name} was written at rest, revision {step.entry.revision}")
    return wrong


def complete(trace: Trace) -> list[str]:
    """Trace: a gap names what may be missing, and none is left open at rest, where the least that was written counts."""
    rest = min((entry.at_seconds for entry in trace.entries if entry.kind == Note.REST), default=math.inf)
    return [
        f"revisions of {text(gap.body.get('resource'))} may be missing: {text(gap.body.get('reason'))}"
        for gap in trace.gaps
        if "?" in texts(gap.body.get("changed")) or gap.at_seconds >= rest
    ]


def _reduced(assignment: Entry) -> bool:
    state = parse_assignment(assignment.body)
    return state.fallback is None or state.phase is Phase.ROLLING_BACK


def _governs(world: World, place: tuple[str, str], *, unfinished: bool = True) -> bool:
    """Whether more than what is held is assigned a mode; ``unfinished``: also where a rollback is under way."""
    stands = world.find("PrecisionAssignment", *place)
    if stands is None:
        return False
    return parse_assignment(stands.body).fallback is not None if unfinished else not _reduced(stands)


def _misplaced(world: World) -> list[tuple[str, str, str]]:
    """Pod, the mode that it reported last, the mode that it is assigned."""
    return [
        (pod, mode or "a mode that it never reported", str(state.assigned(key)))
        for namespace in sorted({entry.namespace for (kind, _, _), entry in world.objects.items() if kind == "Pod"})
        for pod, (key, mode) in world.processes(namespace).items()
        for state in world.governing(namespace, key)
        if mode != state.assigned(key)
    ]


def _is_write(step: Step) -> bool:
    entry, before = step.entry, step.before
    if entry.kind in ("PrecisionAssignment", "PrecisionPolicy"):
        return True
    if entry.kind == "PrecisionIncident":
        return before is None or entry.at_seconds - before.at_seconds < SELDOM_SECONDS
    if before is None or before.uid != entry.uid:
        return False
    if entry.kind == "Job":
        return spec_of(entry).get("suspend") != spec_of(before).get("suspend")
    asked = annotation(before, REQUEST) != annotation(entry, REQUEST)
    return entry.kind == "Pod" and (asked or _taken_away(entry, before))


def _taken_away(pod: Entry, before: Entry) -> bool:
    return (terminating(pod) or pod.deleted) and not terminating(before)
