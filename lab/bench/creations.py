"""How many pods a second the API server creates: without the product, governed by an assignment, and beside one."""

from __future__ import annotations

import json
import time

from lab.bench.api import Api, Json
from lab.bench.fleet import LABELS, deployment, pod_of
from lab.cluster import ControlPlane
from lab.cluster.manifests import AS_OPERATOR, apply_product
from lab.progress import step

PODS = 400
GOVERNED, UNGOVERNED = "bench-governed", "bench-ungoverned"
_OWNER = {"metadata": {"name": "trainer-bench", "uid": "none"}}


async def measure(plane: ControlPlane, api: Api) -> Json:
    """Before the product is installed, then with it; each the better of two runs."""
    for name in (GOVERNED, UNGOVERNED):
        plane.kubectl("create", "namespace", name)
        plane.kubectl.wait_for_namespace(name)
    with step(f"{PODS} pods without the product"):
        plain = await _rate(api, UNGOVERNED)
    with step("the product's CRDs and admission policies"):
        apply_product(plane.kubectl)
    document = {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionAssignment",
        "metadata": {"name": "fleet", "namespace": GOVERNED},
        "selector": {"matchLabels": LABELS},
        "generation": 1,
        "default": "fp32",
        "modes": {f"apps/Deployment/other-{i}": "fp16" for i in range(1000)},
        "enforce": True,
    }
    plane.kubectl("create", "-f", "-", *AS_OPERATOR, input=json.dumps(document))
    with step(f"{PODS} governed pods"):
        governed = await _rate(api, GOVERNED)
    with step(f"{PODS} pods in a namespace without an assignment"):
        beside = await _rate(api, UNGOVERNED)
    return {"plain": round(plain), "governed": round(governed), "ungoverned_namespace": round(beside)}


async def _rate(api: Api, namespace: str) -> float:
    best = 0.0
    for _ in range(2):
        path = f"/api/v1/namespaces/{namespace}/pods"
        pods = [_pod(i) for i in range(PODS)]
        began = time.monotonic()
        await api.create(path, pods)
        best = max(best, PODS / (time.monotonic() - began))
        await api.delete(f"{path}?gracePeriodSeconds=0")
    return best


def _pod(number: int) -> Json:
    template = deployment("trainer", replicas=1)["spec"]["template"]
    owner = {**_OWNER, "spec": {"template": {**template, "metadata": {**template["metadata"]}}}}
    pod = pod_of(owner)
    pod["metadata"]["name"] = f"trainer-{number:04d}"
    pod["metadata"]["labels"]["pod-template-hash"] = "bench"
    return pod
