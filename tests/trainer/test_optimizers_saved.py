"""Optimizers in checkpoints: each that is accepted comes back from its file, and what does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer
from precision_trainer.store.choice import begin_from
from precision_trainer.values.logs import JsonLog

WIDTH = 8
Make = Callable[[torch.nn.Module], torch.optim.Optimizer]


def _trainer(make: Make) -> ExtendedFP16Trainer:
    torch.manual_seed(1)
    model = torch.nn.Linear(WIDTH, 3)
    return ExtendedFP16Trainer(model, make(model), ExtendedFP16Config(enabled=False), "cpu")


def _train(trainer: ExtendedFP16Trainer, steps: int = 3) -> dict[str, torch.Tensor]:
    """The weights after so many more steps."""
    for _ in range(steps):
        data = torch.full((2, WIDTH), 1.0 + trainer.step)
        trainer.backward_and_step(trainer.training_step(data, lambda model, batch: model(batch).square().mean()))
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


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
    _train(source)
    assert source.optimizer.param_groups[0]["fused"] is None
    torch.save(
        {"model_state_dict": source.model.state_dict(), "optimizer_state_dict": source.optimizer.state_dict()}, path
    )
    target = _trainer(lambda model: kind(model.parameters(), fused=True))
    load(target, path)
    assert target.optimizer.param_groups[0]["fused"] is True
    assert target.optimizer.state_dict()["state"].keys() == source.optimizer.state_dict()["state"].keys()
    _train(target)
