"""Who gave a command, on the real API server: stamped by it, whatever the request says, and never a reason to refuse."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.cluster import Kubectl
from lab.waiting import wait_for
from precision_operator.api.commands import ANNOTATIONS

Json = dict[str, Any]
POLICY = Path(__file__).parents[2] / "manifests" / "admission" / "commands.yaml"
PREFIX = "precision.genesis.ai/"
OPERATOR = "system:serviceaccount:precision-system:precision-operator"

pytestmark = pytest.mark.usefixtures("strict")


@pytest.fixture(scope="module")
def strict(kubectl: Kubectl) -> Iterator[None]:
    """The shipped policy with failurePolicy Fail: any error in its expressions refuses the write, and so fails the test."""
    documents = list(yaml.safe_load_all(POLICY.read_text()))
    changed = json.loads(json.dumps(documents))
    changed[0]["spec"]["failurePolicy"] = "Fail"
    # A fault of the strict one only, to see that it is the one in force: Ignore would let this policy pass.
    changed[0]["spec"]["matchConditions"] = [
        {"name": "in-force", "expression": "!('in-force' in object.metadata.?labels.orValue({})) || 1 / 0 > 0"}
    ]
    kubectl.apply(*changed)
    probe = policy("default")
    probe["metadata"]["labels"] = {"in-force": "yes"}

    def refused() -> bool:
        done = kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(probe), check=False)
        return done.returncode != 0

    wait_for(refused, what="the strict policy to be in force", seconds=30, every=0.05)
    yield
    kubectl.apply(*documents)


def policy(namespace: str, *, annotations: Json | None = None, **spec: object) -> Json:
    metadata: Json = {"name": "fleet", "namespace": namespace}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionPolicy",
        "metadata": metadata,
        "spec": {"selector": {"matchLabels": {"app": "trainer"}}, **spec},
    }


class People:
    """A namespace in which alice and bob give commands on one policy; both are administrators."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._kubectl, self.namespace = kubectl, namespace

    def run(self, user: str, *arguments: str, body: Json | None = None) -> str:
        """Run kubectl as this user; fails where it is refused."""
        who = ("--as", user, "--as-group", "system:masters")
        given = json.dumps(body) if body else None
        return self._kubectl(*arguments, "-n", self.namespace, *who, input=given).stdout

    def create(self, user: str, body: Json) -> Json:
        self.run(user, "create", "-f", "-", body=body)
        return self.annotations()

    def annotate(self, user: str, *pairs: str) -> Json:
        """``promote=4`` sets, ``promote-`` removes; names without our prefix."""
        self.run(user, "annotate", "--overwrite", "pp", "fleet", *(f"{PREFIX}{pair}" for pair in pairs))
        return self.annotations()

    def patch(self, user: str, body: Json) -> Json:
        self.run(user, "patch", "pp", "fleet", "--type=merge", "--patch-file=/dev/stdin", body=body)
        return self.annotations()

    def annotations(self) -> Json:
        """Ours, without the prefix."""
        found = self._kubectl.json("get", "pp", "fleet", "-n", self.namespace)["metadata"].get("annotations", {})
        return {k.removeprefix(PREFIX): v for k, v in found.items() if k.startswith(PREFIX)}


@pytest.fixture
def people(kubectl: Kubectl, namespace: str) -> People:
    return People(kubectl, namespace)


@pytest.fixture
def given(people: People) -> People:
    people.create("alice", policy(people.namespace))
    return people


def test_the_policy_knows_every_command() -> None:
    (stamping, _) = yaml.safe_load_all(POLICY.read_text())
    (expression,) = [v["expression"] for v in stamping["spec"]["variables"] if v["name"] == "commands"]
    named = re.findall(r"'([^']+)'", expression.split("]")[0])
    assert sorted(f"{PREFIX}{name}" for name in named) == sorted(ANNOTATIONS)


@pytest.mark.parametrize("command", [name.removeprefix(PREFIX) for name in ANNOTATIONS])
def test_a_command_carries_the_name_of_who_gave_it(given: People, command: str) -> None:
    assert given.annotate("bob", f"{command}=4") == {command: "4", f"{command}-by": "bob"}


def test_a_stamp_that_is_supplied_with_a_command_is_overwritten(given: People) -> None:
    assert given.annotate("bob", "promote=4", "promote-by=alice") == {"promote": "4", "promote-by": "bob"}


def test_a_stamp_cannot_be_written_without_a_command(given: People) -> None:
    assert given.annotate("bob", "promote-by=alice", "suspend-by=alice", "ack-fix-by=alice") == {}


def test_a_stamp_can_be_neither_changed_nor_rubbed_out(given: People) -> None:
    given.annotate("bob", "abort=4")
    assert given.annotate("alice", "abort-by=carol") == {"abort": "4", "abort-by": "bob"}
    assert given.annotate("bob", "abort-by-") == {"abort": "4", "abort-by": "bob"}


def test_the_same_command_given_again_stays_with_who_gave_it_first(given: People) -> None:
    given.annotate("bob", "retry=4")
    assert given.annotate("alice", "retry=4") == {"retry": "4", "retry-by": "bob"}
    assert given.annotate("alice", "retry=5") == {"retry": "5", "retry-by": "alice"}


def test_a_command_that_is_removed_takes_its_stamp_along(given: People) -> None:
    given.annotate("bob", "retry=4", "ack-fix=4: rebuilt")
    assert given.annotate("alice", "retry-") == {"ack-fix": "4: rebuilt", "ack-fix-by": "bob"}


def test_each_command_has_a_stamp_of_its_own(given: People) -> None:
    given.annotate("bob", "ack-rootCause=4: scale pinned")
    found = given.annotate("alice", "ack-fix=4", "retry=4")
    assert found == {
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


def test_a_policy_that_comes_with_commands_is_stamped_as_it_is_made(people: People) -> None:
    made = people.create(
        "bob",
        policy(people.namespace, annotations={f"{PREFIX}promote": "4", f"{PREFIX}promote-by": "alice"}, suspend=True),
    )
    assert made == {"promote": "4", "promote-by": "bob", "suspend-by": "bob"}


def test_a_replacement_that_forgets_the_stamps_does_not_lose_them(given: People) -> None:
    given.annotate("bob", "promote=4")
    given.run("alice", "replace", "-f", "-", body=policy(given.namespace, annotations={f"{PREFIX}promote": "4"}))
    assert given.annotations() == {"promote": "4", "promote-by": "bob"}
    given.run("alice", "replace", "-f", "-", body=policy(given.namespace))
    assert given.annotations() == {}


def test_server_side_apply_keeps_the_stamps(given: People) -> None:
    body = policy(given.namespace, annotations={f"{PREFIX}promote": "4"})
    for _ in range(2):
        given.run("bob", "apply", "--server-side", "--force-conflicts", "-f", "-", body=body)
        assert given.annotations() == {"promote": "4", "promote-by": "bob"}


def test_annotations_that_are_no_commands_are_left_alone(given: People) -> None:
    odd = {"example.com/stand-by": "yes", f"{PREFIX}note-by": "x", f"{PREFIX}note": "y", "a": ""}
    given.patch("bob", {"metadata": {"annotations": odd}})
    assert given.annotations() == {"note-by": "x", "note": "y"}
    given.annotate("bob", "promote=4")
    body = json.loads(given.run("bob", "get", "pp", "fleet", "-o", "json"))
    assert body["metadata"]["annotations"]["example.com/stand-by"] == "yes"
    assert body["metadata"]["annotations"]["a"] == ""


@pytest.mark.parametrize(
    "value", ["", "0", "seventeen", '17: ä“—” \n\t {"a": 1}', "9" * 400, "x" * 200_000], ids=lambda v: repr(v[:12])
)
def test_no_value_is_ever_refused(given: People, value: str) -> None:
    found = given.patch("bob", {"metadata": {"annotations": {f"{PREFIX}ack-fix": value, f"{PREFIX}abort": value[:10]}}})
    assert found["ack-fix"] == value
    assert found["ack-fix-by"] == found["abort-by"] == "bob"


def test_a_great_many_annotations_are_no_reason_to_refuse(given: People) -> None:
    many = {f"example.com/a{i}": "v" * 50 for i in range(3000)}
    found = given.patch("bob", {"metadata": {"annotations": {**many, f"{PREFIX}abort": "4"}}})
    assert found == {"abort": "4", "abort-by": "bob"}


def test_the_operators_own_writes_are_stamped_with_nothing(given: People, kubectl: Kubectl) -> None:
    given.annotate("bob", "promote=4")
    given.run(
        OPERATOR,
        "patch",
        "pp",
        "fleet",
        "--type=merge",
        "-p",
        '{"metadata":{"finalizers":["precision.genesis.ai/restore"]}}',
    )
    status = '{"status":{"phase":"Held","transitionId":4}}'
    given.run(OPERATOR, "patch", "pp", "fleet", "--subresource=status", "--type=merge", "-p", status)
    assert given.annotations() == {"promote": "4", "promote-by": "bob"}
    given.run("bob", "patch", "pp", "fleet", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_a_user_with_an_odd_name_is_named_as_he_is(given: People) -> None:
    name = f"oidc:Ümit <u+{uuid.uuid4().hex[:4]}@example.com>"
    assert given.annotate(name, "promote=4")["promote-by"] == name
