"""New pods on the real API server: the shipped policy does what the pure function says, and refuses none.

Every pod of the corpus is created in a dry run, which includes the API server's own validation, once where no assignment
stands and once under each set of assignments. What the policy makes of it must be what the function makes of the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from precision_operator.admission.pod import admit
from precision_operator.contract import ADMITTED
from precision_operator.workloads.identity import workload_key
from tests.support.api import Api, Place
from tests.support.bodies import Json, assignment, found, pod
from tests.support.corpus import corpus, scenes

SHIPPED = Path(__file__).parents[2] / "manifests" / "admission" / "assign.yaml"
CORPUS = corpus()
SCENES = scenes({name: workload_key(body) for name, body in CORPUS.items()})
MARKER = {"marker": "yes"}
IN_FORCE = "in-force"


# ---- the policy with each failurePolicy


def with_failure_policy(documents: list[Json], policy: str) -> list[Json]:
    """The shipped policy with this failurePolicy, and a fault of its own by which to see that it is in force."""
    copy: list[Json] = json.loads(json.dumps(documents))
    copy[0]["spec"]["failurePolicy"] = policy
    copy[0]["spec"]["matchConditions"].append(
        {"name": IN_FORCE, "expression": f"!('{IN_FORCE}' in object.metadata.?labels.orValue({{}})) || 1 / 0 > 0"}
    )
    return copy


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    client = Api(control_plane.kubeconfig, tmp_path_factory.mktemp("api"))
    yield client
    client.close()


@pytest.fixture(scope="module")
def places(api: Api) -> Iterator[dict[str, Place]]:
    """A namespace for each set of assignments, and one without any."""
    made = {name: Place(api) for name in (*SCENES, "plain")}
    for name, assignments in SCENES.items():
        made[name].assign(*assignments, assignment("marker", selector={"matchLabels": MARKER}, default="bf16"))
    yield made
    for place in made.values():
        place.leave()


@pytest.fixture(scope="module")
def plain(places: dict[str, Place]) -> dict[str, Json]:
    """Every pod of the corpus as the API server stores it without us."""
    return {name: places["plain"].tried(body) for name, body in CORPUS.items()}


@pytest.fixture(scope="module", params=["Fail", "Ignore"])
def governed(request: pytest.FixtureRequest, places: dict[str, Place], kubectl: Kubectl) -> Iterator[dict[str, Place]]:
    """The places, with the policy in force under each failurePolicy."""
    documents = list(yaml.safe_load_all(SHIPPED.read_text()))
    kubectl.apply(*with_failure_policy(documents, request.param))
    probe = pod(labels={**MARKER, IN_FORCE: "yes"})

    def in_force() -> bool:
        """Fail refuses the probe for the policy's fault; Ignore lets it pass as it is."""
        answer = places["keyed"].post(probe)
        return answer.status_code >= 400 if request.param == "Fail" else answer.ok and not found(answer.json())

    wait_for(in_force, what=f"the policy with {request.param} to be in force", seconds=60, every=0.05)
    for name in SCENES:
        # The marker was written last: admission that knows it knows the others.
        places[name].wait(pod(labels=MARKER), lambda made: "marker/" in found(made).get("admitted", ""), "the marker")
    yield places
    kubectl.apply(*documents)


# ---- comparison


def lasting(body: Json, *, named: bool) -> Json:
    """A pod without what the API server makes anew each time; its name too, unless the client gave it one."""
    copy: Json = json.loads(re.sub(r"kube-api-access-\w{5}", "kube-api-access", json.dumps(body)))
    made_anew = {"uid", "creationTimestamp", "namespace", "managedFields", *(() if named else ("name",))}
    copy["metadata"] = {key: value for key, value in copy["metadata"].items() if key not in made_anew}
    copy.pop("status", None)  # it holds the time
    return copy


def unordered(body: Json) -> Json:
    """A pod with its record sorted: assignments take their turns in no order to rely on."""
    copy: Json = json.loads(json.dumps(body))
    annotations = copy["metadata"].get("annotations", {})
    if ADMITTED in annotations:
        annotations[ADMITTED] = " ".join(sorted(annotations[ADMITTED].split(" ")))
    return copy


def pods_for(scene: str) -> dict[str, Json]:
    """Selectors see labels only: one pod for each set of labels shows what they select."""
    if scene != "selectors":
        return CORPUS
    unrecorded = {name: body for name, body in CORPUS.items() if "admitted" not in found(body)}
    by_labels = {json.dumps(body["metadata"]["labels"]): name for name, body in unrecorded.items()}
    return {name: unrecorded[name] for name in by_labels.values()}


@pytest.mark.parametrize("scene", SCENES)
def test_the_policy_does_what_the_function_says_and_refuses_no_pod(
    governed: dict[str, Place], plain: dict[str, Json], scene: str
) -> None:
    refused, different = {}, {}
    for name, sent in pods_for(scene).items():
        answer = governed[scene].post(sent)
        if not answer.ok:
            refused[name] = answer.text[:400]
            continue
        named = "name" in sent["metadata"]
        expected = unordered(dict(admit(lasting(plain[name], named=named), SCENES[scene])))
        became = unordered(lasting(answer.json(), named=named))
        if became != expected:
            different[name] = {key: (became[key], expected[key]) for key in expected if became[key] != expected[key]}
    assert not refused
    assert not different, json.dumps(different)[:5_000]
