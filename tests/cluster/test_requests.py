"""Requests and deletions of pods on a real API server: only the pod that was decided on is written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import ControlPlane
from precision_operator.api.modes import Mode
from precision_operator.contract import ENABLE, MODE, REQUEST
from precision_operator.core.actions import RequestPod, Tuning
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.errors import Conflict, Forbidden, PreconditionFailed
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import PODS, Deletion, JsonObject
from precision_operator.workloads.reading import read_pod
from precision_operator.workloads.requests import request_pod


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(Access(control_plane.kubeconfig))
    yield client
    await client.close()


@pytest.fixture
async def operator(operator_kubeconfig: Path) -> AsyncIterator[KubeClient]:
    """With the installed operator's rights and fence."""
    client = await KubeClient.connect(Access(operator_kubeconfig))
    yield client
    await client.close()


async def make(admin: KubeClient, namespace: str, **annotations: str) -> PodView:
    """A pod, as the operator reads it."""
    metadata: JsonObject = {"name": "p"}
    if annotations:
        metadata["annotations"] = {**annotations}
    containers: JsonObject = {"containers": [{"name": "c", "image": "none"}]}
    body: JsonObject = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": containers}
    return read_pod(await admin.create(PODS, namespace, body)).view


async def look(client: KubeClient, namespace: str) -> tuple[PodView, dict[str, Any], str]:
    """The pod now, its annotations, and its version."""
    body: Any = await client.get(PODS, namespace, "p")
    metadata = body["metadata"]
    return read_pod(body).view, metadata.get("annotations", {}), metadata["resourceVersion"]


async def send(client: KubeClient, namespace: str, pod: PodView, mode: Mode, generation: int, **more: Any) -> None:  # noqa: ANN401 - fields of an action
    workload = WorkloadView(namespace, "apps/Deployment/w", "uid-w", pods=(pod,))
    await client.json_patch(PODS, namespace, pod.name, request_pod(RequestPod(workload, pod, mode, generation, **more)))


@pytest.mark.parametrize("annotations", [{}, {"team": "a"}], ids=["none", "others"])
async def test_a_request_is_added_to_what_a_pod_carries_and_replaced_by_a_later_one(
    operator: KubeClient, admin: KubeClient, namespace: str, annotations: dict[str, str]
) -> None:
    pod = await make(admin, namespace, **annotations)
    await send(operator, namespace, pod, Mode.BF16, 7, tuning=Tuning(loss_scale_factor=0.5))
    asked, found, _ = await look(operator, namespace)
    assert json.loads(found.pop(REQUEST)) == {"generation": 7, "mode": "bf16", "lossScaleFactor": 0.5}
    assert found == {**annotations, ENABLE: "true", MODE: "bf16"}
    await send(operator, namespace, asked, Mode.FP32, 8, rewind=True)
    _, found, _ = await look(operator, namespace)
    assert json.loads(found.pop(REQUEST)) == {"generation": 8, "mode": "fp32", "rewind": True}
    assert found == {**annotations, ENABLE: "false", MODE: "fp32"}


async def test_a_pod_that_is_not_what_was_decided_on_is_not_written(
    operator: KubeClient, admin: KubeClient, namespace: str
) -> None:
    pod = await make(admin, namespace)
    await send(operator, namespace, pod, Mode.FP32, 5)
    asked, _, version = await look(operator, namespace)
    another = replace(asked, uid="another")
    behind = replace(asked, request_raw=None, request=None)
    for outdated in (pod, another, behind):
        with pytest.raises(PreconditionFailed):
            await send(operator, namespace, outdated, Mode.FP16, 6)
    with pytest.raises(PreconditionFailed, match="carries generation 5, newer than 4"):
        await send(operator, namespace, asked, Mode.FP16, 4)
    assert (await look(operator, namespace))[2] == version


async def test_the_same_request_is_no_write(admin: KubeClient, namespace: str) -> None:
    pod = await make(admin, namespace)
    await send(admin, namespace, pod, Mode.FP32, 5)
    asked, _, _ = await look(admin, namespace)
    workload = WorkloadView(namespace, "apps/Deployment/w", "uid-w", pods=(asked,))
    assert request_pod(RequestPod(workload, asked, Mode.FP32, 5)) == []


async def test_the_operator_takes_away_only_the_pod_that_it_names_by_uid(
    operator: KubeClient, admin: KubeClient, namespace: str
) -> None:
    pod = await make(admin, namespace)
    with pytest.raises(Forbidden, match="only with its uid"):
        await operator.delete(PODS, namespace, "p")
    with pytest.raises(Conflict):
        await operator.delete(PODS, namespace, "p", Deletion(uid="another"))
    assert (await look(operator, namespace))[0].uid == pod.uid
    await operator.delete(PODS, namespace, "p", Deletion(uid=pod.uid))
    assert await admin.list(PODS, namespace) == []
