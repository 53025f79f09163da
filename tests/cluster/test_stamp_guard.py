"""Stamps where no policy mutates (Kubernetes before 1.34): a wrong one is refused, and a command works without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from tests.support.people import People
from tests.support.users import PREFIX, custom, policy, said

POLICY = Path(__file__).parents[2] / "manifests" / "admission" / "commands.yaml"


@pytest.fixture(scope="module")
def unstamped(
    control_plane: ControlPlane, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[People]:
    """A policy in a cluster without the mutating policy."""
    documents = {document["kind"]: document for document in yaml.safe_load_all(POLICY.read_text())}
    binding = documents["MutatingAdmissionPolicyBinding"]
    people = People(control_plane, "default", tmp_path_factory.mktemp("people"))
    people.create("alice", policy())

    def stamped() -> bool:
        command = {"metadata": {"annotations": {f"{PREFIX}promote": "4"}}}
        made = people["alice"].made("PATCH", f"{people.path}?dryRun=All", command)
        return f"{PREFIX}promote-by" in made["metadata"]["annotations"]

    kubectl("delete", binding["kind"], binding["metadata"]["name"])
    wait_for(lambda: not stamped(), what="the mutating policy to be gone", seconds=30)
    yield people
    kubectl.apply(binding)
    wait_for(stamped, what="the mutating policy to be back", seconds=30)
    people["alice"].made("DELETE", people.path)
    people.close()


@pytest.fixture
def people(unstamped: People) -> People:
    """The policy without any annotation."""
    unstamped.patch(
        "alice", {"metadata": {"annotations": {f"{PREFIX}{name}": None for name in unstamped.annotations()}}}
    )
    assert unstamped.annotations() == {}
    return unstamped


def test_a_command_needs_no_stamp(people: People) -> None:
    assert people.annotate("bob", rollback="4") == {"rollback": "4"}
    assert people.annotate("alice", rollback="5: again") == {"rollback": "5: again"}


def test_a_command_may_carry_the_name_of_who_gives_it(people: People) -> None:
    assert people.annotate("bob", rollback="4", rollback_by="bob") == {"rollback": "4", "rollback-by": "bob"}
    assert people.annotate("alice", rollback="5", rollback_by="alice")["rollback-by"] == "alice"
    assert people.annotate("bob", rollback="6", rollback_by=None) == {"rollback": "6"}


def test_a_command_carries_no_other_name(people: People) -> None:
    people.refused("bob", rollback="4", rollback_by="ceo")
    people.refused("bob", rollback="4", rollback_by="")
    people.annotate("bob", rollback="4", rollback_by="bob")
    assert f"then write {PREFIX}rollback-by=alice" in people.refused("alice", rollback="5")
    many = {f"a{i}": "" for i in range(20_000)}
    forged = {**many, f"{PREFIX}rollback": "5", f"{PREFIX}rollback-by": "ceo"}
    people.refused("bob", {"metadata": {"annotations": forged}})


def test_a_stamp_does_not_change_without_its_command(people: People) -> None:
    people.annotate("bob", rollback="4", rollback_by="bob")
    people.refused("alice", rollback_by="alice")
    people.refused("bob", rollback_by="alice")
    people.refused("alice", rollback_by=None)
    people.refused("bob", retry_by="bob")


def test_a_command_is_removed_with_or_without_its_stamp(people: People) -> None:
    people.annotate("bob", rollback="4", rollback_by="bob", retry="4", retry_by="bob")
    assert people.annotate("alice", rollback=None, rollback_by=None) == {"retry": "4", "retry-by": "bob"}
    assert people.annotate("alice", retry=None) == {"retry-by": "bob"}
    people.refused("alice", retry="5")
    assert people.annotate("alice", retry_by=None) == {}


def test_a_pause_carries_no_other_name(people: People) -> None:
    named = {"metadata": {"annotations": {f"{PREFIX}suspend-by": "bob"}}}
    people.refused("alice", {"spec": {"suspend": True}, **named})
    assert people.patch("bob", {"spec": {"suspend": True}, **named}) == {"suspend-by": "bob"}
    people.refused("alice", {"spec": {"suspend": False}})
    assert people.patch("bob", {"spec": {"suspend": False}}) == {"suspend-by": "bob"}
    people.patch("alice", {"spec": {"suspend": True}, "metadata": {"annotations": {f"{PREFIX}suspend-by": None}}})
    people.patch("alice", {"spec": {"suspend": False}})


def test_a_policy_is_created_with_no_other_name(people: People) -> None:
    path = custom("default", "precisionpolicies") + "?dryRun=All"
    body = policy("other", annotations={f"{PREFIX}rollback": "4", f"{PREFIX}rollback-by": "alice"})
    assert "names who gave the command" in said(people["bob"]("POST", path, body))
    people["alice"].made("POST", path, body)
