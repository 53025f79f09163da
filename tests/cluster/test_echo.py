"""Asking admission what it knows: the echo on the real API server, and what else the operator may do to a policy."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.cluster import Kubectl
from lab.waiting import wait_for
from tests.support.users import (
    PREFIX,
    Client,
    Json,
    assignment,
    custom,
    pods,
    policy,
    said,
)

ECHO = Path(__file__).parents[2] / "manifests" / "admission" / "echo.yaml"
FENCED = "the operator may"
DRY = "?dryRun=All"


@pytest.fixture
def place(namespace: str, admin: Client) -> str:
    """A namespace with the policy `fleet`."""
    annotations = {"theirs": "1", f"{PREFIX}promote": "3"}
    admin.made("POST", custom(namespace, "precisionpolicies"), policy(annotations=annotations))
    return namespace


class Asking:
    """Dry-run patches of the policy `fleet`."""

    def __init__(self, client: Client, namespace: str, name: str = "fleet") -> None:
        self._client, self._path = client, custom(namespace, "precisionpolicies", name)

    def __call__(self, nonce: str, **annotations: str) -> str | None:
        """What the echo says to this nonce; None where there is none."""
        given = {f"{PREFIX}echo-nonce": nonce, f"{PREFIX}echo": None, **{PREFIX + k: v for k, v in annotations.items()}}
        made = self._client.made("PATCH", self._path + DRY, {"metadata": {"annotations": given}})
        found: str | None = made["metadata"]["annotations"].get(f"{PREFIX}echo")
        return found

    def until(self, generation: int, name: str = "fleet") -> None:
        """Until admission knows this generation."""
        nonce = uuid.uuid4().hex
        wanted = f"{nonce}/{name}/{generation}"
        wait_for(lambda: self(nonce) == wanted, what=f"the echo of {generation}", seconds=60, every=0.005)


@pytest.fixture
def asking(operator: Client, place: str) -> Asking:
    return Asking(operator, place)


@pytest.fixture
def assigned(operator: Client, place: str, asking: Asking) -> str:
    """Path of the policy's assignment, which admission knows."""
    operator.made("POST", custom(place, "precisionassignments"), assignment(generation=17))
    asking.until(17)
    return custom(place, "precisionassignments", "fleet")


# ---- the echo


def test_the_echo_names_nonce_assignment_and_generation(asking: Asking, assigned: str) -> None:
    assert asking("a-nonce") == "a-nonce/fleet/17"
    assert asking("another") == "another/fleet/17"


def test_a_pod_created_right_after_the_echo_never_has_an_old_mode(
    operator: Client, admin: Client, asking: Asking, place: str, assigned: str
) -> None:
    body = {
        "metadata": {"generateName": "p-", "labels": {"app": "trainer"}},
        "spec": {"containers": [{"name": "trainer", "image": "trainer"}]},
    }
    modes = ("fp32", "bf16", "fp16")
    for generation in range(18, 78):
        mode = modes[generation % 3]
        operator.made("PATCH", assigned, {"generation": generation, "default": mode})
        asking.until(generation)
        created = admin.made("POST", pods(place) + DRY, body)
        assert created["metadata"]["annotations"][f"{PREFIX}admitted"] == f"fleet/{generation}/{mode}"


def test_asking_stores_nothing(operator: Client, asking: Asking, place: str, assigned: str) -> None:
    path = custom(place, "precisionpolicies", "fleet")
    before = operator.made("GET", path)
    assert asking("n")
    assert operator.made("GET", path) == before


def test_an_echo_of_the_callers_own_is_replaced(asking: Asking, assigned: str) -> None:
    assert asking("n", echo="n/fleet/99") == "n/fleet/17"


def test_without_an_assignment_of_that_name_there_is_no_echo(
    operator: Client, admin: Client, asking: Asking, place: str, assigned: str
) -> None:
    admin.made("POST", custom(place, "precisionpolicies"), policy("other"))
    assert Asking(operator, place, "other")("n") is None
    operator.made("DELETE", assigned)
    wait_for(lambda: asking("n") is None, what="the echo to end", seconds=30, every=0.02)


def test_each_policy_hears_of_its_own_assignment(
    operator: Client, admin: Client, asking: Asking, place: str, assigned: str
) -> None:
    admin.made("POST", custom(place, "precisionpolicies"), policy("other"))
    operator.made("POST", custom(place, "precisionassignments"), assignment("other", generation=5))
    Asking(operator, place, "other").until(5, "other")
    assert asking("n") == "n/fleet/17"


def test_a_write_that_is_no_dry_run_is_not_answered(admin: Client, place: str, assigned: str) -> None:
    path = custom(place, "precisionpolicies", "fleet")
    body = {"metadata": {"annotations": {f"{PREFIX}echo-nonce": "n"}}}
    assert admin.made("PATCH", path + DRY, body)["metadata"]["annotations"][f"{PREFIX}echo"] == "n/fleet/17"
    assert f"{PREFIX}echo" not in admin.made("PATCH", path, body)["metadata"]["annotations"]


@pytest.fixture
def strict(kubectl: Kubectl, admin: Client, asking: Asking, place: str, assigned: str) -> Iterator[None]:
    """The shipped policy with failurePolicy Fail: an error in its expressions refuses the patch, and fails the test."""
    documents = list(yaml.safe_load_all(ECHO.read_text()))
    changed: list[Json] = json.loads(json.dumps(documents))
    changed[0]["spec"]["failurePolicy"] = "Fail"
    fault = "!('in-force' in object.metadata.?labels.orValue({})) || 1 / 0 > 0"
    changed[0]["spec"]["matchConditions"].append({"name": "in-force", "expression": fault})
    kubectl.apply(*changed)
    path = custom(place, "precisionpolicies", "fleet")
    faulty = {"metadata": {"labels": {"in-force": "yes"}, "annotations": {f"{PREFIX}echo-nonce": "n"}}}
    wait_for(lambda: not admin("PATCH", path + DRY, faulty).ok, what="the strict echo to be in force", seconds=30)
    yield
    kubectl.apply(*documents)
    wait_for(lambda: admin("PATCH", path + DRY, faulty).ok, what="the shipped echo to be in force", seconds=30)


@pytest.mark.usefixtures("strict")
def test_no_odd_policy_is_a_fault(operator: Client, admin: Client, asking: Asking, place: str, assigned: str) -> None:
    path = custom(place, "precisionpolicies", "fleet")
    for nonce in ("", "/", "ä “x” \n", "x" * 100_000):
        assert asking(nonce) == f"{nonce}/fleet/17"
    odd: list[Json] = [{"annotations": None}, {"annotations": {}}, {"labels": {"a": "b"}}, {"finalizers": None}]
    for metadata in odd:
        admin.made("PATCH", path + DRY, {"metadata": metadata})
    admin.made("PATCH", path, {"metadata": {"annotations": None}})
    assert asking("n") == "n/fleet/17"


# ---- what else the operator may do to a policy

ASKING = {"metadata": {"annotations": {f"{PREFIX}echo-nonce": "n", f"{PREFIX}echo": None}}}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}
POLICY_CHANGES: dict[str, Json] = {
    "a threshold": {"spec": {"criteria": {"overflow": {"enter": 1}}}},
    "a suspension": {"spec": {"suspend": True}},
    "the selector": {"spec": {"selector": {"matchLabels": {"app": "victim"}}}},
    "a command": {"metadata": {"annotations": {f"{PREFIX}retry": "3"}}},
    "a command taken away": {"metadata": {"annotations": {f"{PREFIX}promote": None}}},
    "somebody else's annotation": {"metadata": {"annotations": {"theirs": "2"}}},
    "a label": {"metadata": {"labels": {"x": "y"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/x"]}},
    "an owner": {"metadata": {"ownerReferences": [OWNER]}},
    "an annotation that only begins like the echo": {"metadata": {"annotations": {f"{PREFIX}echo2": "x"}}},
}


def test_the_operator_asks_admission_in_a_dry_run_only(operator: Client, place: str) -> None:
    path = custom(place, "precisionpolicies", "fleet")
    operator.made("PATCH", path + DRY, ASKING)
    assert "the operator may write no PrecisionPolicy" in said(operator("PATCH", path, ASKING))
    assert f"{PREFIX}echo-nonce" not in operator.made("GET", path)["metadata"]["annotations"]


@pytest.mark.parametrize("name", POLICY_CHANGES)
@pytest.mark.parametrize("query", ["", DRY])
def test_the_operator_changes_nothing_of_a_policy(operator: Client, place: str, name: str, query: str) -> None:
    path = custom(place, "precisionpolicies", "fleet")
    before = operator.made("GET", path)
    answer = operator("PATCH", path + query, POLICY_CHANGES[name])
    assert FENCED in said(answer)
    assert operator.made("GET", path) == before


def test_the_operator_makes_and_deletes_no_policy(operator: Client, place: str) -> None:
    words = "the operator may write no PrecisionPolicy"
    assert words in said(operator("POST", custom(place, "precisionpolicies"), policy("mine")))
    assert words in said(operator("DELETE", custom(place, "precisionpolicies", "fleet")))
    assert words in said(operator("DELETE", custom(place, "precisionpolicies")))


def test_the_operator_writes_the_status_of_a_policy(operator: Client, place: str) -> None:
    path = custom(place, "precisionpolicies", "fleet")
    written = operator.made("PATCH", f"{path}/status", {"status": {"phase": "Pending"}, "spec": {"suspend": True}})
    assert written["status"]["phase"] == "Pending"
    assert operator.made("GET", path)["spec"]["suspend"] is False


def test_the_operator_asks_about_a_policy_with_thousands_of_annotations(
    operator: Client, admin: Client, place: str
) -> None:
    path = custom(place, "precisionpolicies", "fleet")
    admin.made("PATCH", path, {"metadata": {"annotations": {f"a{i}": "" for i in range(4990)}}})
    operator.made("PATCH", path + DRY, ASKING)
    admin.made("PATCH", path, {"metadata": {"annotations": {f"b{i}": "" for i in range(20)}}})
    assert "more than 5000 annotations" in said(operator("PATCH", path + DRY, ASKING))
