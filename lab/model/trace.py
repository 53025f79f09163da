"""A way to a violation, as a file that a person can read and run again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from lab.errors import LabError
from lab.model.drills import Drills
from lab.model.events import Event, apply
from lab.model.explore import Finding
from lab.model.fleet import Fleet
from lab.model.invariants import Checker, Violation
from lab.model.scenarios import scenario, scenarios


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
    """One line: the policy, then each workload with what its processes train in and what stands on it."""
    state = fleet.state
    members = {member.key for member in state.members}
    held = {entry.key for entry in state.held}
    parts = [f"t={fleet.now:g} {state.phase}({state.reason}) gate={'closed' if state.gate_closed else 'open'}"]
    for name, workload in sorted(fleet.workloads.items()):
        modes = "/".join(fleet.modes[pod.name][0] for pod in workload.pods) or "none"
        marks = [mark for mark, set_ in _marks(fleet).items() if name in set_]
        marks += [mark for mark, on in {"member": workload.key in members, "held": workload.key in held}.items() if on]
        marks += [f"latch={workload.latch}"] if workload.latch else []
        marks += ["settling"] if workload.settle else []
        marks += ["paused"] if workload.paused else []
        told = "/".join(str(pod.effective_mode) for pod in workload.pods)
        parts.append(
            f"{name}[{modes} told={told} template={workload.template_mode} {' '.join(marks)}]".replace(" ]", "]")
        )
    return "  ".join(parts)


def _marks(fleet: Fleet) -> dict[str, set[str]]:
    return {
        "breach": set(fleet.bad),
        "poisoned": fleet.poisoned,
        "blind": fleet.blind,
        "deaf": fleet.deaf,
        "crashing": fleet.crashing,
    }
