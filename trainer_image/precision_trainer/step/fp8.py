"""Training in FP8: the products of linear layers, E4M3 forward and E5M2 backward, wherever the mode computes in BF16.

FP8 is no mode of its own but a finer grain of mixed BF16. Parameters, gradients and optimizer state stay FP32, autocast says
when: a layer multiplies in FP8 while BF16 autocast is on, and is an ordinary layer elsewhere. So a switch to FP32, and a
layer that the sentinel pins, leave FP8 at once; checkpoints hold nothing of it. (torchao's conversion cannot be left
between two steps, and has no delayed scaling since 0.10, pytorch/ao#1680; the product below is the one that it calls.)

Each tensor gets one scale that fills the format's range: from its own largest value (*current*), or from the largest of the
passes before (*delayed*; what is larger is cut off). Numbers that are not finite become NaN and are found as in any mode.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from ..errors import ConfigError

RECIPES = ("current", "delayed")
FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
HISTORY = 16
"""Passes that the delayed recipe remembers."""
ALIGNMENT = 16
"""Sides of a scaled product must be multiples of this (cuBLASLt)."""
_TINY = 1e-12
"""In place of the largest value of a tensor that is all zeros."""


@dataclass(slots=True)
class Scaling:
    """How one tensor of one layer is scaled, pass after pass. Waits for no device."""

    dtype: torch.dtype
    delayed: bool
    _history: torch.Tensor | None = field(default=None, repr=False)

    def quantize(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``values`` in FP8, and the factor (FP32, 0-dim) that they must be multiplied by again."""
        own = values.abs().amax().float()
        largest = torch.finfo(self.dtype).max
        scale = largest / self._reference(own).clamp_min(_TINY)
        # An infinity must not come out as the largest number: the step would look well.
        scale = torch.where(own.isfinite(), scale, torch.nan)
        return (values.float() * scale).clamp(-largest, largest).to(self.dtype), scale.reciprocal()

    def _reference(self, own: torch.Tensor) -> torch.Tensor:
        if not self.delayed:
            return own
        if self._history is None:
            self._history = own.new_zeros(HISTORY)
        known = self._history.max()
        self._history = torch.cat((own.nan_to_num(0.0, 0.0)[None], self._history[:-1]))
        return torch.where(known > 0, known, own)


class _Linear(torch.autograd.Function):
    """``inputs`` [M, K] BF16, ``weight`` [N, K] FP32 -> [M, N] BF16; all three products in FP8."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        scalings: tuple[Scaling, Scaling, Scaling],
    ) -> torch.Tensor:
        of_inputs, of_weight, of_gradient = scalings
        small_inputs, inputs_factor = of_inputs.quantize(inputs)
        small_weight, weight_factor = of_weight.quantize(weight)
        ctx.save_for_backward(small_inputs, inputs_factor, small_weight, weight_factor)
        vars(ctx)["of_gradient"] = of_gradient
        return _product(small_inputs, small_weight.t(), inputs_factor, weight_factor, torch.bfloat16, fast=True)

    @staticmethod
    def backward(
        ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        inputs, inputs_factor, weight, weight_factor = ctx.saved_tensors  # type: ignore[attr-defined]
        of_gradient: Scaling = vars(ctx)["of_gradient"]
        small, factor = of_gradient.quantize(gradient)
        # The hardware wants the left side by rows and the right one by columns.
        to_inputs = _product(small, _by_columns(weight), factor, weight_factor, torch.bfloat16)
        rows = (0, 0, 0, -len(small) % ALIGNMENT)  # zeros add nothing to a sum over rows
        left, right = F.pad(small.view(torch.uint8), rows), F.pad(inputs.view(torch.uint8), rows)
        to_weight = _product(
            left.view(BACKWARD).t().contiguous(), _by_columns(right.view(FORWARD)), factor, inputs_factor, torch.float32
        )
        return to_inputs, to_weight, None


def _by_columns(values: torch.Tensor) -> torch.Tensor:
    return values.t().contiguous().t()


def _product(
    left: torch.Tensor,
    right: torch.Tensor,
    left_factor: torch.Tensor,
    right_factor: torch.Tensor,
    dtype: torch.dtype,
    *,
    fast: bool = False,
) -> torch.Tensor:
    return torch._scaled_mm(
        left, right, scale_a=left_factor, scale_b=right_factor, out_dtype=dtype, use_fast_accum=fast
    )


def install(model: nn.Module, recipe: str) -> tuple[str, ...]:
    """Let the linear layers of ``model`` multiply in FP8 wherever BF16 autocast is on, by one of RECIPES.

    Returns:
        Names of the layers: those whose sides are multiples of 16. The others stay as they are.

    Raises:
        ConfigError: there is no such layer.
    """
    names: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not (module.in_features % ALIGNMENT or module.out_features % ALIGNMENT):
            names.append(name)
            vars(module)["forward"] = _Forward(module, delayed=recipe == "delayed")
    if not names:
        raise ConfigError(
            f"FP8: expected linear layers whose sides are multiples of {ALIGNMENT}, found none in {type(model).__name__}; "
            "round the sizes up (precision-trainer analyze says which), or leave --fp8 out"
        )
    return tuple(names)


class _Forward:
    """A linear layer's forward pass, [..., K] -> [..., N], and what its tensors were scaled by so far."""

    def __init__(self, layer: nn.Linear, *, delayed: bool) -> None:
        self._layer = layer
        # Nobody changes a weight within a step: its own largest value is as good as a history, and never out of date.
        self._scalings = Scaling(FORWARD, delayed), Scaling(FORWARD, delayed=False), Scaling(BACKWARD, delayed)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        layer, kind = self._layer, inputs.device.type
        if not torch.is_autocast_enabled(kind) or torch.get_autocast_dtype(kind) is not torch.bfloat16:
            return F.linear(inputs, layer.weight, layer.bias)
        rows = inputs.reshape(-1, layer.in_features).to(torch.bfloat16)
        product: torch.Tensor = _Linear.apply(rows, layer.weight, self._scalings)
        if layer.bias is not None:
            product = product + layer.bias.to(product.dtype)
        return product.view(*inputs.shape[:-1], layer.out_features)
