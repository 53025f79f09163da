"""Who may give which command: the shipped roles, bound to users, on the real API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.manifests import MANIFEST
from lab.waiting import wait_for
from precision_operator.api.commands import ANNOTATIONS, VERBS
from precision_operator.contract import PROMOTE, RETRY, ROLLBACK
from tests.support.users import GROUP, PREFIX, Client, Json, assignment, custom, grant, person, policy, rule, said

MAY: dict[str, frozenset[str]] = {
    "viewer.precision.genesis.ai": frozenset(),
    "operator.precision.genesis.ai": frozenset({"rollback", "drill"}),
    "approver.precision.genesis.ai": frozenset({"promote", "rollback", "drill", "retry", "release"}),
    "view": frozenset(),
    "edit": frozenset({"rollback", "drill"}),
    "admin": frozenset({"promote", "rollback", "drill", "retry", "release"}),
}
WRITES = frozenset({"edit", "admin"})
"""They may patch and delete pods, so they may write a policy's spec."""
MANY = 20_000
CROWD: Json = {f"a{index}": "" for index in range(MANY)}

User = Callable[[str], Client]


def command(annotation: str, value: str | None = "4") -> Json:
    return {"metadata": {"annotations": {annotation: value}}}


@pytest.fixture(scope="module")
def roles(kubectl: Kubectl) -> list[Json]:
    """The ClusterRoles for people, as they are installed; the cluster's own have taken them in."""
    found = [body for body in yaml.safe_load_all(MANIFEST.read_text()) if body and body["kind"] == "ClusterRole"]
    ours = [body for body in found if body["metadata"]["name"].endswith(f".{GROUP}")]
    kubectl.apply(*ours)

    def aggregated() -> bool:
        rules = kubectl.json("get", "clusterrole", "admin")["rules"]
        return any(one["apiGroups"] == [GROUP] and "release" in one["verbs"] for one in rules)

    wait_for(aggregated, what="the cluster's role admin to have the verbs", seconds=60)
    return ours


@pytest.fixture
def user(control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[User]:
    """A user with this ClusterRole in the test's namespace, and no other right."""
    with ExitStack() as stack:

        def made(role: str) -> Client:
            name = f"{role.split('.')[0]}-{namespace}"
            kubectl("create", "rolebinding", name, f"--clusterrole={role}", f"--user={name}", "-n", namespace)
            client = stack.enter_context(person(control_plane, tmp_path, name))
            path = custom(namespace, "precisionpolicies")
            wait_for(lambda: client("GET", path).ok, what=f"the rights of {name}", seconds=30)
            return client

        yield made


@pytest.fixture
def stored(admin: Client, namespace: str, roles: list[Json]) -> str:
    """Path of a policy on which a command of every kind stands."""
    body = policy(annotations=dict.fromkeys(ANNOTATIONS, "3"))
    admin.made("POST", custom(namespace, "precisionpolicies"), body)
    assert roles
    return custom(namespace, "precisionpolicies", "fleet")


def test_the_roles_are_those_that_are_shipped(roles: list[Json]) -> None:
    assert {body["metadata"]["name"] for body in roles} == {name for name in MAY if name.endswith(GROUP)}


@pytest.mark.parametrize("role", MAY)
def test_a_command_needs_its_verb(user: User, stored: str, role: str) -> None:
    """Set or changed, and removed."""
    client = user(role)
    for annotation in ANNOTATIONS:
        for value in ("4", None):
            answer = client("PATCH", f"{stored}?dryRun=All", command(annotation, value))
            assert answer.ok == (VERBS[annotation] in MAY[role]), f"{annotation}={value}: {said(answer)}"


@pytest.mark.parametrize("role", MAY)
def test_what_is_held_is_released_only_with_the_verb(
    user: User, operator: Client, namespace: str, stored: str, role: str
) -> None:
    client = user(role)
    operator.made("POST", custom(namespace, "precisionassignments"), assignment(deletable=True))
    path = custom(namespace, "precisionassignments", "fleet")
    answer = client("DELETE", f"{path}?dryRun=All")
    assert answer.ok == ("release" in MAY[role]), said(answer)
    assert client("GET", stored).ok


@pytest.mark.parametrize("role", MAY)
def test_a_policy_is_written_only_by_who_could_move_the_pods(user: User, stored: str, role: str) -> None:
    """An approver may patch the policy, and may not change what it does."""
    answer = user(role)("PATCH", f"{stored}?dryRun=All", {"spec": {"target": "bf16"}})
    assert answer.ok == (role in WRITES), said(answer)


def test_a_refusal_says_what_is_needed_what_was_found_and_what_to_do(user: User, namespace: str, stored: str) -> None:
    name = f"edit-{namespace}"
    words = said(user("edit")("PATCH", stored, command(PROMOTE)))
    assert f"to set, change or remove {PROMOTE}, the verb promote on precisionpolicies/fleet is needed" in words
    assert f"and {name} lacks it in namespace {namespace}" in words
    grants = f"kubectl create rolebinding promote-{name} --clusterrole=approver.{GROUP} --user={name} -n {namespace}"
    assert words.endswith(f"an administrator of the namespace grants it by: {grants}")


def test_the_line_that_a_refusal_gives_grants_the_verb(user: User, kubectl: Kubectl, stored: str) -> None:
    client = user("edit")
    line = said(client("PATCH", stored, command(RETRY))).partition("grants it by: kubectl ")[2]
    kubectl(*line.split())
    wait_for(lambda: client("PATCH", stored, command(RETRY)).ok, what="the granted verb to count", seconds=30)


def test_a_name_that_a_shell_would_read_stands_in_no_line(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path, stored: str
) -> None:
    name = f"$(reboot);{namespace}"
    kubectl("create", "rolebinding", "odd", "--clusterrole=edit", f"--user={name}", "-n", namespace)
    client = Client(control_plane.user_kubeconfig(name), tmp_path / "odd")
    wait_for(lambda: client("GET", stored).ok, what="his rights", seconds=30)
    line = said(client("PATCH", stored, command(PROMOTE))).partition("grants it by: ")[2]
    client.close()
    assert line == (
        f"kubectl create rolebinding promote-USER --clusterrole=approver.{GROUP} --user=USER -n {namespace}"
    )


def test_a_verb_may_be_granted_on_one_policy(
    control_plane: ControlPlane, kubectl: Kubectl, admin: Client, namespace: str, tmp_path: Path, stored: str
) -> None:
    admin.made("POST", custom(namespace, "precisionpolicies"), policy("other"))
    name = f"carol-{namespace}"
    one = {**rule(GROUP, ["precisionpolicies"], ["promote"]), "resourceNames": ["fleet"]}
    grant(kubectl, namespace, name, "carol", rule(GROUP, ["precisionpolicies"], ["get", "patch"]), one)
    with person(control_plane, tmp_path, name) as carol:
        wait_for(lambda: carol("PATCH", stored, command(PROMOTE)).ok, what="her verb to count", seconds=30)
        answer = carol("PATCH", custom(namespace, "precisionpolicies", "other"), command(PROMOTE))
    assert "the verb promote on precisionpolicies/other is needed" in said(answer)


def test_a_command_beside_another_change_is_judged(user: User, stored: str) -> None:
    edit = user("edit")
    for beside in ({"spec": {"target": "bf16"}}, {"metadata": {"labels": {"team": "a"}}}):
        edit.made("PATCH", f"{stored}?dryRun=All", beside)
        both = {**beside, "metadata": {**beside.get("metadata", {}), **command(PROMOTE)["metadata"]}}
        assert "the verb promote on precisionpolicies/fleet is needed" in said(edit("PATCH", stored, both))
    allowed = command(ROLLBACK)["metadata"]["annotations"]
    both = {"metadata": {"annotations": {**allowed, **command(RETRY)["metadata"]["annotations"]}}}
    assert "the verb retry on precisionpolicies/fleet is needed" in said(edit("PATCH", stored, both))


def test_replacing_a_policy_without_its_commands_removes_them(user: User, admin: Client, stored: str) -> None:
    body = admin.made("GET", stored)
    body["metadata"]["annotations"] = {}
    assert "the verb promote on precisionpolicies/fleet is needed" in said(user("edit")("PUT", stored, body))


def test_a_policy_is_created_with_commands_only_by_who_may_give_them(
    user: User, namespace: str, roles: list[Json]
) -> None:
    assert roles
    path, edit, namespace_admin = custom(namespace, "precisionpolicies") + "?dryRun=All", user("edit"), user("admin")
    for annotation in ANNOTATIONS:
        body = policy("new", annotations={annotation: "4"})
        answer = edit("POST", path, body)
        assert answer.ok == (VERBS[annotation] in MAY["edit"]), f"{annotation}: {said(answer)}"
        namespace_admin.made("POST", path, body)
    generated = policy("", annotations={PROMOTE: "4"})
    generated["metadata"] = {**generated["metadata"], "name": None, "generateName": "fleet-"}
    assert "the verb promote on precisionpolicies/" in said(edit("POST", path, generated))


def test_a_policy_kept_in_git_needs_no_verb(user: User, stored: str) -> None:
    """Applied again and again, with a changed spec and labels, beside commands that stand there."""
    edit, path = user("edit"), f"{stored}?fieldManager=git&force=true"
    for target in ("fp16", "fp16", "bf16"):
        body = {**policy(target=target), "metadata": {"name": "fleet", "labels": {"from": "git"}}}
        edit.made("PATCH", path, body, patch="apply-patch")
    annotations = edit.made("GET", stored)["metadata"]["annotations"]
    assert {annotation: annotations[annotation] for annotation in ANNOTATIONS} == dict.fromkeys(ANNOTATIONS, "3")


def test_the_operators_own_writes_need_no_verb(
    control_plane: ControlPlane, kubectl: Kubectl, operator_kubeconfig: Path, tmp_path: Path, stored: str
) -> None:
    own = Client(operator_kubeconfig, tmp_path / "own")
    asking = {"metadata": {"annotations": {f"{PREFIX}echo-nonce": "n", f"{PREFIX}echo": None}}}
    wait_for(lambda: own("PATCH", f"{stored}?dryRun=All", asking).ok, what="the operator's dry run", seconds=30)
    own.made("PATCH", f"{stored}/status", {"status": {"phase": "Held"}})
    assert not own("PATCH", f"{stored}?dryRun=All", command(PROMOTE)).ok
    own.close()


def test_no_number_of_annotations_gives_a_verb(user: User, namespace: str, stored: str) -> None:
    """What is read are the named annotations, so nothing in the request uses the budget of the expressions up."""
    edit = user("edit")
    many = {"metadata": {"annotations": {**CROWD, PROMOTE: "4"}}}
    needed = "the verb promote on precisionpolicies/"
    assert needed in said(edit("PATCH", stored, many))
    body = policy("crowd", annotations={**CROWD, PROMOTE: "4"})
    assert needed in said(edit("POST", custom(namespace, "precisionpolicies"), body))
    edit.made("PATCH", stored, {"metadata": {"annotations": CROWD}})
    assert needed in said(edit("PATCH", stored, command(PROMOTE)))
    edit.made("PATCH", stored, command(ROLLBACK))
