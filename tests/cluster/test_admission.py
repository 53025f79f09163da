"""New pods on the real API server: the shipped policies do what the pure function says, and refuse none.

Every pod of the corpus is created in a dry run, which includes the API server's own validation, once where no assignment
stands and nothing is injected, and once under each set of assignments. What the policies make of it must be what the
function makes of the first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from precision_operator.admission.injection import asks
from precision_operator.contract import INJECT
from precision_operator.workloads.identity import workload_key
from tests.support.api import Api, Place
from tests.support.asking import MOUNT, RESTRICTED, asking
from tests.support.bodies import ALL_PODS, Json, assignment, container, found, literal, pod
from tests.support.comparison import MARKER, MARKING, differences, measured, plainly, wait_for_marker
from tests.support.corpus import concerned, corpus, scenes
from tests.support.shipped import assign_policy, inject_policy

CORPUS = corpus()
SCENES = scenes({name: workload_key(body) for name, body in CORPUS.items()})
IN_FORCE = "in-force"


def with_failure_policy(policy: str, documents: list[Json]) -> list[Json]:
    """A shipped policy with this failurePolicy, and a fault of its own by which to see that it is in force."""
    documents[0]["spec"]["failurePolicy"] = policy
    documents[0]["spec"].setdefault("matchConditions", []).append(
        {"name": IN_FORCE, "expression": f"!('{IN_FORCE}' in object.metadata.?labels.orValue({{}})) || 1 / 0 > 0"}
    )
    return documents


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
        made[name].assign(*assignments, MARKING)
    yield made
    for place in made.values():
        place.leave()


@pytest.fixture(scope="module")
def plain(places: dict[str, Place]) -> dict[str, Json]:
    return plainly(places["plain"], CORPUS)


@pytest.fixture(scope="module", params=["Fail", "Ignore"])
def governed(request: pytest.FixtureRequest, places: dict[str, Place], kubectl: Kubectl) -> Iterator[dict[str, Place]]:
    """The places, with both policies in force under each failurePolicy."""
    for documents in (assign_policy(), inject_policy()):
        kubectl.apply(*with_failure_policy(request.param, documents))
    probes = [pod(labels={**label, IN_FORCE: "yes"}) for label in (MARKER, {INJECT: "trainer"})]

    def in_force(probe: Json) -> bool:
        """Fail refuses the probe for the policy's fault; Ignore lets it pass as it is."""
        answer = places["keyed"].post(probe)
        return answer.status_code >= 400 if request.param == "Fail" else answer.ok and not found(answer.json())

    what = f"the policies with {request.param} to be in force"
    wait_for(lambda: all(map(in_force, probes)), what=what, seconds=60, every=0.05)
    for name in SCENES:
        wait_for_marker(places[name])
    yield places
    kubectl.apply(*assign_policy(), *inject_policy())


def pods_for(scene: str) -> Mapping[str, Json]:
    """Selectors see labels only: one pod for each set of labels shows what they select. Without an assignment, only the
    injection has anything to do.
    """
    if scene == "none":
        return {name: body for name, body in CORPUS.items() if asks(body)}
    if scene != "selectors":
        return concerned(scene, CORPUS)
    unrecorded = {name: body for name, body in CORPUS.items() if "admitted" not in found(body)}
    by_labels = {json.dumps(body["metadata"]["labels"]): name for name, body in unrecorded.items()}
    return {name: unrecorded[name] for name in by_labels.values()}


@pytest.mark.parametrize("scene", SCENES)
def test_the_policies_do_what_the_function_says_and_refuse_no_pod(
    governed: dict[str, Place],
    plain: dict[str, Json],
    scene: str,
    record_property: Callable[[str, object], None],
) -> None:
    pods = pods_for(scene)
    wrong = differences(governed[scene], pods, plain, SCENES[scene])
    measured(record_property, "policy", len(pods), wrong)
    assert not wrong, json.dumps(wrong)[:5_000]


# ---- what the corpus cannot show


def _files(folder: int) -> Json:
    return {"items": [{"path": f"{folder}/{i}", "fieldRef": {"fieldPath": "metadata.name"}} for i in range(100)]}


ENORMOUS: dict[str, Json] = {
    "2,000 containers": pod(*(container(f"c{i}", env=literal("true")) for i in range(2_000))),
    "40,000 variables": pod(container(env=[*({"name": f"V{i}"} for i in range(40_000)), *literal("true")])),
    "20,000 switches": pod(container(env=literal("true") * 20_000)),
    "40,000 annotations": pod(container(env=literal("true")), annotations={f"a{i}": "" for i in range(40_000)}),
    "2,000 containers, asking": asking(container(), *(container(f"c{i}") for i in range(2_000))),
    "40,000 variables, asking": asking(container(env=[{"name": f"V{i}"} for i in range(40_000)])),
    "40,000 annotations, asking": asking(annotations={f"a{i}": "" for i in range(40_000)}),
    "40,000 ports, asking": asking(container(ports=[{"containerPort": i % 60_000 + 1} for i in range(40_000)])),
    "999 long paths, asking": asking(
        container(volumeMounts=[{"name": "v", "mountPath": "/" * 250 + str(i)} for i in range(990)]),
        volumes=[{"name": "v", "emptyDir": {}}],
    ),
    "10,000 files, asking": asking(
        volumes=[
            {"name": "precision", "projected": {"sources": [{"downwardAPI": _files(folder)} for folder in range(100)]}}
        ]
    ),
    "20,000 labels": pod(container(env=literal("true")), labels={f"l{i}": "" for i in range(20_000)}),
}
"""Beyond what a node would run: each must stay within what the API server spends on expressions."""


@pytest.mark.parametrize("name", ENORMOUS)
def test_no_pod_is_too_large_for_the_policy(governed: dict[str, Place], name: str) -> None:
    one = {name: ENORMOUS[name]}
    wrong = differences(governed["long"], one, plainly(governed["plain"], one), SCENES["long"])
    assert not wrong, json.dumps(wrong)[:2_000]


def test_a_pod_of_its_own_fault_is_refused_for_that(places: dict[str, Place]) -> None:
    twice = pod(container(env=literal("true")), container(env=literal("true")))
    wait_for_marker(places["keyed"])
    assert "Duplicate value" in places["keyed"].post(twice).json()["message"]


@pytest.fixture
def other(api: Api) -> Iterator[Place]:
    place = Place(api)
    yield place
    place.leave()


def test_the_system_and_the_operator_itself_are_not_governed(api: Api, other: Place) -> None:
    """Their namespaces are named in the binding: the operator must start whatever an assignment says."""
    for policy in (assign_policy(), inject_policy()):
        values = policy[1]["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"][0]["values"]
        assert values == ["kube-system", "precision-system"]
    system = Place(api, "kube-system")
    system.assign(assignment("all", selector=ALL_PODS, default="fp32"))
    try:
        other.assign(MARKING)
        wait_for_marker(other)  # written later, so admission knows the one in kube-system too
        assert found(system.tried(pod())) == {}
        assert found(system.tried(asking())) == {}
    finally:
        system.release("all")


def test_an_edit_of_the_assignment_governs_later_pods(other: Place) -> None:
    other.assign(assignment(default="fp32"))
    other.wait(pod(), lambda made: found(made).get("mode") == "fp32", "the default")
    other.edit("fleet", generation=18, modes={"/Pod/p": "fp16"})
    other.wait(pod(), lambda made: found(made).get("admitted") == "fleet/18/fp16", "the edit")
    other.edit("fleet", enforce=False)
    other.wait(pod(), lambda made: found(made) == {}, "the end of enforcement")
    other.edit("fleet", enforce=True, default=None)
    other.wait(pod(), lambda made: found(made).get("mode") == "fp16", "enforcement again")
    assert found(other.tried(pod(metadata={"name": "another"}))) == {}
    other.release("fleet")
    other.wait(pod(), lambda made: found(made) == {}, "the release")


def test_an_injected_pod_keeps_to_the_restricted_standard(api: Api, other: Place) -> None:
    standard = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.made("PATCH", f"/api/v1/namespaces/{other.namespace}", {"metadata": {"labels": standard}})
    wait_for(lambda: other.post(pod()).status_code == 403, what="the standard to be in force", seconds=30, every=0.02)
    made = other.tried(asking(container(securityContext=RESTRICTED)))
    assert found(made) == {"injected": "trainer"}
    assert MOUNT in made["spec"]["containers"][0]["volumeMounts"]


@pytest.mark.parametrize("shipped", [assign_policy(), inject_policy()], ids=["assign", "inject"])
def test_the_policy_never_refuses_a_pod_for_a_fault_of_its_own(shipped: list[Json]) -> None:
    policy = shipped[0]["spec"]
    assert policy["failurePolicy"] == "Ignore"
    assert policy["reinvocationPolicy"] == "IfNeeded"
    assert len(policy["mutations"]) == 1, "of two mutations, Ignore leaves the first applied when the second fails"


def test_pods_that_do_not_ask_cost_nothing() -> None:
    """The API server compares labels before it evaluates any expression."""
    needs = inject_policy()[0]["spec"]["matchConstraints"]["objectSelector"]["matchExpressions"]
    assert needs == [{"key": INJECT, "operator": "Exists"}]
