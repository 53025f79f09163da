"""Odd content in files of a good manifest: training starts all the same, and what is saved can be loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.checkpoint import files
from precision_trainer.checkpoint.format import validate
from precision_trainer.checkpoint.inspect import inspect
from precision_trainer.errors import CheckpointError
from precision_trainer.store import checkpoints as store_module
from precision_trainer.store.checkpointer import Checkpointer
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.store.runs import Runs
from precision_trainer.store.trials import TrialNotes
from precision_trainer.telemetry.baseline import BaselineRecorder
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import small_model, small_state
from tests.support.training.session import Session

WIDTH = 8
Make = Callable[[torch.nn.Module], torch.optim.Optimizer]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


def _adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def _trainer(make: Make = _adamw, model: torch.nn.Module | None = None) -> ExtendedFP16Trainer:
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 3))
    config = ExtendedFP16Config(precision_mode=PrecisionMode.FP32, max_grad_norm=0.0)
    return ExtendedFP16Trainer(model, make(model), config)


def _train(trainer: ExtendedFP16Trainer, steps: int = 3, factor: float = 1.0) -> list[torch.Tensor]:
    """The weights after so many more steps."""
    for _ in range(steps):
        data = torch.full((2, WIDTH), 1.0 + trainer.step)
        trainer.backward_and_step(
            trainer.training_step(data, lambda model, batch: model(batch).square().mean() * factor)
        )
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def _equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, first, second))


# --- broken content ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 0, 0.0, False])
@pytest.mark.parametrize("name", ["amsgrad", "maximize"])
def test_a_switch_that_a_file_says_in_another_way_is_given_to_a_fused_optimizer_as_a_bool(
    name: str, value: object, tmp_path: Path
) -> None:
    first, path = _trainer(), tmp_path / "file"
    _train(first)
    first.save_checkpoint(path)
    expected = _train(first)
    saved = torch.load(path, weights_only=True)
    saved["optimizer_state_dict"]["param_groups"][0][name] = value
    torch.save(saved, path)
    second = _trainer()
    second.load_checkpoint(path)
    assert second.optimizer.param_groups[0][name] is False
    assert _equal(_train(second), expected)


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
        recorder.observe(_Step(), step, samples=2, seconds=0.1)
    recorder.end(1.0, None)
    return json.loads(json.dumps(recorder.state_dict()))  # type: ignore[no-any-return]


class _Step:
    loss, nonfinite = 1.0, False


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


def _plain_adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


@pytest.mark.parametrize("make", [_adamw, _plain_adamw])
def test_a_huge_gradient_that_stops_a_weight_for_good_does_not_stop_saving(make: Make, tmp_path: Path) -> None:
    first, path = _trainer(make), tmp_path / "file"
    _train(first, 2)
    _train(first, 1, factor=1e22)
    moments = [entry["exp_avg_sq"] for entry in first.optimizer.state.values()]
    assert any(moment.isinf().any() for moment in moments)
    first.save_checkpoint(path)
    expected = _train(first)
    assert all(weight.isfinite().all() for weight in expected)
    second = _trainer(make)
    second.load_checkpoint(path)
    assert _equal(_train(second), expected)


@pytest.mark.parametrize(("name", "value"), [("exp_avg", "inf"), ("exp_avg", "nan"), ("exp_avg_sq", "nan")])
def test_a_moment_that_spoils_the_weights_next_leaves_the_file_before(name: str, value: str, tmp_path: Path) -> None:
    trainer, path = _trainer(), tmp_path / "file"
    _train(trainer)
    trainer.save_checkpoint(path)
    good = path.read_bytes()
    next(iter(trainer.optimizer.state.values()))[name].fill_(float(value))
    with pytest.raises(CheckpointError, match=f"inf or NaN in {name}"):
        trainer.save_checkpoint(path)
    assert path.read_bytes() == good


@pytest.mark.parametrize("task", ["spiked_task", "late_mask_task"])
def test_inf_beside_finite_weights_is_saved_and_resumed_but_never_tagged_healthy(task: str, session: Session) -> None:
    name = f"tests.support.training.harmless_scenarios:{task}"
    options: dict[str, Any] = {"model": name, "checkpoint_every": 10, "healthy_after": 3, "quick_disk": True}
    session.run(steps=30, max_grad_norm=0.0, **options)
    assert session.events("checkpoint_failed") == []
    assert [line["step"] for line in session.events("checkpoint")] == [10, 20, 30]
    (warning,) = session.events("checkpoint_unproven")
    assert warning["step"] == 20
    assert {line["step"] for line in session.events("checkpoint_healthy")} == {10}
    session.run(steps=40, max_grad_norm=0.0, **options)
    assert [line["step"] for line in session.events("resumed")] == [30]
    assert session.events("checkpoint_refused") == session.events("checkpoint_healthy") == []
    assert session.events("complete")
    directory = session.directory / "checkpoints"
    assert [path.parent.name for path in directory.glob("step-*/healthy.json")] == ["step-000000000010"]
    assert inspect(directory / "step-000000000040").error is None


def test_a_mask_that_is_filled_after_the_start_is_in_a_file_that_loads(tmp_path: Path) -> None:
    def trainer() -> ExtendedFP16Trainer:
        model = torch.nn.Linear(WIDTH, 3)
        model.register_buffer("mask", torch.zeros(4))
        return _trainer(model=model)

    first, second = trainer(), trainer()
    first.model.get_buffer("mask")[1] = float("-inf")
    first.save_checkpoint(tmp_path / "file")
    second.load_checkpoint(tmp_path / "file")
    assert second.model.get_buffer("mask").tolist() == [0.0, float("-inf"), 0.0, 0.0]


# --- what is saved can be loaded --------------------------------------------------------------------------------------


class _Counting(torch.optim.SGD):
    """Keeps a number for all parameters together."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1, momentum=0.9)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        self.state["calls"] = self.state.get("calls", 0) + 1  # type: ignore[index, call-overload]


class _Global(torch.optim.SGD):
    """Keeps tensors for all parameters together, one of them infinite from the start."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), lr=0.1, momentum=0.9)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        self.state["global"].update(k=torch.tensor(3.0), best=torch.tensor(float("inf")))  # type: ignore[index]


class _Around(torch.optim.Optimizer):
    """Around another one, with a form of its own."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        super().__init__(model.parameters(), {"lr": 0.1})
        self.param_groups, self.state = self.base.param_groups, self.base.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.base.step()

    def state_dict(self) -> dict[str, Any]:
        return {"base": self.base.state_dict(), "k": 5}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base.load_state_dict(state["base"])
        self.param_groups, self.state = self.base.param_groups, self.base.state


def _scheduled(model: torch.nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    optimizer.param_groups[0]["lr"] = 1e-3 * 0.5 * (1 + np.cos(np.pi * 0.3))
    optimizer.param_groups[0]["weight_decay"] = np.float32(0.125)
    return optimizer


@pytest.mark.parametrize("make", [_Counting, _Global, _Around, _scheduled])
def test_training_goes_on_from_a_file_whatever_the_optimizer_keeps(make: Make, tmp_path: Path) -> None:
    first, path = _trainer(make), tmp_path / "file"
    _train(first)
    first.save_checkpoint(path)
    expected = _train(first)
    second = _trainer(make)
    second.load_checkpoint(path)
    assert _equal(_train(second), expected)


@pytest.mark.parametrize("make", [_Counting, _Global, _Around, _scheduled])
def test_training_goes_on_from_a_directory_whatever_the_optimizer_keeps(make: Make, tmp_path: Path) -> None:
    def checkpointer(trainer: ExtendedFP16Trainer) -> Checkpointer:
        made = Checkpointer(trainer, CheckpointStore(str(tmp_path), JsonLog()), "data", 2, log=JsonLog())
        made.resume()
        return made

    first = _trainer(make)
    kept = checkpointer(first)
    _train(first)
    first.drain()
    kept.finish()
    kept.close()
    second = _trainer(make)
    checkpointer(second).close()
    assert second.step == 3
    assert _equal(_train(second), _train(first))
    assert inspect(tmp_path / "step-000000000003").error is None


@pytest.mark.parametrize("odd", [np.ones(2), Path("x"), {"x": Path}])
def test_what_no_load_takes_leaves_the_file_before(odd: object, tmp_path: Path) -> None:
    trainer, path = _trainer(), tmp_path / "file"
    trainer.save_checkpoint(path)
    good = path.read_bytes()
    trainer.optimizer.param_groups[0]["kept"] = odd
    with pytest.raises(CheckpointError, match="not written: it could not be loaded"):
        trainer.save_checkpoint(path)
    assert path.read_bytes() == good
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_optimizer_of_another_form_is_refused(tmp_path: Path) -> None:
    trainer, path = _trainer(_Around), tmp_path / "file"
    _trainer(_adamw).save_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"expected the keys \['base', 'k'\]"):
        trainer.load_checkpoint(path)


@pytest.mark.parametrize("stop", [20, 25])
def test_an_expanded_buffer_is_saved_and_resumed(stop: int, session: Session) -> None:
    options: dict[str, Any] = {"model": "tests.support.training.harmless_scenarios:expanded_task"}
    session.run(steps=stop, checkpoint_every=10, **options)
    assert session.events("checkpoint_failed") == []
    session.run(steps=30, **options)
    assert [line["step"] for line in session.events("resumed")] == [stop]
    assert session.events("complete")


def test_an_expanded_buffer_takes_its_number_from_a_file_and_no_others(tmp_path: Path) -> None:
    def trainer(value: float) -> ExtendedFP16Trainer:
        model = torch.nn.Linear(WIDTH, 3)
        model.register_buffer("scale", torch.tensor([[value], [2.0]]).expand(2, 5))
        return _trainer(model=model)

    first, second, path = trainer(1.0), trainer(7.0), tmp_path / "file"
    first.save_checkpoint(path)
    second.load_checkpoint(path)
    assert second.model.get_buffer("scale").tolist() == [[1.0] * 5, [2.0] * 5]
    assert second.model.get_buffer("scale").stride() == (1, 0)
    saved = torch.load(path, weights_only=True)
    saved["model_state_dict"]["scale"][0, 1] = 3.0
    torch.save(saved, path)
    with pytest.raises(CheckpointError, match="scale: expected one number"):
        second.load_checkpoint(path)


def test_a_scale_that_fell_to_zero_begins_anew_where_it_is_loaded(tmp_path: Path) -> None:
    def trainer() -> ExtendedFP16Trainer:
        model = small_model()
        config = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_FP16, min_loss_scale=0.0, loss_scale=512.0)
        return ExtendedFP16Trainer(model, _adamw(model), config, allow_cpu=True)

    first, second, path = trainer(), trainer(), tmp_path / "file"
    first.scaler.scale_value.fill_(0.0)
    first.save_checkpoint(path)
    second.scaler.scale_value.fill_(1.0)
    second.load_checkpoint(path)
    assert float(second.scaler.scale_value) == 512.0


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_link_is_loaded_and_saved_through(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    target, link, later = tmp_path / "runs" / "one.pt", tmp_path / "latest.pt", tmp_path / "later.pt"
    first, second = _trainer(), _trainer()
    expected = _train(first)
    first.save_checkpoint(target)
    link.symlink_to("runs/one.pt")
    second.load_checkpoint(link)
    assert _equal([parameter.detach() for parameter in second.model.parameters()], expected)
    _train(second)
    second.save_checkpoint(link)
    assert link.is_symlink()
    first.load_checkpoint(target)
    assert first.step == second.step
    later.symlink_to("runs/later.pt")  # of a file that is not there yet
    first.save_checkpoint(later)
    assert later.is_symlink()
    assert {entry.name for entry in target.parent.iterdir()} == {"one.pt", "later.pt"}
    assert {entry.name for entry in tmp_path.iterdir()} == {"latest.pt", "later.pt", "runs"}


def test_training_begins_from_a_link(session: Session) -> None:
    session.run(steps=6)
    target, link = session.directory / "old.pt", session.directory / "latest.pt"
    state = session.state(6)
    torch.save({key: state[key] for key in ("model_state_dict", "optimizer_state_dict")}, target)
    link.symlink_to("old.pt")
    session.run(steps=2, checkpoint_dir=str(session.directory / "new"), resume_from=str(link))
    assert session.events("resumed_plain")
    link.unlink()
    link.symlink_to("checkpoints/step-000000000006")
    session.run(steps=2, checkpoint_dir=str(session.directory / "newer"), resume_from=str(link))
    assert session.events("resumed_plain")


def test_a_link_to_nothing_or_to_a_pipe_is_refused(tmp_path: Path) -> None:
    link, trainer = tmp_path / "latest.pt", _trainer()
    link.symlink_to("missing.pt")
    with pytest.raises(CheckpointError, match="cannot be opened"):
        trainer.load_checkpoint(link)
    os.mkfifo(tmp_path / "missing.pt")
    with pytest.raises(CheckpointError, match="not a regular file"):
        trainer.load_checkpoint(link)
