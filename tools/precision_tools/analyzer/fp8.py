"""What FP8 would do to the linear layers of a module: E4M3 forward, E5M2 backward, by recipe of scaling, in torch's dtypes.

The numbers are rounded to FP8 and multiplied in FP32, as FP8 hardware sums. So the errors hold anywhere; the speed does not
come with them, and is not claimed. Recipes: one scale a tensor from its own largest value (*current*), or from the largest
of the batches before (*delayed*), and one power of two for every 32 elements (*mx*, as MXFP8).
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from .probe import Loss

HISTORY = 4
"""Batches before the one that is judged, for the delayed recipe."""
RECIPES = ("current", "delayed", "mx")
_BLOCK = 32
_FORWARD, _BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2


@dataclass(frozen=True, slots=True)
class Fp8Error:
    """Relative errors (norm of the difference over norm) of the linear layers' products, by recipe."""

    recipe: str
    layers: int
    forward_median: float
    forward_worst: float
    worst_layer: str
    backward_median: float
    """Of the gradients of the layers' inputs."""
    backward_worst: float


@dataclass(slots=True)
class _Layer:
    """The largest values of a layer's input and output gradient, batch by batch, and the last batch's tensors."""

    inputs: torch.Tensor | None = None
    gradients: torch.Tensor | None = None
    input_max: list[float] = field(default_factory=list)
    gradient_max: list[float] = field(default_factory=list)


def study(model: nn.Module, batches: Callable[[int], object], loss: Loss, device: torch.device) -> tuple[Fp8Error, ...]:
    """Run ``model`` (a copy, in FP32) over a few batches and round the last one's products; empty without linear layers."""
    model = copy.deepcopy(model).to(device)
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    layers = {name: _Layer() for name in linear}
    handles = [module.register_forward_hook(_watcher(layers[name])) for name, module in linear.items()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        for step in range(HISTORY + 1):
            model.zero_grad(set_to_none=True)
            torch.autograd.backward(loss(model, batches(step)))
    for handle in handles:
        handle.remove()
    seen = {name: layer for name, layer in layers.items() if layer.inputs is not None and layer.gradients is not None}
    return tuple(_errors(recipe, linear, seen) for recipe in RECIPES) if seen else ()


def _watcher(layer: _Layer) -> Callable[[nn.Module, tuple[object, ...], object], None]:
    def gradient_seen(gradient: torch.Tensor) -> None:
        layer.gradients = gradient.detach().reshape(-1, gradient.shape[-1])
        layer.gradient_max.append(gradient.abs().max().item())

    def seen(_: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if isinstance(inputs[0], torch.Tensor) and isinstance(output, torch.Tensor) and output.requires_grad:
            layer.inputs = inputs[0].detach().reshape(-1, inputs[0].shape[-1])
            layer.input_max.append(layer.inputs.abs().max().item())
            output.register_hook(gradient_seen)  # type: ignore[no-untyped-call]

    return seen


def _errors(recipe: str, linear: dict[str, nn.Linear], layers: dict[str, _Layer]) -> Fp8Error:
    forward: dict[str, float] = {}
    backward: list[float] = []
    for name, layer in layers.items():
        inputs, gradients, weight = layer.inputs, layer.gradients, linear[name].weight.detach()
        assert inputs is not None
        assert gradients is not None
        rounded = rounded_to(weight, _FORWARD, recipe, weight.abs().max().item())
        known = _amax(recipe, layer.input_max), _amax(recipe, layer.gradient_max)
        product = rounded_to(inputs, _FORWARD, recipe, known[0]) @ rounded.T
        forward[name] = _error(product, inputs @ weight.T)
        # The product of the backward pass runs along the weight's outputs: its blocks of 32 do too.
        across = rounded_to(weight.T, _FORWARD, recipe, weight.abs().max().item()).T
        backward.append(_error(rounded_to(gradients, _BACKWARD, recipe, known[1]) @ across, gradients @ weight))
    worst = max(forward, key=lambda name: forward[name])
    return Fp8Error(
        recipe,
        len(forward),
        statistics.median(forward.values()),
        forward[worst],
        worst,
        statistics.median(backward),
        max(backward),
    )


def _amax(recipe: str, history: list[float]) -> float:
    return max(history[:-1]) if recipe == "delayed" else history[-1]


def rounded_to(values: torch.Tensor, dtype: torch.dtype, recipe: str, amax: float) -> torch.Tensor:
    """Scale [M, K] values into ``dtype``, round, and scale back; what is larger than ``amax`` (delayed) is cut off there."""
    largest = torch.finfo(dtype).max
    if recipe != "mx":
        scale = largest / amax if amax > 0 else 1.0
        return (values * scale).clamp(-largest, largest).to(dtype).float() / scale
    size = values.shape[-1]
    blocks = F.pad(values, (0, -size % _BLOCK)).reshape(values.shape[0], -1, _BLOCK)
    block_max = blocks.abs().amax(-1, keepdim=True)
    # E8M0: a power of two, rounded up here so that nothing is cut off.
    exponent = torch.where(block_max > 0, torch.log2(block_max / largest).ceil(), torch.zeros_like(block_max))
    block_scale = torch.exp2(exponent)
    return ((blocks / block_scale).to(dtype).float() * block_scale).flatten(-2)[..., :size]


def _error(found: torch.Tensor, exact: torch.Tensor) -> float:
    norm = exact.norm().item()
    return (found - exact).norm().item() / norm if norm > 0 else 0.0
