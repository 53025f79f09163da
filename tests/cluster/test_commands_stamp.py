"""Who gave a command, on the real API server: it writes the stamp, and refuses one that says otherwise."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from precision_operator.api.commands import ANNOTATIONS
from tests.support.people import People
from tests.support.users import PREFIX, Json, custom, policy, said

POLICY = Path(__file__).parents[2] / "manifests" / "admission" / "commands.yaml"
MANY = 20_000

pytestmark = pytest.mark.usefixtures("strict")


@pytest.fixture(scope="module")
def strict(kubectl: Kubectl) -> Iterator[None]:
    """The mutating policy with failurePolicy Fail: an error in its expressions refuses the write, and fails the test."""
    documents = list(yaml.safe_load_all(POLICY.read_text()))
    changed: list[Json] = json.loads(json.dumps(documents))
    changed[0]["spec"]["failurePolicy"] = "Fail"
    # A fault of the strict one only, to see that it is the one in force: Ignore would let this policy pass.
    changed[0]["spec"]["matchConditions"] = [
        {"name": "in-force", "expression": "!('in-force' in object.metadata.?labels.orValue({})) || 1 / 0 > 0"}
    ]
    kubectl.apply(*changed)
    probe = policy()
    probe["metadata"]["labels"] = {"in-force": "yes"}

    def accepted() -> bool:
        done = kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(probe), check=False)
        return done.returncode == 0

    wait_for(lambda: not accepted(), what="the strict policy to be in force", seconds=30, every=0.05)
    yield
    kubectl.apply(*documents)
    wait_for(accepted, what="the shipped policy to be in force", seconds=30, every=0.05)


@pytest.fixture
def people(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[People]:
    found = People(control_plane, namespace, tmp_path)
    yield found
    found.close()


@pytest.fixture
def given(people: People) -> People:
    people.create("alice", policy())
    return people


def test_both_policies_know_every_command() -> None:
    mutating, _, validating, _ = yaml.safe_load_all(POLICY.read_text())
    for document in (mutating, validating):
        (expression,) = [v["expression"] for v in document["spec"]["variables"] if v["name"] == "commands"]
        named = re.findall(r"'([^']+)'", expression.split("]")[0])
        assert sorted(f"{PREFIX}{name}" for name in named) == sorted(ANNOTATIONS)


# ---- the stamp


@pytest.mark.parametrize("command", [name.removeprefix(PREFIX) for name in ANNOTATIONS])
def test_a_command_carries_the_name_of_who_gave_it(given: People, command: str) -> None:
    assert given.annotate("bob", **{command: "4"}) == {command: "4", f"{command}-by": "bob"}


def test_a_command_that_is_changed_carries_the_new_name(given: People) -> None:
    given.annotate("bob", retry="4")
    assert given.annotate("alice", retry="4") == {"retry": "4", "retry-by": "bob"}
    assert given.annotate("alice", retry="5") == {"retry": "5", "retry-by": "alice"}


def test_a_stamp_that_is_left_out_or_rubbed_out_is_written_again(given: People) -> None:
    given.annotate("bob", abort="4")
    assert given.annotate("alice", abort_by=None) == {"abort": "4", "abort-by": "bob"}
    forgetful = given["alice"].made("GET", given.path)
    forgetful["metadata"]["annotations"] = {f"{PREFIX}abort": "4"}
    given["alice"].made("PUT", given.path, forgetful)
    assert given.annotations() == {"abort": "4", "abort-by": "bob"}


def test_a_command_that_is_removed_takes_its_stamp_along(given: People) -> None:
    given.annotate("bob", retry="4", **{"ack-fix": "4: rebuilt"})
    assert given.annotate("alice", retry=None) == {"ack-fix": "4: rebuilt", "ack-fix-by": "bob"}
    assert given.patch("alice", {"metadata": {"annotations": {f"{PREFIX}ack-fix": None}}}) == {}


def test_each_command_has_a_stamp_of_its_own(given: People) -> None:
    given.annotate("bob", **{"ack-rootCause": "4: scale pinned"})
    assert given.annotate("alice", retry="4", **{"ack-fix": "4"}) == {
        "ack-rootCause": "4: scale pinned",
        "ack-rootCause-by": "bob",
        "ack-fix": "4",
        "ack-fix-by": "alice",
        "retry": "4",
        "retry-by": "alice",
    }


def test_who_paused_and_who_resumed_is_stamped(given: People) -> None:
    assert given.patch("bob", {"spec": {"suspend": True}}) == {"suspend-by": "bob"}
    assert given.patch("alice", {"spec": {"target": "bf16"}}) == {"suspend-by": "bob"}
    assert given.patch("alice", {"spec": {"suspend": False}}) == {"suspend-by": "alice"}


def test_a_restored_backup_is_stamped_with_who_restored_it(people: People) -> None:
    stamps = {f"{PREFIX}promote-by": "alice", f"{PREFIX}suspend-by": "alice", f"{PREFIX}retry-by": "alice"}
    made = people.create("bob", policy(annotations={f"{PREFIX}promote": "4", **stamps}, suspend=True))
    assert made == {"promote": "4", "promote-by": "bob", "suspend-by": "bob"}


def test_server_side_apply_keeps_the_stamps(given: People) -> None:
    body = policy(annotations={f"{PREFIX}promote": "4"})
    for _ in range(2):
        given["bob"].made("PATCH", f"{given.path}?fieldManager=git&force=true", body, patch="apply-patch")
        assert given.annotations() == {"promote": "4", "promote-by": "bob"}


def test_annotations_that_are_no_commands_are_left_alone(given: People) -> None:
    odd = {"example.com/stand-by": "yes", f"{PREFIX}note-by": "x", f"{PREFIX}note": "y", "a": ""}
    given.patch("bob", {"metadata": {"annotations": odd}})
    given.annotate("bob", promote="4")
    found = given["bob"].made("GET", given.path)["metadata"]["annotations"]
    assert found == {**odd, f"{PREFIX}promote": "4", f"{PREFIX}promote-by": "bob"}


@pytest.mark.parametrize(
    "value", ["", "0", "seventeen", '17: ä“—” \n\t {"a": 1}', "9" * 400, "x" * 200_000], ids=lambda v: repr(v[:12])
)
def test_no_value_is_ever_refused(given: People, value: str) -> None:
    found = given.annotate("bob", abort=value[:10], **{"ack-fix": value})
    assert found["ack-fix"] == value
    assert found["ack-fix-by"] == found["abort-by"] == "bob"


def test_a_status_is_stamped_with_nothing(given: People) -> None:
    given.annotate("bob", promote="4")
    given["alice"].made("PATCH", f"{given.path}/status", {"status": {"phase": "Held", "transitionId": 4}})
    assert given.annotations() == {"promote": "4", "promote-by": "bob"}


def test_a_user_with_an_odd_name_is_named_as_he_is(given: People, kubectl: Kubectl) -> None:
    name = f"oidc:Ümit <u+{uuid.uuid4().hex[:4]}@example.com>"
    who = ("-n", given.namespace, "--as", name, "--as-group", "system:masters")
    kubectl("annotate", "ppol", "fleet", f"{PREFIX}promote=4", *who)
    assert given.annotations()["promote-by"] == name


# ---- a stamp that says otherwise


def test_a_changed_command_in_somebody_elses_name_is_refused(given: People) -> None:
    words = given.refused("bob", rollback="4", rollback_by="ceo")
    assert f"{PREFIX}rollback-by names who gave the command {PREFIX}rollback" in words
    assert f"then write {PREFIX}rollback-by=bob in the same request, or take it away" in words
    assert given.annotations() == {}
    assert given.annotate("bob", rollback="4", rollback_by="bob") == {"rollback": "4", "rollback-by": "bob"}
    given.refused("alice", rollback="5", rollback_by="ceo")


def test_a_stamp_without_its_command_is_refused(given: People) -> None:
    for name in ("promote-by", "ack-fix-by", "suspend-by"):
        given.refused("bob", None, **{name: "bob"})
    given.annotate("bob", abort="4")
    given.refused("alice", abort_by="alice")
    given.refused("alice", abort=None, abort_by="alice")
    assert given.annotations() == {"abort": "4", "abort-by": "bob"}


def test_a_pause_in_somebody_elses_name_is_refused(given: People) -> None:
    body = {"spec": {"suspend": True}, "metadata": {"annotations": {f"{PREFIX}suspend-by": "ceo"}}}
    assert "names who changed spec.suspend" in given.refused("bob", body)
    given.patch("bob", {"spec": {"suspend": True}})
    given.refused("alice", {"metadata": {"annotations": {f"{PREFIX}suspend-by": "alice"}}})
    assert given.annotations() == {"suspend-by": "bob"}


# ---- a great many annotations


def crowd() -> Json:
    return {f"a{i}": "" for i in range(MANY)}


def test_no_number_of_annotations_lets_a_forged_stamp_stand(given: People) -> None:
    forged = {f"{PREFIX}rollback": "4", f"{PREFIX}rollback-by": "ceo"}
    given.refused("bob", {"metadata": {"annotations": {**crowd(), **forged}}})
    given.patch("bob", {"metadata": {"annotations": crowd()}})
    given.refused("bob", {"metadata": {"annotations": forged}})
    assert given.annotate("bob", rollback="4") == {"rollback": "4", "rollback-by": "bob"}
    assert given.annotate("alice", rollback_by=None) == {"rollback": "4", "rollback-by": "bob"}


def test_a_creation_with_a_great_many_annotations_is_stamped(people: People) -> None:
    forged = {f"{PREFIX}rollback": "4", f"{PREFIX}rollback-by": "ceo"}
    answer = people["bob"](
        "POST", custom(people.namespace, "precisionpolicies"), policy(annotations={**crowd(), **forged})
    )
    assert answer.ok, said(answer)
    assert people.annotations() == {"rollback": "4", "rollback-by": "bob"}
