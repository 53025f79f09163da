"""What the Deployment adapter writes, on a real API server with a real Deployment controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from lab.cluster import ControlPlane
from precision_operator.api.modes import Mode
from precision_operator.contract import ENABLE, GENERATION, LATCH, MODE, ORIGINAL, REQUEST, SETTLE
from precision_operator.core.actions import Latch, RequestPod, Restore, Settle, SettleStage, WriteTemplate
from precision_operator.core.model import SettleIntent, WorkloadView
from precision_operator.errors import PreconditionFailed
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import DEPLOYMENTS, PODS, REPLICASETS, JsonObject, JsonValue, Operation, Resource
from precision_operator.kube.workloads.deployment import DeploymentAdapter
from precision_operator.kube.workloads.port import DeploymentView

T = TypeVar("T")
ADAPTER = DeploymentAdapter()
ENABLE_FIELD = {"fieldRef": {"fieldPath": f"metadata.annotations['{ENABLE}']"}}
HOT: dict[str, Any] = {
    "containers": [
        {
            "name": "trainer",
            "image": "none",
            "env": [{"name": "ENABLE_FP16_TRAINING", "valueFrom": ENABLE_FIELD}],
            "volumeMounts": [{"name": "precision", "mountPath": "/etc/precision"}],
        }
    ],
    "volumes": [
        {
            "name": "precision",
            "downwardAPI": {
                "items": [{"path": "request", "fieldRef": {"fieldPath": f"metadata.annotations['{REQUEST}']"}}]
            },
        }
    ],
}


def pod_of(*env: dict[str, Any], **more: object) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "trainer", "image": "none", **more}
    return {"containers": [{**container, "env": list(env)} if env else container]}


LITERAL_ENV = {"name": "ENABLE_FP16_TRAINING", "value": "false"}
OTHER_ENV = {"name": "OTHER", "value": "x"}


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(Access(control_plane.kubeconfig))
    yield client
    await client.close()


async def until(probe: Callable[[], Awaitable[T]], holds: Callable[[T], bool]) -> T:
    async with asyncio.timeout(60):
        while not holds(found := await probe()):  # noqa: ASYNC110 - the condition is the API server's
            await asyncio.sleep(0.05)
    return found


async def make(
    api: KubeClient, namespace: str, name: str, spec: dict[str, Any], *, replicas: int = 1, **template: JsonValue
) -> DeploymentView:
    await api.create(
        DEPLOYMENTS,
        namespace,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": {"app": name}, **template}, "spec": spec},
            },
        },
    )
    return await until(lambda: look(api, namespace, name), lambda view: view.rolled_out)


async def look(api: KubeClient, namespace: str, name: str) -> DeploymentView:
    """The view, its pods included, as the inventory would give it."""
    view = ADAPTER.workload(await api.get(DEPLOYMENTS, namespace, name)).view
    assert isinstance(view, DeploymentView)
    pods = [ADAPTER.pod(body) for body in await api.list(PODS, namespace, label_selector=f"app={name}")]
    return replace(view, pods=tuple(pod.view for pod in pods if not pod.finished))


async def template_of(api: KubeClient, namespace: str, name: str) -> dict[str, Any]:
    body: Any = await api.get(DEPLOYMENTS, namespace, name)
    return dict(body["spec"]["template"])


async def replicasets(api: KubeClient, namespace: str, name: str) -> list[Any]:
    return list(await api.list(REPLICASETS, namespace, label_selector=f"app={name}"))


async def flip_and_settle(api: KubeClient, namespace: str, name: str, mode: Mode, generation: int) -> int:
    """The whole way as the reconciler goes it; the number of writes."""
    view = await look(api, namespace, name)
    writes = 0
    for pod in view.pods:
        writes += await ADAPTER.apply(api, RequestPod(view, pod, mode, generation))
    writes += await ADAPTER.apply(api, Settle(view, SettleStage.PAUSE, mode, generation, Mode.FP32))
    view = await until(lambda: look(api, namespace, name), lambda v: v.observed)
    assert view.settle == SettleIntent(generation, mode, was_paused=False)
    writes += await ADAPTER.apply(api, Settle(view, SettleStage.REPLICASET, mode, generation, Mode.FP32))
    view = await until(lambda: look(api, namespace, name), lambda v: v.updated_replicas == 0)
    writes += await ADAPTER.apply(api, Settle(view, SettleStage.RESUME, mode, generation, Mode.FP32))
    view = await until(lambda: look(api, namespace, name), lambda v: v.rolled_out)
    assert (view.paused, view.settle, view.latch, view.template_mode) == (False, None, Mode.FP32, mode)
    return writes


async def test_twenty_settles_at_once_make_no_new_replicaset_and_keep_the_pods(api: KubeClient, namespace: str) -> None:
    names = [f"train-{index}" for index in range(20)]
    inner = {ENABLE: "true", MODE: "fp16"}
    before = {
        view.name: {pod.uid for pod in view.pods}
        for view in await asyncio.gather(
            *(make(api, namespace, name, HOT, replicas=2, annotations=inner) for name in names)
        )
    }
    writes = await asyncio.gather(*(flip_and_settle(api, namespace, name, Mode.FP32, 7) for name in names))
    assert set(writes) == {2 + 3}
    for name in names:
        view = await look(api, namespace, name)
        assert {pod.uid for pod in view.pods} == before[name]
        assert all(pod.effective_mode is Mode.FP32 for pod in view.pods)
        assert len(await replicasets(api, namespace, name)) == 1
    # A pod made from now on starts in the settled mode.
    await api.merge_patch(DEPLOYMENTS, namespace, names[0], {"spec": {"replicas": 3}})
    view = await until(lambda: look(api, namespace, names[0]), lambda v: v.rolled_out and len(v.pods) == 3)
    assert {pod.effective_mode for pod in view.pods} == {Mode.FP32}
    assert len(await replicasets(api, namespace, names[0])) == 1


async def test_a_latch_is_one_write_that_leaves_template_and_pods_alone(api: KubeClient, namespace: str) -> None:
    view = await make(api, namespace, "d", HOT)
    before = await template_of(api, namespace, "d")
    assert await ADAPTER.apply(api, Latch(view, Mode.FP32, 5))
    after = await look(api, namespace, "d")
    assert (after.latch, after.generation_raw, after.has_original) == (Mode.FP32, "5", True)
    assert await template_of(api, namespace, "d") == before
    assert {pod.uid for pod in after.pods} == {pod.uid for pod in view.pods}
    assert len(await replicasets(api, namespace, "d")) == 1
    assert not await ADAPTER.apply(api, Latch(after, Mode.FP32, 5))


async def test_a_settle_leaves_a_deployment_paused_whose_owner_paused_it(api: KubeClient, namespace: str) -> None:
    await make(api, namespace, "d", HOT)
    await api.merge_patch(DEPLOYMENTS, namespace, "d", {"spec": {"paused": True}})
    view = await until(lambda: look(api, namespace, "d"), lambda v: v.paused and v.observed)
    for stage in SettleStage:
        await ADAPTER.apply(api, Settle(view, stage, Mode.FP32, 1, None))
        view = await until(lambda: look(api, namespace, "d"), lambda v: v.observed)
    assert (view.paused, view.settle, view.template_mode) == (True, None, Mode.FP32)


async def test_an_older_generation_and_an_older_reading_write_nothing(api: KubeClient, namespace: str) -> None:
    old = await make(api, namespace, "d", HOT)
    newer = WriteTemplate(old, Mode.FP32, 9, Mode.FP32)
    assert await ADAPTER.apply(api, newer)
    after = await api.get(DEPLOYMENTS, namespace, "d")
    fresh = await look(api, namespace, "d")
    for action in (
        newer,
        WriteTemplate(old, Mode.FP16, 8, None),
        WriteTemplate(fresh, Mode.FP16, 8, None),
        Settle(old, SettleStage.PAUSE, Mode.FP16, 8, None),
        Settle(fresh, SettleStage.RESUME, Mode.FP16, 9, None),
        WriteTemplate(replace(fresh, uid="another"), Mode.FP16, 10, None),
    ):
        with pytest.raises(PreconditionFailed):
            await ADAPTER.apply(api, action)
    now = await api.get(DEPLOYMENTS, namespace, "d")
    assert (now["spec"], _ours(now)) == (after["spec"], _ours(after))


def _ours(body: JsonObject) -> dict[str, str]:
    metadata: Any = body["metadata"]
    kept = {GENERATION, ORIGINAL, LATCH, SETTLE}
    return {key: value for key, value in metadata.get("annotations", {}).items() if key in kept}


async def test_an_older_request_does_not_reach_a_pod(api: KubeClient, namespace: str) -> None:
    view = await make(api, namespace, "d", HOT)
    assert await ADAPTER.apply(api, RequestPod(view, view.pods[0], Mode.FP32, 5))
    fresh = await look(api, namespace, "d")
    for pod, generation in ((view.pods[0], 6), (fresh.pods[0], 4)):
        with pytest.raises(PreconditionFailed):
            await ADAPTER.apply(api, RequestPod(view, pod, Mode.FP16, generation))
    assert not await ADAPTER.apply(api, RequestPod(fresh, fresh.pods[0], Mode.FP32, 5))
    assert (await look(api, namespace, "d")).pods[0].effective_mode is Mode.FP32


async def test_a_storm_of_status_writes_does_not_conflict(api: KubeClient, namespace: str) -> None:
    view = await make(api, namespace, "d", HOT)
    stop = asyncio.Event()

    async def storm(resource: Resource, name: str) -> int:
        written = 0
        while not stop.is_set():
            status = {"conditions": [{"type": "Storm", "status": "True", "message": f"{resource.plural} {written}"}]}
            await api.merge_patch(resource, namespace, name, {"status": status}, subresource="status")
            written += 1
        return written

    storms = [asyncio.create_task(storm(PODS, view.pods[0].name)), asyncio.create_task(storm(DEPLOYMENTS, "d"))]
    for generation in range(1, 21):
        view = await look(api, namespace, "d")
        assert await ADAPTER.apply(api, RequestPod(view, view.pods[0], Mode.FP32, generation))
    for generation in range(21, 31):
        view = await look(api, namespace, "d")
        assert await ADAPTER.apply(api, Settle(view, SettleStage.PAUSE, Mode.FP32, generation, None))
    stop.set()
    assert all(written > 10 for written in await asyncio.gather(*storms))


TEMPLATES = {
    "hot": (HOT, {}),
    "hot with values": (HOT, {"annotations": {ENABLE: "true", MODE: "bf16", "team": "a"}}),
    "literal": (pod_of(OTHER_ENV, LITERAL_ENV, {"name": "LAST", "value": "z"}), {}),
    "literal with a mode": (pod_of(LITERAL_ENV, {"name": "PRECISION_MODE", "value": "bf16"}), {}),
    "empty literal": (pod_of({"name": "ENABLE_FP16_TRAINING"}), {}),
    "named twice": (pod_of(LITERAL_ENV, OTHER_ENV, {"name": "ENABLE_FP16_TRAINING", "value": "true"}), {}),
    "from a ConfigMap": (
        pod_of({"name": "ENABLE_FP16_TRAINING", "valueFrom": {"configMapKeyRef": {"name": "flags", "key": "fp16"}}}),
        {},
    ),
    "envFrom": (pod_of(envFrom=[{"configMapRef": {"name": "flags"}}]), {}),
    "envFrom and env": (pod_of(OTHER_ENV, envFrom=[{"configMapRef": {"name": "flags"}}]), {}),
    "annotations read by env only": (pod_of({"name": "ENABLE_FP16_TRAINING", "valueFrom": ENABLE_FIELD}), {}),
    "init container": (
        {**pod_of(LITERAL_ENV), "initContainers": [{"name": "init", "image": "none", "env": [OTHER_ENV, LITERAL_ENV]}]},
        {},
    ),
}


@pytest.mark.parametrize("case", TEMPLATES)
async def test_a_restore_gives_the_template_back(api: KubeClient, namespace: str, case: str) -> None:
    spec, template = TEMPLATES[case]
    await make(api, namespace, "d", spec, replicas=0, **template)
    before = await template_of(api, namespace, "d")
    generation = 0
    for mode in (Mode.FP32, Mode.BF16, Mode.FP16, Mode.FP32, Mode.FP16):
        generation += 1
        view = await look(api, namespace, "d")
        assert await ADAPTER.apply(api, WriteTemplate(view, mode, generation, Mode.FP32))
        now = await look(api, namespace, "d")
        assert now.template_mode is mode
        assert now.latch is Mode.FP32
    view = await look(api, namespace, "d")
    assert await ADAPTER.apply(api, Restore(view))
    assert await template_of(api, namespace, "d") == before
    assert _ours(await api.get(DEPLOYMENTS, namespace, "d")) == {GENERATION: str(generation)}
    assert not await ADAPTER.apply(api, Restore(view)), "acting twice changes nothing"


async def test_a_restore_in_the_middle_of_a_settle_ends_the_pause(api: KubeClient, namespace: str) -> None:
    view = await make(api, namespace, "d", HOT)
    before = await template_of(api, namespace, "d")
    await ADAPTER.apply(api, Settle(view, SettleStage.PAUSE, Mode.FP32, 1, None))
    await ADAPTER.apply(api, Restore(await look(api, namespace, "d")))
    after = await look(api, namespace, "d")
    assert (after.paused, after.settle) == (False, None)
    assert await template_of(api, namespace, "d") == before


async def test_what_others_changed_is_left_to_them(api: KubeClient, namespace: str) -> None:
    view = await make(api, namespace, "d", pod_of(LITERAL_ENV), replicas=0)
    await ADAPTER.apply(api, WriteTemplate(view, Mode.FP16, 1, None))
    env = "/spec/template/spec/containers/0/env"
    await api.json_patch(DEPLOYMENTS, namespace, "d", [Operation("add", f"{env}/0", {"name": "NEW", "value": "1"})])
    await ADAPTER.apply(api, Restore(await look(api, namespace, "d")))
    found = await template_of(api, namespace, "d")
    assert found["spec"]["containers"][0]["env"] == [{"name": "NEW", "value": "1"}, LITERAL_ENV]


async def test_a_plain_view_is_enough_to_write(api: KubeClient, namespace: str) -> None:
    """Actions that come from a recording carry no template."""
    view = await make(api, namespace, "d", pod_of(LITERAL_ENV), replicas=0)
    plain = WorkloadView(namespace=namespace, name="d", uid=view.uid, literal=True)
    assert await ADAPTER.apply(api, WriteTemplate(plain, Mode.FP16, 1, None))
    assert (await look(api, namespace, "d")).template_mode is Mode.FP16
    with pytest.raises(PreconditionFailed):
        await ADAPTER.apply(api, WriteTemplate(plain, Mode.FP32, 2, None))
