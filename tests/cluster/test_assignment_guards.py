"""Who writes and who deletes assignments: tried on the real API server, by users and service accounts of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from tests.support.users import (
    OPERATOR_NAME,
    Client,
    Json,
    assignment,
    custom,
    grant,
    person,
    policy,
    rule,
    said,
)

ONLY_THE_OPERATOR = "only the operator writes precisionassignments"
STILL_NEEDED = "the PrecisionPolicy of this assignment still lives, or its rollback is not finished"
ASSIGNMENTS = rule("precision.genesis.ai", ["precisionassignments", "precisionpolicies"], ["*"])


@pytest.fixture
def alice(control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Client]:
    """She has every right on assignments of the test's namespace that RBAC can give."""
    user = f"alice-{namespace}"
    grant(kubectl, namespace, user, "alice", ASSIGNMENTS)
    with person(control_plane, tmp_path, user) as client:
        wait_for(lambda: client("GET", custom(namespace, "precisionassignments")).ok, what="her rights", seconds=30)
        yield client


@pytest.fixture
def stored(operator: Client, namespace: str) -> str:
    """Path of an assignment that the operator wrote, and that people may not delete."""
    operator.made("POST", custom(namespace, "precisionassignments"), assignment())
    return custom(namespace, "precisionassignments", "fleet")


def deletable(operator: Client, path: str) -> None:
    operator.made("PATCH", path, {"deletable": True})


def gone(client: Client, path: str) -> bool:
    return client("GET", path).status_code == 404


# ---- writing


def test_the_operator_writes_and_deletes_assignments(operator: Client, stored: str) -> None:
    written = operator.made("GET", stored)
    written["modes"] = {"apps/Deployment/vit": "bf16"}
    assert operator.made("PUT", stored, written)["modes"] == {"apps/Deployment/vit": "bf16"}
    operator.made("DELETE", stored)
    assert gone(operator, stored)


FORGERIES: dict[str, Json] = {
    "a mode": {"modes": {"apps/Deployment/vit": "fp32"}},
    "the default": {"default": "fp16"},
    "enforcement switched off": {"enforce": False},
    "the record": {"state": {"phase": "Healthy"}},
    "deletable": {"deletable": True},
    "a label": {"metadata": {"labels": {"a": "b"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/hold"]}},
    "nothing at all": {},
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_person_changes_nothing_in_an_assignment(alice: Client, stored: str, name: str) -> None:
    answer = alice("PATCH", stored, FORGERIES[name])
    assert answer.status_code == 403, said(answer)
    assert ONLY_THE_OPERATOR in said(answer)


def test_who_may_create_but_not_restore_creates_none(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    user = f"bob-{namespace}"
    grant(kubectl, namespace, user, "bob", rule("precision.genesis.ai", ["precisionassignments"], ["get", "create"]))
    with person(control_plane, tmp_path, user) as bob:
        where = custom(namespace, "precisionassignments")
        wait_for(lambda: "is forbidden: User" not in said(bob("POST", where, assignment())), what="his", seconds=30)
        assert ONLY_THE_OPERATOR in said(bob("POST", where, assignment()))


def test_an_administrator_restores_one_and_does_not_replace_it(admin: Client, namespace: str, stored: str) -> None:
    admin.made("POST", custom(namespace, "precisionassignments"), assignment("restored"))
    written = admin.made("GET", stored)
    replaced = admin("PUT", stored, {**written, "default": "fp16"})
    assert ONLY_THE_OPERATOR in said(replaced)
    assert f"kubectl delete precisionassignment fleet -n {namespace}" in said(replaced)


def test_an_account_of_the_operators_name_elsewhere_is_not_the_operator(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path, stored: str
) -> None:
    kubectl("create", "serviceaccount", OPERATOR_NAME, "-n", namespace)
    grant(kubectl, namespace, f"system:serviceaccount:{namespace}:{OPERATOR_NAME}", "double", ASSIGNMENTS)
    client = Client(control_plane.service_account_kubeconfig(namespace, OPERATOR_NAME), tmp_path / "double")
    wait_for(lambda: client("GET", stored).ok, what="the double's rights", seconds=30)
    assert ONLY_THE_OPERATOR in said(client("PATCH", stored, {"default": "fp16"}))
    assert STILL_NEEDED in said(client("DELETE", stored))
    client.close()


# ---- deleting


def test_a_person_deletes_no_assignment_that_is_needed(
    alice: Client, admin: Client, namespace: str, stored: str
) -> None:
    for client in (alice, admin):
        answer = client("DELETE", stored)
        assert answer.status_code == 403, said(answer)
        assert STILL_NEEDED in said(answer)
        assert f"kubectl delete precisionpolicy fleet -n {namespace}" in said(answer)
        forced = client("DELETE", stored, {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
        assert STILL_NEEDED in said(forced)
    assert alice("GET", stored).ok


def test_a_person_deletes_one_that_is_deletable(operator: Client, alice: Client, stored: str) -> None:
    deletable(operator, stored)
    alice.made("DELETE", stored)
    assert gone(alice, stored)


def test_a_collection_is_judged_one_by_one(operator: Client, alice: Client, namespace: str, stored: str) -> None:
    collection = custom(namespace, "precisionassignments")
    operator.made("POST", collection, assignment("released", deletable=True))
    assert STILL_NEEDED in said(alice("DELETE", collection))
    assert alice("GET", stored).ok
    deletable(operator, stored)
    alice.made("DELETE", collection)
    wait_for(lambda: alice.made("GET", collection)["items"] == [], what="the collection to be empty", seconds=30)


@pytest.mark.parametrize("propagation", ["Foreground", "Orphan"])
def test_a_deletion_that_waits_for_the_garbage_collector_ends(
    operator: Client, alice: Client, stored: str, propagation: str
) -> None:
    deletable(operator, stored)
    alice.made("DELETE", stored, {"propagationPolicy": propagation})
    wait_for(lambda: gone(alice, stored), what="the assignment to be gone", seconds=60)


def test_of_one_that_is_being_deleted_a_person_takes_finalizers_and_changes_nothing_else(
    operator: Client, alice: Client, namespace: str
) -> None:
    body = assignment(deletable=True, metadata={"finalizers": ["example.com/a", "example.com/b"]})
    operator.made("POST", custom(namespace, "precisionassignments"), body)
    path = custom(namespace, "precisionassignments", "fleet")
    alice.made("DELETE", path)
    for name in ("a mode", "the default", "enforcement switched off", "the record", "a label"):
        assert ONLY_THE_OPERATOR in said(alice("PATCH", path, FORGERIES[name])), name
    assert not alice("PATCH", path, FORGERIES["a finalizer"]).ok
    both = {"default": "fp16", "metadata": {"finalizers": ["example.com/a"]}}
    assert ONLY_THE_OPERATOR in said(alice("PATCH", path, both))
    alice.made("PATCH", path, {"metadata": {"finalizers": ["example.com/a"]}})
    alice.made("PATCH", path, {"metadata": {"finalizers": None}})
    assert gone(alice, path)


def test_a_namespace_is_deleted_with_its_assignments(kubectl: Kubectl, operator: Client, admin: Client) -> None:
    name = f"test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    for fleet in ("one", "two"):
        admin.made("POST", custom(name, "precisionpolicies"), policy(fleet))
        operator.made("POST", custom(name, "precisionassignments"), assignment(fleet))
    assert STILL_NEEDED in said(admin("DELETE", custom(name, "precisionassignments", "one")))
    admin.made("DELETE", f"/api/v1/namespaces/{name}")
    wait_for(lambda: gone(admin, f"/api/v1/namespaces/{name}"), what="the namespace to be gone", seconds=60)
