"""What the pods of an incident have written themselves: which to read, and which of their lines to keep. Pure.

Read when a person exports the incident, with that person's rights: the operator has none to logs.
"""

import json
import re
from collections.abc import Mapping

from precision_operator.api.redaction import redact
from precision_operator.api.wire import integer, mapping, sequence, text
from precision_operator.core.progress import live_pods
from precision_operator.incidents.events import matters_from, recordings_of
from precision_operator.incidents.report import Report, stamp

PODS_LIMIT = 20
"""Pods whose logs are kept, those of the breached workloads first."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Of a pod; a recording that somebody else wrote may hold any text, and a name becomes a path."""
ROUTINE = frozenset({"checkpoint", "checkpoint_healthy"})
"""Events of a trainer that come all day long."""


def since(report: Report) -> str:
    """From when on lines matter: half an hour before the breach."""
    return stamp(matters_from(report))


def pods_to_read(report: Report) -> tuple[str, ...]:
    """The fleet's pods as they were at the decision and at the last recording; empty where no recording says."""
    recordings = recordings_of(report)
    found: dict[str, bool] = {}
    for recording in (*recordings[:1], *recordings[-1:]):
        for workload in recording.observation.workloads:
            pods = (pod.name for pod in live_pods(workload) if _NAME.fullmatch(pod.name))
            found.update(dict.fromkeys(pods, workload.name in report.workloads))
    return tuple(sorted(found, key=lambda name: (not found[name], name)))[:PODS_LIMIT]


def containers(pod: Mapping[str, object]) -> tuple[tuple[str, bool], ...]:
    """(name, whether one ended before it) of a pod's containers."""
    statuses = map(mapping, sequence(mapping(pod.get("status")).get("containerStatuses")))
    restarts = {text(status.get("name")): integer(status.get("restartCount"), 0) for status in statuses}
    names = (text(mapping(c).get("name")) for c in sequence(mapping(pod.get("spec")).get("containers")))
    return tuple((name, restarts.get(name, 0) > 0) for name in names)


def excerpt(log: str) -> str:
    """The lines worth keeping, credentials masked: all but a trainer's routine."""
    kept = "".join(f"{line}\n" for line in log.splitlines() if not _routine(line))
    return redact(kept, len(kept))  # at once, for some credentials stand on many lines


def _routine(line: str) -> bool:
    _, _, said = line.partition(" ")  # behind the time that the kubelet put before it
    try:
        return mapping(json.loads(said)).get("event") in ROUTINE
    except (ValueError, RecursionError):
        return False
