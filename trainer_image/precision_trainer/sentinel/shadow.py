"""A good micro-batch once more, in FP32: how far do its gradients differ from those in low precision (signal S5)?

The direct measure of what low precision does to training, long before a loss shows it: both gradients are of the same
weights, samples and random numbers, so nothing but the precision is between them. It costs two forward and backward passes
and, while it lasts, twice the gradients' memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..step.replay import AUTOCAST, Compute, replaying
from ..values.modes import PrecisionMode


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowReading:
    """One micro-batch of rank 0, computed twice."""

    cosine: float
    """Between the two gradients of all parameters, [-1, 1]; 1: precision changes nothing."""
    error_ratio: float
    """Length of their difference over that of the FP32 gradient, [0, inf)."""
    parameter: str
    """Whose gradients differ most in direction."""
    parameter_cosine: float


def shadow(
    model: torch.nn.Module, replay: Compute, mode: PrecisionMode, *, scale: float, device: torch.device
) -> ShadowReading | None:
    """Compute the gradients of a micro-batch as it was trained and in FP32.

    Args:
        model: not the DDP wrapper. Gradients, buffers and random state stay as they are.
        replay: the micro-batch.
        mode: it was trained in.
        scale: loss scale; 1 where none runs.
        device: of the model.

    Returns:
        How they differ; None if one of them is not finite or zero: then it is not known.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    parameters = [parameter for _, parameter in named]
    low = _gradients(model, parameters, replay, AUTOCAST.get(mode), scale=scale, device=device)
    high = _gradients(model, parameters, replay, None, scale=1.0, device=device)
    rows = [
        torch.stack((torch.dot(a, b), a.square().sum(), b.square().sum(), (a - b).square().sum()))
        for a, b in zip(low, high, strict=True)
    ]
    values = torch.stack(rows).double()
    dot, low_square, high_square, difference = values.sum(0).tolist()
    if not math.isfinite(dot) or not 0 < low_square < math.inf or not 0 < high_square < math.inf:
        return None
    cosines = [_cosine(*row[:3]) for row in values.tolist()]
    worst = min(range(len(named)), key=cosines.__getitem__)
    return ShadowReading(
        cosine=_cosine(dot, low_square, high_square),
        error_ratio=math.sqrt(difference / high_square),
        parameter=named[worst][0],
        parameter_cosine=cosines[worst],
    )


def _gradients(
    model: torch.nn.Module,
    parameters: Sequence[torch.Tensor],
    replay: Compute,
    dtype: torch.dtype | None,
    *,
    scale: float,
    device: torch.device,
) -> list[torch.Tensor]:
    """Flat and unscaled; of a parameter without a gradient, zeros."""
    context = torch.autocast(device.type, dtype, enabled=dtype is not None)
    with replaying(model, device), torch.enable_grad():
        with context:
            loss = replay(model)
        # autograd.grad, not backward: it neither writes .grad nor wakes DDP's hooks.
        found = torch.autograd.grad(loss.float() * scale, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter).flatten() if gradient is None else gradient.flatten().float() / scale
        for parameter, gradient in zip(parameters, found, strict=True)
    ]


def _cosine(dot: float, low_square: float, high_square: float) -> float:
    if low_square == 0 == high_square:
        return 1.0
    length = math.sqrt(low_square) * math.sqrt(high_square)
    return max(-1.0, min(1.0, dot / length)) if length > 0 else 0.0
