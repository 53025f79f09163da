"""A bad step once more, to tell a fault of precision from one of the data or the weights (an idea of Megatron's).

Each rank computes its own micro-batches again, alone: without DDP, without touching gradients, buffers or random state. It
costs a forward pass as trained and a forward and backward pass in FP32, and is done at most once a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from ..precision.modes import PrecisionMode
from ..precision.weights import are_finite
from .layers import Layers
from .levels import Finding
from .replay import AUTOCAST, Replay, eagerly, undisturbed


def diagnose(
    model: torch.nn.Module, layers: Layers, replays: Sequence[Replay], mode: PrecisionMode, device: torch.device
) -> Finding:
    """What is wrong with the micro-batches of a bad step.

    Args:
        model: not the DDP wrapper.
        layers: of the model.
        replays: the micro-batches.
        mode: in which the step was computed.
        device: of the model.
    """
    parameters: list[torch.Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights_finite = are_finite(parameters)
    with undisturbed(model, device), eagerly():
        origin = None
        for replay in replays:
            origin = _first_nonfinite(model, layers, replay, mode, device)
            if origin is not None:
                break
        fp32_finite: bool | None = True
        try:
            for replay in replays:
                fp32_finite = fp32_finite and _finite_in_fp32(model, parameters, replay, device)
        except torch.OutOfMemoryError:
            # FP32 takes up to twice the memory for activations; what could not be computed is unknown.
            fp32_finite = None
    return Finding(fp32_finite, weights_finite, origin)


def _first_nonfinite(
    model: torch.nn.Module, layers: Layers, replay: Replay, mode: PrecisionMode, device: torch.device
) -> int | None:
    """The first layer whose output is inf or NaN in ``mode``."""
    verdicts: list[tuple[int, torch.Tensor]] = []

    def watch(index: int) -> Callable[[torch.nn.Module, object, object], None]:
        def hook(_module: torch.nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, torch.Tensor) and output.is_floating_point():
                verdicts.append((index, output.isfinite().all()))

        return hook

    handles: list[RemovableHandle] = [
        module.register_forward_hook(watch(index)) for index, module in enumerate(layers.modules)
    ]
    try:
        with torch.no_grad(), torch.autocast(device.type, AUTOCAST.get(mode), enabled=mode in AUTOCAST):
            replay(model)
    finally:
        for handle in handles:
            handle.remove()
    return next((index for index, finite in verdicts if not finite), None)


def _finite_in_fp32(
    model: torch.nn.Module, parameters: Sequence[torch.Tensor], replay: Replay, device: torch.device
) -> bool:
    # autograd.grad, not backward: it neither writes .grad nor wakes DDP's hooks.
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        loss = replay(model)
    if not bool(loss.isfinite()):
        return False
    gradients = [g for g in torch.autograd.grad(loss, parameters, allow_unused=True) if g is not None]
    return bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())
