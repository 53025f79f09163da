"""The comparison of the installed admission policies with the shipped ones, on what a real API server stores."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lab.cluster import Kubectl
from precision_operator.admission.objects import shipped
from precision_operator.controller.installed import InstalledPolicies
from precision_operator.core.model import Admission
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.runtime.clock import SystemClock

ASSIGN = next(ours for ours in shipped() if ours.kind == "MutatingAdmissionPolicy" and "assign" in ours.name)
NEVER = [{"name": "never", "expression": "false"}]


@asynccontextmanager
async def reading(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(Access(kubeconfig))
    try:
        yield client
    finally:
        await client.close()


async def compared(kubeconfig: Path) -> Admission | None:
    """By the operator, with the rights that it has."""
    async with reading(kubeconfig) as client:
        return await InstalledPolicies(client, SystemClock(), namespace="precision-system").differs()


async def test_what_the_api_server_stores_is_what_is_shipped(operator_kubeconfig: Path) -> None:
    assert await compared(operator_kubeconfig) is None


async def test_a_condition_that_somebody_added_is_found(kubectl: Kubectl, operator_kubeconfig: Path) -> None:
    before = kubectl.json("get", "mutatingadmissionpolicy", ASSIGN.name)["spec"]
    weakened = {**before, "matchConditions": [*before.get("matchConditions", []), *NEVER]}
    try:
        kubectl("patch", "mutatingadmissionpolicy", ASSIGN.name, "--type=merge", "-p", json.dumps({"spec": weakened}))
        found = await compared(operator_kubeconfig)
    finally:
        restored = {"matchConditions": None, **before}
        kubectl("patch", "mutatingadmissionpolicy", ASSIGN.name, "--type=merge", "-p", json.dumps({"spec": restored}))
    assert found is not None
    assert (found.enforced, found.reason) == (False, "AdmissionDiffers")
    assert "spec.matchConditions" in found.message
    assert await compared(operator_kubeconfig) is None
