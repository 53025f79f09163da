"""The operator's own account, tried on the real API server with its token and every right that RBAC can give: what is
refused here, the fence refuses.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from lab.cluster import Kubectl
from tests.support.users import (
    PREFIX,
    Client,
    Json,
    pods,
    said,
)

FENCED = "the operator may"
DRY = "?dryRun=All"
REQUEST, SWITCH, MODE = (
    f"/metadata/annotations/{PREFIX.replace('/', '~1')}{n}" for n in ("request", "enable-fp16", "mode")
)


@pytest.fixture(scope="module")
def place(kubectl: Kubectl, admin: Client) -> Iterator[str]:
    """A namespace with a pod that no node has (`waiting`) and one that a node has (`running`)."""
    name, node = f"fence-{uuid.uuid4().hex[:6]}", f"node-{uuid.uuid4().hex[:6]}"
    kubectl("create", "namespace", name)
    kubectl.wait_for_namespace(name)
    admin.made("POST", "/api/v1/nodes", {"metadata": {"name": node}, "spec": {"unschedulable": True}})
    admin.made("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"allocatable": {"cpu": "1", "pods": "9"}}})
    admin.made("POST", pods(name), pod("waiting", nodeSelector={"no": "node"}))
    admin.made("POST", pods(name), pod("running", nodeName=node))
    admin.made("POST", pods(name), pod("bare", nodeName=node, annotations=None))
    admin.made("POST", pods(name), pod("abrupt", nodeName=node, terminationGracePeriodSeconds=0))
    yield name
    kubectl("delete", "namespace", name, "--wait=false")
    admin.made("DELETE", f"/api/v1/nodes/{node}")


def pod(name: str, *, annotations: Json | None = {"theirs": "1", f"{PREFIX}mode": "fp16"}, **spec: object) -> Json:  # noqa: B006
    metadata: Json = {"name": name, "labels": {"app": "trainer"}}
    if annotations:
        metadata["annotations"] = annotations
    containers = [{"name": "trainer", "image": "trainer", "resources": {"requests": {"cpu": "1m"}}}]
    tolerations = [{"operator": "Exists"}]
    return {"metadata": metadata, "spec": {"containers": containers, "tolerations": tolerations, **spec}}


def add(path: str, value: object) -> Json:
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Json:
    return {"op": "remove", "path": path}


# ---- annotating pods

ALLOWED: dict[str, list[Json]] = {
    "the request": [add(REQUEST, '{"generation":17,"mode":"fp32"}')],
    "all three": [add(REQUEST, "{}"), add(SWITCH, "false"), add(MODE, "fp32")],
    "one taken away": [remove(MODE)],
    "conditional on what was there": [{"op": "test", "path": MODE, "value": "fp16"}, add(MODE, "fp32")],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_the_operator_changes_its_three_annotations(operator: Client, place: str, name: str) -> None:
    for target in ("waiting", "running"):
        operator.made("PATCH", pods(place, target) + DRY, ALLOWED[name], patch="json-patch")


def test_the_operator_annotates_a_pod_that_has_no_annotations(operator: Client, place: str) -> None:
    ours = {f"{PREFIX}request": "{}", f"{PREFIX}mode": "fp32"}
    body = {"metadata": {"annotations": ours}}
    assert operator.made("PATCH", pods(place, "bare"), body)["metadata"]["annotations"] == ours
    operator.made("PATCH", pods(place, "bare"), {"metadata": {"annotations": dict.fromkeys(ours)}})


OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}
FORBIDDEN: dict[str, list[Json]] = {
    "an image": [add("/spec/containers/0/image", "evil")],
    "an image beside the request": [add(REQUEST, "{}"), add("/spec/containers/0/image", "evil")],
    "a toleration": [add("/spec/tolerations/-", {"key": "x", "operator": "Exists", "effect": "NoSchedule"})],
    "a deadline": [add("/spec/activeDeadlineSeconds", 1)],
    "a label": [add("/metadata/labels/x", "y")],
    "a label's value": [add("/metadata/labels/app", "y")],
    "a label taken away": [remove("/metadata/labels/app")],
    "an owner": [add("/metadata/ownerReferences", [OWNER])],
    "a finalizer": [add("/metadata/finalizers", ["example.com/x"])],
    "somebody else's annotation": [add("/metadata/annotations/x", "y")],
    "the value of somebody else's annotation": [add("/metadata/annotations/theirs", "2")],
    "somebody else's annotation taken away": [remove("/metadata/annotations/theirs")],
    "somebody else's annotation exchanged": [remove("/metadata/annotations/theirs"), add("/metadata/annotations/x", "1")],
    "all annotations": [remove("/metadata/annotations")],
    "another annotation of ours": [add(f"/metadata/annotations/{PREFIX.replace('/', '~1')}admitted", "a/1/fp16")],
    "an annotation that only begins like one of ours": [add(f"{MODE}x", "fp16")],
}  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_operator_changes_nothing_else_of_a_pod(operator: Client, admin: Client, place: str, name: str) -> None:
    answer = operator("PATCH", pods(place, "running") + DRY, FORBIDDEN[name], patch="json-patch")
    assert FENCED in said(answer)
    admin.made("PATCH", pods(place, "running") + DRY, FORBIDDEN[name], patch="json-patch")


def test_a_replacement_and_an_apply_are_judged_alike(operator: Client, place: str) -> None:
    path = pods(place, "running") + DRY
    found = operator.made("GET", pods(place, "running"))
    found["metadata"]["annotations"][f"{PREFIX}mode"] = "fp32"
    operator.made("PUT", path, found)
    found["metadata"]["labels"]["x"] = "y"
    assert FENCED in said(operator("PUT", path, found))
    applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "running", "labels": {"x": "y"}}}
    assert FENCED in said(operator("PATCH", f"{path}&fieldManager=x&force=true", applied, patch="apply-patch"))


@pytest.mark.parametrize(
    ("subresource", "body"),
    [
        ("status", {"status": {"phase": "Succeeded"}}),
        ("status", {"metadata": {"annotations": {f"{PREFIX}mode": "fp32"}}}),
        ("ephemeralcontainers", {"spec": {"ephemeralContainers": [{"name": "debug", "image": "evil"}]}}),
        ("resize", {"spec": {"containers": [{"name": "trainer", "resources": {"requests": {"cpu": "2m"}}}]}}),
    ],
)
def test_the_operator_writes_no_subresource_of_a_pod(
    operator: Client, admin: Client, place: str, subresource: str, body: Json
) -> None:
    path = f"{pods(place, 'running')}/{subresource}{DRY}"
    admin.made("PATCH", path, body, patch="strategic-merge-patch")
    answer = operator("PATCH", path, body, patch="strategic-merge-patch")
    assert "the operator may write no subresource of a pod" in said(answer)


@pytest.mark.parametrize(("many", "allowed"), [(4990, True), (5001, False)])
def test_a_pod_may_have_thousands_of_annotations(
    operator: Client, admin: Client, place: str, many: int, allowed: bool
) -> None:
    crowd = {f"a{i}": "" for i in range(many)}
    admin.made("POST", pods(place), pod(f"many-{many}", annotations=crowd, nodeSelector={"no": "node"}))
    path = pods(place, f"many-{many}")
    answer = operator("PATCH", path, {"metadata": {"annotations": {f"{PREFIX}mode": "fp32"}}})
    assert answer.ok == allowed, said(answer)
    assert FENCED in said(operator("PATCH", path, {"metadata": {"annotations": {"a7": "x"}}}))


# ---- deleting pods


def options(client: Client, path: str, **fields: object) -> Json:
    """Options with the pod's uid, unless they say otherwise; None leaves a field out."""
    uid = client.made("GET", path)["metadata"]["uid"]
    found = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}, "dryRun": ["All"], **fields}
    return {key: value for key, value in found.items() if value is not None}


DELETIONS: dict[str, Json] = {
    "with its uid": {},
    "with its uid and a grace of one second": {"gracePeriodSeconds": 1},
    "with a long grace": {"gracePeriodSeconds": 600},
    "in the background": {"propagationPolicy": "Background"},
}


@pytest.mark.parametrize("name", DELETIONS)
@pytest.mark.parametrize("target", ["waiting", "running"])
def test_the_operator_deletes_a_pod_gracefully(operator: Client, place: str, target: str, name: str) -> None:
    path = pods(place, target)
    operator.made("DELETE", path, options(operator, path, **DELETIONS[name]))


ABRUPT = "the operator may not delete a running pod with a grace of 0 seconds"
UNCONDITIONAL = "the operator may delete a pod only with its uid as a precondition"
COLLECTION = "the operator may delete pods only by name, never as a collection"
REFUSED: dict[str, tuple[str, Json]] = {
    "no precondition": (UNCONDITIONAL, {"preconditions": None}),
    "empty preconditions": (UNCONDITIONAL, {"preconditions": {}}),
    "no grace": (ABRUPT, {"gracePeriodSeconds": 0}),
    "no grace, as options of the policy group": (ABRUPT, {"gracePeriodSeconds": 0, "apiVersion": "policy/v1"}),
    "no grace, as options of meta": (ABRUPT, {"gracePeriodSeconds": 0, "apiVersion": "meta.k8s.io/v1"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_operator_deletes_no_pod_otherwise(operator: Client, admin: Client, place: str, name: str) -> None:
    words, fields = REFUSED[name]
    path = pods(place, "running")
    assert words in said(operator("DELETE", path, options(operator, path, **fields)))
    admin.made("DELETE", path, options(operator, path, **fields))


@pytest.mark.parametrize(
    "query", ["", "?gracePeriodSeconds=0", "?gracePeriodSeconds=0&dryRun=All", "?orphanDependents=false"]
)
def test_options_in_the_query_are_judged_too(operator: Client, place: str, query: str) -> None:
    """Without a body there is no precondition; with one, the query is not read."""
    path = pods(place, "running")
    assert UNCONDITIONAL in said(operator("DELETE", path + query))
    operator.made("DELETE", path + query, options(operator, path, gracePeriodSeconds=1))


def test_a_pod_whose_own_grace_is_zero_is_deleted_only_with_a_grace(operator: Client, place: str) -> None:
    path = pods(place, "abrupt")
    assert ABRUPT in said(operator("DELETE", path, options(operator, path)))
    operator.made("DELETE", path, options(operator, path, gracePeriodSeconds=1))


def test_a_pod_of_another_uid_stays(operator: Client, place: str) -> None:
    path = pods(place, "running")
    answer = operator("DELETE", path, options(operator, path, preconditions={"uid": str(uuid.uuid4())}, dryRun=None))
    assert answer.status_code == 409
    assert "deletionTimestamp" not in operator.made("GET", path)["metadata"]


def test_a_pod_that_has_ended_is_deleted(operator: Client, admin: Client, place: str) -> None:
    node = admin.made("GET", pods(place, "running"))["spec"]["nodeName"]
    admin.made("POST", pods(place), pod("ended", nodeName=node))
    path = pods(place, "ended")
    admin.made("PATCH", f"{path}/status", {"status": {"phase": "Succeeded"}})
    operator.made("DELETE", path, options(operator, path, dryRun=None))
    assert operator("GET", path).status_code == 404


@pytest.mark.parametrize("query", ["", "?labelSelector=app%3Dtrainer", "?fieldSelector=metadata.name%3Drunning"])
def test_the_operator_deletes_no_collection(operator: Client, place: str, query: str) -> None:
    for fields in ({"preconditions": None}, {"preconditions": None, "gracePeriodSeconds": 1}):
        assert COLLECTION in said(
            operator("DELETE", pods(place) + query, options(operator, pods(place, "running"), **fields))
        )


def test_a_collection_of_one_pod_is_still_a_collection(operator: Client, place: str) -> None:
    one = f"{pods(place)}?fieldSelector=metadata.name%3Drunning"
    assert COLLECTION in said(operator("DELETE", one, options(operator, pods(place, "running"))))


def test_the_operator_touches_no_pod_of_kube_system(operator: Client, admin: Client) -> None:
    admin.made("POST", pods("kube-system"), pod("fence-probe", nodeSelector={"no": "node"}))
    path = pods("kube-system", "fence-probe")
    try:
        patched = operator("PATCH", path + DRY, {"metadata": {"annotations": {f"{PREFIX}mode": "fp32"}}})
        assert "the operator may change no pod in kube-system" in said(patched)
        deleted = operator("DELETE", path, options(operator, path))
        assert "the operator may delete no pod in kube-system" in said(deleted)
    finally:
        admin.made("DELETE", path, {"gracePeriodSeconds": 0})


# ---- evicting pods


def eviction(name: str, uid: str = "", *, version: str = "policy/v1", **options: object) -> Json:
    if uid:
        options["preconditions"] = {"uid": uid}
    return {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}


def uid_of(client: Client, path: str) -> str:
    return str(client.made("GET", path)["metadata"]["uid"])


@pytest.mark.parametrize("fields", [{}, {"gracePeriodSeconds": 1}, {"gracePeriodSeconds": 600}])
@pytest.mark.parametrize("target", ["waiting", "running"])
def test_the_operator_evicts_a_pod_gracefully(operator: Client, place: str, target: str, fields: Json) -> None:
    path = pods(place, target)
    operator.made("POST", f"{path}/eviction{DRY}", eviction(target, uid_of(operator, path), **fields))


UNCONDITIONAL_EVICTION = "the operator may evict a pod only with its uid as a precondition"
ABRUPT_EVICTION = "the operator may not evict a pod with a grace of 0 seconds"


@pytest.mark.parametrize("target", ["waiting", "running", "abrupt"])
def test_the_operator_evicts_no_pod_otherwise(operator: Client, admin: Client, place: str, target: str) -> None:
    path = f"{pods(place, target)}/eviction{DRY}"
    uid = uid_of(operator, pods(place, target))
    plain = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": target}}
    for body, words in (
        (plain, UNCONDITIONAL_EVICTION),
        (eviction(target), UNCONDITIONAL_EVICTION),
        (eviction(target, gracePeriodSeconds=5), UNCONDITIONAL_EVICTION),
        (eviction(target, preconditions={"resourceVersion": "1"}), UNCONDITIONAL_EVICTION),
        (eviction(target, uid, gracePeriodSeconds=0), ABRUPT_EVICTION),
        (eviction(target, uid, gracePeriodSeconds=-1), ABRUPT_EVICTION),
        (eviction(target, uid, version="policy/v1beta1", gracePeriodSeconds=0), ABRUPT_EVICTION),
    ):
        assert words in said(operator("POST", path, body)), body
    admin.made("POST", path, eviction(target, gracePeriodSeconds=0))


def test_an_eviction_that_names_another_pod_evicts_none(operator: Client, place: str) -> None:
    uid = uid_of(operator, pods(place, "running"))
    answer = operator("POST", f"{pods(place, 'running')}/eviction{DRY}", eviction("waiting", uid))
    assert not answer.ok, said(answer)


def test_an_eviction_of_another_uid_evicts_none(operator: Client, place: str) -> None:
    answer = operator("POST", f"{pods(place, 'running')}/eviction", eviction("running", str(uuid.uuid4())))
    assert answer.status_code == 409, said(answer)
    assert "deletionTimestamp" not in operator.made("GET", pods(place, "running"))["metadata"]


# ---- Jobs


@pytest.fixture(scope="module")
def jobs(admin: Client, place: str) -> str:
    """Path of the Jobs of the place: `train`, whose pod finds no node, and `held`, which is suspended from the beginning."""
    path = f"/apis/batch/v1/namespaces/{place}/jobs"
    admin.made("POST", path, job("train"))
    admin.made("POST", path, job("held", suspend=True))
    return path


def job(name: str, **spec: object) -> Json:
    template = {"metadata": {"labels": {"app": "trainer"}}, "spec": pod(name, nodeSelector={"no": "node"})["spec"]}
    template["spec"]["restartPolicy"] = "Never"
    metadata = {"name": name, "labels": {"app": "trainer"}, "annotations": {"theirs": "1"}}
    return {"metadata": metadata, "spec": {"backoffLimit": 3, "template": template, **spec}}


def test_the_operator_suspends_and_resumes_a_job(operator: Client, jobs: str) -> None:
    for suspend in (True, False):
        operations: list[Json] = [
            {"op": "test", "path": "/spec/suspend", "value": not suspend},
            {"op": "replace", "path": "/spec/suspend", "value": suspend},
        ]
        answer = operator.made("PATCH", f"{jobs}/train", operations, patch="json-patch")
        assert answer["spec"]["suspend"] is suspend
    operator.made("PATCH", f"{jobs}/train{DRY}", {"spec": {"suspend": True}})


OF_JOBS: dict[str, Json] = {
    "a label": {"metadata": {"labels": {"x": "y"}}},
    "a label beside the suspension": {"metadata": {"labels": {"x": "y"}}, "spec": {"suspend": True}},
    "an annotation": {"metadata": {"annotations": {"x": "y"}}},
    "somebody's annotation taken away": {"metadata": {"annotations": None}},
    "an owner": {"metadata": {"ownerReferences": [OWNER]}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/x"]}},
    "the parallelism": {"spec": {"parallelism": 0}},
    "the back-off limit": {"spec": {"backoffLimit": 0}},
    "a deadline": {"spec": {"activeDeadlineSeconds": 1}},
    "a time to live": {"spec": {"ttlSecondsAfterFinished": 1}},
    "its pods' labels": {"spec": {"template": {"metadata": {"labels": {"x": "y"}}}}},
    "its pods' labels at its start": {"spec": {"suspend": False, "template": {"metadata": {"labels": {"x": "y"}}}}},
}


@pytest.mark.parametrize("name", OF_JOBS)
def test_the_operator_changes_nothing_else_of_a_job(operator: Client, admin: Client, jobs: str, name: str) -> None:
    path = f"{jobs}/held{DRY}"
    assert "the operator may change nothing of a Job but spec.suspend" in said(operator("PATCH", path, OF_JOBS[name]))
    admin.made("PATCH", path, OF_JOBS[name])


def test_the_operator_writes_no_subresource_of_a_job(operator: Client, admin: Client, jobs: str) -> None:
    path, body = f"{jobs}/train/status{DRY}", {"status": {"conditions": [{"type": "Mine", "status": "True"}]}}
    assert "the operator may write no subresource of a Job" in said(operator("PATCH", path, body))
    admin.made("PATCH", path, body)


def test_the_operator_touches_no_pod_or_job_of_kube_system(operator: Client, admin: Client) -> None:
    where = "/apis/batch/v1/namespaces/kube-system/jobs"
    admin.made("POST", where, job("fence-probe"))
    admin.made("POST", pods("kube-system"), pod("fence-evicted", nodeSelector={"no": "node"}))
    try:
        answer = operator("PATCH", f"{where}/fence-probe{DRY}", {"spec": {"suspend": True}})
        assert "the operator may change no Job in kube-system" in said(answer)
        path = pods("kube-system", "fence-evicted")
        answer = operator("POST", f"{path}/eviction{DRY}", eviction("fence-evicted", uid_of(operator, path)))
        assert "the operator may evict no pod in kube-system" in said(answer)
    finally:
        admin.made("DELETE", f"{where}/fence-probe", {"propagationPolicy": "Background"})
        admin.made("DELETE", pods("kube-system", "fence-evicted"), {"gracePeriodSeconds": 0})
