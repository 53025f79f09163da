"""Activations and their gradients, measured in one step out of many (signals S2, S3, S4).

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
_SUBNORMAL = 2.0**-14
_SPARE = 8.0
"""Room that a recommended scale leaves above the largest gradient seen."""


class CompiledModelError(TrainerError):
    """torch.compile runs the model: hooks on its layers would compile it anew in the middle of training, or end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """One measured step, of this rank's share of the batch."""

    activation_amax: float
    """Largest magnitude of a layer's output."""
    activation_layer: str
    kurtosis: float
    """Largest kurtosis of a layer's output, 3 for a normal one: outliers grow long before an overflow."""
    kurtosis_layer: str
    gradient_amax: float
    """Largest magnitude of a (scaled) gradient of a layer's output."""
    subnormal_ratio: float
    """Share of those gradients that are not zero but below 2^-14: FP16 keeps fewer than 10 bits of them."""
    zero_ratio: float
    """Share that is zero: true zeros, and what fell below 2^-25."""

    @property
    def headroom_log2(self) -> float:
        """Doublings of the loss scale that the gradients would still bear in FP16."""
        return math.log2(FP16_MAX / self.gradient_amax) if 0 < self.gradient_amax < math.inf else 0.0

    def recommended_scale(self, scale: float) -> float | None:
        """A loss scale that leaves the gradients 8-fold room; None if none were seen, or they were not finite."""
        unscaled = self.gradient_amax / scale if scale > 0 else 0.0
        if not 0 < unscaled < math.inf:
            return None
        return 2.0 ** math.floor(math.log2(FP16_MAX / (_SPARE * unscaled)))


class ActivationProbe:
    """Hooks for one step in ``every``: attached before the forward, detached after the backward, read some steps later."""

    def __init__(self, model: torch.nn.Module, layers: Layers, every: int, failed: Callable[[Exception], None]) -> None:
        """Measure ``layers`` of ``model``; ``failed`` hears of an output that cannot be measured, which ends it."""
        self._model = model
        self._layers, self._every, self._failed = layers, every, failed
        self._due = every
        self.read_at = -1
        """Step count at which :meth:`read` need not wait; -1: nothing is measured."""
        self._handles: list[RemovableHandle] = []
        self._outputs: dict[int, torch.Tensor] = {}
        self._gradients: list[torch.Tensor] = []
        self._elements = 0

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
        self._outputs, self._gradients, self._elements = {}, [], 0
        if is_compiled(self._model):  # asked anew each time: a script may compile a part of it at any step
            raise CompiledModelError("torch.compile runs the model, and hooks on its layers would compile it anew")
        try:
            for index, module in enumerate(self._layers.modules):
                self._handles.append(module.register_forward_hook(self._watch(index)))
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
        self._outputs, self._gradients = {}, []
        self._failed(error)

    def _watch(self, index: int) -> Callable[[torch.nn.Module, object, object], None]:
        def hook(_module: torch.nn.Module, _inputs: object, output: object) -> None:
            # Traced, by a compiled function that calls the model, it must come to nothing at all.
            if torch.compiler.is_compiling():
                return
            if not isinstance(output, torch.Tensor) or not output.is_floating_point() or not output.numel():
                return
            try:
                self._measure(index, output)
            except Exception as error:  # noqa: BLE001  (see _spoiled)
                self._spoiled(error)

        return hook

    def _measure(self, index: int, output: torch.Tensor) -> None:
        value = output.detach().float()
        square = value.square()
        # Kurtosis about 0: layers' outputs are centred enough, and one pass less is needed.
        self._outputs[index] = torch.stack((value.abs().amax(), square.square().mean() / square.mean().square()))
        if output.requires_grad:
            # Removed as the others are: an output may outlive the step, as a parameter does.
            self._handles.append(output.register_hook(self._gradient))  # type: ignore[no-untyped-call]

    def _gradient(self, gradient: torch.Tensor) -> None:
        try:
            self._measure_gradient(gradient)
        except Exception as error:  # noqa: BLE001  (see _spoiled)
            self._spoiled(error)

    def _measure_gradient(self, gradient: torch.Tensor) -> None:
        size = gradient.detach().abs()
        tiny = (size < _SUBNORMAL).sum()
        zero = (size == 0).sum()
        self._gradients.append(torch.stack((size.amax().float(), tiny.float(), zero.float())))
        self._elements += gradient.numel()

    def read(self) -> ProbeReading | None:
        """What was measured; None if no layer gave a tensor. Waits for the device, which at ``read_at`` is long done."""
        if not self._outputs or not self._gradients:
            return None
        outputs = torch.stack(list(self._outputs.values())).tolist()
        gradients = torch.stack(self._gradients).tolist()
        names = [self._layers.names[index] for index in self._outputs]
        amax, amax_name = max((row[0], name) for row, name in zip(outputs, names, strict=True))
        kurtosis, kurtosis_name = max((row[1], name) for row, name in zip(outputs, names, strict=True))
        tiny, zero = sum(row[1] for row in gradients), sum(row[2] for row in gradients)
        return ProbeReading(
            activation_amax=amax,
            activation_layer=amax_name,
            kurtosis=kurtosis,
            kurtosis_layer=kurtosis_name,
            gradient_amax=max(row[0] for row in gradients),
            subnormal_ratio=(tiny - zero) / self._elements,
            zero_ratio=zero / self._elements,
        )
