"""What each kind says of itself: how it restarts, when it is finished, whether a template change is pending."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.modes import Mode
from precision_operator.contract import MAX_INDEXES
from precision_operator.core.model import RestartBy, WorkloadView
from precision_operator.kube.port import FIELD_MANAGER
from precision_operator.workloads.identity import workload_key
from precision_operator.workloads.kinds.deployment import DEPLOYMENT, read_deployment
from precision_operator.workloads.kinds.job import INDEXES_CHARACTERS, expected_pods, read_job
from precision_operator.workloads.kinds.kind import WorkloadKind
from precision_operator.workloads.kinds.pod import NO_CONTROLLER, POD, read_bare_pod
from precision_operator.workloads.kinds.replicaset import REPLICASET, read_replicaset
from precision_operator.workloads.kinds.strangers import strange_pod, strange_replicaset
from precision_operator.workloads.kinds.suspension import LAST_APPLIED, LAST_APPLIED_CHARACTERS, MANIFEST
from precision_operator.workloads.kinds.table import KINDS
from precision_operator.workloads.reading import read_pod
from tests.support import objects as b
from tests.support.recorded_kinds import RECORDED, Recorded, owned_by, recorded

Body = dict[str, Any]
NAME = attrgetter("name")


def job(name: str = "indexed", **spec: object) -> Body:
    body = recorded(f"job-{name}")
    body["spec"] |= spec
    return body


def view_of(body: Body) -> WorkloadView:
    record = read_job(body)
    assert record is not None
    return record.view


@pytest.mark.parametrize("kind", KINDS, ids=NAME)
def test_each_kind_is_read_as_its_controller_left_it(kind: WorkloadKind) -> None:
    row = RECORDED[kind.singular]
    body = recorded(row.name)
    record = kind.read(body)
    assert record is not None
    view = record.view
    assert (view.key, view.replicas, view.restart_by) == (row.key, row.replicas, row.restart_by)
    assert (view.object_name, view.uid) == (body["metadata"]["name"], body["metadata"]["uid"])
    assert row.key.startswith(kind.kind)
    assert (kind.singular, kind.name) == (body["kind"], body["kind"].lower())
    assert kind.resource.api_version == body["apiVersion"]
    assert kind.restart_by is row.restart_by
    assert bool(view.no_restart) == (row.restart_by is RestartBy.NEVER)


def test_a_resource_is_named_for_kubectl_with_its_group_where_it_has_one() -> None:
    assert [DEPLOYMENT.resource.qualified, POD.resource.qualified] == ["deployments.apps", "pods"]


@pytest.mark.parametrize("row", [row for row in RECORDED.values() if row.pod], ids=lambda row: row.pod)
def test_a_pod_of_a_known_kind_is_no_workload_of_its_own_and_no_stranger(row: Recorded) -> None:
    pod = recorded(row.pod)
    assert workload_key(pod) == row.key
    assert (read_bare_pod(pod) is None) == (row.pod != row.name)
    assert strange_pod(pod) is None


def test_a_replicaset_without_a_hash_gives_its_pods_its_own_name() -> None:
    body = recorded("replicaset")
    pod = owned_by(
        {"metadata": {"labels": body["spec"]["template"]["metadata"]["labels"]}}, "apps/v1", "ReplicaSet", "bare"
    )
    record = read_replicaset(body)
    assert record is not None
    assert record.view.key == workload_key(pod) == "apps/ReplicaSet/bare"


@pytest.mark.parametrize(
    ("name", "by", "reason"),
    [
        ("patched", "kubectl-patch", ""),
        ("ours", "", ""),
        ("born", MANIFEST, ""),
        ("applied", MANIFEST, "its manifest states spec.suspend"),
        ("server", MANIFEST, "gitops applies spec.suspend"),
    ],
)
def test_who_suspended_a_job_is_read_from_its_managed_fields(name: str, by: str, reason: str) -> None:
    view = view_of(job(name))
    assert (view.suspended, view.emptied, view.suspended_by) == (True, True, by)
    assert view.no_restart.startswith(reason)
    assert view.restart_by is (RestartBy.NEVER if reason else RestartBy.SUSPENSION)
    resumed = view_of(job(name, suspend=False))
    assert (resumed.suspended, resumed.emptied, resumed.suspended_by) == (False, False, "")


def test_without_managed_fields_nobody_is_named_and_who_has_no_name_in_them_is_somebody_all_the_same() -> None:
    body = job("patched")
    for entry in body["metadata"]["managedFields"]:
        entry["manager"] = ""
    assert view_of(body).suspended_by == "a manager without a name"
    del body["metadata"]["managedFields"]
    assert view_of(body).suspended_by == ""


def test_our_own_apply_is_no_manifest() -> None:
    body = job("server")
    body["metadata"]["managedFields"][0]["manager"] = FIELD_MANAGER
    view = view_of(body)
    assert (view.restart_by, view.suspended_by) == (RestartBy.SUSPENSION, "")


def test_a_job_that_we_suspended_and_that_another_applies_suspend_to_is_its_manifests() -> None:
    body = job("server")
    ours = {**body["metadata"]["managedFields"][0], "manager": FIELD_MANAGER, "operation": "Update"}
    body["metadata"]["managedFields"].append(ours)
    assert view_of(body).suspended_by == MANIFEST


def test_a_job_that_we_suspended_after_somebody_else_is_ours() -> None:
    body = job("patched")
    fields: Body = {"f:spec": {"f:suspend": {}}}
    body["metadata"]["managedFields"].append({"manager": FIELD_MANAGER, "operation": "Update", "fieldsV1": fields})
    assert view_of(body).suspended_by == ""


ANOTHER: Body = {"type": "example.com/Checked", "status": "True"}


@pytest.mark.parametrize("status", [{"active": 1}, {"terminating": 2}, {"conditions": []}, {"conditions": [ANOTHER]}])
def test_a_job_is_empty_only_once_its_controller_says_so(status: Body) -> None:
    body = job("ours")
    body["status"] |= status
    assert not view_of(body).emptied


@pytest.mark.parametrize(
    ("status", "since"),
    [
        ({}, 1795341630.0),
        ({"conditions": [{"type": "Suspended", "status": "False"}]}, 1795341630.0),
        ({"conditions": [{"type": "Suspended", "status": "True"}]}, 0.0),
        ({"failed": 1}, 0.0),
        ({"startTime": None}, 0.0),
    ],
    ids=["runs", "was resumed", "its resumption was not seen", "backs off", "was not seen"],
)
def test_since_when_a_job_makes_pods_is_known_where_nothing_holds_its_controller_back(
    status: Body, since: float
) -> None:
    body = job()
    body["status"] = {"startTime": "2026-11-22T10:00:30Z", **status}
    assert view_of(body).makes_pods_since == since


@pytest.mark.parametrize(
    ("raw", "hot_only"),
    [
        (json.dumps({"spec": {"suspend": False}}), True),
        ('{"spec":{"\\u0073uspend":true}}', True),
        (json.dumps({"spec": {"template": {"suspend": True}}, "suspend": True}), False),
        (json.dumps({"spec": {}}), False),
        ('{"spec": {"suspend"', False),
        ('"suspend"', False),
        ("[" * 60_000 + '"suspend"', True),
        ("[" * 60_000, False),
        ("x" * (LAST_APPLIED_CHARACTERS - 9) + '"suspend"', False),
        ("x" * LAST_APPLIED_CHARACTERS + '"suspend"', True),
        ("x" * LAST_APPLIED_CHARACTERS * 4, False),
        ("\\u0026" * LAST_APPLIED_CHARACTERS, False),
    ],
    ids=[
        "states",
        "escaped",
        "elsewhere",
        "silent",
        "broken",
        "no object",
        "deep",
        "deep and silent",
        "long and broken",
        "huge",
        "huge and silent",
        "huge and escaped",
    ],
)
def test_a_last_applied_manifest_that_states_suspend_makes_a_job_hot_only(raw: str, hot_only: bool) -> None:
    body = job()
    body["metadata"]["annotations"] = {LAST_APPLIED: raw}
    assert (view_of(body).restart_by is RestartBy.NEVER) is hot_only


@pytest.mark.parametrize(
    ("api", "kind", "reason"),
    [
        ("batch/v1", "CronJob", ""),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", "its owner JobSet/x would undo a suspension"),
        ("example.com/v1", "CronJob", "its owner CronJob/x would undo a suspension"),
    ],
)
def test_a_job_that_something_else_owns_is_not_suspended(api: str, kind: str, reason: str) -> None:
    assert view_of(owned_by(job(), api, kind)).no_restart == reason


def test_jobs_that_another_controller_runs_or_admits_are_not_suspended() -> None:
    assert "managedBy" in view_of(job(managedBy="kueue.x-k8s.io/multikueue")).no_restart
    assert not view_of(job(managedBy="kubernetes.io/job-controller")).no_restart
    queued = job()
    queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "gpus"
    assert "Kueue" in view_of(queued).no_restart


def rule(action: str, operator: str, *values: int, container: str | None = None) -> Body:
    named = {"containerName": container} if container is not None else {}
    return {"action": action, "onExitCodes": {"operator": operator, "values": list(values), **named}}


DISRUPTED: Body = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        ([rule("FailJob", "In", 42, 143)], 143),
        ([rule("FailJob", "In", 137)], 137),
        ([rule("FailJob", "NotIn", 1, 2)], 143),
        ([rule("FailJob", "NotIn", 143)], 137),
        ([rule("FailJob", "In", 143, container="c")], 143),
        ([rule("FailJob", "In", 143, container="sidecar")], 143),
        ([rule("Ignore", "In", 143, container="c"), rule("FailJob", "In", 143)], 143),
        ([rule("Ignore", "In", 143), rule("FailJob", "NotIn", 1)], 137),
        ([DISRUPTED, rule("FailJob", "In", 143)], 143),
        ([rule("FailJob", "In", 1, 42)], 0),
        ([rule("FailJob", "NotIn", 143, 137)], 0),
        ([rule("FailJob", "In", 143, container="another")], 0),
        ([rule("Ignore", "In", 137, 143), rule("FailJob", "NotIn", 1)], 0),
        ([rule("FailIndex", "In", 143), rule("Count", "In", 137), rule("FailJob", "In", 137, 143)], 0),
        ([DISRUPTED], 0),
        ([{"action": "FailJob", "onExitCodes": {"values": [143]}}, {"action": "FailJob"}, "x"], 0),
    ],
)
def test_a_job_that_fails_with_a_pod_that_is_stopped_is_not_suspended(rules: list[object], code: int) -> None:
    body = job(podFailurePolicy={"rules": rules})
    body["spec"]["template"]["spec"] = {"initContainers": [{"name": "sidecar"}], "containers": [{"name": "c"}]}
    view = view_of(body)
    assert view.restart_by is (RestartBy.NEVER if code else RestartBy.SUSPENSION)
    assert view.no_restart.endswith(f"matches exit code {code}" if code else "")


@pytest.mark.parametrize("kind", ["Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"])
def test_a_job_that_has_ended_or_is_about_to_is_none(kind: str) -> None:
    body = job()
    body["status"]["conditions"] = [{"type": kind, "status": "False"}]
    assert read_job(body) is not None
    body["status"]["conditions"] = [{"type": kind, "status": "True"}]
    assert read_job(body) is None


@pytest.mark.parametrize(
    ("spec", "status", "pods"),
    [
        ({}, {}, 1),
        ({"parallelism": 4}, {}, 4),
        ({"parallelism": 4, "completions": 10}, {"succeeded": 3}, 4),
        ({"parallelism": 4, "completions": 10}, {"succeeded": 8}, 2),
        ({"parallelism": 4, "completions": 10}, {"succeeded": 11}, 0),
        ({"parallelism": 0, "completions": 10}, {}, 0),
        ({"parallelism": 0}, {}, 0),
        ({"parallelism": 4, "completions": 0}, {}, 0),
        ({"completions": 3}, {}, 1),
        ({"parallelism": 4}, {"succeeded": 1, "active": 2}, 2),
        ({"parallelism": 4}, {"succeeded": 1}, 0),
        ({"parallelism": 8, "completions": 8}, {"succeeded": 1, "failedIndexes": "0,3-5"}, 3),
        ({"parallelism": 8, "completions": 8}, {"failedIndexes": "x,x-5,-,²,9-1,1-2-3," + "9" * 50}, 8),
        ({"parallelism": 8, "completions": 8}, {"failedIndexes": "1," * (INDEXES_CHARACTERS // 2)}, 0),
        ({"parallelism": 8, "completions": 8}, {"failedIndexes": "1," * (INDEXES_CHARACTERS // 2) + "1"}, 8),
        ({"parallelism": "many", "completions": True}, {"succeeded": None}, 1),
    ],
)
def test_a_job_has_as_many_pods_as_its_controller_makes(spec: Body, status: Body, pods: int) -> None:
    assert expected_pods({"spec": spec, "status": status}) == pods


def test_a_deployment_is_pending_while_older_pods_are_left() -> None:
    body = recorded("deployment-paused")
    assert read_deployment(body).view.pending_revision
    body["status"]["updatedReplicas"] = 1
    assert not read_deployment(body).view.pending_revision
    body["status"] = {}
    assert not read_deployment(body).view.pending_revision, "of one without pods its controller counts none"
    body["status"] = {"observedGeneration": body["metadata"]["generation"]}
    body["metadata"]["generation"] += 1
    assert read_deployment(body).view.pending_revision


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.restart_by is RestartBy.PODS and kind is not REPLICASET], ids=NAME
)
def test_pods_of_what_something_else_owns_are_not_taken_away(kind: WorkloadKind) -> None:
    body = recorded(RECORDED[kind.singular].name)
    record = kind.read(owned_by(body, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "serve"))
    assert record is not None
    assert record.view.restart_by is RestartBy.NEVER
    assert record.view.no_restart == "its owner LeaderWorkerSet/serve decides about its pods"


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({"completionMode": "Indexed", "completions": 4, "parallelism": 4}, 4),
        ({"completionMode": "Indexed", "completions": 4, "parallelism": 5}, 4),
        ({"completionMode": "Indexed", "completions": 4, "parallelism": 2}, 0),
        ({"completionMode": "Indexed", "completions": MAX_INDEXES, "parallelism": MAX_INDEXES}, MAX_INDEXES),
        ({"completionMode": "Indexed", "completions": MAX_INDEXES + 1, "parallelism": MAX_INDEXES + 1}, 0),
        ({"completionMode": "NonIndexed", "completions": 4, "parallelism": 4}, 0),
        ({"completionMode": "Indexed", "completions": None, "parallelism": 4}, 0),
        ({"completionMode": "Indexed", "completions": 2, "parallelism": None}, 0),
    ],
)
def test_an_indexed_job_has_an_index_for_each_pod_where_all_run_at_once(spec: Body, count: int) -> None:
    view = view_of(job(**spec))
    assert (view.first_index, view.indexes) == (0, count)


def test_a_bare_pod_is_a_workload_of_one_until_it_has_ended() -> None:
    body = b.pod(owner=None, annotations={"precision.genesis.ai/enable-fp16": "true"})
    record = read_bare_pod(body)
    assert record is not None
    assert (record.view.no_restart, record.view.hot, record.view.template_mode) == (NO_CONTROLLER, True, Mode.FP32)
    assert record.template_labels == body["metadata"]["labels"]
    assert read_bare_pod(b.pod(owner=None, phase="Succeeded")) is None
    literal = read_bare_pod(b.pod(b.pod_spec(b.container(env=b.LITERAL)), owner=None))
    assert literal is not None
    assert (literal.view.hot, literal.view.literal) == (False, True)


def test_pods_of_unknown_controllers_are_strangers() -> None:
    found = strange_pod(owned_by(b.pod(), "kubeflow.org/v1", "PyTorchJob", "train"))
    assert found is not None
    assert (found.key, found.labels["app"]) == ("kubeflow.org/PyTorchJob/train", "train")
    assert strange_pod(owned_by(b.pod(phase="Failed"), "kubeflow.org/v1", "PyTorchJob")) is None
    assert strange_pod(b.pod()) is None
    assert strange_pod(b.pod(owner=None)) is None
    body = owned_by(recorded("replicaset"), "argoproj.io/v1alpha1", "Rollout", "vit")
    body["metadata"]["name"] = "vit-abc"
    body["spec"]["template"]["metadata"]["labels"]["rollouts-pod-template-hash"] = "abc"
    rollout = strange_replicaset(body)
    assert rollout is not None
    assert (rollout.key, read_replicaset(body)) == ("argoproj.io/Rollout/vit", None)
    assert strange_replicaset(b.replicaset()) is None


def test_how_a_pod_goes_is_read() -> None:
    body = recorded("job-pod")
    body["metadata"] |= {
        "deletionTimestamp": "2026-11-22T10:00:30Z",
        "deletionGracePeriodSeconds": 30,
        "finalizers": ["foregroundDeletion", "batch.kubernetes.io/job-tracking", "example.com/" + "x" * 300, "b/c"],
    }
    view = read_pod(body).view
    assert (view.gone_by, view.grace_seconds) == (1795341630.0, 30.0)
    assert view.finalizer.startswith("example.com/x")
    assert len(view.finalizer) <= 128
    body["status"]["phase"] = "Failed"
    assert read_pod(body).counts  # its object is kept, and a StatefulSet's would stand in its successor's way
    body["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    assert not read_pod(body).counts


KEYS = st.sampled_from(
    [
        *("metadata", "spec", "status", "labels", "annotations", "ownerReferences", "controller", "uid", "kind"),
        *("managedFields", "fieldsV1", "f:spec", "f:suspend", "operation", "manager", "suspend", "template"),
        *(
            "parallelism",
            "completions",
            "succeeded",
            "failedIndexes",
            "conditions",
            "startTime",
            "type",
            "updateStrategy",
            "ordinals",
        ),
        *("podFailurePolicy", "rules", "onExitCodes", "containerName", "containers", "name", "values", "operator"),
        *("rollingUpdate", "partition", "currentRevision", "updateRevision", "observedGeneration", "generation"),
        *("deletionTimestamp", "deletionGracePeriodSeconds", "finalizers", LAST_APPLIED, "apiVersion", "managedBy"),
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=30,
)


@given(st.dictionaries(KEYS, JSON))
def test_no_body_breaks_any_kind(body: Body) -> None:
    for kind in KINDS:
        kind.read(body)
    strange_pod(body)
    strange_replicaset(body)
    read_pod(body)
