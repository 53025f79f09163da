"""What must be true at the end of a trace: the liveness that a trace can show, and how a deletion ends."""

from __future__ import annotations

from lab.faults.checker.replay import Step, World, annotation, end_of, replay, spec_of, terminating
from lab.faults.trace import Entry, Note, Trace
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.state import Phase
from precision_operator.api.wire import mapping, text, texts
from precision_operator.contract import REQUEST

DELETION_SECONDS = 30.0
_HARM = frozenset({Note.FAULT, Note.KILL, Note.START, Note.GAP, Note.RESTORED})


def deletion(trace: Trace) -> list[str]:
    """I10: the assignment of a policy that is gone for 30 s is gone too, or reduced to what is held.

    The time counts from the last thing that was harmed, and not while a rollback is under way.
    """
    since: dict[tuple[str, str], float] = {}
    late: dict[tuple[str, str], None] = {}
    for step in replay(trace):
        entry, at = step.entry, step.entry.at_seconds
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
    return [*wrong, *(f"{pod} trains in {mode}, assigned {due}" for pod, mode, due in _misplaced(trace, world))]


def quiescent(trace: Trace) -> list[str]:
    """L4: at rest nothing is written but Leases."""
    resting, wrong = False, []
    for step in replay(trace):
        resting = resting or step.entry.kind == Note.REST
        if resting and _is_write(step):
            wrong.append(f"{step.entry.kind} {step.entry.name} was written at rest, revision {step.entry.revision}")
    return wrong


def _reduced(assignment: Entry) -> bool:
    state = parse_assignment(assignment.body)
    return state.fallback is None or state.phase is Phase.ROLLING_BACK


def _misplaced(trace: Trace, world: World) -> list[tuple[str, str, str]]:
    """Pod, the mode that it reported last, the mode that it is assigned."""
    last = {
        (text(e.body.get("namespace")), text(e.body.get("pod"))): e for e in trace.entries if e.kind == Note.REPORTED
    }
    found = []
    for (namespace, pod), entry in last.items():
        stands = world.find("Pod", namespace, pod)
        if stands is None or terminating(stands):
            continue
        key, mode = text(entry.body.get("workload")), text(entry.body.get("mode"))
        for state in world.states(namespace).values():
            due = state.assigned(key)
            if state.enforce and due is not None and key in world.fleet(namespace, state) and mode != due:
                found.append((pod, mode, str(due)))
    return found


def _is_write(step: Step) -> bool:
    entry, before = step.entry, step.before
    if entry.kind in ("PrecisionAssignment", "PrecisionPolicy"):
        return True
    if before is None or before.uid != entry.uid:
        return False
    if entry.kind == "Job":
        return spec_of(entry).get("suspend") != spec_of(before).get("suspend")
    taken_away = (terminating(entry) or entry.deleted) and not terminating(before)
    return entry.kind == "Pod" and (taken_away or annotation(before, REQUEST) != annotation(entry, REQUEST))
