"""Odd content in files of a good manifest, and inf beside finite weights: training starts, and goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_trainer import ExtendedFP16Trainer, PrecisionMode
from precision_trainer.checkpoint import files
from precision_trainer.checkpoint.format import validate
from precision_trainer.checkpoint.inspect import inspect
from precision_trainer.errors import CheckpointError
from precision_trainer.store import checkpoints as store_module
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.store.runs import Runs
from precision_trainer.store.trials import TrialNotes
from precision_trainer.telemetry.baseline import BaselineRecorder
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import small_model, small_state
from tests.support.training.saving import WIDTH, Make, adamw, fp32_trainer, plain_adamw, same, train_on
from tests.support.training.session import Session


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


# --- broken content ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 0, 0.0, False])
@pytest.mark.parametrize("name", ["amsgrad", "maximize"])
def test_a_switch_that_a_file_says_in_another_way_is_given_to_a_fused_optimizer_as_a_bool(
    name: str, value: object, tmp_path: Path
) -> None:
    first, path = fp32_trainer(), tmp_path / "file"
    train_on(first)
    first.save_checkpoint(path)
    expected = train_on(first)
    saved = torch.load(path, weights_only=True)
    saved["optimizer_state_dict"]["param_groups"][0][name] = value
    torch.save(saved, path)
    second = fp32_trainer()
    second.load_checkpoint(path)
    assert second.optimizer.param_groups[0][name] is False
    assert same(train_on(second), expected)


def test_a_checkpoint_whose_check_fails_in_an_unknown_way_is_passed_over_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, model = CheckpointStore(str(tmp_path), JsonLog()), small_model()
    for step in (10, 20):
        store.save(small_state(step, model))

    def failing(raw: dict[str, Any], *rest: torch.nn.Module | torch.optim.Optimizer | None) -> object:
        if raw["step"] == 20:
            raise RuntimeError("Boolean value of Tensor is ambiguous")
        return validate(raw, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(store_module, "validate", failing)
    loaded = store.load_newest(model)
    assert loaded is not None
    assert loaded.state["step"] == 10
    line = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (line["event"], line["step"]) == ("checkpoint_refused", 20)
    assert "RuntimeError: Boolean value" in line["message"]


def _baseline() -> dict[str, object]:
    recorder = BaselineRecorder("f")
    for step in range(20):
        recorder.observe(1.0, step, samples=2, seconds=0.1)
    recorder.end(1.0, None)
    return json.loads(json.dumps(recorder.state_dict()))  # type: ignore[no-any-return]


UNREADABLE = {
    "p95_seconds": "abc", "first_step": 10**400, "steps": None, "peak_bytes": "x", "time": [], "success_ratio": "y",
    "samples_per_second": None, "stride": 1.5, "losses": [10**400],
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(UNREADABLE))
def test_a_baseline_that_is_unreadable_counts_as_never_seen(name: str) -> None:
    recorder = BaselineRecorder("f")
    recorder.load_state_dict({**_baseline(), name: UNREADABLE[name]})
    assert recorder.record is None
    assert recorder.stale
    recorder.load_state_dict(_baseline())
    assert recorder.record is not None
    assert not recorder.stale
    assert recorder.record.gauges()["genesis_fp32_baseline_step"] == 20.0


def test_a_start_goes_on_without_a_baseline_that_is_unreadable(session: Session) -> None:
    session.run(steps=20)
    path = session.directory / "checkpoints" / "step-000000000020"
    state = torch.load(path / files.STATE, weights_only=True)
    fingerprint: list[str] = []
    remember = BaselineRecorder.load_state_dict

    def load(recorder: BaselineRecorder, kept: dict[str, object]) -> None:
        fingerprint.append(recorder._fingerprint)
        remember(recorder, {**kept, "fingerprint": recorder._fingerprint})

    state["parts"]["fp32_baseline"] = {**_baseline(), "p95_seconds": "abc"}
    files.write(path, state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaselineRecorder, "load_state_dict", load)
        session.run(steps=21)
    assert fingerprint
    assert [line["step"] for line in session.events("resumed")] == [20]
    assert session.events("complete")


def _deep(path: Path) -> None:
    path.write_text("[" * 30_000)


ODD: dict[str, Callable[[Path], object]] = {
    "deeply nested": _deep,
    "a pipe": os.mkfifo,
    "a directory": Path.mkdir,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "a list": lambda path: path.write_text("[1]"),
    "beyond any float": lambda path: path.write_text(
        json.dumps({"open_since": 1, "suspended": True, "seconds": 10**400})
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_stands_in_place_of_the_ledgers_ends_no_start(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("runs.json", "trial.json"):
        ODD[kind](tmp_path / name)
    runs = Runs(str(tmp_path), 10, JsonLog(), pod="a", metrics=Metrics())
    runs.begin_process(5, 1.0)
    assert TrialNotes(str(tmp_path), JsonLog()).deaths(PrecisionMode.MIXED_FP16, 0) == 0
    out = capsys.readouterr().out
    assert "runs_refused" in out
    assert "trial_unreadable" in out


# --- inf beside finite weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [adamw, plain_adamw])
def test_a_huge_gradient_that_stops_a_weight_for_good_does_not_stop_saving(make: Make, tmp_path: Path) -> None:
    first, path = fp32_trainer(make), tmp_path / "file"
    train_on(first, 2)
    train_on(first, 1, factor=1e22)
    moments = [entry["exp_avg_sq"] for entry in first.optimizer.state.values()]
    assert any(moment.isinf().any() for moment in moments)
    first.save_checkpoint(path)
    expected = train_on(first)
    assert all(weight.isfinite().all() for weight in expected)
    second = fp32_trainer(make)
    second.load_checkpoint(path)
    assert same(train_on(second), expected)


@pytest.mark.parametrize(("name", "value"), [("exp_avg", "inf"), ("exp_avg", "nan"), ("exp_avg_sq", "nan")])
def test_a_moment_that_spoils_the_weights_next_leaves_the_file_before(name: str, value: str, tmp_path: Path) -> None:
    trainer, path = fp32_trainer(), tmp_path / "file"
    train_on(trainer)
    trainer.save_checkpoint(path)
    good = path.read_bytes()
    next(iter(trainer.optimizer.state.values()))[name].fill_(float(value))
    with pytest.raises(CheckpointError, match=f"inf or NaN in {name}"):
        trainer.save_checkpoint(path)
    assert path.read_bytes() == good


@pytest.mark.parametrize(("task", "proven"), [("spiked_task", False), ("late_mask_task", True)])
def test_inf_beside_finite_weights_is_saved_and_resumed_and_only_a_mask_is_tagged_healthy(
    task: str, proven: bool, session: Session
) -> None:
    name = f"tests.support.training.harmless_scenarios:{task}"
    options: dict[str, Any] = {"model": name, "checkpoint_every": 10, "healthy_after": 3, "quick_disk": True}
    session.run(steps=30, max_grad_norm=0.0, **options)
    assert session.events("checkpoint_failed") == []
    assert [line["step"] for line in session.events("checkpoint")] == [10, 20, 30]
    assert [line["step"] for line in session.events("checkpoint_unproven")] == ([] if proven else [20])
    assert {line["step"] for line in session.events("checkpoint_healthy")} == ({10, 20} if proven else {10})
    session.run(steps=40, max_grad_norm=0.0, **options)
    assert [line["step"] for line in session.events("resumed")] == [30]
    assert session.events("checkpoint_refused") == []
    assert [line["step"] for line in session.events("checkpoint_healthy")] == ([30] if proven else [])
    assert session.events("complete")
    assert inspect(session.directory / "checkpoints" / "step-000000000040").error is None


def test_a_mask_that_is_filled_after_the_start_is_in_a_file_that_loads(tmp_path: Path) -> None:
    def trainer() -> ExtendedFP16Trainer:
        model = torch.nn.Linear(WIDTH, 3)
        model.register_buffer("mask", torch.zeros(4))
        return fp32_trainer(model=model)

    first, second = trainer(), trainer()
    first.model.get_buffer("mask")[1] = float("-inf")
    first.save_checkpoint(tmp_path / "file")
    second.load_checkpoint(tmp_path / "file")
    assert second.model.get_buffer("mask").tolist() == [0.0, float("-inf"), 0.0, 0.0]
