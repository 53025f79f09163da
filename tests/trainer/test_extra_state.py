"""Modules with a state of their own beside parameters and buffers, as layers for FP8 have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer
from precision_trainer.errors import ConfigError


class Counted(nn.Linear):
    """Counts its calls outside of its buffers."""

    calls = 0

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(value)

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.calls)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.calls = int(state)


class Noted(Counted):
    def get_extra_state(self) -> dict[str, int]:  # type: ignore[override]
        return {"calls": self.calls}


def _trainer(layer: nn.Module) -> ExtendedFP16Trainer:
    model = nn.Sequential(layer)
    return ExtendedFP16Trainer(
        model, torch.optim.AdamW(model.parameters(), fused=True), ExtendedFP16Config(enabled=False)
    )


def _step(trainer: ExtendedFP16Trainer) -> None:
    trainer.backward_and_step(trainer.training_step(torch.ones(2, 4), lambda model, batch: model(batch).mean()))


def test_a_tensor_of_extra_state_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    layer = Counted(4, 4)
    trainer = _trainer(layer)
    for _ in range(3):
        _step(trainer)
    trainer.save_checkpoint(tmp_path / "one.pt")
    other = Counted(4, 4)
    _trainer(other).load_checkpoint(tmp_path / "one.pt")
    assert other.calls == layer.calls == 3
    _step(trainer)
    trainer.load_checkpoint(tmp_path / "one.pt")  # and going back in the same process
    assert layer.calls == 3


def test_another_extra_state_is_refused_at_construction_with_the_module_and_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"module 0 keeps an extra state of type dict: expected a tensor.*buffers"):
        _trainer(Noted(4, 4))
