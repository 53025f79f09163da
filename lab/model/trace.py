"""A way to a violation, as a file that a person can read and run again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from lab.errors import LabError
from lab.model.delivery import Violation
from lab.model.drills import Drills
from lab.model.events import Event, apply
from lab.model.explore import Finding
from lab.model.fleet import Fleet
from lab.model.invariants import Checker
from lab.model.scenarios import scenario, scenarios
from precision_operator.core.model import PodView


def write_trace(finding: Finding, folder: Path) -> Path:
    """Write the finding to a file of its own."""
    violation = finding.violation
    words = "".join(c if c.isalnum() else "-" for c in violation.text.lower())[:60].strip("-")
    path = folder / f"{finding.scenario}-{violation.invariant}-{violation.phase}-{words}.json"
    body = {
        "scenario": finding.scenario,
        "violation": str(violation),
        "events": [{key: value for key, value in asdict(event).items() if value} for event in finding.trace],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1) + "\n")
    return path


def read_trace(path: Path) -> tuple[str, tuple[Event, ...]]:
    """The scenario's name and the events of a trace.

    Raises:
        LabError: the file is not a trace of a scenario that this version knows.
    """
    try:
        body = json.loads(path.read_text())
        name, events = str(body["scenario"]), tuple(Event(**event) for event in body["events"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LabError(
            "a trace written by `python -m lab.model explore`", f"{path}: {error!r}", "name one of build/model/*.json"
        ) from error
    known = [entry.name for entry in scenarios()]
    if name not in known:
        raise LabError(f"a scenario among {', '.join(known)}", name, "explore again: the scenarios have changed")
    return name, events


def replay(name: str, events: tuple[Event, ...]) -> tuple[list[str], list[Violation]]:
    """Run a trace again: one line for each state on the way, and the violations at its end."""
    played = scenario(name)
    fleet, checker = played.start.clone(), Checker()
    lines = [f"{'start':28} {describe(fleet)}"]
    for event in events:
        checker = Checker()
        fleet = apply(fleet, event, checker, played.edits)
        lines.append(f"{event!s:28} {describe(fleet)}")
        lines += [f"{'':28}   {who}: {what}" for who, what in fleet.log]
    Drills().run(fleet, checker, played.kinds)
    return lines, list(dict.fromkeys(checker.found))


def describe(fleet: Fleet) -> str:
    """One line: the policy, then each workload with what its processes train in and what is assigned to it."""
    state = fleet.state
    gone = "" if not fleet.policy.deleted else " policy=gone" if fleet.assignment is not None else " all gone"
    behind = "" if fleet.echoed else f" admission={'none' if fleet.known is None else fleet.known.generation}"
    reason = fleet.summary.reason or state.reason
    parts = [f"t={fleet.now:g} {state.phase}({reason}) generation={state.generation}{behind}{gone}"]
    for name, workload in sorted(fleet.workloads.items()):
        roles = {"member": workload.key in state.members, "held": workload.key in state.held_keys}
        words = [mark for mark, found in _marks(fleet).items() if name in found]
        words += [role for role, on in roles.items() if on]
        words += [f"room={fleet.room[name]}"] if name in fleet.room else []
        words += [f"round={state.restarts[workload.key].rounds}"] if workload.key in state.restarts else []
        assigned = state.assigned(workload.key) if state.enforce else None
        pods = " ".join(_pod(fleet, pod) for pod in workload.pods) or "no pod"
        parts.append(" ".join((f"{name}[{assigned or 'as its template'}: {pods}", *words)) + "]")
    return "  ".join(parts)


def _pod(fleet: Fleet, pod: PodView) -> str:
    process = fleet.modes.get(pod.name)
    phase = "-terminating" if pod.terminating else "-crashing" if pod.crashing else ""
    return f"{process[0]}{phase}" if process is not None else f"pending-{pod.effective_mode}{phase}"


def _marks(fleet: Fleet) -> dict[str, set[str]]:
    return {
        "breach": set(fleet.bad),
        "poisoned": fleet.poisoned,
        "unobservable": fleet.unobservable,
        "unresponsive": fleet.unresponsive,
        "crashing": fleet.crashing,
        "unreachable": fleet.unreachable,
        "no room for FP32": fleet.crowded,
        "budget": fleet.budgeted,
        "finalizer": fleet.finalized,
        "pending revision": {name for name, workload in fleet.workloads.items() if workload.pending_revision},
    }
