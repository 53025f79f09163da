"""The turns of the training loop: good steps are reported together, anything else at once, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from precision_tools.bench.ours import Process
from precision_trainer import PrecisionMode
from precision_trainer.job import loop
from precision_trainer.models.task import make_task

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16


class Job:
    """The shipped loop around one linear layer, whose loss a test can spoil."""

    def __init__(self, mode: PrecisionMode, directory: Path) -> None:
        self.factor = 1.0
        torch.manual_seed(0)
        batch = torch.randn(4, 8)
        task = make_task(
            "linear",
            torch.nn.Linear(8, 4),
            lambda position, size: batch,
            lambda model, data: model(data).float().square().mean() * self.factor,
            "one batch",
        )
        self.process = Process(task, mode, directory=directory, batch_size=4)

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.process.step()

    def value(self, name: str) -> float:
        samples = (sample for family in self.process.metrics.collect() for sample in family.samples)
        return next(sample.value for sample in samples if sample.name == name)

    @property
    def reported(self) -> float:
        return self.value("genesis_training_steps_total")


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Job]]:
    """One for each mode. In this test's time the report is never due by itself."""
    monkeypatch.setattr(loop, "REPORT_SECONDS", 1e9)
    made = []
    for mode in (FP32, FP16, BF16):
        (tmp_path / mode.wire).mkdir()
        made.append(Job(mode, tmp_path / mode.wire))
    yield made
    for job in made:
        job.process.close()


def test_good_steps_wait_for_the_report_and_a_bad_one_brings_them_along(jobs: list[Job]) -> None:
    for job in jobs:
        job.turns(20)
        assert job.reported == 1  # the first one, which acknowledges the mode
        job.factor = float("nan")
        job.turns(1)
        job.factor = 1.0
        job.turns(1)
        assert job.reported == 21
        bad = (
            "genesis_fp16_overflow_steps_total"
            if job.process.trainer.mode is FP16
            else "genesis_nonfinite_loss_steps_total"
        )
        assert job.value(bad) == 1
        assert job.value("genesis_step_duration_seconds_count") == 21


def test_a_change_of_mode_and_the_first_step_in_it_are_reported_at_once(jobs: list[Job]) -> None:
    for job in jobs:
        job.turns(6)
        after = BF16 if job.process.trainer.mode is FP32 else FP32
        job.process.request(after)
        while job.process.step().change is None:
            pass
        flipped = job.process.trainer.step - 1
        assert job.reported == flipped  # every step before the flip
        job.turns(1)
        assert job.reported == flipped + 1
        info = next(family for family in job.process.metrics.collect() if family.name == "genesis_precision_info")
        assert info.samples[0].labels == {"mode": after.wire, "generation": "1"}


def test_a_checkpoint_comes_after_the_report(jobs: list[Job]) -> None:
    job = jobs[0]
    job.turns(5)
    job.process.loop.save()
    assert job.reported == 4  # the last step's numbers are on their way
