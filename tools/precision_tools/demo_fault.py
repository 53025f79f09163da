"""A DRILL, not a feature: makes a model overflow in FP16, or ruins its weights, for the demo and for fault tests.

Off, and not even installed, unless PRECISION_FAULT_FILE names a file (in a pod: the annotation
``demo.precision.genesis.ai/fault`` as a downward-API file). With ``overflow=0.6`` in it, in 60 % of the steps one
linear layer in the middle of the model gets its input multiplied by 2^20 and its output by 2^-20. Powers of two are
exact, so in FP32 and BF16 the model computes the same function, bit for bit. In FP16 the input exceeds 65504, so the
activation is infinite and no loss scale helps: that is a precision fault, as a model with growing activations has it.

With ``nan=120``, one weight of that layer becomes NaN before step 120 (before the next one, if that is past), once: what a
flipped bit or a bad update leaves. No change of precision mends it, only going back to an older checkpoint.
"""

from __future__ import annotations

import os
import re

import torch

from precision_trainer.errors import ConfigError
from precision_trainer.values.logs import JsonLog

_UP, _DOWN = 2.0**20, 2.0**-20
_GOLDEN, _MASK = 0x9E3779B97F4A7C15, 0xFFFFFFFFFFFFFFFF


def hit(step: int, share: float) -> bool:
    """Whether ``step`` is one of the ``share`` that overflow: the same answer on every rank and in every run.

    Multiples of the golden ratio are spread evenly, so that every window of 20 steps has its share, not only the long run.
    """
    return ((step * _GOLDEN) & _MASK) < share * 2**64


class DemoFault:
    """The switch. ``begin_step`` reads the file (one stat if unchanged), so a change works in the next step."""

    def __init__(self, path: str, layer: torch.nn.Module, log: JsonLog) -> None:
        self._path, self._log = path, log
        self._signature: tuple[int, int, int] | None = None
        self._text = ""
        self._share = 0.0
        self._active = False
        self._layer = layer
        self._ruin_at: int | None = None
        layer.register_forward_pre_hook(self._before)
        layer.register_forward_hook(self._after)

    def begin_step(self, step: int) -> None:
        """Decide about this step."""
        try:
            status = os.stat(self._path)
            signature = (status.st_ino, status.st_mtime_ns, status.st_size)
            if signature != self._signature:
                self._signature = signature
                with open(self._path, encoding="utf-8", errors="replace") as file:
                    self._set(file.read(4096), step)
        except OSError:
            # No file, no fault: the annotation may not be set.
            if self._signature is not None:
                self._signature = None
                self._set("", step)
        self._active = self._share > 0 and hit(step, self._share)
        if self._ruin_at is not None and step >= self._ruin_at:
            self._ruin_at = None  # once: after a rewind the same step comes again, and has to be good
            self._ruin(step)

    def _set(self, text: str, step: int) -> None:
        if text == self._text:
            return  # a kubelet writes every file anew when one annotation changes; that is no second order
        self._text = text
        match = re.fullmatch(r"\s*(?:overflow=(0(?:\.\d+)?|1(?:\.0+)?|\.\d+)|nan=(\d{1,15}))\s*", text)
        if text.strip() and match is None:
            expected = "expected overflow=<0..1> or nan=<step>"
            self._log.warning("demo_fault", f"DRILL: fault {text[:80]!r}: {expected}; fault stays off")
        share = float(match[1]) if match and match[1] else 0.0
        self._ruin_at = int(match[2]) if match and match[2] else None
        if share != self._share:
            self._log.warning(
                "demo_fault", "DRILL: overflow on purpose in this share of the steps", share=share, step=step
            )
        self._share = share

    def _ruin(self, step: int) -> None:
        with torch.no_grad():
            next(self._layer.parameters()).view(-1)[0] = float("nan")
        self._log.warning("demo_fault", "DRILL: a weight was made NaN on purpose", step=step)

    def _before(self, _module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        return (inputs[0] * _UP,) if self._active else None

    def _after(
        self, _module: torch.nn.Module, _inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> torch.Tensor | None:
        return output * _DOWN if self._active else None


def install(model: torch.nn.Module, log: JsonLog, path: str) -> DemoFault:
    """Install the switch, which reads the file ``path``.

    Raises:
        ConfigError: the model has no linear layer without bias to put it on.
    """
    # The first wide one without bias: a bias would be scaled down with the product and change the function.
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module.bias is None and module.out_features > module.in_features:
            log.warning(
                "demo_fault", f"DRILL: fault switch installed on layer {name}, read from {path}; not for production"
            )
            return DemoFault(path, module, log)
    raise ConfigError(
        f"PRECISION_FAULT_FILE={path!r}: the model has no widening linear layer without bias for the drill; unset it"
    )
