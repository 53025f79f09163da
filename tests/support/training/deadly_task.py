"""A task whose model kills its process in BF16, as the kernel does where memory is short: nothing can be caught."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import torch


class Deadly(torch.nn.Module):
    """A linear layer that only FP32 survives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        if out.dtype is torch.bfloat16:
            os.kill(os.getpid(), signal.SIGKILL)
        return out


def deadly_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], object]:
    """For ``precision-trainer train``."""
    return (
        Deadly(),
        lambda position, size: torch.full((size, 8), 1.0 + position % 5),
        lambda model, data: model(data).float().square().mean(),
    )
