"""The same policies as v1beta1, on an API server that behaves as Kubernetes 1.34.

It knows no function of CEL that 1.34 does not allow in a new policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.manifests import CRDS
from lab.waiting import wait_for
from precision_operator.workloads.identity import workload_key
from tests.support.api import Api, Place
from tests.support.asking import asking
from tests.support.bodies import Json, assignment, found, pod
from tests.support.comparison import differences, plainly
from tests.support.corpus import corpus, scenes
from tests.support.shipped import BETA, assign_policy, inject_policy

ASSIGNMENTS = "crd/precisionassignments.precision.genesis.ai"
AS_1_34 = (
    "--emulated-version=1.34",
    "--emulation-forward-compatible",  # the API server reads policies by v1, which 1.34 has not
    f"--runtime-config={BETA}=true",
    "--feature-gates=MutatingAdmissionPolicy=true",
)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("older"), api_flags=AS_1_34) as cluster:
        cluster.kubectl.apply(CRDS)
        cluster.kubectl.wait_until("condition=Established", ASSIGNMENTS, seconds=30)
        wait_for(lambda: served(cluster.kubectl), what="assignments to be served", seconds=30)
        yield cluster


def served(kubectl: Kubectl) -> bool:
    return kubectl("get", "precisionassignments", check=False).returncode == 0


@pytest.fixture(scope="module")
def api(older: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    client = Api(older.kubeconfig, tmp_path_factory.mktemp("api"))
    yield client
    client.close()


def test_the_policies_are_the_same_as_v1beta1(older: ControlPlane, api: Api) -> None:
    pods = corpus()
    assignments = scenes({name: workload_key(body) for name, body in pods.items()})["keyed"]
    for policy in (assign_policy(BETA), inject_policy(BETA)):
        policy[0]["spec"]["failurePolicy"] = "Fail"
        older.kubectl.apply(*policy)
    place = Place(api)
    place.assign(*assignments, assignment("marker", selector={"matchLabels": {"marker": "yes"}}, default="bf16"))
    place.wait(
        pod(labels={"marker": "yes"}),
        lambda made: "marker/" in found(made).get("admitted", ""),
        "the policy as v1beta1",
    )
    place.wait(asking(), lambda made: "injected" in found(made), "the injection as v1beta1")
    wrong = differences(place, pods, plainly(Place(api), pods), assignments)
    assert not wrong, json.dumps(wrong)[:5_000]


def test_a_function_that_1_34_does_not_know_would_have_been_refused(older: ControlPlane) -> None:
    newer: Json = assign_policy(BETA)[0]
    newer["metadata"]["name"] = "newer.precision.genesis.ai"
    newer["spec"]["variables"].append({"name": "flat", "expression": "[[1], [2]].flatten()"})
    answer = older.kubectl("apply", "--dry-run=server", "-f", "-", input=json.dumps(newer), check=False)
    assert answer.returncode != 0
    assert "flatten" in answer.stderr
