"""Optimizers in checkpoints: each that is accepted comes back from its file, and what does not fit is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from precision_trainer import ExtendedFP16Trainer
from precision_trainer.checkpoint import plain
from precision_trainer.errors import CheckpointError
from precision_trainer.store.checkpointer import Checkpointer
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.store.choice import begin_from
from precision_trainer.values.logs import JsonLog
from tests.support.training.saving import WIDTH, Make, fp32_trainer, same, train_on

OPTIMIZERS: dict[str, Make] = {
    "ASGD": lambda model: torch.optim.ASGD(model.parameters(), t0=2),
    "Adadelta": lambda model: torch.optim.Adadelta(model.parameters()),
    "Adafactor": lambda model: torch.optim.Adafactor(model.parameters()),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters()),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), amsgrad=True),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), fused=True),
    "Adamax": lambda model: torch.optim.Adamax(model.parameters()),
    "Muon": lambda model: torch.optim.Muon(model.parameters()),
    "NAdam": lambda model: torch.optim.NAdam(model.parameters()),
    "RAdam": lambda model: torch.optim.RAdam(model.parameters()),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), momentum=0.5, centered=True),
    "Rprop": lambda model: torch.optim.Rprop(model.parameters()),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9),
}


def test_every_optimizer_of_torch_is_among_them() -> None:
    theirs = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    # A base class, one that needs a closure, one for sparse gradients.
    assert theirs - {"Optimizer", "LBFGS", "SparseAdam"} == set(OPTIMIZERS)


def _trainer(make: Make) -> ExtendedFP16Trainer:
    torch.manual_seed(1)
    # Muon takes matrices only.
    vectors = make is not OPTIMIZERS["Muon"]
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH, bias=vectors), torch.nn.Linear(WIDTH, 3, bias=vectors))
    return fp32_trainer(make, model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_from_a_file_as_if_it_had_not_ended(name: str, tmp_path: Path) -> None:
    first, path = _trainer(OPTIMIZERS[name]), tmp_path / "one.pt"
    train_on(first)
    first.save_checkpoint(path)
    expected = train_on(first)
    second = _trainer(OPTIMIZERS[name])
    second.load_checkpoint(path)
    assert same(expected, train_on(second))
    first.load_checkpoint(path)  # over a state that is there
    assert same(expected, train_on(first))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_from_a_directory_as_if_it_had_not_ended(name: str, tmp_path: Path) -> None:
    def checkpointer(trainer: ExtendedFP16Trainer) -> Checkpointer:
        made = Checkpointer(trainer, CheckpointStore(str(tmp_path), JsonLog()), "data", 2, log=JsonLog())
        made.resume()
        return made

    first = _trainer(OPTIMIZERS[name])
    kept = checkpointer(first)
    train_on(first)
    first.drain()
    kept.finish()
    kept.close()
    second = _trainer(OPTIMIZERS[name])
    checkpointer(second).close()
    assert second.step == 3
    assert same(train_on(first), train_on(second))


def _load(trainer: ExtendedFP16Trainer, path: Path) -> None:
    trainer.load_checkpoint(path)


def _begin(trainer: ExtendedFP16Trainer, path: Path) -> None:
    begin_from(path, trainer, JsonLog())


@pytest.mark.parametrize("load", [_load, _begin])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_a_file_of_a_default_optimizer_loads_into_a_fused_one(
    load: Callable[[ExtendedFP16Trainer, Path], None], kind: type[torch.optim.Adam], tmp_path: Path
) -> None:
    source, path = _trainer(lambda model: kind(model.parameters())), tmp_path / "old.pt"
    train_on(source)
    assert source.optimizer.param_groups[0]["fused"] is None
    torch.save(
        {"model_state_dict": source.model.state_dict(), "optimizer_state_dict": source.optimizer.state_dict()}, path
    )
    target = _trainer(lambda model: kind(model.parameters(), fused=True))
    load(target, path)
    assert target.optimizer.param_groups[0]["fused"] is True
    assert target.optimizer.state_dict()["state"].keys() == source.optimizer.state_dict()["state"].keys()
    train_on(target)


@pytest.mark.parametrize("name", ["row_var", "col_var", "variance"])
def test_a_factored_moment_of_another_shape_is_refused(name: str, tmp_path: Path) -> None:
    trainer, path = _trainer(OPTIMIZERS["Adafactor"]), tmp_path / "one.pt"
    train_on(trainer)
    moments = copy.deepcopy(trainer.optimizer.state_dict())
    entry = next(entry for entry in moments["state"].values() if name in entry)
    entry[name] = torch.zeros(7, 7)
    plain.write(path, {plain.MODEL: trainer.model.state_dict(), plain.OPTIMIZER: moments})
    for target in (trainer, _trainer(OPTIMIZERS["Adafactor"])):
        with pytest.raises(CheckpointError, match=rf"{name}: expected .* found \(7, 7\)"):
            target.load_checkpoint(path)


class _Projected(torch.optim.Optimizer):
    """Keeps a state of its own shape under a name that nobody knows."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": 1e-2})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros(1))
                mean.add_(parameter.grad.mean())
                parameter.data.sub_(group["lr"] * mean)


def test_a_state_of_its_own_shape_is_taken_over_and_compared_where_there_is_one(tmp_path: Path) -> None:
    first, path = _trainer(_Projected), tmp_path / "one.pt"
    train_on(first)
    first.save_checkpoint(path)
    expected = train_on(first)
    second = _trainer(_Projected)
    second.load_checkpoint(path)
    assert same(expected, train_on(second))
    for entry in second.optimizer.state.values():
        entry["mean"] = torch.zeros(2)
    with pytest.raises(CheckpointError, match=r"mean: expected \(2,\), found \(1,\)"):
        second.load_checkpoint(path)


class _Averaged(torch.optim.Optimizer):
    """Keeps numbers under names that torch's own optimizers keep tensors under."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model.parameters(), {"lr": 1e-2})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["variance"] = 0.9 * state.get("variance", 1.0) + 0.1 * float(parameter.grad.square().mean())
                parameter.data.sub_(group["lr"] * parameter.grad / (1.0 + state["variance"]))


def test_a_number_that_an_optimizer_of_ones_own_keeps_is_taken_over(tmp_path: Path) -> None:
    first, path = _trainer(_Averaged), tmp_path / "one.pt"
    train_on(first)
    first.save_checkpoint(path)
    expected = train_on(first)
    second = _trainer(_Averaged)
    second.load_checkpoint(path)
    assert same(expected, train_on(second))
    first.load_checkpoint(path)
    assert same(expected, train_on(first))


def test_a_number_where_an_optimizer_of_ones_own_has_a_tensor_is_refused(tmp_path: Path) -> None:
    trainer, path = _trainer(_Projected), tmp_path / "one.pt"
    train_on(trainer)
    moments = copy.deepcopy(trainer.optimizer.state_dict())
    for entry in moments["state"].values():
        entry["mean"] = 1.0
    plain.write(path, {plain.MODEL: trainer.model.state_dict(), plain.OPTIMIZER: moments})
    with pytest.raises(CheckpointError, match=r"expected a tensor mean, found 1\.0"):
        trainer.load_checkpoint(path)
