"""A mode that kills its process is given up: notes on the volume, and real processes that die."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from precision_trainer import PrecisionMode
from precision_trainer.store.trials import TrialNotes
from precision_trainer.values.logs import JsonLog
from tests.support.training.process import WAIT_SECONDS, WITH_TESTS, Process

BF16, FP16 = PrecisionMode.MIXED_BF16, PrecisionMode.MIXED_FP16
TASK = "tests.support.training.deadly_task:deadly_task"
COMMAND = [
    "-m",
    "precision_trainer",
    "train",
    TASK,
    "--checkpoint-lease-seconds",
    "3",
    "--step-interval-seconds",
    "0.01",
    "--checkpoint-every",
    "0",
]
ENV = {**WITH_TESTS, "TEST_DIES_IN": "the forward pass"}
Start = Callable[..., Process]


@pytest.fixture(autouse=True)
def _slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note stands before the next look at it."""
    monkeypatch.setattr("precision_trainer.store.trials.WAIT_SECONDS", 60.0)


def _notes(directory: Path) -> TrialNotes:
    return TrialNotes(str(directory), JsonLog())


def _ask(directory: Path, mode: str) -> None:
    (directory / "request").write_text(json.dumps({"generation": 7, "mode": mode}))


def test_each_process_that_ends_in_a_trial_counts_once_and_one_that_survives_it_ends_the_count(tmp_path: Path) -> None:
    for died in range(3):
        notes = _notes(tmp_path)
        assert notes.deaths(BF16, 7) == died
        for _ in range(2):  # two micro-batches
            notes.begin(BF16, 7)
    notes.end()
    assert _notes(tmp_path).deaths(BF16, 7) == 0


def test_another_mode_another_request_or_other_settings_are_tried_anew(tmp_path: Path) -> None:
    for _ in range(2):
        _notes(tmp_path).begin(BF16, 7)
    notes = _notes(tmp_path)
    assert (notes.deaths(BF16, 7), notes.deaths(BF16, 8), notes.deaths(FP16, 7)) == (2, 0, 0)
    assert TrialNotes(str(tmp_path), JsonLog(), settings="half the batch").deaths(BF16, 7) == 0


def test_what_is_known_of_a_mode_stays_while_others_are_tried(tmp_path: Path) -> None:
    for _ in range(2):
        notes = _notes(tmp_path)
        notes.begin(FP16, 7)
        notes.begin(BF16, 7)
    notes = _notes(tmp_path)
    assert (notes.deaths(FP16, 7), notes.deaths(BF16, 7)) == (0, 2)
    notes.begin(FP16, 8)
    notes.end()
    assert _notes(tmp_path).deaths(BF16, 7) == 2


def test_a_compilation_that_is_survived_says_nothing_of_the_first_step(tmp_path: Path) -> None:
    for died in range(3):
        notes = _notes(tmp_path)
        assert notes.deaths(BF16, 7) == died
        notes.begin(BF16, 7, compiles=True)
        notes.end()
        notes.begin(BF16, 7)


def test_a_process_that_is_asked_to_stop_in_a_trial_does_not_count(tmp_path: Path) -> None:
    notes = _notes(tmp_path)
    notes.begin(BF16, 7)
    notes.stop()
    notes.begin(BF16, 7)  # the next micro-batch, before the boundary
    assert _notes(tmp_path).deaths(BF16, 7) == 0


def test_a_slow_volume_takes_the_note_away_after_it_has_written_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def slow(descriptor: int) -> None:
        answers.wait()

    monkeypatch.setattr("precision_trainer.checkpoint.files.os.fsync", slow)
    monkeypatch.setattr("precision_trainer.store.trials.WAIT_SECONDS", 0.01)
    notes = _notes(tmp_path)
    notes.begin(BF16, 7)
    notes.end()
    answers.set()
    notes.close()
    assert not (tmp_path / "trial.json").exists()
    assert list(tmp_path.iterdir()) == []


def test_what_earlier_processes_left_stays_where_nothing_was_tried(tmp_path: Path) -> None:
    _notes(tmp_path).begin(BF16, 7)
    _notes(tmp_path).end()
    assert _notes(tmp_path).deaths(BF16, 7) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"mode":1,"generation":7,"deaths":2}',
        '{"mode":"bf16"',
        '{"bf16":{"generation":7,"settings":"","deaths":"2"}}',
    ],
)
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


@pytest.mark.parametrize(
    ("asked", "where", "options"),
    [
        ("at the start", "the forward pass", []),
        ("at the start", "the optimizer's step", []),
        ("at the start", "the optimizer's step", ["--compile", "eager"]),
        ("while training", "the forward pass", []),
        ("while training", "the optimizer's step", []),
    ],
)
def test_a_mode_that_kills_its_process_is_refused_at_the_third_start_and_training_goes_on(
    fork: Start, tmp_path: Path, asked: str, where: str, options: list[str]
) -> None:
    command, env = [*COMMAND, *options], ENV | {"TEST_DIES_IN": where}
    if asked == "at the start":
        _ask(tmp_path, "bf16")
    first = fork([*command, "--steps", "100000"], env)
    if asked == "while training":
        first.until_training()
        _ask(tmp_path, "bf16")
    assert first.process.wait(WAIT_SECONDS) == -signal.SIGKILL
    assert fork([*command, "--steps", "8"], env).process.wait(WAIT_SECONDS) == -signal.SIGKILL
    for steps in (8, 16):  # and so at every start that follows
        last = fork([*command, "--steps", str(steps)], env)
        assert last.process.wait(WAIT_SECONDS) == 0, last.text
        (refused,) = last.events("request_refused")
        assert refused["reason"] == "NotAllowed"
        assert "request 7 for bf16 refused: the model failed in it: 2 processes in a row ended in" in refused["message"]
        assert last.events("complete")


@pytest.mark.parametrize("asked", ["fp32", "bf16"])
def test_a_mode_that_kills_its_process_while_it_is_compiled_is_left_out_at_the_third_start(
    fork: Start, tmp_path: Path, asked: str
) -> None:
    compiled = [*COMMAND, "--compile", "eager", "--steps", "8"]
    # Before the first start: a process compiles under the request that it finds then.
    _ask(tmp_path, asked)
    for _ in range(2):
        assert fork(compiled, ENV).process.wait(WAIT_SECONDS) == -signal.SIGKILL
    last = fork(compiled, ENV)
    assert last.process.wait(WAIT_SECONDS) == 0, last.text
    (event,) = last.events("compiled")
    assert event["modes"] == ["fp32", "fp16"]
    (left_out,) = last.events("not_compiled")
    assert "bf16: 2 processes in a row ended when it was tried, so it is not compiled" in left_out["message"]
    assert len(last.events("request_refused")) == (asked == "bf16")
    assert last.events("complete")


def test_the_sentinel_passes_a_mode_by_that_killed_the_processes_before(fork: Start, tmp_path: Path) -> None:
    command, env = [*COMMAND, "--max-grad-norm", "0"], ENV | {"TEST_OVERFLOWS": "yes"}
    _ask(tmp_path, "fp16")
    for _ in range(2):
        died = fork([*command, "--steps", "100000"], env)
        assert died.process.wait(WAIT_SECONDS) == -signal.SIGKILL
        assert [event["to"] for event in died.events("sentinel_transition")][-1] == "bf16"
    last = fork([*command, "--steps", "400"], env)
    assert last.process.wait(WAIT_SECONDS) == 0, last.text
    assert not last.events("request_refused")
    assert [event["to"] for event in last.events("precision_changed")] == ["fp32"]


def test_a_process_that_is_asked_to_stop_while_it_compiles_does_not_count(fork: Start, tmp_path: Path) -> None:
    _ask(tmp_path, "bf16")
    run = fork([*COMMAND, "--compile", "eager", "--steps", "8"], ENV | {"TEST_DIES_IN": "nothing, it waits"})
    note = tmp_path / "checkpoints" / "trial.json"
    run.until(note.exists)
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(WAIT_SECONDS) == 143
    assert not note.exists()
