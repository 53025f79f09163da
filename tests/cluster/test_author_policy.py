"""Who may write a policy: whoever may do himself what the policy makes the operator do. Tried by users of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from precision_operator.api.commands import ANNOTATIONS
from tests.support.users import (
    OPERATOR_NAME,
    OPERATOR_NAMESPACE,
    PREFIX,
    Client,
    Json,
    custom,
    grant,
    operator_account,
    person,
    policy,
    rule,
    said,
)

DRY = "?dryRun=All"
POLICIES = rule("precision.genesis.ai", ["precisionpolicies", "precisionpolicies/status"], ["*"])
PATCH_PODS = rule("", ["pods"], ["patch"])
DELETE_PODS = rule("", ["pods"], ["delete"])
PATCH_JOBS = rule("batch", ["jobs"], ["patch"])
EVERYTHING_ELSE = rule("*", ["deployments", "statefulsets", "replicasets", "pods/eviction", "secrets"], ["*"])


class Author:
    """A user with these rights in a namespace, and the right to write policies there."""

    def __init__(self, control_plane: ControlPlane, namespace: str, directory: Path) -> None:
        self._control_plane, self._namespace, self._directory = control_plane, namespace, directory
        self.clients: list[Client] = []

    def __call__(self, name: str, *rules: Json) -> Client:
        user = f"{name}-{self._namespace}"
        grant(self._control_plane.kubectl, self._namespace, user, name, POLICIES, *rules)
        client = Client(self._control_plane.user_kubeconfig(user), self._directory / name)
        self.clients.append(client)
        path = custom(self._namespace, "precisionpolicies")
        wait_for(lambda: client("GET", path).ok, what=f"the rights of {name}", seconds=30)
        return client


@pytest.fixture
def author(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Author]:
    found = Author(control_plane, namespace, tmp_path)
    yield found
    for client in found.clients:
        client.close()


@pytest.fixture
def alice(author: Author) -> Client:
    """She has the rights that a policy uses."""
    return author("alice", PATCH_PODS, DELETE_PODS, PATCH_JOBS)


@pytest.fixture
def bob(author: Author) -> Client:
    """He may do with policies whatever RBAC knows, every verb of a command included, and no more."""
    return author("bob")


@pytest.fixture
def stored(alice: Client, namespace: str) -> str:
    """Path of alice's policy."""
    alice.made("POST", custom(namespace, "precisionpolicies"), policy(annotations={"theirs": "1"}))
    return custom(namespace, "precisionpolicies", "fleet")


MISSING = {
    "patch pods": [DELETE_PODS, PATCH_JOBS],
    "delete pods": [PATCH_PODS, PATCH_JOBS],
    "patch jobs.batch": [PATCH_PODS, DELETE_PODS],
}


@pytest.mark.parametrize("right", MISSING)
def test_who_lacks_one_of_the_rights_may_not_write_a_policy(author: Author, namespace: str, right: str) -> None:
    carol = author("carol", *MISSING[right], EVERYTHING_ELSE)
    answer = carol("POST", custom(namespace, "precisionpolicies") + DRY, policy())
    assert answer.status_code == 403
    assert f"the author of a PrecisionPolicy must be allowed to {right} in its namespace" in said(answer)
    assert f"carol-{namespace} may not in {namespace}" in said(answer)
    assert "let somebody who has it apply the policy" in said(answer)


@pytest.mark.parametrize("delivery", ["Auto", "Hot", "Restart", "NewOnly"])
def test_no_delivery_does_without_the_right_on_jobs(author: Author, namespace: str, delivery: str) -> None:
    """A pod that does not answer a request is restarted in the end."""
    dora = author("dora", PATCH_PODS, DELETE_PODS)
    answer = dora("POST", custom(namespace, "precisionpolicies") + DRY, policy(delivery=delivery))
    assert "must be allowed to patch jobs.batch" in said(answer)


def test_who_has_the_rights_may_write_a_policy(alice: Client, namespace: str) -> None:
    alice.made("POST", custom(namespace, "precisionpolicies") + DRY, policy())


def test_the_clusters_own_edit_role_has_the_rights(
    kubectl: Kubectl, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    user = f"erin-{namespace}"
    kubectl("create", "rolebinding", "erin", "--clusterrole=edit", f"--user={user}", "-n", namespace)
    grant(kubectl, namespace, user, "policies", POLICIES)
    with person(control_plane, tmp_path, user) as erin:
        body, path = policy(), custom(namespace, "precisionpolicies") + DRY
        wait_for(lambda: erin("POST", path, body).ok, what="erin's policy to be accepted", seconds=30)


def test_rights_in_another_namespace_do_not_count(bob: Client, kubectl: Kubectl, namespace: str) -> None:
    user = f"bob-{namespace}"
    grant(kubectl, "default", user, namespace, PATCH_PODS, DELETE_PODS, PATCH_JOBS)
    try:
        who = ("auth", "can-i", "patch", "jobs.batch", "-n", "default", "--as", user)
        wait_for(lambda: kubectl(*who, check=False).returncode == 0, what="bob's right elsewhere", seconds=30)
        assert "may not in" in said(bob("POST", custom(namespace, "precisionpolicies") + DRY, policy()))
    finally:
        kubectl("delete", "role,rolebinding", namespace, "-n", "default")


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        pytest.param({"spec": {"suspend": True}}, False, id="the spec"),
        *(pytest.param({"metadata": {"annotations": {key: "4"}}}, True, id=key) for key in ANNOTATIONS),
        pytest.param({"metadata": {"annotations": {"theirs": "2", "x": "y"}}}, True, id="an annotation, no command"),
        pytest.param({"metadata": {"labels": {"team": "a"}}}, True, id="a label, which moves nothing"),
        pytest.param({"metadata": {"finalizers": [f"{PREFIX}x"]}}, True, id="a finalizer, which moves nothing"),
    ],
)
def test_an_update_is_judged_when_it_changes_the_spec(
    alice: Client, bob: Client, stored: str, change: Json, allowed: bool
) -> None:
    answer = bob("PATCH", stored + DRY, change)
    assert answer.ok == allowed, said(answer)
    assert allowed or "the author of a PrecisionPolicy must be allowed to" in said(answer)
    alice.made("PATCH", stored + DRY, change)


def test_the_operators_dry_run_and_status_need_no_rights_on_pods(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path, stored: str
) -> None:
    operator_account(kubectl)
    account = f"system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_NAME}"
    grant(kubectl, namespace, account, "operator", POLICIES)
    kubeconfig = control_plane.service_account_kubeconfig(OPERATOR_NAMESPACE, OPERATOR_NAME)
    operator = Client(kubeconfig, tmp_path / "narrow")
    asking = {"metadata": {"annotations": {f"{PREFIX}echo-nonce": "n", f"{PREFIX}echo": None}}}
    wait_for(lambda: operator("PATCH", stored + DRY, asking).ok, what="the operator's dry run", seconds=30)
    operator.made("PATCH", f"{stored}/status", {"status": {"phase": "Held"}})
    operator.close()


def test_who_may_only_write_policies_may_delete_one(bob: Client, stored: str) -> None:
    """Judging deletions would keep the namespace controller from emptying a namespace."""
    bob.made("DELETE", stored)
