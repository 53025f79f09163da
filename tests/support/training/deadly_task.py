"""A task that kills its process in BF16, as the kernel does where memory is short: nothing can be caught.

TEST_DIES_IN says where: ``the forward pass``, or ``the optimizer's step`` after it, which takes memory for its state. With
``nothing, it waits`` its forward pass takes minutes. TEST_OVERFLOWS: its loss is not finite in FP16.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from precision_trainer.job import signals
from precision_trainer.store import trials

# The note stands before the process dies, or is gone before it ends, however slow the machine's disk is.
trials.WAIT_SECONDS = signals._EARLY_EXIT_SECONDS = 60.0


class Deadly(torch.nn.Module):
    """A linear layer that only FP32 survives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.low = False
        if os.environ["TEST_DIES_IN"] == "the optimizer's step":
            register_optimizer_step_pre_hook(lambda *_: _die() if self.low else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        self.low = out.dtype is torch.bfloat16
        if self.low and os.environ["TEST_DIES_IN"] == "the forward pass":
            _die()
        if self.low and os.environ["TEST_DIES_IN"] == "nothing, it waits":
            time.sleep(300)
        if out.dtype is torch.float16 and "TEST_OVERFLOWS" in os.environ:
            return out * torch.inf
        return out


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], object]:
    """For ``precision-trainer train``."""
    return (
        Deadly(),
        lambda position, size: torch.full((size, 8), 1.0 + position % 5),
        lambda model, data: model(data).float().square().mean(),
    )
