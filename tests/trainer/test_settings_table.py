"""The table of environment variables in docs/trainer.md, held against what is read."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, FP16Trainer, PrecisionMode, WorldModel
from precision_trainer.job.environment import SETTINGS
from precision_trainer.precision.boot import Requests
from precision_trainer.values.config import read_boot

PAGE = Path(__file__).parents[2] / "docs" / "trainer.md"
RANKS = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PRECISION_POD_UID"}
"""Of the process group and the pod: they are no settings of a trainer."""


class Watched(dict[str, str]):
    """An environment that remembers what was asked of it."""

    def __init__(self, values: dict[str, str]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.read.add(key)
        return super().__getitem__(key)


def _rows() -> Iterator[tuple[str, str, str]]:
    table = PAGE.read_text(encoding="utf-8").split(
        "| variable | `train`, `launch`, torchrun; `WorldModel` | the other classes |"
    )[1]
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            return
        name, job, classes = (cell.strip() for cell in line.strip("|").split("|"))
        yield name.strip("`"), job, classes


def test_the_table_names_every_setting_that_a_job_reads() -> None:
    env = Watched({"ENABLE_FP16_TRAINING": "true"})
    Requests(read_boot(env, has_cuda=False), lambda _reason, _message: None, env)
    assert {name for name, job, _ in _rows() if job == "read"} == env.read
    assert env.read == SETTINGS.keys() - RANKS


def test_the_table_names_every_setting_that_the_world_model_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Watched({**os.environ, "ENABLE_FP16_TRAINING": "true"})
    monkeypatch.setattr(os, "environ", env)
    WorldModel()
    assert {name for name, job, _ in _rows() if job == "read"} == env.read & SETTINGS.keys() - RANKS


@pytest.mark.parametrize(("value", "mode"), [("maybe", "fp32"), ("", "fp32"), ("0", "fp32"), ("TRUE", "fp16")])
@pytest.mark.parametrize("kind", [FP16Trainer, ExtendedFP16Trainer, WorldModel])
def test_a_value_that_cannot_be_read_means_fp32_and_an_error_in_every_class(
    kind: type, value: str, mode: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if torch.cuda.is_available():
        pytest.skip("not run: with CUDA nobody asks for it")
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENABLE_FP16_TRAINING", "true")
    monkeypatch.setenv("PRECISION_ALLOW_CPU", value)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if kind is WorldModel:
        low = WorldModel().fp16_enabled
    elif kind is FP16Trainer:
        low = FP16Trainer(model, optimizer).fp16_enabled
    else:
        config = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_FP16)
        low = ExtendedFP16Trainer(model, optimizer, config).mode is not PrecisionMode.FP32
    assert low == (mode != "fp32")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    errors = [line["message"] for line in lines if line.get("event") == "bad_setting"]
    assert len(errors) == (value == "maybe")
    assert all("PRECISION_ALLOW_CPU" in message for message in errors)


def test_what_the_basic_trainer_takes_is_what_the_page_says() -> None:
    taken = set(inspect.signature(FP16Trainer.__init__).parameters) - {"self", "model", "optimizer", "device"}
    assert taken == {"enabled", "loss_scale", "allow_cpu"}


def test_the_table_names_every_setting_that_the_classes_read(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Watched(dict(os.environ))
    monkeypatch.setattr(os, "environ", env)
    for build in (
        lambda model, optimizer: FP16Trainer(model, optimizer),
        lambda model, optimizer: ExtendedFP16Trainer(
            model, optimizer, ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_BF16)
        ),
    ):
        model = nn.Linear(2, 2)
        build(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert {name for name, _, classes in _rows() if classes.startswith("read")} == env.read & SETTINGS.keys()


def test_what_the_classes_take_instead_exists() -> None:
    known = {field.name for field in fields(ExtendedFP16Config)} | {"trainer.request_source", "allow_cpu"}
    named = {name for _, _, classes in _rows() for name in re.findall(r"`([^`]+)`", classes)}
    assert named <= known
