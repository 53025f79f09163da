"""The echo, as the operator asks for it: of the pods that are created after it, none has an old mode."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import ControlPlane
from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.modes import Mode
from precision_operator.api.policy import PolicyKey
from precision_operator.api.selector import Selector
from precision_operator.api.state import State
from precision_operator.contract import ADMITTED, MODE, WORKLOAD
from precision_operator.controller import echo
from precision_operator.controller.echo import Echoes
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import ASSIGNMENTS, PODS, POLICIES, JsonObject
from precision_operator.runtime.clock import SystemClock
from tests.support.cluster_fleet import LABELS, policy

ROUNDS = 15
PODS_A_ROUND = 6
LISTED = "listed"
"""A workload that the assignment names; the others have its default."""


@pytest.fixture
async def operator(operator_kubeconfig: Path) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(Access(operator_kubeconfig))
    yield client
    await client.close()


@pytest.fixture
async def admin(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(Access(control_plane.kubeconfig))
    yield client
    await client.close()


def pod(*, listed: bool) -> JsonObject:
    """With a literal switch, that says FP16."""
    labels: JsonObject = {**LABELS, **({WORKLOAD: LISTED} if listed else {})}
    env: JsonObject = {"name": "ENABLE_FP16_TRAINING", "value": "true"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p-{uuid.uuid4().hex[:10]}", "labels": labels},
        "spec": {"containers": [{"name": "trainer", "image": "none", "env": [env]}]},
    }


def assignment(generation: int, *, default: Mode, listed: Mode, others: int) -> JsonObject:
    """With so many other workloads in it, of names of 60 characters."""
    modes = {f"apps/Deployment/{index:060d}": listed for index in range(others)}
    state = State(
        selector=Selector(match_labels=tuple(LABELS.items())),
        generation=generation,
        fallback=default,
        modes={**modes, f"label/{LISTED}": listed},
        enforce=True,
    )
    wire: Any = assignment_to_wire(state)
    kind = {"apiVersion": "precision.genesis.ai/v1alpha1", "kind": "PrecisionAssignment"}
    return {**kind, "metadata": {"name": "fleet"}, **wire}


@pytest.mark.parametrize("others", [0, 1000, 5000])
async def test_no_pod_that_is_created_after_the_echo_has_an_old_mode(
    operator: KubeClient,
    admin: KubeClient,
    namespace: str,
    others: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right after the write, before the echo, some may. A busy machine is waited for: an echo comes, or the test fails."""
    monkeypatch.setattr(echo, "PATIENCE_SECONDS", 60.0)
    body: Any = policy(suspend=True)
    await admin.create(POLICIES, namespace, body)
    echoes, key = Echoes(operator, SystemClock()), PolicyKey(namespace, "fleet")
    modes = (Mode.FP32, Mode.FP16)
    await operator.create(ASSIGNMENTS, namespace, assignment(1, default=modes[1], listed=modes[0], others=others))
    for generation in range(2, ROUNDS + 2):
        default, listed = modes[generation % 2], modes[1 - generation % 2]
        found: Any = await operator.get(ASSIGNMENTS, namespace, "fleet")
        wanted: Any = assignment(generation, default=default, listed=listed, others=others)
        wanted["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        await operator.replace(ASSIGNMENTS, namespace, "fleet", wanted)
        answer = await echoes.ask(key, generation=generation)
        assert answer.confirmed, answer.admission.message
        made: list[Any] = await asyncio.gather(
            *(admin.create(PODS, namespace, pod(listed=index % 2 == 1)) for index in range(PODS_A_ROUND))
        )
        for index, created in enumerate(made):
            mode = listed if index % 2 else default
            metadata = created["metadata"]
            assert metadata["annotations"][MODE] == mode
            assert metadata["annotations"][ADMITTED] == f"fleet/{generation}/{mode}"
            env = {entry["name"]: entry["value"] for entry in created["spec"]["containers"][0]["env"]}
            assert env == {"ENABLE_FP16_TRAINING": str(mode is Mode.FP16).lower(), "PRECISION_MODE": mode}
