"""What the page shows of policies and workloads, as JSON. Pure: all of it was read, and decided, elsewhere."""

import hashlib
import json
from collections.abc import Iterable
from enum import StrEnum

from precision_operator.api.state import Phase
from precision_operator.cli.fleet import CohortLine, FleetView, WorkloadLine
from precision_operator.cli.guidance import BY_CANARY, LEFT_BEHIND, PHASES
from precision_operator.cli.session import Target
from precision_operator.cli.summary import breaches, placed, summary, whose

Json = dict[str, object]


class CellVerdict(StrEnum):
    """What a cell of the grid says beside the mode. Absent data is Unknown."""

    BREACHED = "breached"
    HELD = "held"
    """It was rolled back by itself, and waits for a retry."""
    WAITING = "waiting"
    """Its processes do not report yet what is wanted of them."""
    ACKNOWLEDGED = "acknowledged"
    """They do, and no breach of it stands."""
    UNKNOWN = "unknown"


def policy_row(target: Target, buttons: list[Json], prerequisites: list[Json]) -> Json:
    """A policy: what ``status -o json`` gives, its breaches also in words, and what may be commanded."""
    state, phase = target.state, target.status.phase
    meaning = BY_CANARY if state.by_canary else PHASES[phase]
    if target.policy.deleted and phase is Phase.HELD:
        meaning = LEFT_BEHIND
    return {
        **summary(target),
        "meaning": meaning,
        "placed": placed(target.status),
        "stages": [stage.weight for stage in target.policy.spec.stages],
        "breaches": [
            {**breach, "whose": whose(failing)} for breach, failing in zip(breaches(state), state.failing, strict=True)
        ],
        "buttons": buttons,
        "prerequisites": prerequisites,
    }


def verdict(line: WorkloadLine, *, held: bool) -> CellVerdict:
    """By the operator's own record: its breaches, what it holds, and whether the processes acknowledged."""
    if line.breaches:
        return CellVerdict.BREACHED
    if held:
        return CellVerdict.HELD
    if line.acknowledged is None:
        return CellVerdict.UNKNOWN
    return CellVerdict.ACKNOWLEDGED if line.acknowledged else CellVerdict.WAITING


def mode(line: WorkloadLine) -> tuple[str, str]:
    """(the mode that it trains in, who says so): its own processes where Prometheus was asked, else its pods' requests."""
    reported = line.reported
    asked = tuple(sorted({pod.requested for pod in line.pods if pod.requested is not None}))
    found, source = (reported, "reported") if reported else (asked, "requested")
    if not found or (not reported and any(pod.requested is None for pod in line.pods)):
        return "unknown", "not known"
    return (str(found[0]) if len(found) == 1 else "mixed"), source


def workload_rows(fleets: Iterable[FleetView]) -> dict[str, Json]:
    """A row a workload, as short as a cell of the grid needs it."""
    return {
        f"{fleet.target.where}/{line.key}": _cell(fleet, cohort, line)
        for fleet in fleets
        for cohort in fleet.cohorts
        for line in cohort.workloads
    }


def _cell(fleet: FleetView, cohort: CohortLine, line: WorkloadLine) -> Json:
    trains, source = mode(line)
    return {
        "policy": fleet.target.where,
        "cohort": cohort.name,
        "name": line.name,
        "kind": line.kind,
        "mode": trains,
        "source": source,
        "assigned": line.assigned,
        "verdict": verdict(line, held=line.key in fleet.target.state.held_keys),
        "problems": len(line.problems) + sum(bool(pod.problems) for pod in line.pods),
        "digest": hashlib.sha256(json.dumps(line.as_json()).encode()).hexdigest()[:12],
    }
