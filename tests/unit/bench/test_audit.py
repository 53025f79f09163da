"""What the benchmark reads in the audit log: who wrote what, and when the last pod was asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench.rollbacks import last_requested, requested
from lab.cluster.audit import Audit, Right, Write
from lab.errors import LabError


def event(user: str, verb: str, resource: str, name: str, *, second: int, uri: str = "", **more: object) -> str:
    where = {"resource": resource, "namespace": "ns", "name": name, **more}
    stamp = f"2026-11-21T15:00:{second:02d}.500000Z"
    body = {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user},
        "objectRef": where,
        "requestURI": uri,
    }
    times = {"requestReceivedTimestamp": stamp, "stageTimestamp": stamp}
    return json.dumps({**body, **times, "responseStatus": {"code": 200}})


def test_reads_leases_dry_runs_and_strangers_are_no_writes_of_ours(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(event("ours", "patch", "deployments", "before", second=0) + "\n")
    audit = Audit(log)
    mark = audit.mark()
    lines = [
        event("ours", "get", "deployments", "a", second=1),
        event("ours", "update", "leases", "lease", second=2),
        event("ours", "patch", "precisionpolicies", "fleet", second=2, uri="/apis/x?dryRun=All"),
        event("theirs", "patch", "deployments", "a", second=3),
        event("ours", "patch", "precisionpolicies", "fleet", second=5, subresource="status"),
        event("ours", "patch", "deployments", "a", second=4),
    ]
    with log.open("a") as file:
        file.write("\n".join(lines) + "\n" + '{"half a line": ')
    found = audit.writes(["ours"], since=mark)
    assert [(w.resource, w.name) for w in found] == [("deployments", "a"), ("precisionpolicies/status", "fleet")]


def test_a_request_that_failed_to_authenticate_is_nobodys_write(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    nameless = {**json.loads(event("", "patch", "pods", "a", second=1)), "user": {}}
    log.write_text(json.dumps(nameless) + "\n")
    assert Audit(log).writes(["ours"]) == []


def test_rights_are_what_requests_needed_and_how_they_were_judged(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"

    def judged(line: str, decision: str) -> str:
        return json.dumps({**json.loads(line), "annotations": {"authorization.k8s.io/decision": decision}})

    discovery = {**json.loads(event("ours", "get", "", "", second=1)), "objectRef": None}
    lines = [
        judged(event("ours", "create", "pods", "a", second=1, subresource="eviction", uri="/x?dryRun=All"), "allow"),
        judged(event("ours", "watch", "jobs", "", second=1, apiGroup="batch"), "allow"),
        judged(event("ours", "list", "secrets", "", second=1), "forbid"),
        judged(event("theirs", "list", "nodes", "", second=1), "allow"),
        judged(json.dumps(discovery), "allow"),
    ]
    log.write_text("\n".join(lines) + "\n")
    found = Audit(log).rights(["ours"])
    assert found.used == {Right("", "pods/eviction", "create", "a"), Right("batch", "jobs", "watch")}
    assert found.refused == {Right("", "secrets", "list")}


def test_a_rule_covers_what_it_names_and_one_without_a_name_all() -> None:
    needed = Right("", "secrets", "get", "a")
    assert Right("", "secrets", "get").covers(needed)
    assert Right("", "secrets", "get", "a").covers(needed)
    for other in (Right("", "secrets", "get", "b"), Right("", "secrets", "update"), Right("x", "secrets", "get")):
        assert not other.covers(needed)


def write(resource: str, name: str, at: float, *, verb: str = "patch", code: int = 200) -> Write:
    return Write(at, "ours", verb, resource, "ns", name, code)


def test_a_pod_is_asked_by_its_first_request_or_its_deletion() -> None:
    writes = [
        write("pods", "hot", 1.0),
        write("pods", "hot", 9.0),
        write("pods", "restarted", 2.0, verb="delete"),
        write("precisionpolicies/status", "fleet", 3.0),
        write("pods", "refused", 4.0, code=422),
    ]
    assert requested(writes) == {"hot": 1.0, "restarted": 2.0}
    assert last_requested(writes, pods=2) == 2.0


def test_a_pod_that_was_never_asked_is_no_success() -> None:
    with pytest.raises(LabError, match="all of 2 pods"):
        last_requested([write("pods", "a", 1.0)], pods=2)
