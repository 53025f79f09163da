"""Reading back what happened: the API server's audit log and the trainers' own log lines."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lab.cluster.audit import Write


def rollbacks(writes: Iterable[Write], *, since: float) -> dict[str, float]:
    """Incident → when the operator committed it: a workload that breaches first is rolled back by itself first."""
    found: dict[str, float] = {}
    for at, state in _committed(writes, since):
        if "incident" in state:
            found.setdefault(state["incident"]["id"], at)
    return found


def manager_writes(audit_log: Path, manager: str) -> list[float]:
    """When each write of a field manager by server-side apply was answered."""
    wanted = f"fieldManager={manager}"
    return [
        datetime.fromisoformat(event["stageTimestamp"]).timestamp()
        for event in _lines(audit_log)
        if event.get("stage") == "ResponseComplete"
        and wanted in event.get("requestURI", "")
        and 200 <= event.get("responseStatus", {}).get("code", 0) < 300
    ]


def decided_at(writes: Iterable[Write], *, since: float) -> float | None:
    """When the assignment that says RollingBack was committed."""
    return next((at for at, state in _committed(writes, since) if state.get("phase") == "RollingBack"), None)


def _committed(writes: Iterable[Write], since: float) -> Iterator[tuple[float, dict[str, Any]]]:
    """(when, the operator's record) of each assignment that was written."""
    for write in writes:
        if write.resource == "precisionassignments" and write.succeeded and write.at >= since:
            yield write.at, write.body.get("state", {}) if isinstance(write.body, dict) else {}


FENCE = {
    "writes to pods": ("precision-fence-pods", "precision-fence-deletions"),
    "evictions": ("precision-fence-evictions",),
}
"""Kind of write → the policies, without the product's domain, that hold the operator to those that it needs."""


def fenced_at(trials: Iterable[tuple[str, Write]], *, since: float) -> dict[str, float]:
    """Kind of write → when each of its policies had denied a trial after a time; without it: not all did.

    ``trials``: see ``Audit.denied_trials``.
    """
    first: dict[str, float] = {}
    for policy, trial in trials:
        name = policy.partition(".")[0]
        if trial.asked_at >= since:
            first[name] = min(trial.at, first.get(name, trial.at))
    return {kind: max(first[p] for p in policies) for kind, policies in FENCE.items() if first.keys() >= {*policies}}


@dataclass(frozen=True)
class TrainerEvent:
    """One JSON line of a trainer."""

    workload: str
    pod: str
    event: str
    rank: int
    at: float
    body: dict[str, Any]


def trainer_events(logs: Path) -> list[TrainerEvent]:
    """All JSON lines of all trainers, by time. Files are named ``<workload>@<pod>.log``."""
    events = []
    for path in sorted(logs.glob("*.log")):
        workload, _, pod = path.stem.partition("@")
        for line in _lines(path):
            if "event" in line and "time" in line:
                rank = int(line.get("rank", 0))
                events.append(TrainerEvent(workload, pod, line["event"], rank, float(line["time"]), line))
    return sorted(events, key=lambda e: e.at)


def flips(events: Iterable[TrainerEvent], *, to: str, since: float) -> dict[tuple[str, int], TrainerEvent]:
    """(pod, rank) → its own flip to a mode after a time."""
    found: dict[tuple[str, int], TrainerEvent] = {}
    for event in events:
        if event.event == "precision_changed" and event.body.get("to") == to and event.at >= since:
            found.setdefault((event.pod, event.rank), event)
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one a line; other lines (tracebacks, warnings) are passed over."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("{"):
                try:
                    value = json.loads(line)
                except json.JSONDecodeError:
                    continue  # a line torn by a dying process
                if isinstance(value, dict):
                    yield value
