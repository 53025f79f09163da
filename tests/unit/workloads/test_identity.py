"""Which workload a pod belongs to."""

from __future__ import annotations

import pytest

from precision_operator.api.workload import kind_of, name_of
from precision_operator.workloads.identity import pod_index, workload_key
from tests.support.bodies import Json, owner, pod
from tests.support.corpus import COMPLETION_INDEX, POD_INDEX, corpus
from tests.support.identities import LABEL, identities

IDENTITIES = identities()

ODD: list[dict[str, object]] = [
    {},
    {"metadata": None},
    {"metadata": []},
    {"metadata": {"name": 5, "labels": "x", "ownerReferences": {}}},
    {"metadata": {"labels": {"precision.genesis.ai/workload": ["x"], 5: "y"}, "ownerReferences": [None, 3, "x"]}},
    {"metadata": {"ownerReferences": [{"controller": "true", "kind": "Job", "name": "j"}]}},
]


@pytest.mark.parametrize("name", IDENTITIES)
def test_a_pod_belongs_to_the_workload_written_beside_it(name: str) -> None:
    body, key = IDENTITIES[name]
    assert workload_key(body) == key


@pytest.mark.parametrize("body", ODD)
def test_an_odd_body_is_a_bare_pod(body: dict[str, object]) -> None:
    assert workload_key(body) == "/Pod/"


def test_an_owner_that_says_nothing_still_gives_a_key() -> None:
    assert workload_key({"metadata": {"ownerReferences": [{"controller": True}]}}) == "//"


@pytest.mark.parametrize(
    ("by", "labels", "index"),
    [
        (owner("apps/v1", "StatefulSet", "s"), {POD_INDEX: "0"}, 0),
        (owner("apps/v1", "StatefulSet", "s"), {POD_INDEX: "12", LABEL: "x"}, 12),
        (owner("batch/v1", "Job", "j"), {COMPLETION_INDEX: "7"}, 7),
        (owner("batch/v1", "Job", "j"), {POD_INDEX: "7"}, -1),
        (owner("apps/v1", "StatefulSet", "s"), {COMPLETION_INDEX: "7"}, -1),
        (owner("apps/v1", "StatefulSet", "s", controller=False), {POD_INDEX: "7"}, -1),
        (owner("apps/v1", "ReplicaSet", "r"), {POD_INDEX: "7", COMPLETION_INDEX: "7"}, -1),
        *(
            (owner("apps/v1", "StatefulSet", "s"), {POD_INDEX: raw}, -1)
            for raw in ("", "-1", "x", "1\n", "٣", "9" * 10)
        ),
    ],
)
def test_a_pod_has_the_index_that_its_own_controller_wrote(by: Json, labels: dict[str, str], index: int) -> None:
    assert pod_index(pod(labels=labels, owners=[by])) == index


@pytest.mark.parametrize("body", ODD)
def test_an_odd_body_has_no_index(body: dict[str, object]) -> None:
    assert pod_index(body) == -1


def test_the_name_of_a_pod_is_never_parsed() -> None:
    owned = pod(owners=[owner("batch/v1", "Job", "long-name")])
    keys = {workload_key({**owned, "metadata": {**owned["metadata"], "name": name}}) for name in ("long-n-x", "y")}
    assert keys == {"batch/Job/long-name"}


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("apps/Deployment/vit", ("apps/Deployment", "vit")),
        ("/Pod/probe", ("/Pod", "probe")),
        ("label/own", ("label", "own")),
        ("jobset.x-k8s.io/JobSet/a.b", ("jobset.x-k8s.io/JobSet", "a.b")),
        ("", ("", "")),
    ],
)
def test_a_key_is_split_before_its_name(key: str, parts: tuple[str, str]) -> None:
    assert (kind_of(key), name_of(key)) == parts


def test_every_rule_is_in_the_corpus() -> None:
    kinds = {kind_of(workload_key(body)) for body in corpus().values()}
    assert kinds >= {
        "label",
        "jobset.x-k8s.io/JobSet",
        "kubeflow.org/PyTorchJob",
        "leaderworkerset.x-k8s.io/LeaderWorkerSet",
        "ray.io/RayCluster",
        "argoproj.io/Rollout",
        "apps/Deployment",
        "batch/Job",
        "apps/StatefulSet",
        "/Pod",
    }


def test_the_corpus_is_large_enough() -> None:
    assert len(corpus()) >= 300
