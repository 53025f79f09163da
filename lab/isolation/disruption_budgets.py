"""How long the event loop stands still while hundreds of workloads wait for the PodDisruptionBudgets of their namespace.

Whoever may edit a namespace makes as many budgets there as they like. What is measured is the operator's own check. The API
server is in memory: it answers with the bytes of a real one. CPU time counts, so that other processes do not.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.disruptions import Disruptions
from precision_operator.core.actions import EvictPod
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.errors import AnswerTooLarge
from precision_operator.kube.answers import parsed_object
from precision_operator.kube.port import JsonObject, KubeApi, Resource
from precision_operator.runtime.clock import SystemClock

MAX_STALL_SECONDS = 0.2
NAMESPACE = "isolation-budgets"
PODS_EACH = 2
VALUES = 150_000
"""Of one selector: about as long as the API server takes."""

Selector = Mapping[str, object]


def _own(number: int) -> Selector:
    return {"matchLabels": {"app": f"w{number}"}}


def _shared(number: int) -> Selector:
    return {"matchLabels": {"a": "a"}, "matchExpressions": [{"key": f"k{number}", "operator": "Exists"}]}


def _long(number: int) -> Selector:
    return {"matchExpressions": [{"key": "app", "operator": "In", "values": [f"v{n}" for n in range(VALUES)]}]}


CASES: Sequence[tuple[int, Sequence[Selector]]] = (
    (250, [_own(n) for n in range(250)]),
    (250, [_own(n) for n in range(1_000)]),
    (250, [_shared(n) for n in range(2_000)]),
    (5, [_own(n) for n in range(5_000)]),
    (5, [_long(0)]),
    (5, [_long(n) for n in range(50)]),
)
"""(workloads, selectors of the budgets): as is usual, many that concern one pod each, many that each pod is held against,
more than are read, long ones."""


class _Server:
    """What the check asks for: every budget allows everything."""

    def __init__(self, selectors: Sequence[Selector]) -> None:
        status = {"observedGeneration": 1, "disruptionsAllowed": 100_000, "currentHealthy": 2, "desiredHealthy": 1}
        budgets = (
            {"metadata": {"name": f"b{n}", "generation": 1}, "spec": {"selector": selector}, "status": status}
            for n, selector in enumerate(selectors)
        )
        self._budgets = json.dumps({"items": list(budgets)}).encode()

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        await asyncio.sleep(0)
        if most_bytes is not None and len(self._budgets) > most_bytes:
            raise AnswerTooLarge("too large")
        return cast(Sequence[JsonObject], (parsed_object(self._budgets) or {})["items"])

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        await asyncio.sleep(0)
        labels: JsonObject = {"app": name.partition("-")[0], "a": "a", "pod": name}
        status: JsonObject = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return {"metadata": {"name": name, "namespace": namespace, "uid": name, "labels": labels}, "status": status}


def _evictions(workloads: int) -> list[EvictPod]:
    views = (
        WorkloadView(
            NAMESPACE,
            f"apps/StatefulSet/w{n}",
            f"w{n}",
            pods=tuple(PodView(f"w{n}-{i}", f"w{n}-{i}") for i in range(PODS_EACH)),
        )
        for n in range(workloads)
    )
    return [EvictPod(view, pod, 1) for view in views for pod in view.pods]


async def _stall_seconds(workloads: int, selectors: Sequence[Selector]) -> float:
    """The most CPU time between two turns of another task."""
    server, writes = _Server(selectors), _evictions(workloads)
    checks = Disruptions(cast(KubeApi, server), SystemClock())
    gc.collect()
    work = asyncio.ensure_future(checks.against(PolicyKey(NAMESPACE, "fleet"), writes))
    longest, before = 0.0, time.thread_time()
    while not work.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    await work
    return longest


def measure(directory: Path) -> Mapping[str, object]:
    """``{cases, max_loop_stall_seconds}``."""
    stalls = [asyncio.run(_stall_seconds(*case)) for case in CASES]
    return {"cases": len(stalls), "max_loop_stall_seconds": round(max(stalls), 3)}


def missed(found: Mapping[str, object]) -> list[str]:
    """The bound that the figure misses."""
    stall = float(str(found["max_loop_stall_seconds"]))
    return (
        [] if stall <= MAX_STALL_SECONDS else [f"expected max_loop_stall_seconds <= {MAX_STALL_SECONDS}, found {stall}"]
    )
