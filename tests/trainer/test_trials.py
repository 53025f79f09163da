"""A mode that kills its process is given up: notes on the volume, and real processes that die."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from precision_trainer import PrecisionMode
from precision_trainer.store.trials import TrialNotes
from precision_trainer.values.logs import JsonLog
from tests.support.training.process import ROOT, Process

BF16, FP16 = PrecisionMode.MIXED_BF16, PrecisionMode.MIXED_FP16
TASK = "tests.support.training.deadly_task:deadly_task"
Start = Callable[..., Process]


def _notes(directory: Path) -> TrialNotes:
    return TrialNotes(str(directory), JsonLog())


def test_each_process_that_ends_in_a_trial_counts_once_and_one_that_can_say_why_does_not(tmp_path: Path) -> None:
    for died in range(3):
        notes = _notes(tmp_path)
        assert notes.deaths(BF16, 7) == died
        for _ in range(2):  # two micro-batches
            notes.begin(BF16, 7)
    notes.end()
    assert _notes(tmp_path).deaths(BF16, 7) == 0


def test_another_mode_or_another_request_is_tried_anew(tmp_path: Path) -> None:
    for _ in range(2):
        _notes(tmp_path).begin(BF16, 7)
    notes = _notes(tmp_path)
    assert (notes.deaths(BF16, 7), notes.deaths(BF16, 8), notes.deaths(FP16, 7)) == (2, 0, 0)


def test_what_earlier_processes_left_stays_where_nothing_was_tried(tmp_path: Path) -> None:
    _notes(tmp_path).begin(BF16, 7)
    _notes(tmp_path).end()
    assert _notes(tmp_path).deaths(BF16, 7) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mode":1,"generation":7,"deaths":2}', '{"mode":"bf16"'])
def test_a_note_that_is_none_is_said_and_counts_as_nothing(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trial.json").write_text(text)
    assert _notes(tmp_path).deaths(BF16, 7) == 0
    assert json.loads(capsys.readouterr().out)["event"] == "trial_unreadable"


def test_a_volume_that_refuses_is_said_and_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    notes = _notes(tmp_path / "file")
    capsys.readouterr()
    notes.begin(BF16, 7)
    assert json.loads(capsys.readouterr().out)["event"] == "trial_not_noted"


@pytest.mark.parametrize("asked", ["at the start", "while training"])
def test_a_mode_that_kills_its_process_is_refused_at_the_third_start_and_training_goes_on(
    start: Start, asked: str
) -> None:
    command = ["-m", "precision_trainer", "train", TASK, "--checkpoint-lease-seconds", "3"]
    env = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'trainer_image'}"}
    first = start([*command, "--steps", "100000", "--step-interval-seconds", "0.01"], env)
    if asked == "while training":
        first.until_training()
    first.request.write_text('{"generation":7,"mode":"bf16"}')
    assert first.process.wait(60) == -signal.SIGKILL
    assert start([*command, "--steps", "8"], env).process.wait(60) == -signal.SIGKILL
    for steps in (8, 16):  # and so at every start that follows
        last = start([*command, "--steps", str(steps)], env)
        assert last.process.wait(60) == 0, last.text
        (refused,) = last.events("request_refused")
        assert refused["reason"] == "NotAllowed"
        assert (
            "request 7 for bf16 refused: the model failed in it: 2 processes in a row were killed" in refused["message"]
        )
        assert last.events("complete")
