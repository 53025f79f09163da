"""A small trainer to save and load, and what it learns from there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode

WIDTH = 8
Make = Callable[[torch.nn.Module], torch.optim.Optimizer]


def plain_adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def fp32_trainer(make: Make = adamw, model: torch.nn.Module | None = None) -> ExtendedFP16Trainer:
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 3))
    config = ExtendedFP16Config(precision_mode=PrecisionMode.FP32, max_grad_norm=0.0)
    return ExtendedFP16Trainer(model, make(model), config)


def train_on(trainer: ExtendedFP16Trainer, steps: int = 3, factor: float = 1.0) -> list[torch.Tensor]:
    """The weights after so many more steps."""
    for _ in range(steps):
        data = torch.full((2, WIDTH), 1.0 + trainer.step)
        trainer.backward_and_step(
            trainer.training_step(data, lambda model, batch: model(batch).square().mean() * factor)
        )
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, first, second))
