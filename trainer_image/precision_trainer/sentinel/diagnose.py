"""A bad step once more, to tell a fault of precision from one of the data or the weights (an idea of Megatron's).

Each rank computes its own last micro-batch again, alone, by the pure function that was given for it: without DDP, without
touching gradients, buffers or random state. It costs a forward pass as trained and a forward and backward pass in FP32, and
is done at most once a window. Without such a function only the weights are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from ..step.replay import AUTOCAST, Replay, replaying
from ..step.weights import are_finite, can_be_poisoned
from ..values.levels import Finding
from ..values.modes import PrecisionMode
from .guard import Guard
from .layers import Layers


def diagnose(
    model: torch.nn.Module,
    layers: Layers,
    replay: Replay | None,
    mode: PrecisionMode,
    device: torch.device,
    *,
    guard: Guard,
    buffers: Collection[str] = (),
) -> Finding:
    """What is wrong with a bad step. Never raises; what could not be found out is unknown.

    Args:
        model: not the DDP wrapper.
        layers: of the model.
        replay: the step's last micro-batch; None if nothing may be computed again.
        mode: in which the step was computed.
        device: of the model.
        guard: runs each part.
        buffers: names of those that have to be finite, as the weights have to.
    """
    parameters: list[torch.Tensor] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    weights_finite = guard("finite weights", lambda: are_finite(can_be_poisoned(model, buffers)))
    origin: int | None = None
    fp32_finite: bool | None = None
    if replay is not None:
        origin = guard("first non-finite layer", lambda: _first_nonfinite(model, layers, replay, mode, device))
        fp32_finite = guard("bad step in FP32", lambda: _finite_in_fp32(model, parameters, replay, device))
        if fp32_finite and not replay.whole_step:
            fp32_finite = None  # another micro-batch may be the bad one
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

    handles: list[RemovableHandle] = []
    try:
        with (
            replaying(model, device),
            torch.no_grad(),
            torch.autocast(device.type, AUTOCAST.get(mode), enabled=mode in AUTOCAST),
        ):
            for index, module in enumerate(layers.modules):
                handles.append(module.register_forward_hook(watch(index)))
            replay(model)
    finally:
        for handle in handles:
            handle.remove()
    return next((index for index, finite in verdicts if not finite), None)


def _finite_in_fp32(
    model: torch.nn.Module, parameters: Sequence[torch.Tensor], replay: Replay, device: torch.device
) -> bool:
    with replaying(model, device), torch.enable_grad():
        with torch.autocast(device.type, enabled=False):
            loss = replay(model)
        if not bool(loss.isfinite()):
            return False
        # autograd.grad, not backward: it neither writes .grad nor wakes DDP's hooks.
        gradients = [g for g in torch.autograd.grad(loss, parameters, allow_unused=True) if g is not None]
        return bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())
