"""What the benchmark reads in the audit log: who wrote what, and when the last workload was told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench.audit import Audit, Write, last_moved, moves
from lab.errors import LabError


def event(user: str, verb: str, resource: str, name: str, *, second: int, **more: object) -> str:
    where = {"resource": resource, "namespace": "ns", "name": name, **more}
    stamp = f"2026-11-21T15:00:{second:02d}.500000Z"
    body = {"stage": "ResponseComplete", "verb": verb, "user": {"username": user}, "objectRef": where}
    return json.dumps({**body, "responseStatus": {"code": 200}, "stageTimestamp": stamp})


def test_reads_and_leases_and_strangers_are_no_writes_of_ours(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(event("ours", "patch", "deployments", "before", second=0) + "\n")
    audit = Audit(log)
    mark = audit.mark()
    lines = [
        event("ours", "get", "deployments", "a", second=1),
        event("ours", "update", "leases", "lease", second=2),
        event("theirs", "patch", "deployments", "a", second=3),
        event("ours", "patch", "precisionpolicies", "fleet", second=5, subresource="status"),
        event("ours", "patch", "deployments", "a", second=4),
    ]
    with log.open("a") as file:
        file.write("\n".join(lines) + "\n" + '{"half a line": ')
    found = audit.writes(mark, ["ours"])
    assert [(w.resource, w.name) for w in found] == [("deployments", "a"), ("precisionpolicies/status", "fleet")]


def write(resource: str, name: str, at: float, code: int = 200) -> Write:
    return Write(at, "ours", "patch", resource, "ns", name, code)


def test_a_workload_is_told_by_its_last_pod_or_by_its_template_where_it_has_none() -> None:
    writes = [
        write("pods", "hot-abc-1", 1.0),
        write("pods", "hot-abc-2", 2.0),
        write("deployments", "idle", 3.0),
        write("deployments", "idle", 9.0),
        write("deployments", "hot", 8.0),
        write("deployments", "refused", 4.0, code=422),
    ]
    writes.sort(key=lambda w: w.at)
    assert moves(writes) == {"hot": 2.0, "idle": 3.0}
    assert last_moved(writes, size=2) == 3.0


def test_a_workload_that_was_never_told_is_no_success() -> None:
    with pytest.raises(LabError, match="all of 2 workloads"):
        last_moved([write("deployments", "a", 1.0)], size=2)
