"""The loop in this process: resume bit for bit, requests through the file, drill, crash, divergence."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_trainer.errors import DivergedError
from precision_trainer.job import tasks
from precision_trainer.job.signals import StopFlag
from precision_trainer.telemetry.warm_up import WARM_UP_STEPS
from precision_trainer.values.logs import JsonLog
from tests.support.training.session import STOP, Session, equal


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_resume_in_fp32_is_bit_exact(
    accumulation: int,
    session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "other").mkdir()
    whole = Session(tmp_path / "other", monkeypatch, capsys)
    whole.run(steps=20, accumulation=accumulation)
    monkeypatch.setenv("PRECISION_REQUEST_FILE", str(session.request))
    session.run({11: STOP}, steps=20, accumulation=accumulation)
    # Asked during step 11: seen at the boundary before 12, carried by step 12, agreed on at the boundary before 13.
    assert [line["step"] for line in session.events("stopping")] == [13]
    assert [line["step"] for line in session.events("checkpoint")] == [13]
    session.run(steps=20, accumulation=accumulation)
    assert [line["step"] for line in session.events("resumed")] == [13]
    assert session.events("complete")[0]["message"] == "training complete"
    first, second = whole.state(20), session.state(20)
    for key in ("model_state_dict", "optimizer_state_dict", "samples", "step", "scaler", "rng"):
        assert equal(first[key], second[key]), key


def test_a_training_that_is_at_its_last_step_when_the_stop_is_agreed_on_is_finished(session: Session) -> None:
    stop = session.run({18: STOP}, steps=20)
    assert stop.asked
    assert session.events("stopping") == []
    assert [line["step"] for line in session.events("complete")] == [20]
    assert [line["step"] for line in session.events("checkpoint")] == [20]


@pytest.mark.parametrize(
    ("options", "env", "clipping", "fp32"),
    [
        ({}, {}, "1", "strict"),
        ({"max_grad_norm": 0.0}, {"PRECISION_ALLOW_TF32": "true"}, "off", "TF32 on CUDA"),
        ({"max_grad_norm": 0.5, "adaptive_clipping": True}, {}, "0.5+adaptive", "strict"),
    ],
)
def test_its_first_lines_say_what_train_does_by_default(
    options: dict[str, Any],
    env: dict[str, str],
    clipping: str,
    fp32: str,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    session.run(steps=1, **options)
    assert session.events("clipping")[0]["message"] == f"gradient clipping (--max-grad-norm): {clipping}"
    assert session.events("fp32")[0]["message"] == f"FP32 (PRECISION_ALLOW_TF32): {fp32}"


def test_requests_through_the_file_change_the_mode_hot(session: Session) -> None:
    session.request.write_text('{"generation":3,"mode":"fp16"}')
    session.run(
        {
            12: session.write('{"generation":4,"mode":"fp32"}'),
            20: session.write('{"generation":5,"mode":"bf16","checkpoint":true}'),
            26: session.write('{"generation":6,"mode":"bf16"}'),
        },
        steps=32,
    )
    changes = [(c["from"], c["to"], c["generation"], c["source"]) for c in session.events("precision_changed")]
    assert changes == [("fp16", "fp32", 4, "request"), ("fp32", "bf16", 5, "request")]
    for change, asked in zip(session.events("precision_changed"), (12, 20), strict=True):
        # Written during step n, read at the boundary before n + 1, carried by n + 1, in force from n + 2 on.
        assert change["step"] == asked + 2
        assert isinstance(change["time"], float)
    assert session.events("checkpoint")[0]["step"] == session.events("precision_changed")[1]["step"]
    assert session.events("precision_confirmed")[0]["generation"] == 6
    assert session.value("genesis_precision_info{bf16,6}") == 1.0
    steps = session.value("genesis_training_steps_total")
    fp32_steps = session.events("precision_changed")[1]["step"] - session.events("precision_changed")[0]["step"]
    assert steps == 32
    warm_up = session.events("precision_changed")[0]["step"]  # fewer than 16: all of FP16, then FP32 and BF16
    assert session.value("genesis_fp16_training_steps_total") == steps - fp32_steps - warm_up
    assert session.value("genesis_training_samples_total") == 64
    assert session.value("genesis_training_total") == 3
    assert session.value("genesis_training_success_total") == 3


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_a_checkpoint_can_be_asked_for_in_the_mode_already_in_force(session: Session, mode: str) -> None:
    session.request.write_text(json.dumps({"generation": 3, "mode": mode}))
    asked = json.dumps({"generation": 4, "mode": mode, "checkpoint": True})
    session.run({12: session.write(asked)}, steps=30, checkpoint_every=0)
    assert session.events("precision_changed") == []
    (confirmed,) = session.events("precision_confirmed")
    assert (confirmed["step"], confirmed["generation"]) == (14, 4)
    assert [line["step"] for line in session.events("checkpoint")] == [14, 30]
    assert session.value(f"genesis_precision_info{{{mode},4}}") == 1.0
    assert (session.state(14)["mode"], session.state(14)["generation"]) == (mode, 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("garbage", "Malformed"),
        ('{"generation":9,"mo', "Malformed"),
        ('{"generation":9,"mode":"int8"}', "UnknownMode"),
        ('{"generation":2,"mode":"fp32"}', "StaleGeneration"),
    ],
)
def test_bad_request_changes_nothing_and_is_counted(session: Session, text: str, reason: str) -> None:
    session.request.write_text('{"generation":3,"mode":"fp16"}')
    session.run({5: session.write(text)}, steps=30)
    assert session.events("precision_changed") == []
    assert session.value(f"genesis_request_errors_total{{{reason}}}") == 1.0
    assert session.value("genesis_precision_info{fp16,3}") == 1.0
    assert session.events("request_refused")[0]["reason"] == reason
    assert session.value("genesis_training_steps_total") == 30


def test_request_for_fp16_without_opt_in_is_not_acknowledged(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "")
    session.request.write_text('{"generation":3,"mode":"fp16"}')
    session.run(steps=3)
    assert session.value("genesis_precision_info{fp32,0}") == 1.0
    assert session.value("genesis_request_errors_total{NotAllowed}") == 1.0


def test_drill_shows_as_overflow_and_fp32_stops_it(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECISION_FAULT_FILE", str(session.fault))
    session.fault.write_text("overflow=0.6")
    session.request.write_text('{"generation":1,"mode":"fp16"}')
    session.run(steps=30)
    fp16_steps, overflows = (session.value(f"genesis_fp16_{name}_steps_total") for name in ("training", "overflow"))
    assert overflows / fp16_steps > 0.3
    session.request.write_text('{"generation":2,"mode":"fp32"}')
    session.run(steps=60)
    assert session.value("genesis_fp16_overflow_steps_total") == 0
    assert session.value("genesis_nonfinite_loss_steps_total") == 0
    assert session.value("genesis_training_loss") < 6.0


def test_a_loss_scale_that_begins_too_high_is_no_overflow_rate(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FP16_LOSS_SCALE", str(2**24))
    session.request.write_text('{"generation":1,"mode":"fp16"}')
    session.run(steps=60)
    assert session.value("genesis_fp16_warmup_overflow_steps_total") >= 6
    steps, overflows = (session.value(f"genesis_fp16_{name}_steps_total") for name in ("training", "overflow"))
    assert steps == 60 - WARM_UP_STEPS
    assert overflows / steps < 0.05  # a borderline scale may still overflow once


def test_overflows_after_the_warm_up_count(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PRECISION_FAULT_FILE", str(session.fault)), ("FP16_LOSS_SCALE", "1024")):
        monkeypatch.setenv(name, value)
    session.request.write_text('{"generation":1,"mode":"fp16"}')
    session.run({WARM_UP_STEPS + 4: lambda: session.fault.write_text("overflow=1.0")}, steps=WARM_UP_STEPS + 12)
    assert session.value("genesis_fp16_warmup_overflow_steps_total") == 0
    assert session.value("genesis_fp16_overflow_steps_total") >= 4


def test_a_crashed_run_counts_after_the_next_first_step(session: Session) -> None:
    def crash() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.run({4: crash}, steps=10)
    session.run(steps=10)
    assert session.value("genesis_training_total") == 2
    assert session.value("genesis_training_success_total") == 1


def test_a_run_that_an_error_ended_counts_also_in_the_pod_that_the_job_makes_next(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_and_run_in_the_next_pod({4: _fail}, session, monkeypatch)
    assert session.value("genesis_training_total") == 2
    assert session.value("genesis_training_success_total") == 1


def test_an_error_of_a_pod_that_is_asked_to_stop_is_no_failure_of_the_next(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_and_run_in_the_next_pod({4: STOP, 5: _fail}, session, monkeypatch)
    assert session.value("genesis_training_total") == 1
    assert session.value("genesis_training_success_total") == 1


def _fail() -> None:
    raise ZeroDivisionError


def _fail_and_run_in_the_next_pod(
    plan: Mapping[int, Callable[[], object]], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRECISION_POD_UID", "uid-a")
    with pytest.raises(ZeroDivisionError):
        session.run(plan, steps=10)
    monkeypatch.setenv("PRECISION_POD_UID", "uid-b")
    session.run(steps=10)


def test_divergence_in_fp32_ends_with_its_own_error(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "next_byte_loss", lambda model, batch: model(batch[:, :-1]).sum() * float("nan"))
    with pytest.raises(DivergedError, match="not a precision fault"):
        session.run(steps=50, diverged_after=5)
    assert session.value("genesis_nonfinite_loss_steps_total") == 5
    assert session.value("genesis_training_total") == 1
    assert session.value("genesis_training_success_total") == 0


def test_fp32_baseline_appears_after_the_stretch(session: Session) -> None:
    session.run({15: session.write('{"generation":1,"mode":"bf16"}')}, steps=40)
    assert session.value("genesis_fp32_baseline_loss") > 0
    assert session.value("genesis_fp32_baseline_samples_per_second") > 0


def test_fp32_baseline_outlives_the_process_but_not_its_training(session: Session) -> None:
    session.run({15: session.write('{"generation":1,"mode":"bf16"}')}, steps=100)
    seconds = session.value("genesis_fp32_baseline_step_p95_seconds")
    (change,) = session.events("precision_changed")
    assert session.value("genesis_fp32_baseline_step") == change["step"]
    session.run(steps=101)
    assert session.value("genesis_fp32_baseline_step_p95_seconds") == seconds
    session.run(steps=102, learning_rate=0.5)
    for name in ("genesis_fp32_baseline_step_p95_seconds", "genesis_fp32_baseline_loss"):
        with pytest.raises(KeyError):
            session.value(name)


def test_full_disk_does_not_stop_training_but_a_stop_without_checkpoint_fails(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    from precision_trainer.errors import CheckpointError

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", refuse)
    with pytest.raises(CheckpointError, match="No space left"):
        session.run(steps=10, checkpoint_every=4)
    # The second one may be left out, if the thread still tries the first.
    failed, skipped = len(session.events("checkpoint_failed")), len(session.events("checkpoint_skipped"))
    assert failed >= 1
    assert failed + skipped == 2
    # One more at the stop, which is an error of the process.
    assert session.value("genesis_checkpoint_failures_total") == failed + 1
    assert session.value("genesis_training_steps_total") == 10


def test_a_request_halves_the_loss_scale_once_however_often_the_process_starts(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FP16_LOSS_SCALE", "1024")
    text = '{"generation":4,"mode":"fp16","lossScaleFactor":0.5,"growthInterval":4000}'
    session.request.write_text('{"generation":3,"mode":"fp16"}')
    session.run({4: session.write(text), 12: STOP}, steps=30)
    assert [line["loss_scale"] for line in session.events("loss_scale_tuned")] == [512.0]
    assert [line["generation"] for line in session.events("precision_confirmed")] == [4]
    assert session.value("genesis_precision_info{fp16,4}") == 1.0
    assert session.value("genesis_loss_scale") == 512.0
    session.run(steps=20)
    assert session.events("loss_scale_tuned") == []
    scaler = session.state(20)["scaler"]
    assert (scaler["scale"], scaler["factor"], scaler["growth_interval"]) == (512.0, 0.5, 4000.0)
    # A process whose checkpoint was made before the request carries it out at its start, and only then.
    session.request.write_text(text.replace("4,", "5,", 1))
    for tuned in ([256.0], []):
        session.run(steps=25 if tuned else 30)
        assert [line["loss_scale"] for line in session.events("loss_scale_tuned")] == tuned
        assert session.value("genesis_loss_scale") == 256.0


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
def test_a_loss_scale_is_not_tuned_in_a_mode_that_has_none_and_the_log_says_so(
    session: Session, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("FP16_LOSS_SCALE", "1024")
    session.request.write_text('{"generation":3,"mode":"fp16"}')
    session.run({4: session.write(f'{{"generation":4,"mode":"{mode}","lossScaleFactor":0.5}}')}, steps=10)
    assert [line["generation"] for line in session.events("loss_scale_tuning_ignored")] == [4]
    assert session.value(f"genesis_precision_info{{{mode},4}}") == 1.0
    assert session.state(10)["scaler"]["scale"] == 1024.0


def test_stop_flag_wakes_a_waiting_loop() -> None:
    flag = StopFlag(JsonLog())
    flag.training_begins()
    threading.Timer(0.05, flag.set, ("SIGTERM",)).start()
    assert flag.wait(30.0)
    assert (flag.asked, flag.name) == (True, "SIGTERM")


def test_environment_gives_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    import argparse

    from precision_trainer.errors import ConfigError
    from precision_trainer.job.options import add_arguments, read_options

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    env = {"TRAINER_BATCH_SIZE": "3", "TRAINER_LEARNING_RATE": "0.5", "TRAINER_STEPS": "7"}
    options = read_options(parser.parse_args(["--steps", "9"]), env)
    assert (options.batch_size, options.learning_rate, options.steps) == (3, 0.5, 9)
    with pytest.raises(ConfigError, match="TRAINER_BATCH_SIZE='many'"):
        read_options(parser.parse_args([]), {"TRAINER_BATCH_SIZE": "many"})
    with pytest.raises(ConfigError, match=r"--batch-size=0: expected a number in \[1, 65536\]"):
        read_options(parser.parse_args(["--batch-size", "0"]), {})


def test_data_is_the_same_everywhere_and_resumable() -> None:
    from precision_trainer.models.data import LibraryText

    first, second = LibraryText(8, max_bytes=1 << 15), LibraryText(8, max_bytes=1 << 15)
    assert first.fingerprint == second.fingerprint
    assert torch.equal(first.batch(100, 4), torch.cat([second.batch(100, 2), second.batch(102, 2)]))
    assert bytes(first.batch(0, 1)[0].tolist()).isascii() or os.sep
