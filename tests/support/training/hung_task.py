"""A task on a volume that hangs from some step on, and whose loss then fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

import torch

from precision_trainer.checkpoint import files
from precision_trainer.store import lease, runs, saver
from precision_trainer.store.lease_file import OwnFile


def build() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Callable[..., torch.Tensor]]:
    """Squares of what a linear layer makes of ones, until the first checkpoint is being written."""
    hung = threading.Event()

    def hang(*_: object, **__: object) -> NoReturn:
        hung.set()
        threading.Event().wait()
        raise AssertionError

    files.write = hang
    for module, name in ((saver, "CLOSE_SECONDS"), (lease, "RELEASE_SECONDS"), (runs, "END_SECONDS")):
        assert getattr(module, name) > 0
        setattr(module, name, 0.1)

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if hung.is_set():
            OwnFile.beat = hang  # type: ignore[method-assign]
            assert "replace_json" in vars(runs)
            vars(runs)["replace_json"] = hang
            raise ZeroDivisionError("in the loss")
        out: torch.Tensor = model(batch)
        return out.square().mean()

    return torch.nn.Linear(4, 1), lambda _, size: torch.ones(size, 4), loss
