"""The context that a forward pass of a mode runs in."""

from __future__ import annotations

import contextlib

import torch

from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from .replay import AUTOCAST

Context = contextlib.AbstractContextManager[object]


class Autocast:
    """One context a mode, since making one costs more than entering it. A cold mode's weights need none.

    One that a loss function has within itself has the last word.
    """

    def __init__(self, device: torch.device, log: JsonLog) -> None:
        """For models on ``device``."""
        self._device, self._log = device, log
        self._mode = PrecisionMode.FP32
        self._context: Context = contextlib.nullcontext()
        self._none: Context | None = None
        """Made where a script has an autocast of its own around its steps."""

    def __call__(self, mode: PrecisionMode) -> Context:
        """The context of ``mode``; the one before is forgotten when the mode changes."""
        if mode is not self._mode:
            self._mode = mode
            self._context = (
                torch.autocast(self._device.type, dtype=AUTOCAST[mode])
                if mode in AUTOCAST
                else contextlib.nullcontext()
            )
        if mode is PrecisionMode.FP32 and torch.is_autocast_enabled(self._device.type):
            return self._without()
        return self._context

    def _without(self) -> Context:
        """FP32 that was asked for, and is reported, is FP32."""
        if self._none is None:
            self._none = torch.autocast(self._device.type, enabled=False)
            self._log.warning(
                "autocast_off",
                "expected no autocast around a step in FP32, found the script's own: it is off in the trainer's forward "
                "passes, since the trainer's mode decides; take it out, or ask for bf16 or fp16",
            )
        return self._none
