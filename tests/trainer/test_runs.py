"""Runs and the FP32 baseline."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import pytest

from precision_trainer.store.pod import pod_identity
from precision_trainer.store.runs import Runs
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.telemetry.progress import MIN_BASELINE_STEPS, Progress
from precision_trainer.values.logs import JsonLog


def _runs(path: Path | None, segment: int = 5, *, pod: str = "pod-a") -> Runs:
    return Runs(str(path) if path else None, segment, JsonLog(), pod=pod, metrics=Metrics())


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


def test_a_run_that_another_pod_left_open_is_neither_failed_nor_ended_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _runs(tmp_path).begin_process(0, 0.0)
    other = _runs(tmp_path, pod="pod-b")
    assert not other.crashed_before
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["event"], line["step"], line["pod"]) == ("run_unknown", 0, "pod-a")
    other.begin_process(0, 10.0)
    # From here on the run is that pod's: its next process finds a crash.
    assert _runs(tmp_path, pod="pod-b").crashed_before


def test_an_error_that_the_process_wrote_down_counts_in_any_pod_and_once(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    runs.begin_process(0, 0.0)
    runs.crash()
    other = _runs(tmp_path, pod="pod-b")
    assert other.crashed_before
    other.begin_process(0, 10.0)
    assert not _runs(tmp_path, pod="pod-c").crashed_before


def test_an_error_after_a_stop_leaves_the_run_suspended(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    runs.begin_process(0, 0.0)
    runs.suspend(1.0)
    runs.crash()
    assert not _runs(tmp_path).crashed_before


def test_a_suspended_run_belongs_to_the_pod_that_goes_on_with_it(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    runs.begin_process(0, 0.0)
    runs.suspend(1.0)
    _runs(tmp_path, pod="pod-b").begin_process(0, 10.0)
    assert not _runs(tmp_path, pod="pod-a").crashed_before
    assert _runs(tmp_path, pod="pod-b").crashed_before


OLDER = '{"started": 7, "ended": 6, "succeeded": 5, "open_since": 60, "suspended": %s, "seconds": 2.0}'
"""As an image wrote it that did not know of pods."""


def test_the_open_run_of_an_older_image_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs.json").write_text(OLDER % "false")
    assert not _runs(tmp_path).crashed_before
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()] == ["run_unknown"]


def test_the_suspended_run_of_an_older_image_goes_on(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text(OLDER % "true")
    runs = _runs(tmp_path)
    runs.begin_process(62, 50.0)
    assert runs.observe(65, False, 53.0) == (True, 5.0)


def test_a_pod_is_itself_by_its_uid_until_its_node_restarts(tmp_path: Path) -> None:
    boot, later = tmp_path / "boot", tmp_path / "later"
    boot.write_text("0b2f\n")
    later.write_text("77aa\n")
    uid = {"PRECISION_POD_UID": "uid-a"}
    assert pod_identity(uid, boot) == pod_identity(uid, boot) == "uid-a@0b2f"
    others = [(uid, later), ({"PRECISION_POD_UID": "uid-b"}, boot), (uid, tmp_path / "absent"), ({}, boot)]
    assert len({pod_identity(env, path) for env, path in others} | {"uid-a@0b2f"}) == 5
    assert pod_identity({}, boot) == f"{socket.gethostname()}@0b2f"


def test_divergence_ends_the_run(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    runs.begin_process(0, 0.0)
    runs.fail()
    assert not _runs(tmp_path).crashed_before


def test_while_training_goes_on_nothing_is_written(tmp_path: Path) -> None:
    runs, path = _runs(tmp_path), tmp_path / "runs.json"
    runs.begin_process(0, 0.0)
    path.unlink()
    assert [runs.observe(step, False, float(step)) for step in range(1, 11)].count((True, 5.0)) == 2
    runs.rewound(3, 11.0)
    assert not path.exists()
    runs.suspend(12.0)
    assert json.loads(path.read_text())["open_since"] == 3


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"open_since": "x"}', '{"other": 1}', '{"open_since": 1, "pod": 1}', '{"pod": "a"}']
)
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


def test_a_ledger_that_could_not_be_written_is_written_at_the_end_and_not_between_two_steps(tmp_path: Path) -> None:
    runs = _runs(tmp_path)
    (tmp_path / "runs.tmp").mkdir()  # in the way of the file
    runs.begin_process(0, 0.0)
    (tmp_path / "runs.tmp").rmdir()
    for step in range(1, 11):
        runs.observe(step, False, float(step))
    assert list(tmp_path.iterdir()) == []
    runs.suspend(12.0)
    assert (tmp_path / "runs.json").exists()


def _train(progress: Progress, steps: int, loss: float, *, fp32: bool) -> None:
    for _ in range(steps):
        progress.observe(loss, fp32=fp32, samples=8, seconds=0.5)


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
        progress.observe(loss, fp32=True, samples=1, seconds=1.0)
    assert progress.loss == pytest.approx(2.0)


def test_baseline_survives_a_restart_into_another_mode() -> None:
    before = Progress()
    _train(before, 50, 3.0, fp32=True)
    after = Progress()
    after.load_state_dict(before.state_dict() | {"unknown": 1.0})
    _train(after, 1, 3.0, fp32=False)
    assert after.baseline_loss == pytest.approx(3.0)
