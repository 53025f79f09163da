"""Sizes that matrix units cannot fill: what they take, and what to round up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from .probe import ModuleProbe

ALIGNMENT = {"fp16": 8, "bf16": 8, "fp8": 16}
"""Elements that each side of a matrix product should be a multiple of (NVIDIA, "Matrix multiplication background")."""


@dataclass(frozen=True, slots=True)
class Misalignment:
    """One side of one matrix product."""

    module: str
    side: str
    """``inputs``, ``outputs`` or ``rows`` (batch times sequence)."""
    size: int
    use_16_bit: int
    """The next multiple of 8; equal to ``size`` where 16-bit formats are content with it."""
    use_8_bit: int
    """The next multiple of 16."""


def misalignments(model: nn.Module, watched: Iterable[ModuleProbe]) -> tuple[Misalignment, ...]:
    """Sides of matrix products in ``model`` that are no multiple of 8, or of 16 (FP8)."""
    found = []
    rows = {item.name: item.rows for item in watched}
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            continue  # a look-up, no product
        for parameter_name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() < 2:
                continue
            label = name if parameter_name == "weight" else f"{name}.{parameter_name}"
            for side, size in (("outputs", parameter.shape[0]), ("inputs", parameter.shape[1])):
                found.append(_check(label, side, size))
        if rows.get(name):
            found.append(_check(name, "rows", rows[name] or 0))
    return tuple(item for item in found if item is not None)


def _check(module: str, side: str, size: int) -> Misalignment | None:
    if size % ALIGNMENT["fp8"] == 0:
        return None
    return Misalignment(module, side, size, _up(size, ALIGNMENT["fp16"]), _up(size, ALIGNMENT["fp8"]))


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
