"""The largest gradient of a layer's output, measured in one step out of many (signal S2).

Parameter gradients are FP32 and hide what FP16 does; activation gradients do not. Hooks are on the layers only during the
measured step, everything is reduced on the device, and the numbers are read some boundaries later.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import TrainerError
from ..step.replay import is_compiled
from .layers import Layers

FP16_MAX = 65504.0
_PATIENCE = 3
"""Steps after which a device has finished one."""
_SPARE = 8.0
"""Room that a recommended scale leaves above the largest gradient seen."""


class CompiledModelError(TrainerError):
    """torch.compile runs the model: hooks on its layers would compile it anew in the middle of training, or end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """One measured step, of this rank's share of the batch."""

    gradient_amax: float
    """Largest magnitude of a (scaled) gradient of a layer's output."""

    @property
    def headroom_log2(self) -> float:
        """Doublings of the loss scale that the gradients would still bear in FP16: any number where all are zero."""
        if self.gradient_amax == 0:
            return math.inf
        return math.log2(FP16_MAX / self.gradient_amax) if self.gradient_amax < math.inf else 0.0

    def recommended_scale(self, scale: float) -> float | None:
        """A loss scale that leaves the gradients 8-fold room; None if none were seen, or they were not finite."""
        unscaled = self.gradient_amax / scale if scale > 0 else 0.0
        if not 0 < unscaled < math.inf:
            return None
        return 2.0 ** math.floor(math.log2(FP16_MAX / (_SPARE * unscaled)))


class ActivationProbe:
    """Hooks for one step in ``every``: attached before the forward, detached after the backward, read some steps later."""

    def __init__(self, model: torch.nn.Module, layers: Layers, every: int, failed: Callable[[Exception], None]) -> None:
        """Measure ``layers`` of ``model``; ``failed`` hears of a gradient that cannot be measured, which ends it."""
        self._model = model
        self._layers, self._every, self._failed = layers, every, failed
        self._due = every
        self.read_at = -1
        """Step count at which :meth:`read` need not wait; -1: nothing is measured."""
        self._handles: list[RemovableHandle] = []
        self._gradients: list[torch.Tensor] = []

    def rests(self, clock: int) -> bool:
        """Nothing is measured, and nothing is due: asked before every step."""
        return clock < self._due and not self._handles

    def attach_if_due(self, clock: int) -> bool:
        """Measure the step about to run, if it is one to measure; ``clock`` counts steps.

        Raises:
            CompiledModelError: torch.compile runs the model, or a part of it.
        """
        self._remove()  # a step that was begun and never ended, by an error that the script caught
        if clock < self._due:
            return False
        self._due = clock + self._every
        self._gradients = []
        if is_compiled(self._model):  # asked anew each time: a script may compile a part of it at any step
            raise CompiledModelError("torch.compile runs the model, and hooks on its layers would compile it anew")
        try:
            for module in self._layers.modules:
                self._handles.append(module.register_forward_hook(self._output))
        except BaseException:
            self._remove()
            raise
        return True

    def detach(self, clock: int) -> None:
        """The measured step is done."""
        self.read_at = clock + _PATIENCE
        self._remove()

    def _remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _spoiled(self, error: Exception) -> None:
        # Inside the script's own forward or backward pass: nothing may get out.
        self._remove()
        self._gradients = []
        self._failed(error)

    def _output(self, _module: torch.nn.Module, _inputs: object, output: object) -> None:
        # Traced, by a compiled function that calls the model, it must come to nothing at all.
        if torch.compiler.is_compiling():
            return
        if not isinstance(output, torch.Tensor) or not output.is_floating_point() or not output.numel():
            return
        if not output.requires_grad:
            return
        try:
            # Removed as the others are: an output may outlive the step, as a parameter does.
            self._handles.append(output.register_hook(self._gradient))  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001  (see _spoiled)
            self._spoiled(error)

    def _gradient(self, gradient: torch.Tensor) -> None:
        try:
            self._gradients.append(gradient.detach().abs().amax().float())
        except Exception as error:  # noqa: BLE001  (see _spoiled)
            self._spoiled(error)

    def read(self) -> ProbeReading | None:
        """What was measured; None if no layer's output had a gradient. Waits for the device, at ``read_at`` long done."""
        if not self._gradients:
            return None
        return ProbeReading(gradient_amax=max(torch.stack(self._gradients).tolist()))
