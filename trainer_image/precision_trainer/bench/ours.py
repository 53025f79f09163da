"""A whole training process of ours around any model, as ``precision-trainer train`` wires it, to be stepped by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import torch

from ..gang.request import Inbox, PrecisionRequest, RequestFile
from ..job.boot import Start
from ..job.report import Reporter
from ..precision.config import ExtendedFP16Config
from ..precision.modes import PrecisionMode
from ..precision.steps import Boundary
from ..precision.trainer import ExtendedFP16Trainer
from ..state.checkpoint import CheckpointStore
from ..state.keeper import Keeper
from ..state.runs import Runs
from ..telemetry.logs import Field, JsonLog
from ..telemetry.metrics import Metrics

Batch = TypeVar("Batch")


class QuietLog(JsonLog):
    """Says nothing: a benchmark prints its own result."""

    def _write(self, event: str, at: float | None, fields: Mapping[str, Field]) -> None:
        """Nothing."""


class Process(Generic[Batch]):
    """Trainer, agreement, sentinel, request file, bookkeeping and metrics of one process of one rank."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[[torch.nn.Module, Batch], torch.Tensor],
        config: ExtendedFP16Config,
        *,
        directory: Path,
        samples_per_step: int,
        learning_rate: float = 1e-3,
        healthy_after_steps: int = 10,
    ) -> None:
        """Wire everything; the request file and checkpoints lie in ``directory``. FP16 and BF16 are allowed on a CPU."""
        log = QuietLog()
        self._loss = loss
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=True)
        self.trainer = ExtendedFP16Trainer(model, optimizer, config, log=log, allow_cpu=True)
        self.trainer.request_source = self._next_request
        self._request_path = directory / "request"
        self._generation = 0
        self.read_at = -1
        """Step of the boundary that read the last request file written."""
        self.tried: list[int] | None = None
        """Numbers of the steps that records came for; set it to a list to have them kept."""
        self._inbox = Inbox(_refused)
        self._file = RequestFile(str(self._request_path), _refused)
        self.metrics = Metrics()
        store = CheckpointStore(str(directory / "checkpoints"), log)
        self.keeper = Keeper(
            self.trainer,
            store,
            "benchmark",
            samples_per_step,
            log=log,
            metrics=self.metrics,
            healthy_after_steps=healthy_after_steps,
        )
        self._reporter = Reporter(self.trainer, self.keeper, self.metrics, Runs(None, 200, log), samples_per_step, log)
        self._reporter.begin(Start(self.trainer.mode, "default"), {})

    def step(self, batch: Batch) -> Boundary:
        """What the training loop does in one turn; returns the boundary before the step."""
        boundary = self.trainer.begin_step()
        self._observe(boundary)
        started = time.monotonic()
        self.trainer.backward_and_step(self.trainer.training_step(batch, self._loss))
        self._reporter.step_seconds(time.monotonic() - started)
        return boundary

    def drain(self) -> None:
        """Read the steps that are still on their way."""
        self._observe(self.trainer.drain())

    def close(self) -> None:
        """Wait for the thread that writes checkpoints."""
        self.keeper.close()

    def _observe(self, boundary: Boundary) -> None:
        self._reporter.boundary(boundary)
        self.keeper.observe(boundary.records)
        if self.tried is not None:
            self.tried.extend(record.step for record in boundary.records)

    def request(self, mode: PrecisionMode) -> int:
        """Write the request file as the kubelet does, a whole new file in place of the old; returns its generation."""
        self._generation += 1
        text = json.dumps({"generation": self._generation, "mode": mode.wire})
        fresh = self._request_path.with_name("request.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self._request_path)
        return self._generation

    def _next_request(self, applied_generation: int) -> PrecisionRequest | None:
        new = self._file.poll()
        if new is not None:
            self.read_at = self.trainer.step
            self._inbox.offer(new, self.trainer.applied)
        return self._inbox.pending(applied_generation)


def _refused(reason: str, message: str) -> None:
    raise RuntimeError(f"the benchmark's own request was refused: {reason}: {message}")
