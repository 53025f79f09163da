"""The demo's fleet is of three kinds, and what looks at it follows each kind."""

import json
from typing import Any, cast

import pytest

from lab.demo.fleet import FLEET, LATE, LITERAL, Kind, Trainer, manifest
from lab.demo.stage import Stage, path_of, revision_of, rollout_state, templates, workload_of
from precision_operator.core.model import RestartBy
from precision_operator.workloads.kinds.table import KINDS

Json = dict[str, Any]
READ = {kind.singular: kind for kind in KINDS}


def made(trainer: Trainer) -> Json:
    return manifest(trainer, image="trainer:1", pull_policy="Never")


def test_fleet_has_one_statefulset_and_one_job_and_both_are_hot() -> None:
    assert sorted(trainer.kind for trainer in FLEET) == ["Deployment"] * 4 + ["Job", "StatefulSet"]
    assert all(trainer.hot for trainer in FLEET if trainer.kind != "Deployment")


def test_no_name_stands_for_two_workloads() -> None:
    names = [trainer.name for trainer in (*FLEET, *LATE)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("trainer", FLEET, ids=lambda trainer: trainer.key)
def test_operator_reads_each_manifest_as_its_kind_and_may_restart_it(trainer: Trainer) -> None:
    body = made(trainer)
    record = READ[trainer.kind].read(body)
    assert record is not None
    assert record.view.key.endswith(f"/{trainer.key}")
    assert record.view.hot is trainer.hot
    assert record.view.restart_by is not RestartBy.NEVER
    assert record.view.replicas == 1


def test_job_has_one_completion_a_training_with_an_end_and_no_suspend() -> None:
    (trainer,) = (trainer for trainer in FLEET if trainer.kind == "Job")
    spec = made(trainer)["spec"]
    assert "suspend" not in spec
    assert spec["completions"] == 1
    assert any(argument.startswith("--steps=") for argument in trainer.command)
    assert not any(argument.startswith("--steps=") for other in FLEET if other != trainer for argument in other.command)


def test_only_restart_only_trainer_surges_on_its_only_device() -> None:
    by_name = {trainer.name: made(trainer) for trainer in FLEET}
    surging = [name for name, body in by_name.items() if body["spec"].get("strategy", {}).get("rollingUpdate")]
    assert surging == [LITERAL]


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", "/apis/apps/v1/namespaces/training/deployments/t"),
        ("StatefulSet", "/apis/apps/v1/namespaces/training/statefulsets/t"),
        ("Job", "/apis/batch/v1/namespaces/training/jobs/t"),
    ],
)
def test_reapplier_writes_where_each_kind_is_kept(kind: Kind, path: str) -> None:
    assert path_of(made(Trainer("t", kind=kind))) == path


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ("trainer-0-5d9c7b6f4-bcdfg", "trainer-0"),
        ("trainer-ddp-74dfc6c566-xk2lp", "trainer-ddp"),
        ("trainer-literal-6b9fc8d7-zz245", "trainer-literal"),
        ("trainer-2-0", "trainer-2"),
        ("trainer-3-x2k4p", "trainer-3"),
        ("probe", "probe"),
    ],
)
def test_workload_of_a_pod_of_each_kind(pod: str, workload: str) -> None:
    assert workload_of(pod) == workload


def test_revision_is_what_a_rollout_of_each_kind_changes() -> None:
    metadata: Json = {"generation": 3, "annotations": {"deployment.kubernetes.io/revision": "2"}}
    assert revision_of({"kind": "Deployment", "metadata": metadata}) == "2"
    assert revision_of({"kind": "StatefulSet", "metadata": metadata, "status": {"updateRevision": "t-1"}}) == "3 t-1"
    assert revision_of({"kind": "Job", "metadata": metadata}) == "3"


class _Kubectl:
    """Answers from what is given: resource → objects."""

    def __init__(self, **items: list[Json]) -> None:
        self._items = items

    def json(self, verb: str, resource: str, *_: str) -> Json:
        assert verb == "get"
        return {"items": [item for name in resource.split(",") for item in self._items.get(name, [])]}


def _stage(**items: list[Json]) -> Stage:
    return Stage(cast(Any, _Kubectl(**items)), cast(Any, None), cast(Any, None), None, None, cast(Any, None))


def _object(kind: str, name: str, **metadata: object) -> Json:
    template = {"spec": {"containers": [{"name": f"of {kind}"}]}}
    return {
        "kind": kind,
        "metadata": {"name": name, "uid": f"{kind}-{name}", "generation": 1, **metadata},
        "spec": {"template": template},
        "status": {"updateRevision": f"{name}-r1"},
    }


def test_state_of_a_rollout_holds_every_kind_with_its_own_pods() -> None:
    pods = [
        {"metadata": {"name": name, "uid": f"u-{name}"}, "status": {"containerStatuses": [{"restartCount": 0}]}}
        for name in ("a-5d9c7b6f4-bcdfg", "b-0", "c-x2k4p")
    ]
    owner = [{"uid": "Deployment-a"}]
    stage = _stage(
        deployments=[_object("Deployment", "a", annotations={"deployment.kubernetes.io/revision": "1"})],
        statefulsets=[_object("StatefulSet", "b")],
        jobs=[_object("Job", "c")],
        replicasets=[{"metadata": {"uid": "rs", "ownerReferences": owner}}],
        pods=pods,
    )
    assert rollout_state(stage) == {
        "Deployment/a": ("1", "rs", "u-a-5d9c7b6f4-bcdfg[0]"),
        "StatefulSet/b": ("1 b-r1", "", "u-b-0[0]"),
        "Job/c": ("1", "", "u-c-x2k4p[0]"),
    }


def test_templates_of_two_kinds_with_one_name_are_two() -> None:
    found = templates(_stage(deployments=[_object("Deployment", "a")], jobs=[_object("Job", "a")]))
    assert sorted(found) == ["Deployment/a", "Job/a"]
    assert json.loads(found["Job/a"])["spec"]["containers"][0]["name"] == "of Job"
