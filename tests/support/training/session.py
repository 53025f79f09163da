"""The training loop in this process, with a hook at every step."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_trainer.checkpoint.background import Background, Job
from precision_trainer.job import train as train_module
from precision_trainer.job.loop import Loop
from precision_trainer.job.options import TrainOptions
from precision_trainer.job.signals import StopFlag
from precision_trainer.precision import boot
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from precision_trainer.values.request import RequestFile

SMALL = {"width": 16, "layers": 1, "context": 8, "batch_size": 2, "metrics_port": -1, "segment_steps": 10}


class Session:
    """Runs the loop with a hook at every step, so that a test acts at an exact step instead of sleeping."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self._patch, self._capsys = tmp_path, monkeypatch, capsys
        self.request, self.fault = tmp_path / "request", tmp_path / "fault"
        monkeypatch.setenv("PRECISION_REQUEST_FILE", str(self.request))
        monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
        self.metrics = Metrics()
        self.lines: list[dict[str, Any]] = []

    def run(
        self, at: Mapping[int, Callable[[], object]] | None = None, *, quick_disk: bool = False, **options: object
    ) -> StopFlag:
        """Train until the end, or until a step stops it.

        Args:
            at: what happens before a step, by its number.
            quick_disk: each checkpoint and each tag is on disk before training goes on.
            options: of the command.
        """
        stop = StopFlag(JsonLog())
        actions = at or {}
        original = Loop._step

        def step(loop: Loop) -> None:
            action = actions.get(loop._trainer.step)
            if action is not None:
                action() if action is not STOP else stop.set("SIGTERM")
            original(loop)

        self.metrics = Metrics()
        with self._patch.context() as patch:
            patch.setattr(Loop, "_step", step)
            patch.setattr(train_module, "Metrics", lambda: self.metrics)
            if quick_disk:
                patch.setattr(Background, "submit", _and_wait)
            # Asked at every boundary: tests count steps, and a step may take less than the interval.
            patch.setattr(boot, "RequestFile", functools.partial(RequestFile, min_interval_seconds=0.0))
            settings: dict[str, Any] = {**SMALL, "checkpoint_dir": str(self.directory / "checkpoints"), **options}
            try:
                code = train_module.train(TrainOptions(**settings), JsonLog(), stop)
            finally:
                self.lines = [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]
        assert code == (0 if self.events("complete") else 143)
        return stop

    def write(self, text: str) -> Callable[[], object]:
        return lambda: self.request.write_text(text)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == name]

    def value(self, name: str) -> float:
        for family in self.metrics.collect():
            for sample in family.samples:
                if sample.name == name or f"{sample.name}{{{','.join(sample.labels.values())}}}" == name:
                    return float(sample.value)
        raise KeyError(name)

    def state(self, step: int) -> dict[str, Any]:
        path = self.directory / "checkpoints" / f"step-{step:012d}" / "state.pt"
        state: dict[str, Any] = torch.load(path, weights_only=True)
        return state


_submit = Background.submit


def _and_wait(background: Background, name: str, step: int, job: Job) -> None:
    _submit(background, name, step, job)
    assert background.close(wait_seconds=60), f"{name} of step {step} takes more than a minute"


def STOP() -> None:
    """Marks the step in which SIGTERM comes."""


def equal(first: object, second: object) -> bool:
    """Whether two states are the same, bit for bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and first.keys() == second.keys()
            and all(equal(v, second[k]) for k, v in first.items())
        )
    if isinstance(first, list):
        return isinstance(second, list) and len(first) == len(second) and all(map(equal, first, second))
    return first == second
