"""One contract for two API servers: ours in memory, and the real one. What one does, the other does."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio.client import Configuration
from kubernetes.aio.config.incluster_config import InClusterConfigLoader

from lab.cluster import ControlPlane
from precision_operator import __version__
from precision_operator.errors import (
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from precision_operator.kube.access import Access, credentials
from precision_operator.kube.client import KubeClient
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.kube.port import (
    DEPLOYMENTS,
    LEASES,
    MUTATING_POLICIES,
    PODS,
    Cluster,
    Deletion,
    JsonObject,
    JsonValue,
    KubeApi,
    Operation,
    Resource,
)
from precision_operator.kube.transport import Transport
from tests.support.fake_kube import FakeKube

A = "precision.genesis.ai~1generation"


def deployment(name: str, **metadata: JsonValue) -> JsonObject:
    labels: JsonObject = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, **metadata},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}},
        },
    }


def _lease(**metadata: JsonValue) -> JsonObject:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l", **metadata},
        "spec": {"holderIdentity": "a", "leaseDurationSeconds": 6},
    }


@pytest.fixture
async def real(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(Access(control_plane.kubeconfig))
    yield client
    await client.close()


@pytest.fixture(params=["fake", "real"])
def api(request: pytest.FixtureRequest) -> Cluster:
    return FakeKube() if request.param == "fake" else request.getfixturevalue("real")


@pytest.fixture
def space(request: pytest.FixtureRequest, api: KubeApi) -> str:
    return "default" if isinstance(api, FakeKube) else str(request.getfixturevalue("namespace"))


def annotations_of(body: JsonObject) -> object:
    metadata: Any = body["metadata"]
    return metadata.get("annotations")


async def test_objects_are_created_once_read_and_listed_by_label(api: KubeApi, space: str) -> None:
    created: Any = await api.create(DEPLOYMENTS, space, deployment("one", labels={"team": "a"}))
    await api.create(DEPLOYMENTS, space, deployment("two", labels={"team": "b"}))
    with pytest.raises(Conflict):
        await api.create(DEPLOYMENTS, space, deployment("one"))
    read: Any = await api.get(DEPLOYMENTS, space, "one")
    assert read["metadata"]["uid"] == created["metadata"]["uid"]
    listed: Any = await api.list(DEPLOYMENTS, space, label_selector="team=b")
    assert [item["metadata"]["name"] for item in listed] == ["two"]
    assert len(await api.list(DEPLOYMENTS, space)) == 2
    (metadata,) = await api.list_metadata(DEPLOYMENTS, space, label_selector="team=b")
    assert metadata["metadata"]["name"] == "two"  # type: ignore[index, call-overload]
    assert not {"spec", "status"} & metadata.keys()


async def test_what_is_not_there_is_not_found(api: KubeApi, space: str) -> None:
    for call in (
        api.get(DEPLOYMENTS, space, "none"),
        api.merge_patch(DEPLOYMENTS, space, "none", {}),
        api.json_patch(DEPLOYMENTS, space, "none", [Operation("test", "/metadata/uid", "x")]),
        api.log(space, "none", "c", since="2026-01-01T00:00:00Z"),
    ):
        with pytest.raises(NotFound):
            await call


async def test_a_replace_with_an_old_version_conflicts(api: KubeApi, space: str) -> None:
    lease = _lease()
    first: Any = await api.create(LEASES, space, lease)
    first["spec"]["holderIdentity"] = "b"
    second: Any = await api.replace(LEASES, space, "l", first)
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    first["spec"]["holderIdentity"] = "c"
    with pytest.raises(Conflict):
        await api.replace(LEASES, space, "l", first)


async def test_a_merge_patch_with_a_version_is_a_compare_and_swap(api: KubeApi, space: str) -> None:
    lease = _lease(annotations={"a": "1", "b": "1"})
    body: Any = await api.create(LEASES, space, lease)
    version = body["metadata"]["resourceVersion"]
    merged = await api.merge_patch(
        LEASES, space, "l", {"metadata": {"resourceVersion": version, "annotations": {"a": None, "c": "3"}}}
    )
    assert annotations_of(merged) == {"b": "1", "c": "3"}
    with pytest.raises(Conflict):
        await api.merge_patch(LEASES, space, "l", {"metadata": {"resourceVersion": version, "labels": {"x": "y"}}})


async def test_a_status_patch_leaves_the_spec_alone_and_the_other_way_round(api: KubeApi, space: str) -> None:
    await api.create(DEPLOYMENTS, space, deployment("d") | {"spec": {**_spec("d"), "paused": True}})
    both: JsonObject = {"spec": {"minReadySeconds": 7}, "status": {"observedGeneration": 77}}
    status: Any = await api.merge_patch(DEPLOYMENTS, space, "d", both, subresource="status")
    assert status["status"]["observedGeneration"] == 77
    assert "minReadySeconds" not in status["spec"]
    spec: Any = await api.merge_patch(
        DEPLOYMENTS, space, "d", {"spec": {"minReadySeconds": 7}, "status": {"observedGeneration": 5}}
    )
    assert spec["spec"]["minReadySeconds"] == 7
    assert spec["status"]["observedGeneration"] != 5


def _spec(name: str) -> dict[str, Any]:
    spec: Any = deployment(name)["spec"]
    return dict(spec)


async def test_a_json_patch_whose_test_fails_writes_nothing(api: KubeApi, space: str) -> None:
    before = await api.create(DEPLOYMENTS, space, deployment("d", annotations={"precision.genesis.ai/generation": "3"}))
    assert before
    for wrong in (
        Operation("test", "/metadata/uid", "other"),
        Operation("test", f"/metadata/annotations/{A}", "2"),
        Operation("test", f"/metadata/annotations/{A}", None),
        Operation("test", f"/metadata/annotations/{A}", ""),
        Operation("test", "/spec/replicas", 4),
        Operation("test", "/metadata/annotations", None),
        Operation("test", "/spec/paused", True),
        Operation("test", "/spec/template/spec/containers/0/name", "x"),
        Operation("test", "/spec/template/spec/containers/0/env/0/name", "x"),
        Operation("test", "/spec/template/spec/containers/5/name", "x"),
        Operation("test", "/spec/template/metadata/annotations/x", None),
    ):
        with pytest.raises(PreconditionFailed):
            await api.json_patch(DEPLOYMENTS, space, "d", [wrong, Operation("add", f"/metadata/annotations/{A}", "9")])
    found: Any = annotations_of(await api.get(DEPLOYMENTS, space, "d"))
    assert found["precision.genesis.ai/generation"] == "3"


async def test_null_is_what_is_absent(api: KubeApi, space: str) -> None:
    await api.create(DEPLOYMENTS, space, deployment("d"))
    await api.json_patch(
        DEPLOYMENTS,
        space,
        "d",
        [
            Operation("test", "/spec/paused", None),
            Operation("test", "/spec/template/metadata/annotations", None),
            Operation("add", "/spec/template/metadata/annotations", {}),
            Operation("test", f"/spec/template/metadata/annotations/{A}", None),
            Operation("add", f"/spec/template/metadata/annotations/{A}", "1"),
        ],
    )
    patched: Any = await api.get(DEPLOYMENTS, space, "d")
    assert patched["spec"]["template"]["metadata"]["annotations"] == {"precision.genesis.ai/generation": "1"}


async def test_adding_into_a_map_or_removing_what_is_not_there_is_refused(api: KubeApi, space: str) -> None:
    await api.create(DEPLOYMENTS, space, deployment("d", annotations={"a": "1"}))
    for wrong in (
        Operation("add", "/spec/template/metadata/annotations/x", "1"),
        Operation("remove", "/metadata/annotations/none"),
        Operation("replace", "/spec/template/spec/containers/4", {"name": "x"}),
    ):
        with pytest.raises(PreconditionFailed):
            await api.json_patch(DEPLOYMENTS, space, "d", [wrong])


async def test_a_deletion_takes_only_the_object_that_is_meant(api: KubeApi, space: str) -> None:
    first: Any = await api.create(LEASES, space, _lease())
    uid = first["metadata"]["uid"]
    with pytest.raises(Conflict):
        await api.delete(LEASES, space, "l", Deletion(uid=str(uuid.uuid4())))
    await api.delete(LEASES, space, "l", Deletion(uid=uid, dry_run=True))
    assert await api.get(LEASES, space, "l") == first
    await api.delete(LEASES, space, "l", Deletion(uid=uid))
    for call in (api.get(LEASES, space, "l"), api.delete(LEASES, space, "l", Deletion(uid=uid))):
        with pytest.raises(NotFound):
            await call
    second: Any = await api.create(LEASES, space, _lease())
    assert second["metadata"]["uid"] != uid
    with pytest.raises(Conflict):
        await api.delete(LEASES, space, "l", Deletion(uid=uid))
    assert await api.get(LEASES, space, "l") == second
    await api.delete(LEASES, space, "l")


async def test_an_eviction_takes_only_the_pod_that_is_meant(api: KubeApi, space: str) -> None:
    spec: JsonObject = {"nodeSelector": {"no": "node"}, "containers": [{"name": "c", "image": "none"}]}
    pod: JsonObject = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    created: Any = await api.create(PODS, space, pod)
    uid = created["metadata"]["uid"]
    with pytest.raises(Conflict):
        await api.evict(space, "p", Deletion(uid=str(uuid.uuid4())))
    await api.evict(space, "p", Deletion(uid=uid, dry_run=True))
    found: Any = await api.get(PODS, space, "p")
    assert found["metadata"]["uid"] == uid
    await api.evict(space, "p", Deletion(uid=uid))
    for call in (api.get(PODS, space, "p"), api.evict(space, "p", Deletion(uid=uid))):
        with pytest.raises(NotFound):
            await call


async def test_a_deletion_can_ask_for_the_version_that_was_read(api: KubeApi, space: str) -> None:
    first: Any = await api.create(LEASES, space, _lease())
    version = first["metadata"]["resourceVersion"]
    await api.merge_patch(LEASES, space, "l", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        await api.delete(LEASES, space, "l", Deletion(resource_version=version))
    second: Any = await api.get(LEASES, space, "l")
    await api.delete(LEASES, space, "l", Deletion(resource_version=second["metadata"]["resourceVersion"]))


async def test_a_dry_run_answers_what_a_patch_would_make_and_writes_nothing(api: KubeApi, space: str) -> None:
    before: Any = await api.create(LEASES, space, _lease(annotations={"a": "1", "b": "1"}))
    answer = await api.dry_run(LEASES, space, "l", {"metadata": {"annotations": {"a": None, "c": "3"}}})
    assert annotations_of(answer) == {"b": "1", "c": "3"}
    assert await api.get(LEASES, space, "l") == before
    with pytest.raises(NotFound):
        await api.dry_run(LEASES, space, "none", {})


async def test_lists_grow_change_and_shrink_by_index(api: KubeApi, space: str) -> None:
    await api.create(DEPLOYMENTS, space, deployment("d"))
    base = "/spec/template/spec/containers/0/env"
    await api.json_patch(
        DEPLOYMENTS,
        space,
        "d",
        [
            Operation("add", base, []),
            Operation("add", f"{base}/-", {"name": "A", "value": "1"}),
            Operation("add", f"{base}/-", {"name": "B", "value": "2"}),
        ],
    )
    await api.json_patch(
        DEPLOYMENTS, space, "d", [Operation("add", f"{base}/1/value", "3"), Operation("remove", f"{base}/0")]
    )
    body: Any = await api.get(DEPLOYMENTS, space, "d")
    assert body["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "B", "value": "3"}]
    await api.json_patch(
        DEPLOYMENTS, space, "d", [Operation("remove", f"{base}/0"), Operation("add", "/spec/paused", False)]
    )
    emptied: Any = await api.get(DEPLOYMENTS, space, "d")
    assert "env" not in emptied["spec"]["template"]["spec"]["containers"][0]
    assert "paused" not in emptied["spec"]


async def test_the_same_event_said_again_is_counted_and_found_by_what_it_is_about(api: Cluster, space: str) -> None:
    recorder = EventRecorder(api, identity="test-0")
    ref, other = (PolicyRef(space, name, str(uuid.uuid4())) for name in ("policy", "other"))
    await recorder.emit(other, "Promoted", "step 1")
    for _ in range(3):
        await recorder.emit(ref, "RolledBack", "6 workloads are back on FP32", warning=True)
    await recorder.emit(ref, "Promoted", "step 1")
    events: Any = await api.events_of(space, ref.uid)
    assert sorted((e["reason"], e["type"], e["count"]) for e in events) == [
        ("Promoted", "Normal", 1),
        ("RolledBack", "Warning", 3),
    ]


# What only the real one can show.


async def test_a_schema_violation_is_not_taken_for_a_failed_test(real: KubeClient, namespace: str) -> None:
    await real.create(DEPLOYMENTS, namespace, deployment("d"))
    with pytest.raises(KubeError) as caught:
        await real.json_patch(DEPLOYMENTS, namespace, "d", [Operation("add", "/spec/replicas", -1)])
    assert (type(caught.value), caught.value.status) == (KubeError, 422)


async def test_a_grace_is_handed_on(real: KubeClient, namespace: str) -> None:
    """A pod on a node ends only when its kubelet says so; there is none here."""
    spec: JsonObject = {"nodeName": "nowhere", "containers": [{"name": "c", "image": "none"}]}
    pod: JsonObject = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    await real.create(PODS, namespace, pod)
    await real.delete(PODS, namespace, "p", Deletion(grace_seconds=7))
    found: Any = await real.get(PODS, namespace, "p")
    assert found["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_a_dry_run_asks_the_server_that_is_named(
    real: KubeClient, control_plane: ControlPlane, namespace: str
) -> None:
    await real.create(LEASES, namespace, _lease())
    patch: JsonObject = {"metadata": {"annotations": {"a": "1"}}}
    answer = await real.dry_run(LEASES, namespace, "l", patch, server=control_plane.server)
    assert annotations_of(answer) == {"a": "1"}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"https://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(Unavailable):
        await real.dry_run(LEASES, namespace, "l", patch, server=nobody)


async def test_a_missing_verb_is_forbidden_and_requests_are_counted(
    control_plane: ControlPlane, namespace: str
) -> None:
    seen: list[tuple[str, str, str]] = []
    client = await KubeClient.connect(
        Access(control_plane.user_kubeconfig(f"nobody-{namespace}")), on_request=lambda *what: seen.append(what)
    )
    try:
        with pytest.raises(Forbidden):
            await client.list(PODS, namespace)
    finally:
        await client.close()
    assert seen == [("list", "pods", "Forbidden")]


async def test_the_server_sees_who_we_are(real: KubeClient, control_plane: ControlPlane, namespace: str) -> None:
    await real.create(DEPLOYMENTS, namespace, deployment("who"))
    assert f'"userAgent":"precision-operator/{__version__}"' in control_plane.audit_log.read_text()


async def test_a_rotated_token_is_used(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    """In-cluster loading reads the token file again; here with the period it has cut short."""
    token = tmp_path / "token"
    token.write_text("not a token")
    ca = (await credentials(Access(control_plane.kubeconfig))).ca_file
    host, port = control_plane.server.removeprefix("https://").split(":")
    configuration = Configuration()
    loader: Any = InClusterConfigLoader(
        str(token), ca, environ={"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    )
    loader._token_refresh_period *= 0
    loader.load_and_set(configuration)
    client = KubeClient(Transport(configuration))
    try:
        with pytest.raises(KubeError) as caught:
            await client.list(PODS, namespace)
        assert caught.value.status == 401
        token.write_text(control_plane.service_account_token(namespace, "default"))
        with pytest.raises(Forbidden):
            await client.list(PODS, namespace)
    finally:
        await client.close()


async def test_what_an_api_server_serves_is_known_by_kind_and_version(real: KubeClient) -> None:
    assert await real.serves(MUTATING_POLICIES)
    assert await real.serves(PODS)
    assert not await real.serves(Resource("admissionregistration.k8s.io", "v1", "somebodyelses"))
    assert not await real.serves(Resource("admissionregistration.k8s.io", "v9", "mutatingadmissionpolicies"))
    assert not await real.serves(Resource("nobody.example.com", "v1", "things"))


async def test_a_change_of_one_object_is_waited_for(api: FakeKube | KubeClient, space: str) -> None:
    async def of(since: str, seconds: float = 1.0) -> bool:
        return await api.changed(LEASES, space, "one", since=since, seconds=seconds)

    created: Any = await api.create(LEASES, space, _lease(name="one"))
    version = created["metadata"]["resourceVersion"]
    assert await of("")
    await api.create(LEASES, space, _lease(name="other"))
    assert not await of(version)
    waiting = asyncio.create_task(of(version, 30.0))
    await api.merge_patch(LEASES, space, "one", {"metadata": {"labels": {"a": "b"}}})
    assert await waiting
    newest: Any = await api.get(LEASES, space, "one")
    waiting = asyncio.create_task(of(newest["metadata"]["resourceVersion"], 30.0))
    await api.delete(LEASES, space, "one")
    assert await waiting
