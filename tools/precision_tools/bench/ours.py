"""The loop of ``precision-trainer train``, the shipped one, turned by hand around any task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from precision_trainer.job.options import TrainOptions
from precision_trainer.job.signals import StopFlag
from precision_trainer.job.train import Session
from precision_trainer.models.task import Task
from precision_trainer.names import REQUEST_FILE_ENV
from precision_trainer.step.steps import Boundary
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import Field, JsonLog
from precision_trainer.values.modes import PrecisionMode
from precision_trainer.values.request import PrecisionRequest


class QuietLog(JsonLog):
    """Says nothing: a benchmark prints its own result."""

    def _write(self, event: str, at: float | None, fields: Mapping[str, Field]) -> None:
        """Nothing."""


class Process:
    """One process of one rank: agreement, sentinel, request file, bookkeeping and metrics; FP16 and BF16 on a CPU too."""

    def __init__(
        self,
        task: Task,
        mode: PrecisionMode,
        *,
        directory: Path,
        batch_size: int,
        max_grad_norm: float = 1.0,
        healthy_after_steps: int = 10,
    ) -> None:
        """Wire it; the request file and checkpoints lie in ``directory``. It saves only when told to."""
        options = TrainOptions(
            batch_size=batch_size,
            max_grad_norm=max_grad_norm,
            checkpoint_dir=str(directory / "checkpoints"),
            checkpoint_every=0,
            healthy_after=healthy_after_steps,
        )
        self._request_path = directory / "request"
        env = {
            "ENABLE_FP16_TRAINING": str(mode is not PrecisionMode.FP32).lower(),
            "PRECISION_MODE": mode.wire,
            "PRECISION_ALLOW_CPU": "true",
            REQUEST_FILE_ENV: str(self._request_path),
        }
        log, self.metrics = QuietLog(), Metrics()
        self._session = Session(options, log, StopFlag(log), self.metrics, 0, 1, task=task, env=env)
        self.trainer, self.checkpointer, self.loop = (
            self._session.trainer,
            self._session.checkpointer,
            self._session.loop,
        )
        self._generation = 0
        self.read_at = -1
        """Step of the boundary that read the last request file written."""

    def step(self) -> Boundary:
        """One turn of the training loop; returns the boundary before its step."""
        boundary = self.loop.turn()
        if boundary is None:
            raise RuntimeError(
                "training has ended: expected an endless one; the checkpoint directory is used by another"
            )
        return boundary

    def close(self) -> None:
        """Wait for the thread that writes checkpoints."""
        self._session.close()

    def request(self, mode: PrecisionMode) -> int:
        """Write the request file as the kubelet does, a whole new file in place of the old; returns its generation."""
        self._generation += 1
        text = json.dumps({"generation": self._generation, "mode": mode.wire})
        fresh = self._request_path.with_name("request.new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self._request_path)
        self._watch_for_its_reading()
        return self._generation

    def _watch_for_its_reading(self) -> None:
        trainer, shipped = self.trainer, self.trainer.request_source
        assert shipped is not None

        def watch(applied_generation: int) -> PrecisionRequest | None:
            request = shipped(applied_generation)
            if request is not None:
                self.read_at, trainer.request_source = trainer.step, shipped
            return request

        trainer.request_source = watch
