"""Runs and the FP32 baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from precision_trainer.store.runs import Runs
from precision_trainer.telemetry.progress import MIN_BASELINE_STEPS, Progress
from precision_trainer.values.logs import JsonLog


def _runs(path: Path | None, segment: int = 5) -> Runs:
    return Runs(str(path) if path else None, segment, JsonLog())


def test_a_run_of_n_steps_ends_well(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    assert not runs.crashed_before
    runs.begin_process(0, 100.0)
    ended = [runs.observe(step, False, 100.0 + step) for step in range(1, 11)]
    assert ended == [None] * 4 + [(True, 5.0)] + [None] * 4 + [(True, 5.0)]


def test_a_run_mostly_non_finite_does_not(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    runs.begin_process(0, 0.0)
    assert [runs.observe(step, step > 2, 0.0) for step in range(1, 6)][-1] == (False, 0.0)


def test_a_crash_is_found_by_the_next_process_and_a_stop_is_not_one(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    runs.begin_process(0, 0.0)
    runs.observe(1, False, 1.0)
    crashed = _runs(tmp_path)
    assert crashed.crashed_before
    crashed.begin_process(0, 10.0)
    crashed.observe(1, False, 11.0)
    crashed.observe(2, False, 12.0)
    crashed.suspend(12.0)
    resumed = _runs(tmp_path)
    assert not resumed.crashed_before
    resumed.begin_process(2, 50.0)
    assert resumed.observe(5, False, 53.0) == (True, 5.0)


def test_divergence_ends_the_run(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    runs.begin_process(0, 0.0)
    runs.fail()
    assert not _runs(tmp_path).crashed_before


@pytest.mark.parametrize("text", ["", "{", "[]", '{"started": "x"}', '{"other": 1}'])
def test_a_broken_ledger_is_reported_and_begun_anew(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs.json").write_text(text)
    _runs(tmp_path).begin_process(0, 0.0)
    assert "runs_refused" in capsys.readouterr().out


def test_without_a_directory_nothing_is_written() -> None:
    runs = _runs(None)
    runs.begin_process(0, 0.0)
    runs.suspend(1.0)


def test_a_ledger_that_cannot_be_written_is_reported_once_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = _runs(tmp_path)
    (tmp_path / "runs.tmp").mkdir()  # in the way of the file
    runs.begin_process(0, 0.0)
    assert [runs.observe(step, False, float(step)) for step in range(1, 11)].count((True, 5.0)) == 2
    assert capsys.readouterr().out.count("runs_not_saved") == 1
    (tmp_path / "runs.tmp").rmdir()
    runs.suspend(12.0)
    assert not _runs(tmp_path).crashed_before
    assert (tmp_path / "runs.json").exists()


@dataclass(frozen=True)
class _Step:
    loss: float
    nonfinite: bool = False


def _train(progress: Progress, steps: int, loss: float, *, fp32: bool) -> None:
    for _ in range(steps):
        progress.observe(_Step(loss), fp32=fp32, samples=8, seconds=0.5)


def test_baseline_is_the_average_at_the_end_of_the_last_fp32_stretch() -> None:
    progress = Progress()
    assert progress.loss is None
    _train(progress, 200, 4.0, fp32=True)
    assert progress.baseline_loss < 0
    _train(progress, 50, 9.0, fp32=False)
    assert progress.baseline_loss == pytest.approx(4.0)
    assert progress.baseline_samples_per_second == pytest.approx(16.0)
    _train(progress, MIN_BASELINE_STEPS - 1, 1.0, fp32=True)
    _train(progress, 1, 1.0, fp32=False)
    assert progress.baseline_loss == pytest.approx(4.0)


def test_non_finite_losses_stay_out_of_the_average() -> None:
    progress = Progress()
    for loss in (2.0, math.nan, math.inf, 2.0):
        progress.observe(_Step(loss), fp32=True, samples=1, seconds=1.0)
    assert progress.loss == pytest.approx(2.0)


def test_baseline_survives_a_restart_into_another_mode() -> None:
    before = Progress()
    _train(before, 50, 3.0, fp32=True)
    after = Progress()
    after.load_state_dict(before.state_dict() | {"unknown": 1.0})
    _train(after, 1, 3.0, fp32=False)
    assert after.baseline_loss == pytest.approx(3.0)
