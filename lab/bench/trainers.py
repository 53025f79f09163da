"""What a fleet of trainers exports, answered from what their pods are told.

No trainer runs: a benchmark of the operator needs their answers, not their work. Everything around them is real: the pods'
annotations come from the API server by watch, and Prometheus scrapes the answers.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from aiohttp import web

from lab.bench.api import Api
from precision_operator.api.modes import Mode
from precision_operator.contract import REQUEST
from precision_operator.workloads.reading import parse_request, read_pod

STEPS_PER_SECOND = 50.0
OVERFLOW_SHARE = 0.9
"""Share of the reduced-precision steps that overflow while the fleet is made to breach."""


@dataclass(slots=True)
class _Trainer:
    mode: Mode
    generation: int
    at: float
    """Until when it has trained, by the monotonic clock."""
    steps: float = 0.0
    reduced: float = 0.0
    overflows: float = 0.0

    def advance(self, now: float, *, breaching: bool) -> None:
        """Train on until now."""
        done = (now - self.at) * STEPS_PER_SECOND
        self.at = now
        self.steps += done
        if self.mode is not Mode.FP32:
            self.reduced += done
            self.overflows += done * OVERFLOW_SHARE if breaching else 0.0


class Trainers:
    """Exports the pods of some namespaces."""

    def __init__(self, api: Api, *namespaces: str) -> None:
        self._api = api
        self._namespaces = namespaces
        self._pods: dict[tuple[str, str], _Trainer] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._runner: web.AppRunner | None = None
        self.breaching: set[str] = set()
        """Namespaces in which all who train in a reduced precision overflow."""
        self.target = ""
        """What Prometheus scrapes."""

    async def __aenter__(self) -> Trainers:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.target = f"127.0.0.1:{self._runner.addresses[0][1]}"
        self._tasks = [asyncio.create_task(self._follow(namespace)) for namespace in self._namespaces]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def count(self) -> int:
        """How many pods there are."""
        return len(self._pods)

    async def _follow(self, namespace: str) -> None:
        """The pods by watch; a watch that ends is begun again from what is there now."""
        while True:
            async for event in self._api.watch(f"/api/v1/namespaces/{namespace}/pods"):
                self._take_in(event["type"], event["object"])

    def _take_in(self, kind: str, body: dict[str, Any]) -> None:
        name = (body["metadata"]["namespace"], body["metadata"]["name"])
        if kind == "DELETED":
            self._pods.pop(name, None)
        elif kind in ("ADDED", "MODIFIED"):
            request = parse_request(body["metadata"].get("annotations", {}).get(REQUEST))
            mode = (request.mode if request else read_pod(body).view.started_mode) or Mode.FP32  # none of ours refers
            now = time.monotonic()
            trainer = self._pods.setdefault(name, _Trainer(mode, 0, now))
            trainer.advance(now, breaching=name[0] in self.breaching)
            trainer.mode, trainer.generation = mode, request.generation if request else 0

    async def _metrics(self, _: web.Request) -> web.Response:
        now = time.monotonic()
        for (namespace, _pod), trainer in self._pods.items():
            trainer.advance(now, breaching=namespace in self.breaching)
        return web.Response(text="".join(_series(*name, trainer) for name, trainer in self._pods.items()))


def _series(namespace: str, pod: str, trainer: _Trainer) -> str:
    where = f'namespace="{namespace}",pod="{pod}"'
    values = {
        "genesis_training_steps_total": f"{trainer.steps:.1f}",
        "genesis_training_samples_total": f"{trainer.steps:.1f}",
        "genesis_fp16_training_steps_total": f"{trainer.reduced:.1f}",
        "genesis_fp16_overflow_steps_total": f"{trainer.overflows:.1f}",
        "genesis_nonfinite_loss_steps_total": "0",
        "genesis_training_loss": "2",
        "genesis_fp32_baseline_loss": "2",
        "genesis_fp32_baseline_samples_per_second": f"{STEPS_PER_SECOND}",
        "genesis_training_total": "1",
        "genesis_training_success_total": "1",
    }
    info = f'genesis_precision_info{{{where},mode="{trainer.mode.value}",generation="{trainer.generation}"}} 1\n'
    info += f'genesis_run_info{{{where},device="cpu"}} 1\n'
    return info + "".join(f"{name}{{{where}}} {value}\n" for name, value in values.items())
