"""The context that a forward pass of a mode runs in."""

from __future__ import annotations

import contextlib

import torch

from ..values.modes import PrecisionMode
from .replay import AUTOCAST

Context = contextlib.AbstractContextManager[object]


class Autocast:
    """One context a mode, since making one costs more than entering it. A cold mode's weights need none."""

    def __init__(self, device: torch.device) -> None:
        """For models on ``device``."""
        self._device = device
        self._mode = PrecisionMode.FP32
        self._context: Context = contextlib.nullcontext()

    def __call__(self, mode: PrecisionMode) -> Context:
        """The context of ``mode``; the one before is forgotten when the mode changes."""
        if mode is not self._mode:
            self._mode = mode
            self._context = (
                torch.autocast(self._device.type, dtype=AUTOCAST[mode])
                if mode in AUTOCAST
                else contextlib.nullcontext()
            )
        return self._context
