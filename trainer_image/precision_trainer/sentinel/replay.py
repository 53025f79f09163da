"""Computing a micro-batch beside training, so that training does not notice."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import torch

from ..precision.modes import PrecisionMode

AUTOCAST = {PrecisionMode.MIXED_FP16: torch.float16, PrecisionMode.MIXED_BF16: torch.bfloat16}
"""What forward and backward are cast to; a mode that is not here is computed as it is."""
Replay = Callable[[torch.nn.Module], torch.Tensor]
"""Computes the loss of one micro-batch with the model it is given."""


def eagerly() -> contextlib.AbstractContextManager[object]:
    """Compute in here as the modules are written, so that hooks see every layer."""
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled, and importing it takes seconds
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


@contextlib.contextmanager
def undisturbed(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Leave random state and buffers (running statistics) as they were; also after an error."""
    buffers = list(model.buffers())
    saved = [buffer.clone() for buffer in buffers]
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, saved, strict=True):
                buffer.copy_(value)
