"""The world model in an event loop, in the commands and under the trainer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch

from precision_trainer import cli
from precision_trainer.models.environments import collect
from precision_trainer.models.replay import ReplayBuffer, Sequences
from precision_trainer.models.verify import verify_fp32
from tests.support.training.world_models import small_model, train


@pytest.fixture(scope="module")
def cartpole() -> ReplayBuffer:
    return collect("CartPole-v1", 20, length=8)


async def test_the_event_loop_goes_on_while_it_trains(cartpole: ReplayBuffer) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    await small_model(cartpole).train(num_epochs=1, batch_size=16)
    other.cancel()
    assert turns > 10


async def test_cancelling_ends_after_the_step_under_way_and_leaves_a_model_that_goes_on(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(cartpole)
    begun = asyncio.Event()
    loop, loss = asyncio.get_running_loop(), model._loss

    def signal(module: torch.nn.Module, batch: Sequences) -> torch.Tensor:
        loop.call_soon_threadsafe(begun.set)
        return loss(module, batch)

    monkeypatch.setattr(model, "_loss", signal)
    work = asyncio.create_task(model.train(num_epochs=1000, batch_size=16))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    steps = len(model.training_history)
    assert 1 <= steps < 1000
    assert (await model.train(num_epochs=1, batch_size=16))[0]["step"] == steps


async def test_a_request_changes_the_mode_while_it_trains_and_it_can_still_be_cancelled(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request"
    monkeypatch.setenv("PRECISION_REQUEST_FILE", str(request))
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    monkeypatch.setenv("FP16_LOSS_SCALE", "1024")
    model = small_model(cartpole)
    loop, loss = asyncio.get_running_loop(), model._loss
    stepped, changed = asyncio.Event(), asyncio.Event()

    def watch(module: torch.nn.Module, batch: Sequences) -> torch.Tensor:
        loop.call_soon_threadsafe((changed if model.fp16_enabled else stepped).set)
        return loss(module, batch)

    monkeypatch.setattr(model, "_loss", watch)
    work = asyncio.create_task(model.train(num_epochs=100000, batch_size=16))
    await stepped.wait()
    before = model._fp16_stats
    assert before is None
    request.write_text('{"generation":7,"mode":"fp16","lossScaleFactor":0.5}')
    await changed.wait()
    stats = model._fp16_stats
    assert stats is not None
    assert (stats["fp16_enabled_runtime"], stats["generation"], stats["current_scale"]) == (True, 7, 512.0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    steps = [entry["step"] for entry in model.training_history]
    assert steps == list(map(float, range(len(steps))))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["to"], line["generation"]) for line in lines if line["event"] == "precision_changed"] == [("fp16", 7)]


def test_a_request_file_decides_the_start_before_the_environment(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "request").write_text('{"generation":3,"mode":"fp32"}')
    monkeypatch.setenv("PRECISION_REQUEST_FILE", str(tmp_path / "request"))
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    monkeypatch.setenv("ENABLE_FP16_TRAINING", "true")
    model = small_model(cartpole)
    train(model)
    assert not model.fp16_enabled
    assert model._fp16_stats is None


def test_batches_that_the_sentinel_computes_again_are_no_steps(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ENABLE_FP16_TRAINING": "1", "PRECISION_ALLOW_CPU": "1", "PRECISION_MODE": "bf16"}.items():
        monkeypatch.setenv(name, value)
    model = small_model(cartpole)
    calls = 0
    loss = model._loss

    def count(module: torch.nn.Module, batch: Sequences) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss(module, batch)

    monkeypatch.setattr(model, "_loss", count)
    train(model, epochs=90, batch_size=64)
    assert len(model.training_history) >= 66
    assert calls == len(model.training_history)  # the shadow of step 64 is computed by a loss that keeps nothing


def test_verify_fp32_looks_at_what_the_layers_computed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = verify_fp32("CartPole-v1", 5, epochs=1, batch_size=16)
    assert passed.passed
    assert "FP32 mode verified" in passed.text()
    monkeypatch.setenv("ENABLE_FP16_TRAINING", "true")
    monkeypatch.setenv("PRECISION_MODE", "bf16")
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    failed = verify_fp32("CartPole-v1", 5, epochs=1, batch_size=16)
    assert not failed.passed
    assert failed.output_dtypes["bfloat16"] > 0
    assert "NOT FP32" in failed.text()


def test_the_command_verifies_fp32_whatever_the_environment_and_the_jobs_request_ask_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("ENABLE_FP16_TRAINING", "true")
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    monkeypatch.setenv("PRECISION_REQUEST_FILE", str(tmp_path / "request"))
    (tmp_path / "request").write_text('{"generation":1,"mode":"fp16"}')
    assert cli.main(["verify-fp32", "--trajectories", "50", "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["passed"]
    assert result["parameter_dtypes"].keys() == {"float32"}


def test_the_trainer_trains_it_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from precision_trainer.job import train as job
    from precision_trainer.job.options import TrainOptions
    from precision_trainer.job.signals import StopFlag
    from precision_trainer.values.logs import JsonLog

    def run(steps: int, directory: str) -> dict[str, object]:
        options = TrainOptions(
            model="world-model",
            steps=steps,
            width=16,
            context=8,
            metrics_port=-1,
            checkpoint_dir=str(tmp_path / directory),
        )
        assert job.train(options, JsonLog(), StopFlag(JsonLog())) == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return next(event for event in events if event["event"] == "complete")

    whole = run(8, "whole")
    run(5, "parts")
    assert run(8, "parts")["loss"] == whole["loss"]
