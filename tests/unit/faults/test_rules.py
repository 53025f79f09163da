"""What a write is called, and which requests are writes."""

from __future__ import annotations

import pytest

from lab.faults.rules import Numbering, Request, Write, parse

NAMESPACE = "/api/v1/namespaces/a"


def parsed(method: str, path: str, **query: str) -> Request:
    found = parse(method, path, query)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", f"{NAMESPACE}/pods", {}),
        ("PATCH", f"{NAMESPACE}/pods/p", {"dryRun": "All"}),
        ("POST", f"{NAMESPACE}/events", {}),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/l", {}),
        ("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}),
    ],
)
def test_what_stores_nothing_to_decide_on_is_no_write(method: str, path: str, query: dict[str, str]) -> None:
    assert not parsed(method, path, **query).counted


def test_a_dry_run_in_the_body_is_no_write() -> None:
    found = parse("DELETE", f"{NAMESPACE}/pods/p", {}, body_dry_run=True)
    assert found is not None
    assert not found.counted


def test_a_list_by_a_selector_is_not_what_a_watch_begins_with() -> None:
    assert parsed("GET", f"{NAMESPACE}/pods").listing
    assert not parsed("GET", f"{NAMESPACE}/pods", labelSelector="a=b").listing


def test_discovery_is_about_no_object() -> None:
    assert parse("GET", "/apis", {}) is None
    assert parse("GET", "/version", {}) is None


def test_pods_of_one_workload_share_a_name_and_are_numbered() -> None:
    numbering = Numbering()
    names = ["hot-0-7c9d5f-abcde", "hot-0-85bb6-fghij", "hot-1-7c9d5f-klmno"]
    found = [str(numbering.name(parsed("PATCH", f"{NAMESPACE}/pods/{name}"))) for name in names]
    assert found == ["PATCH pods hot-0 #1", "PATCH pods hot-0 #2", "PATCH pods hot-1 #1"]


def test_an_eviction_is_a_write_to_its_pod_and_a_creation_is_named_by_its_body() -> None:
    numbering = Numbering()
    evicted = parsed("POST", f"{NAMESPACE}/pods/literal-7c9d5f-abcde/eviction")
    made = parsed("POST", "/apis/precision.genesis.ai/v1alpha1/namespaces/a/precisionassignments")
    assert str(numbering.name(evicted)) == "POST pods/eviction literal #1"
    assert str(numbering.name(made, "fleet")) == "POST precisionassignments fleet #1"


@pytest.mark.parametrize(
    "write", [Write("PATCH", "precisionpolicies", "fleet", 12, "status"), Write("PUT", "precisionassignments", "f", 1)]
)
def test_a_write_is_read_back_from_its_name(write: Write) -> None:
    assert Write.parse(str(write)) == write
