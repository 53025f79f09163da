"""What is saved can be loaded, whatever an optimizer or a model keeps; and so can files of other programs."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.checkpoint.inspect import inspect
from precision_trainer.errors import CheckpointError
from precision_trainer.store.checkpointer import Checkpointer
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import small_model
from tests.support.training.saving import WIDTH, Make, adamw, fp32_trainer, plain_adamw, same, train_on
from tests.support.training.session import Session


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


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
    first, path = fp32_trainer(make), tmp_path / "file"
    train_on(first)
    first.save_checkpoint(path)
    expected = train_on(first)
    second = fp32_trainer(make)
    second.load_checkpoint(path)
    assert same(train_on(second), expected)


@pytest.mark.parametrize("make", [_Counting, _Global, _Around, _scheduled])
def test_training_goes_on_from_a_directory_whatever_the_optimizer_keeps(make: Make, tmp_path: Path) -> None:
    def checkpointer(trainer: ExtendedFP16Trainer) -> Checkpointer:
        made = Checkpointer(trainer, CheckpointStore(str(tmp_path), JsonLog()), "data", 2, log=JsonLog())
        made.resume()
        return made

    first = fp32_trainer(make)
    kept = checkpointer(first)
    train_on(first)
    first.drain()
    kept.finish()
    kept.close()
    second = fp32_trainer(make)
    checkpointer(second).close()
    assert second.step == 3
    assert same(train_on(second), train_on(first))
    assert inspect(tmp_path / "step-000000000003").error is None


@pytest.mark.parametrize("odd", [np.ones(2), Path("x"), {"x": Path}])
def test_what_no_load_takes_leaves_the_file_before(odd: object, tmp_path: Path) -> None:
    trainer, path = fp32_trainer(), tmp_path / "file"
    trainer.save_checkpoint(path)
    good = path.read_bytes()
    trainer.optimizer.param_groups[0]["kept"] = odd
    with pytest.raises(CheckpointError, match="not written: it could not be loaded"):
        trainer.save_checkpoint(path)
    assert path.read_bytes() == good
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_an_optimizer_of_another_form_is_refused(tmp_path: Path) -> None:
    trainer, path = fp32_trainer(_Around), tmp_path / "file"
    fp32_trainer(adamw).save_checkpoint(path)
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
        return fp32_trainer(model=model)

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
        return ExtendedFP16Trainer(model, adamw(model), config, allow_cpu=True)

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
    first, second = fp32_trainer(), fp32_trainer()
    expected = train_on(first)
    first.save_checkpoint(target)
    link.symlink_to("runs/one.pt")
    second.load_checkpoint(link)
    assert same([parameter.detach() for parameter in second.model.parameters()], expected)
    train_on(second)
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
    link, trainer = tmp_path / "latest.pt", fp32_trainer()
    link.symlink_to("missing.pt")
    with pytest.raises(CheckpointError, match="cannot be opened"):
        trainer.load_checkpoint(link)
    os.mkfifo(tmp_path / "missing.pt")
    with pytest.raises(CheckpointError, match="not a regular file"):
        trainer.load_checkpoint(link)


# --- files of other programs ------------------------------------------------------------------------------------------


def _with_steps(trainer: ExtendedFP16Trainer, path: Path, step: object) -> None:
    moments = copy.deepcopy(trainer.optimizer.state_dict())
    for entry in moments["state"].values():
        entry["step"] = int(entry["step"]) if step is None else step
    torch.save({"model_state_dict": trainer.model.state_dict(), "optimizer_state_dict": moments}, path)


def _rmsprop(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), lr=1e-3)


@pytest.mark.parametrize("make", [adamw, plain_adamw, _rmsprop])
def test_a_step_that_is_a_number_as_old_torch_saved_it_is_taken(make: Make, tmp_path: Path) -> None:
    first, second, path = fp32_trainer(make), fp32_trainer(make), tmp_path / "old.pt"
    train_on(first)
    _with_steps(first, path, None)
    second.load_checkpoint(path)
    second.step = 3
    expected = train_on(first)
    assert same(train_on(second), expected)
    first.load_checkpoint(path)  # over a state that is there
    first.step = 3
    assert same(train_on(first), expected)


@pytest.mark.parametrize("step", [-1, float("nan"), True, "3", 10**400])
def test_a_step_that_counts_nothing_is_refused(step: object, tmp_path: Path) -> None:
    trainer = fp32_trainer()
    train_on(trainer)
    _with_steps(trainer, tmp_path / "old.pt", step)
    with pytest.raises(CheckpointError, match="expected a tensor step"):
        trainer.load_checkpoint(tmp_path / "old.pt")


_DEAD = {"scale": 0.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 0}


@pytest.mark.parametrize(
    "odd", [{"mean": torch.zeros(3), "std": torch.ones(3)}, torch.ones(3), [1.0], _DEAD, {**_DEAD, "scale": 10**400}]
)
def test_something_else_under_the_name_of_the_scaler_is_ignored_with_a_warning(
    odd: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, path = fp32_trainer(), fp32_trainer(), tmp_path / "old.pt"
    expected = train_on(first)
    torch.save({"model_state_dict": first.model.state_dict(), "scaler": odd}, path)
    scale = float(second.scaler.scale_value)
    second.load_checkpoint(path)
    assert same([parameter.detach() for parameter in second.model.parameters()], expected)
    assert float(second.scaler.scale_value) == scale
    assert capsys.readouterr().out.count("scaler_ignored") == 1


def test_a_scaler_that_was_switched_off_needs_no_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = fp32_trainer()
    torch.save({"model_state_dict": trainer.model.state_dict(), "scaler": {}}, tmp_path / "old.pt")
    trainer.load_checkpoint(tmp_path / "old.pt")
    assert "scaler_ignored" not in capsys.readouterr().out


def test_a_learning_rate_below_0_of_a_schedule_past_its_end_loads(tmp_path: Path) -> None:
    first, second = fp32_trainer(), fp32_trainer()
    train_on(first)
    first.optimizer.param_groups[0]["lr"] = -1e-5
    first.save_checkpoint(tmp_path / "file")
    second.load_checkpoint(tmp_path / "file")
    assert second.optimizer.param_groups[0]["lr"] == -1e-5
