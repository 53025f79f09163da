"""Modules and losses for the analyzer."""

from __future__ import annotations

import torch
from torch import nn

CPU = torch.device("cpu")


def mean_square(model: nn.Module, batch: object) -> torch.Tensor:
    assert isinstance(batch, torch.Tensor)
    output: torch.Tensor = model(batch)
    return output.float().square().mean()


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 7))
