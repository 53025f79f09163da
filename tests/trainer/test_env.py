"""``precision-trainer env`` says what a job would do, by the job's own decision."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from precision_trainer import cli
from precision_trainer.distributed.batch import advise
from precision_trainer.job.environment import SETTINGS, examine
from precision_trainer.precision.boot import Requests
from precision_trainer.values.config import read_boot
from precision_trainer.values.logs import JsonLog

HAS_CUDA = torch.cuda.is_available()


def ignored(reason: str, message: str) -> None:
    """An error that the decision reported."""


@pytest.mark.parametrize(
    ("settings", "request_text", "mode", "source"),
    [
        ({}, "", "fp32", "default"),
        ({"ENABLE_FP16_TRAINING": "true"}, "", "fp16" if HAS_CUDA else "fp32", "ENABLE_FP16_TRAINING"),
        ({"ENABLE_FP16_TRAINING": "true", "PRECISION_ALLOW_CPU": "1"}, "", "fp16", "ENABLE_FP16_TRAINING"),
        ({"ENABLE_FP16_TRAINING": "true", "PRECISION_ALLOW_CPU": "1", "PRECISION_MODE": "bf16"}, "", "bf16",
         "PRECISION_MODE"),
        ({"PRECISION_ALLOW_CPU": "1"}, '{"generation":3,"mode":"bf16"}', "bf16", "request"),
        ({"PRECISION_ALLOW_CPU": "1", "FEATURE_FLAGS": "fp16_training:false"}, '{"generation":3,"mode":"bf16"}', "fp32",
         "FEATURE_FLAGS"),
        ({"ENABLE_FP16_TRAINING": "maybe"}, "", "fp32", "ENABLE_FP16_TRAINING"),
        ({}, "garbage", "fp32", "default"),
    ],
)  # fmt: skip
def test_it_says_what_a_job_decides(
    settings: dict[str, str], request_text: str, mode: str, source: str, tmp_path: Path
) -> None:
    path = tmp_path / "request"
    path.write_text(request_text)
    env = {**settings, "PRECISION_REQUEST_FILE": str(path)}
    found = examine(env)
    assert (found.mode, found.source) == (mode, source)
    boot = read_boot(env, has_cuda=HAS_CUDA)
    job = Requests(boot, ignored, env).start(JsonLog())
    assert (job.mode.wire, job.source, job.generation) == (found.mode, found.source, found.generation)


def test_what_is_wrong_or_refused_is_said(tmp_path: Path) -> None:
    path = tmp_path / "request"
    path.write_text("garbage")
    found = examine({"ENABLE_FP16_TRAINING": "maybe", "PRECISION_REQUEST_FILE": str(path)})
    assert any("'maybe': expected true or false" in message for message in found.messages)
    assert any(message.startswith("Malformed: ") for message in found.messages)
    assert found.requests_accepted == ("fp32",)
    assert "PRECISION_ALLOW_CPU=true" in str(found.requests_refused)
    for part in (
        "A job would start in fp32",
        "no others: ",
        "ENABLE_FP16_TRAINING = maybe",
        "FP16_LOSS_SCALE not set (65536)",
    ):
        assert part in found.text()


@pytest.mark.parametrize(
    ("world_size", "batch_size", "accumulation", "effective"),
    [(1, 32, 1, 32), (8, 32, 1, 256), (16, 16, 2, 512), (64, 4, 8, 2048), (512, 1, 64, 32768)],
)
def test_batch_advice_keeps_a_micro_batch_within_256_samples(
    world_size: int, batch_size: int, accumulation: int, effective: int
) -> None:
    found = advise(world_size)
    assert (found.batch_size, found.accumulation, found.effective) == (batch_size, accumulation, effective)
    assert found.text() in examine({"WORLD_SIZE": str(world_size)}).text()


@pytest.mark.parametrize("world_size", ["0", "-1", "many", "\u00b2"])
def test_without_a_number_of_ranks_there_is_no_batch_advice(world_size: str) -> None:
    found = examine({"WORLD_SIZE": world_size})
    assert found.batch is None
    assert "Batch:" not in found.text()


def test_the_command_speaks_json_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    assert cli.main(["env", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests_accepted"] == ["fp32", "fp16", "bf16"]
    assert found["settings"].keys() == SETTINGS.keys()
    assert found["settings"]["PRECISION_ALLOW_CPU"] == "true"
    assert cli.main(["env"]) == 0
    assert "not there: no request" in capsys.readouterr().out
