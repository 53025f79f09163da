"""What the API server accepts as a PrecisionAssignment."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lab.cluster import ControlPlane, Kubectl
from tests.support.api import Api, Place
from tests.support.bodies import FLEET, Json, assignment, needs

LIMIT = 1024 * 1024
STATE = {"version": 1, "phase": "RollingBack", "members": [["apps/Deployment/a", 3, None]], "deep": {"x": {"y": [1.5]}}}


@pytest.fixture(scope="module")
def place(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    api = Api(control_plane.kubeconfig, tmp_path_factory.mktemp("api"))
    made = Place(api)
    yield made
    made.leave()
    api.close()


def listed(count: int, length: int = 60) -> dict[str, str]:
    """Modes of workloads whose names have this length."""
    return {f"apps/Deployment/{str(index).rjust(length, 'n')}": "fp16" for index in range(count)}


GOOD: dict[str, Json] = {
    "the least": {"selector": {"matchLabels": FLEET}, "generation": 0},
    "everything": assignment(
        default="fp32", modes=listed(3), deletionPolicy="Hold", deletable=False, state=STATE, generation=2**49
    ),
    "nothing for a workload of an older policy": assignment(modes={"/Pod/p": ""}),
    "indexes": assignment(default="fp32", indexes={"apps/StatefulSet/vit": 3, "/Pod/p": 0}, indexMode="fp16"),
    "the highest index": assignment(indexes={f"{'g' * 253}/{'K' * 63}/{'n' * 253}": 10_000}),
    "no default": assignment(modes={"label/own": "bf16", "/Pod/p": "fp32"}),
    "an empty selector": assignment(selector={}),
    "the longest key": assignment(modes={f"{'g' * 253}/{'K' * 63}/{'n' * 253}": "fp32"}),
    "as many as are allowed": assignment(modes=listed(20_000, 6)),
}

BAD: dict[str, tuple[Json, str]] = {
    "no selector": ({"generation": 1}, "selector"),
    "no generation": ({"selector": {}}, "generation"),
    "a generation that nobody can count to": (assignment(generation=2**49 + 1), "generation"),
    "a negative generation": (assignment(generation=-1), "generation"),
    "an unknown default": (assignment(default="fp8"), "default"),
    "an empty default": (assignment(default=""), "default"),
    "an unknown mode": (assignment(modes={"/Pod/p": "fp8"}), "modes"),
    "a mode that is no word": (assignment(modes={"/Pod/p": 16}), "modes"),
    "a key that is too long": (assignment(modes={"x" * 572: "fp32"}), "key of a workload"),
    "an index above the highest": (assignment(indexes={"/Pod/p": 10_001}), "10000"),
    "an index below 0": (assignment(indexes={"/Pod/p": -1}), "indexes"),
    "an index that is no number": (assignment(indexes={"/Pod/p": "3"}), "indexes"),
    "a key of an index that is too long": (assignment(indexes={"x" * 572: 3}), "key of a workload"),
    "an unknown mode of indexes": (assignment(indexMode="fp8"), "indexMode"),
    "too many": (assignment(modes=listed(20_001, 6)), "20000"),
    "In without values": (assignment(selector={"matchExpressions": [needs("a", "In")]}), "need at least one value"),
    "Exists with values": (assignment(selector={"matchExpressions": [needs("a", "Exists", "x")]}), "take no values"),
    "an unknown operator": (assignment(selector={"matchExpressions": [needs("a", "Gt", "1")]}), "operator"),
    "a label that is none": (assignment(selector={"matchLabels": {"a b": "x"}}), "label key"),
    "an unknown policy of deletion": (assignment(deletionPolicy="Restore"), "deletionPolicy"),
    "a state that is no object": (assignment(state="Healthy"), "state"),
}


@pytest.mark.parametrize("name", GOOD)
def test_it_is_kept_as_it_was_written(place: Place, name: str) -> None:
    sent = {**GOOD[name], "apiVersion": "precision.genesis.ai/v1alpha1", "kind": "PrecisionAssignment"}
    stored = place.api.made("POST", f"{place.assignments}?dryRun=All", {"metadata": {"name": "a"}, **sent})
    fields = {key: value for key, value in stored.items() if key != "metadata"}
    assert fields == {key: value for key, value in sent.items() if key != "metadata"}


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_with_its_reason(place: Place, name: str) -> None:
    body, reason = BAD[name]
    sent = {**assignment(), "metadata": {"name": "a"}, **body}
    sent = {key: value for key, value in sent.items() if key in body or key in ("apiVersion", "kind", "metadata")}
    answer = place.api("POST", f"{place.assignments}?dryRun=All", sent)
    assert answer.status_code == 422
    assert reason in answer.json()["message"]


def test_what_it_does_not_know_is_dropped_outside_the_state(place: Place) -> None:
    stored = place.api.made("POST", f"{place.assignments}?dryRun=All", {**assignment(state=STATE), "spec": {"x": 1}})
    assert "spec" not in stored
    assert stored["state"] == STATE


def test_modes_and_state_change_in_one_conditional_write(place: Place) -> None:
    place.assign(assignment("one", modes=listed(2), state={"phase": "Healthy"}))
    read = place.api.made("GET", f"{place.assignments}/one")
    after = {**read, "modes": listed(1), "state": {"phase": "RollingBack"}}
    place.api.made("PUT", f"{place.assignments}/one", after)
    stored = place.api.made("GET", f"{place.assignments}/one")
    assert (stored["modes"], stored["state"]) == (after["modes"], after["state"])
    assert place.api("PUT", f"{place.assignments}/one", {**read, "enforce": False}).status_code == 409
    assert place.api("PUT", f"{place.assignments}/one/status", stored).status_code == 404


def test_five_thousand_long_names_stay_far_below_the_limit(place: Place) -> None:
    place.assign(assignment("large", modes=listed(5_000)))
    stored = place.api.made("GET", f"{place.assignments}/large")
    assert len(json.dumps(stored["modes"])) > 400_000
    assert len(json.dumps(stored, separators=(",", ":"))) < LIMIT / 2
    assert len(json.dumps(stored["metadata"]["managedFields"])) < 1_000, "an owner for each entry doubles the object"


def test_people_see_where_it_stands(place: Place, kubectl: Kubectl) -> None:
    place.assign(assignment("seen", default="fp32", state={"phase": "Held"}))
    shown = kubectl("get", "passign", "seen", "-n", place.namespace).stdout.split()
    assert shown[:5] == ["NAME", "PHASE", "DEFAULT", "ENFORCE", "AGE"]
    assert shown[5:9] == ["seen", "Held", "fp32", "true"]
    assert "seen" in kubectl("get", "genesis", "-n", place.namespace, "-o", "name").stdout
