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
from precision_operator.kube.workloads.reading import parse_request, read_pod

STEPS_PER_SECOND = 50.0
OVERFLOW_SHARE = 0.9
"""Share of the reduced-precision steps that overflow while the fleet is made to breach."""


@dataclass(slots=True)
class _Trainer:
    mode: Mode
    generation: int
    steps: float = 0.0
    reduced: float = 0.0
    overflows: float = 0.0


class Trainers:
    """Exports the pods of one namespace, and ``strangers`` more that belong to nobody, so that answers are fleet-sized."""

    def __init__(self, api: Api, namespace: str, *, strangers: int = 0) -> None:
        self._api = api
        self._namespace = namespace
        self._pods: dict[str, _Trainer] = {}
        self._strangers = "".join(self._series(f"stranger-{i:04d}", "fp32", 0, "@") for i in range(strangers))
        self._at = time.monotonic()
        self._alone = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._runner: web.AppRunner | None = None
        self.breaching = False
        """All who train in a reduced precision overflow."""
        self.target = ""
        """What Prometheus scrapes."""

    async def __aenter__(self) -> Trainers:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.target = f"127.0.0.1:{self._runner.addresses[0][1]}"
        self._tasks = [asyncio.create_task(self._follow(), name="trainers")]
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

    async def _follow(self) -> None:
        """The pods by watch; a watch that ends is begun again from what is there now."""
        while True:
            async for event in self._api.watch(f"/api/v1/namespaces/{self._namespace}/pods"):
                self._advance()
                self._take_in(event["type"], event["object"])

    def _take_in(self, kind: str, body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        if kind == "DELETED":
            self._pods.pop(name, None)
        elif kind in ("ADDED", "MODIFIED"):
            request = parse_request(body["metadata"].get("annotations", {}).get(REQUEST))
            mode = (request.mode if request else read_pod(body).view.started_mode) or Mode.FP32  # none of ours refers
            trainer = self._pods.setdefault(name, _Trainer(mode, 0))
            trainer.mode, trainer.generation = mode, request.generation if request else 0

    def _advance(self) -> None:
        """Train on until now."""
        now = time.monotonic()
        done = (now - self._at) * STEPS_PER_SECOND
        self._at, self._alone = now, self._alone + done
        for trainer in self._pods.values():
            trainer.steps += done
            if trainer.mode is not Mode.FP32:
                trainer.reduced += done
                trainer.overflows += done * OVERFLOW_SHARE if self.breaching else 0.0

    async def _metrics(self, _: web.Request) -> web.Response:
        self._advance()
        own = "".join(
            self._series(name, t.mode.value, t.generation, f"{t.steps:.1f}", f"{t.reduced:.1f}", f"{t.overflows:.1f}")
            for name, t in self._pods.items()
        )
        return web.Response(text=own + self._strangers.replace("@", f"{self._alone:.1f}"))

    def _series(
        self, pod: str, mode: str, generation: int, steps: str, reduced: str | None = None, overflows: str = "0"
    ) -> str:
        where = f'namespace="{self._namespace}",pod="{pod}"'
        values = {
            "genesis_training_steps_total": steps,
            "genesis_training_samples_total": steps,
            "genesis_fp16_training_steps_total": steps if reduced is None else reduced,
            "genesis_fp16_overflow_steps_total": overflows,
            "genesis_nonfinite_loss_steps_total": "0",
            "genesis_training_loss": "2",
            "genesis_fp32_baseline_loss": "2",
            "genesis_fp32_baseline_samples_per_second": f"{STEPS_PER_SECOND}",
            "genesis_training_total": "1",
            "genesis_training_success_total": "1",
        }
        info = f'genesis_precision_info{{{where},mode="{mode}",generation="{generation}"}} 1\n'
        info += f'genesis_run_info{{{where},device="cpu"}} 1\n'
        return info + "".join(f"{name}{{{where}}} {value}\n" for name, value in values.items())
