"""What a fleet of trainers exports, answered from what their pods are told.

No trainer runs: a benchmark of the operator needs their answers, not their work. Everything around them is real: the pods'
annotations come from the API server by watch, and Prometheus scrapes the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
from aiohttp import web

from lab.bench.api import Api
from lab.errors import LabError
from precision_operator.api.modes import Mode
from precision_operator.workloads.reading import read_pod

STEPS_PER_SECOND = 50.0
"""In FP32."""
SPEED_UP = 1.25
"""Of a reduced precision: a fleet that is not faster in it than in FP32 is not promoted again after a rollback."""
_AGAIN_SECONDS = 0.2
OVERFLOW_SHARE = 0.9
"""Share of the reduced-precision steps that overflow while the fleet is made to breach."""
BASELINE_LOSS = 2.0
STEADY = {
    "genesis_training_loss": BASELINE_LOSS,
    "genesis_fp32_baseline_loss": BASELINE_LOSS,
    "genesis_fp32_baseline_samples_per_second": STEPS_PER_SECOND,
    "genesis_training_total": 1.0,
    "genesis_training_success_total": 1.0,
}
"""Series → what a sound trainer reports of it in every mode. The shadow trainers of tests report them too."""
_STEADY = "".join(f"{name}$labels {value}\n" for name, value in STEADY.items())


@dataclass(slots=True)
class _Trainer:
    workload: str
    mode: Mode
    generation: int
    at: float
    """Until when it has trained, by the monotonic clock."""
    steps: float = 0.0
    reduced: float = 0.0
    overflows: float = 0.0
    nonfinite: float = 0.0

    def advance(self, now: float, *, overflow: float, diverged: bool) -> None:
        """Train on until now; this share of the reduced-precision steps overflows, and all of them have a loss of NaN."""
        reduced = self.mode is not Mode.FP32
        done = (now - self.at) * STEPS_PER_SECOND * (SPEED_UP if reduced else 1.0)
        self.at = now
        self.steps += done
        if reduced:
            self.reduced += done
            self.overflows += done * overflow
            self.nonfinite += done * diverged


@dataclass(frozen=True, slots=True)
class Report:
    """What the process of a pod trains in, said when that changes."""

    namespace: str
    pod: str
    workload: str
    """Of the Deployment that made it."""
    mode: Mode
    generation: int


class Trainers:
    """Exports the pods of some namespaces.

    Args:
        api: where the pods are.
        namespaces: whose; more by `follow`.
        running: report pods as running, as the kubelet does: no kubelet, and no kwok, runs them.
        report: told of every process that trains in another mode or at another generation than before.
    """

    def __init__(
        self, api: Api, *namespaces: str, running: bool = False, report: Callable[[Report], None] = lambda report: None
    ) -> None:
        self._api = api
        self._namespaces = namespaces
        self._running = running
        self._tell = report
        self._pods: dict[tuple[str, str], _Trainer] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._runner: web.AppRunner | None = None
        self.breaching: set[str] = set()
        """Namespaces in which all who train in a reduced precision overflow."""
        self.diverged: set[str] = set()
        """Namespaces in which the loss of all who train in a reduced precision is NaN."""
        self.overflow: dict[tuple[str, str], float] = {}
        """(namespace, workload) → share of its reduced-precision steps that overflow, 0 to 1."""
        self.target = ""
        """What Prometheus scrapes."""

    async def __aenter__(self) -> Trainers:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.target = f"127.0.0.1:{self._runner.addresses[0][1]}"
        for namespace in self._namespaces:
            self.follow(namespace)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def count(self) -> int:
        """How many pods there are."""
        return len(self._pods)

    def follow(self, namespace: str) -> None:
        """Export the pods of one more namespace."""
        self._tasks[namespace] = asyncio.create_task(self._follow(namespace))

    async def forget(self, namespace: str) -> None:
        """Export the pods of a namespace no more."""
        task = self._tasks.pop(namespace)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for name in [name for name in self._pods if name[0] == namespace]:
            del self._pods[name]
        for workload in [workload for workload in self.overflow if workload[0] == namespace]:
            del self.overflow[workload]

    def modes(self, namespace: str) -> dict[str, set[Mode]]:
        """Workload → the modes that its pods train in."""
        found: dict[str, set[Mode]] = {}
        for (place, _), trainer in self._pods.items():
            if place == namespace:
                found.setdefault(trainer.workload, set()).add(trainer.mode)
        return found

    async def _follow(self, namespace: str) -> None:
        """The pods by watch; a watch that ends is begun again from what is there now."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        while True:
            try:
                listed = await self._api.get(path)
                there = {(namespace, item["metadata"]["name"]) for item in listed["items"]}
                for name in [name for name in self._pods if name[0] == namespace and name not in there]:
                    del self._pods[name]
                for item in listed["items"]:
                    await self._take_in("ADDED", item)
                async for event in self._api.watch(path, since=listed["metadata"]["resourceVersion"]):
                    await self._take_in(event["type"], event["object"])
            except (aiohttp.ClientError, LabError, OSError):
                await asyncio.sleep(_AGAIN_SECONDS)  # the API server is being restarted; trainers go on meanwhile

    async def _take_in(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "DELETED":
            self._pods.pop((body["metadata"]["namespace"], body["metadata"]["name"]), None)
        elif kind in ("ADDED", "MODIFIED"):
            self._train_as_told(body)
            if self._running and body["status"].get("phase") == "Pending":
                await self._report_running(body["metadata"])

    def _train_as_told(self, body: dict[str, Any]) -> None:
        name, view = (body["metadata"]["namespace"], body["metadata"]["name"]), read_pod(body).view
        request = view.request if view.hot else None
        mode = (request.mode if request else view.started_mode) or Mode.FP32
        generation = request.generation if request else 0
        now = time.monotonic()
        trainer = self._pods.get(name)
        if trainer is None:
            trainer = self._pods[name] = _Trainer(name[1].rsplit("-", 2)[0], mode, generation, now)
        elif generation < trainer.generation or (mode, generation) == (trainer.mode, trainer.generation):
            return  # a process never goes back to an older request
        self._advance(name[0], trainer, now)
        trainer.mode, trainer.generation = mode, generation
        self._tell(Report(*name, trainer.workload, mode, generation))

    async def _report_running(self, metadata: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        with contextlib.suppress(LabError):  # it was deleted meanwhile
            await self._api.merge(path, {"status": {"phase": "Running"}})

    def _advance(self, namespace: str, trainer: _Trainer, now: float) -> None:
        everywhere = OVERFLOW_SHARE if namespace in self.breaching else 0.0
        overflow = self.overflow.get((namespace, trainer.workload), everywhere)
        trainer.advance(now, overflow=overflow, diverged=namespace in self.diverged)

    async def _metrics(self, _: web.Request) -> web.Response:
        now = time.monotonic()
        for (namespace, _pod), trainer in self._pods.items():
            self._advance(namespace, trainer, now)
        return web.Response(text="".join(_series(*name, trainer) for name, trainer in self._pods.items()))


def _series(namespace: str, pod: str, trainer: _Trainer) -> str:
    where = f'namespace="{namespace}",pod="{pod}"'
    return (
        f'genesis_precision_info{{{where},mode="{trainer.mode.value}",generation="{trainer.generation}"}} 1\n'
        f'genesis_run_info{{{where},device="cpu"}} 1\n'
        f"genesis_training_steps_total{{{where}}} {trainer.steps:.1f}\n"
        f"genesis_training_samples_total{{{where}}} {trainer.steps:.1f}\n"
        f"genesis_fp16_training_steps_total{{{where}}} {trainer.reduced:.1f}\n"
        f"genesis_fp16_overflow_steps_total{{{where}}} {trainer.overflows:.1f}\n"
        f"genesis_nonfinite_loss_steps_total{{{where}}} {trainer.nonfinite:.1f}\n"
        + _STEADY.replace("$labels", f"{{{where}}}")
    )
