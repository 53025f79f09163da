"""What the inventory makes of the kinds: whose a pod is, what is no workload any more, what is of no known kind."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.api.selector import parse_selector
from precision_operator.core.model import RestartBy, WorkloadView
from precision_operator.inventory.caches import WATCHED, Inventory, Keys
from precision_operator.kube.port import (
    DEPLOYMENTS,
    JOBS,
    PODS,
    POLICIES,
    REPLICASETS,
    Resource,
)
from precision_operator.workloads.kinds.kind import WorkloadKind
from precision_operator.workloads.kinds.pod import POD
from precision_operator.workloads.kinds.statefulset import STATEFULSET
from precision_operator.workloads.kinds.table import KINDS
from tests.support import objects as b
from tests.support.recorded_kinds import RECORDED, owned_by, recorded

KEY = PolicyKey("default", "p")
NOBODY: Keys = frozenset()
Body = dict[str, Any]
TRAIN = {"matchLabels": {"app": "train"}}


def selecting(app: str) -> dict[str, Any]:
    return {"matchLabels": {"app": app}}


def filled(app: str, *events: tuple[Resource, Body]) -> Inventory:
    inventory = Inventory()
    inventory.observe(POLICIES, b.policy(selecting(app)), deleted=False)
    for resource, body in events:
        inventory.observe(resource, body, deleted=False)
    return inventory


def views(inventory: Inventory, app: str) -> tuple[WorkloadView, ...]:
    return inventory.selected("default", parse_selector(selecting(app)))


def unsupported(inventory: Inventory, app: str) -> tuple[str, ...]:
    return inventory.unsupported("default", parse_selector(selecting(app)))


def a_job(**metadata: object) -> Body:
    """A running Job whose pods are labelled ``train``."""
    body = recorded("job-indexed")
    body["metadata"] |= metadata
    body["spec"]["template"]["metadata"]["labels"] = {"app": "train"}
    return body


def test_everything_of_the_table_of_kinds_is_watched() -> None:
    plurals = [resource.plural for resource in WATCHED]
    assert plurals == [
        *("precisionpolicies", "precisionassignments"),
        *(kind.resource.plural for kind in KINDS),
    ]


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if RECORDED[kind.singular].pod and kind is not POD], ids=attrgetter("name")
)
def test_a_pod_is_of_the_workload_that_made_it(kind: WorkloadKind) -> None:
    row = RECORDED[kind.singular]
    pod = recorded(row.pod)
    app = pod["metadata"]["labels"]["app"]
    inventory = filled(app, (PODS, pod), (kind.resource, recorded(row.name)))
    (view,) = views(inventory, app)
    assert (view.key, [member.name for member in view.pods]) == (row.key, [pod["metadata"]["name"]])
    assert unsupported(inventory, app) == ()


@pytest.mark.parametrize("first", ["workload", "pods"])
def test_pods_of_a_statefulset_are_its_own_and_show_a_pending_revision(first: str) -> None:
    events = [(PODS, recorded("statefulset-pod-0")), (PODS, recorded("statefulset-pod-1"))]
    workload = (STATEFULSET.resource, recorded("statefulset"))
    inventory = filled("db", *([workload, *events] if first == "workload" else [*events, workload]))
    (view,) = views(inventory, "db")
    assert (view.key, [pod.name for pod in view.pods]) == ("apps/StatefulSet/db", ["db-0", "db-1"])
    assert not view.pending_revision  # its partition keeps the older one
    on_delete = recorded("statefulset")
    on_delete["spec"]["updateStrategy"] = {"type": "OnDelete"}
    assert inventory.observe(STATEFULSET.resource, on_delete, deleted=False) == {KEY}
    assert views(inventory, "db")[0].pending_revision
    leaving = recorded("statefulset-pod-0")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:30Z"
    assert inventory.observe(PODS, leaving, deleted=False) == {KEY}
    assert not views(inventory, "db")[0].pending_revision
    assert inventory.observe(STATEFULSET.resource, on_delete, deleted=True) == {KEY}
    assert views(inventory, "db") == ()


def test_a_job_that_ends_is_dropped_and_its_status_chatter_is_no_news() -> None:
    pod = recorded("job-pod")
    inventory = filled("indexed", (JOBS, recorded("job-indexed")), (PODS, pod))
    (view,) = views(inventory, "indexed")
    assert (view.key, [p.name for p in view.pods]) == ("batch/Job/indexed", [pod["metadata"]["name"]])
    chatter = recorded("job-indexed")
    chatter["status"] |= {"ready": 2, "active": 1}
    assert inventory.observe(JOBS, chatter, deleted=False) == NOBODY
    ended = recorded("job-indexed")
    ended["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
    assert inventory.observe(JOBS, ended, deleted=False) == {KEY}
    assert views(inventory, "indexed") == ()
    assert inventory.count(JOBS) == 0
    assert inventory.observe(JOBS, ended, deleted=True) == NOBODY


def test_a_list_drops_what_it_lacks_of_its_own_kind_only() -> None:
    inventory = filled(
        "train",
        (JOBS, a_job()),
        (DEPLOYMENTS, b.deployment(b.hot_spec())),
        (PODS, b.pod(owner=None, uid="bare")),
    )
    assert [view.kind for view in views(inventory, "train")] == ["Pod", "Deployment", "Job"]
    assert inventory.relisted(JOBS, None, []) == {KEY}
    assert inventory.relisted(STATEFULSET.resource, None, []) == NOBODY
    assert [view.kind for view in views(inventory, "train")] == ["Pod", "Deployment"]
    assert inventory.relisted(PODS, None, []) == {KEY}
    assert [view.kind for view in views(inventory, "train")] == ["Deployment"]


def test_a_bare_pod_is_a_workload_until_something_adopts_it() -> None:
    inventory = filled("train", (PODS, b.pod(owner=None, name="probe")))
    (view,) = views(inventory, "train")
    assert (view.key, view.restart_by, [pod.uid for pod in view.pods]) == ("/Pod/probe", RestartBy.NEVER, ["p-1"])
    assert inventory.named("default", "probe") == inventory.concerned_by_pod("default", "probe") == {KEY}
    changed = b.pod(owner=None, name="probe", annotations={"a": "b"})
    assert inventory.observe(PODS, changed, deleted=False) == {KEY}
    assert views(inventory, "train")[0].pods[0].has_annotations
    assert inventory.observe(PODS, changed, deleted=False) == NOBODY
    assert inventory.observe(PODS, b.pod(name="probe"), deleted=False) == {KEY}
    assert views(inventory, "train") == ()
    assert inventory.named("default", "probe") == NOBODY
    inventory.observe(REPLICASETS, b.replicaset(), deleted=False)
    inventory.observe(DEPLOYMENTS, b.deployment(b.hot_spec()), deleted=False)
    assert [pod.name for pod in views(inventory, "train")[0].pods] == ["probe"]
    for gone in (b.pod(name="probe"), b.pod(name="probe", owner=None)):
        inventory.observe(PODS, gone, deleted=True)
    assert views(inventory, "train")[0].pods == ()


def test_a_bare_replicaset_is_a_workload_until_a_deployment_adopts_it() -> None:
    body = b.replicaset(name="train", owner=None)
    body["spec"] = {"replicas": 3, "template": {"metadata": {"labels": {"app": "train"}}, "spec": b.hot_spec()}}
    inventory = filled("train", (REPLICASETS, body), (PODS, b.pod()))
    (view,) = views(inventory, "train")
    assert (view.key, view.replicas, [pod.uid for pod in view.pods]) == ("apps/ReplicaSet/train", 3, ["p-1"])
    adopted = {**body, "metadata": b.replicaset(name="train")["metadata"]}
    assert inventory.observe(REPLICASETS, adopted, deleted=False) == {KEY}
    assert views(inventory, "train") == ()
    inventory.observe(DEPLOYMENTS, b.deployment(b.hot_spec()), deleted=False)
    assert [(v.kind, [pod.uid for pod in v.pods]) for v in views(inventory, "train")] == [("Deployment", ["p-1"])]


def test_pods_of_unknown_kinds_are_named_by_their_workload_once() -> None:
    workers = [
        owned_by(b.pod(uid=f"w-{index}", name=f"w-{index}"), "ray.io/v1", "RayCluster", "rc") for index in range(3)
    ]
    inventory = filled("train", *((PODS, pod) for pod in workers))
    assert unsupported(inventory, "train") == ("ray.io/RayCluster/rc",)
    assert unsupported(inventory, "other") == ()
    ready = {**workers[0], "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    assert inventory.observe(PODS, ready, deleted=False) == NOBODY
    for pod in workers:
        assert inventory.observe(PODS, pod, deleted=True) == {KEY}
    assert unsupported(inventory, "train") == ()
    assert views(inventory, "train") == ()


def test_a_rollout_is_named_by_its_replicaset() -> None:
    body = owned_by(recorded("replicaset"), "argoproj.io/v1alpha1", "Rollout", "vit", "rollout")
    inventory = filled("bare", (REPLICASETS, body), (PODS, b.pod(app="bare", owner=body["metadata"]["uid"])))
    assert unsupported(inventory, "bare") == ("apps/ReplicaSet/bare",)
    assert views(inventory, "bare") == ()
    assert inventory.observe(REPLICASETS, body, deleted=True) == {KEY}
    assert unsupported(inventory, "bare") == ()


def test_selectors_that_change_change_what_is_unsupported() -> None:
    pod = owned_by(b.pod(), "ray.io/v1", "RayCluster", "rc")
    inventory = filled("other", (PODS, pod))
    assert unsupported(inventory, "other") == ()
    inventory.observe(POLICIES, b.policy(), deleted=False)
    assert unsupported(inventory, "train") == ("ray.io/RayCluster/rc",)
    moved = owned_by(b.pod(app="other"), "ray.io/v1", "RayCluster", "rc")
    assert inventory.observe(PODS, moved, deleted=False) == {KEY}
    assert unsupported(inventory, "train") == ()
    assert inventory.observe(PODS, {**pod, "status": {"phase": "Succeeded"}}, deleted=False) == NOBODY
    assert unsupported(inventory, "other") == ()


LABEL = {"app": "train", "precision.genesis.ai/workload": "vit"}


def grouped(uid: str, *, suspend: bool = False) -> Body:
    body = a_job(name=uid, uid=uid)
    body["spec"] |= {"suspend": suspend, "template": {"metadata": {"labels": LABEL}, "spec": {}}}
    return body


def test_jobs_of_one_process_group_are_not_suspended() -> None:
    inventory = filled("train", *((JOBS, grouped(f"j-{index}", suspend=index > 0)) for index in range(3)))
    (view,) = views(inventory, "train")
    assert (view.restart_by, view.no_restart) == (
        RestartBy.NEVER,
        "several Jobs would have to be suspended at once",
    )
    assert (view.replicas, view.suspended) == (6, False)
    inventory.observe(JOBS, grouped("j-0", suspend=True), deleted=False)
    assert views(inventory, "train")[0].suspended


def test_a_group_restarts_as_its_objects_do_where_they_agree() -> None:
    deployments = [(DEPLOYMENTS, b.deployment(b.hot_spec(), name=f"d{i}", uid=f"d-{i}", labels=LABEL)) for i in (0, 1)]
    inventory = filled("d0", *deployments)
    group = parse_selector({"matchLabels": {"precision.genesis.ai/workload": "vit"}})
    (view,) = inventory.selected("default", group)
    assert (view.restart_by, view.no_restart, view.pending_revision) == (RestartBy.PODS, "", False)
    pending = b.deployment(b.hot_spec(), name="d1", uid="d-1", labels=LABEL)
    pending["metadata"]["generation"] = 2
    inventory.observe(DEPLOYMENTS, pending, deleted=False)
    assert inventory.selected("default", group)[0].pending_revision
    inventory.observe(JOBS, grouped("j"), deleted=False)
    (view,) = inventory.selected("default", group)
    assert (view.restart_by, view.no_restart) == (RestartBy.NEVER, "its objects restart in different ways")


def test_jobs_of_a_jobset_are_one_workload_of_its_name() -> None:
    owner = ("jobset.x-k8s.io/v1alpha2", "JobSet", "train")
    jobs = [owned_by(a_job(name=f"train-{index}", uid=f"j-{index}"), *owner) for index in (0, 1)]
    for body in jobs:
        body["spec"]["template"]["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = "train"
    pods = [
        owned_by(b.pod(uid=f"p-{index}", name=f"p-{index}"), "batch/v1", "Job", f"train-{index}", f"j-{index}")
        for index in (0, 1)
    ]
    inventory = filled("train", *((JOBS, body) for body in jobs), *((PODS, pod) for pod in pods))
    (view,) = views(inventory, "train")
    assert (view.key, [pod.uid for pod in view.pods]) == ("jobset.x-k8s.io/JobSet/train", ["p-0", "p-1"])
    assert view.no_restart == "its owner JobSet/train would undo a suspension"


def test_a_workload_is_found_by_the_uid_of_its_object() -> None:
    inventory = filled("train", (JOBS, a_job(uid="j")))
    found = inventory.workload("default", "j")
    assert found is not None
    assert found.key == "batch/Job/indexed"
    assert inventory.workload("default", "k") is inventory.workload("elsewhere", "j") is None
