"""How fast this device multiplies matrices in each format, with sizes its matrix units like and one that they do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from .formats import FORMATS, Format

_ROUNDS = 5
_FP8 = ("fp8_e4m3", "fp8_e5m2")
_EMULATED = 10.0
"""A format slower than FP32 by this factor has no hardware here."""
_SECONDS_EACH = 0.02
"""A round repeats the product for about this long."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """Products of two n x n matrices: 2 n^3 operations each."""

    format: str
    gflops: float | None
    """The best round's, the one least disturbed, at a multiple of 16; None: not measured, see ``missing``."""
    gflops_unaligned: float | None
    """At that size less 3; None for FP8, which takes multiples of 16 only."""
    missing: str | None


def measure(device: torch.device, *, tf32: bool, fp8: bool = False, size: int | None = None) -> tuple[Gemm, ...]:
    """All formats, the rounds of each interleaved with the others'. ``size``: 4096 on CUDA, 256 on a CPU, if None."""
    size = size or (4096 if device.type == "cuda" else 256)
    found: dict[tuple[str, int], list[float]] = {}
    missing: dict[str, str] = {}
    for item in FORMATS:
        if item.name in _FP8 and not fp8:
            missing[item.name] = "the device has no FP8"
        elif item.name == "tf32" and not tf32:
            missing[item.name] = "the device has no TF32"
    for _ in range(_ROUNDS):
        for item in FORMATS:
            if item.name not in missing:
                for side in (size,) if item.name in _FP8 else (size, size - 3):
                    found.setdefault((item.name, side), []).append(_gflops(device, item, side))
    return tuple(
        Gemm(item.name, None, None, missing[item.name])
        if item.name in missing
        else Gemm(item.name, max(found[item.name, size]), max(found.get((item.name, size - 3), ()), default=None), None)
        for item in FORMATS
    )


def emulated(found: Sequence[Gemm], modes: Sequence[str]) -> dict[str, str]:
    """Of ``modes``, those whose products are so slow here that the device can only be emulating them, and why."""
    speed = {item.format: item.gflops for item in found if item.gflops is not None}
    reference = speed["fp32"]
    return {
        mode: f"its matrix products run at {speed[mode]:.1f} GFLOP/s here, FP32's at {reference:.1f}"
        for mode in modes
        if mode in speed and speed[mode] * _EMULATED < reference
    }


def _gflops(device: torch.device, item: Format, size: int) -> float:
    generator = torch.Generator(device).manual_seed(0)
    values = torch.randn(size, size, device=device, generator=generator)
    product = _product(item, values)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if item.name == "tf32" else "highest")
    try:
        product()
        _wait(device)
        started = time.perf_counter()
        count = 0
        while count == 0 or time.perf_counter() - started < _SECONDS_EACH:
            product()
            _wait(device)
            count += 1
        return 2.0 * size**3 * count / (time.perf_counter() - started) / 1e9
    finally:
        torch.set_float32_matmul_precision(before)


def _product(item: Format, values: torch.Tensor) -> Callable[[], torch.Tensor]:
    left = values.to(item.dtype or torch.float32)
    if item.name not in _FP8:
        return partial(torch.mm, left, left)
    # As training does: weights are E4M3, also beside gradients in E5M2, and stand by columns.
    right, one = values.to(torch.float8_e4m3fn).t(), torch.ones((), device=values.device)
    return partial(torch._scaled_mm, left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
