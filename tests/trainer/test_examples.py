"""The examples run as their texts say, and what a wrong factory is told."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from precision_trainer.errors import ConfigError
from precision_trainer.models.task import load_task, to_device
from precision_trainer.step.replay import tensors_in
from tests.support.training.process import Process

ROOT = Path(__file__).parents[2]


def run(*command: str, **settings: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "trainer_image"), "PRECISION_ALLOW_CPU": "true", **settings}
    result = subprocess.run([sys.executable, *command], env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_trainer_trains_a_persons_own_model_and_the_loss_falls() -> None:
    output = run(
        "-m", "precision_trainer", "train", "examples.own_model:build", "--steps", "150", "--batch-size", "32",
        "--metrics-port", "-1", ENABLE_FP16_TRAINING="true", PRECISION_MODE="bf16",
    )  # fmt: skip
    events = {line["event"]: line for line in map(json.loads, output.splitlines())}
    assert events["precision_selected"]["mode"] == "bf16"
    assert events["complete"]["step"] == 150
    assert events["complete"]["loss"] < 1.5  # ln 8 = 2.08 at the start


def test_the_plain_script_changes_precision_while_it_trains() -> None:
    lines = run("examples/plain_script.py").splitlines()
    assert [line.split()[2] for line in lines[:-1]] == ["fp16", "fp16", "bf16", "bf16", "bf16"]
    first, last = (float(line.split()[4]) for line in (lines[0], lines[-2]))
    assert last < 0.5 * first
    assert ast.literal_eval(lines[-1])["training_steps"] == 200


def test_the_plain_script_falls_back_to_fp32_where_nobody_allowed_a_cpu() -> None:
    output = run("examples/plain_script.py", PRECISION_ALLOW_CPU="false")
    assert "Falling back to FP32" in output


def test_a_loop_of_ones_own_answers_a_hot_request_with_its_mode_and_generation(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    loop = start([str(ROOT / "examples" / "contract_loop.py")], {"CHECKPOINT": str(tmp_path / "model.pt")})
    loop.until_metric('genesis_precision_info{generation="0",mode="fp32"} 1.0')
    loop.request.write_text('{"generation":7,"mode":"bf16"}')
    loop.until_metric('genesis_precision_info{generation="7",mode="bf16"} 1.0')
    loop.request.write_text('{"generation":8,"mode":"int8"}')
    loop.until_metric('genesis_request_errors_total{reason="UnknownMode"} 1.0')
    assert loop.stop() == 143, loop.text
    assert [(line["to"], line["generation"]) for line in loop.events("precision_changed")] == [("bf16", 7)]
    assert (tmp_path / "model.pt").is_file()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no.such.module:build", "there is no module no.such.module"),
        ("json:build", "json has no function build"),
        ("json:__doc__", "json has no function __doc__"),
        ("os:getcwd", r"returned str: expected \(model, batches, loss\)"),
        ("time:gmtime", "returned struct_time"),
    ],
)
def test_a_wrong_factory_is_told_what_was_expected(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_task(target)


def test_a_module_that_fails_to_import_shows_what_it_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_model.py").write_text("import not_installed_anywhere\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        load_task("broken_model:build")


def test_a_nested_batch_moves_whole() -> None:
    import torch

    batch = {"a": (torch.zeros(2), [torch.ones(1)]), "note": "kept"}
    moved = to_device(batch, torch.device("meta"))
    assert [tensor.device.type for tensor in tensors_in(moved)] == ["meta", "meta"]
    assert isinstance(moved, dict)
    assert moved["note"] == "kept"
