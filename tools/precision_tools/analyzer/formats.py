"""The number formats of training, and what each does to numbers: range, rounding, underflow, overflow.

Ranges come from ``torch.finfo``, and every conversion is torch's own; only TF32 has no dtype in torch and is rounded here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

TEST_RANGES = ((1e-8, 1e-6), (1e-6, 1e-4), (1e-4, 1e-2), (1e-2, 1.0), (1.0, 100.0))
"""Magnitudes that precision loss is measured at: from very small gradients to large activations."""
_SAMPLES = 1000
_TARGET_GRADIENT = 1e-3
"""Where loss scaling should lift a gradient that would just be lost."""
_MAX_SCALE = 65536.0


@dataclass(frozen=True, slots=True)
class Format:
    """One format."""

    name: str
    dtype: torch.dtype | None
    """None: TF32, FP32 in memory and rounded when a tensor core reads it."""
    exponent_bits: int
    mantissa_bits: int
    bytes_each: int
    needs_hardware: str

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """FP64 ``values`` as this format holds them, in FP64 again."""
        if self.dtype is not None:
            return values.to(self.dtype).double()
        # Round half to even on the upper 19 bits of FP32: add what carries, then cut the lower 13 off.
        bits = values.float().view(torch.int32)
        rounded = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
        return torch.where(values.float().isfinite(), rounded.view(torch.float32), values.float()).double()

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next number."""
        return torch.finfo(self.dtype).eps if self.dtype is not None else 2.0**-self.mantissa_bits

    @property
    def max(self) -> float:
        """Largest finite number."""
        return torch.finfo(self.dtype).max if self.dtype is not None else (2.0 - self.epsilon) * 2.0**127

    @property
    def smallest_normal(self) -> float:
        """Smallest number of full precision."""
        return torch.finfo(self.dtype or torch.float32).smallest_normal

    @property
    def smallest_subnormal(self) -> float:
        """Smallest number above 0."""
        return self.smallest_normal * self.epsilon


FORMATS = (
    Format("fp64", torch.float64, 11, 52, 8, "any; a reference, slow on GPUs"),
    Format("fp32", torch.float32, 8, 23, 4, "any"),
    Format("tf32", None, 8, 10, 4, "CUDA capability 8.0+ (A100, RTX 30 and later)"),
    Format("bf16", torch.bfloat16, 8, 7, 2, "CUDA capability 8.0+; CPUs with AMX or AVX512-BF16"),
    Format("fp16", torch.float16, 5, 10, 2, "CUDA capability 7.0+ (V100, T4 and later)"),
    Format("fp8_e4m3", torch.float8_e4m3fn, 4, 3, 1, "CUDA capability 8.9+ (RTX 40, H100): weights and activations"),
    Format("fp8_e5m2", torch.float8_e5m2, 5, 2, 1, "CUDA capability 8.9+ (RTX 40, H100): gradients"),
)
BY_NAME = {item.name: item for item in FORMATS}


@dataclass(frozen=True, slots=True)
class FormatAnalysis:
    """What was found out about one format. Errors are relative; rates are shares from 0 to 1."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bytes_each: int
    needs_hardware: str
    max: float
    smallest_normal: float
    smallest_subnormal: float
    epsilon: float
    dynamic_range_db: float
    """20 log10(max / smallest number above 0)."""
    mean_error: float
    std_error: float
    p95_error: float
    p99_error: float
    max_error: float
    """Of rounding random numbers of TEST_RANGES that the format holds at full precision: no underflow, no overflow."""
    outside_rate: float
    """Share of these numbers that it does not: below ``smallest_normal``, or beyond ``max``."""
    underflow_rate: float
    """Share of 1,000 gradients between 1e-10 and 0.1, evenly by their logarithm, that become 0."""
    underflow_at: float
    """Gradients up to this become 0."""
    recommended_loss_scale: float
    """A power of two that lifts a gradient that would just be lost to about 0.001, at most 65536. 1: no scaling needed."""
    overflow_rate: float
    """Share of 1,000 values between 10 and a million, evenly by their logarithm, that the format cannot hold."""
    overflow_at: float
    """The smallest value that rounds to more than ``max``; infinite where FP64 cannot say it."""
    overflow_becomes: str
    """What torch's conversion on this CPU makes of a value beyond: ``inf``, ``nan`` or ``max`` (E4M3 has no infinity)."""


def analyze_format(item: Format) -> FormatAnalysis:
    """Measure one format."""
    generator = torch.Generator().manual_seed(0)
    random = torch.rand(len(TEST_RANGES), _SAMPLES, generator=generator, dtype=torch.float64)
    low, high = torch.tensor(TEST_RANGES, dtype=torch.float64).T.unsqueeze(2)
    original = (low + random * (high - low)).flatten()
    inside = (original >= item.smallest_normal) & (original <= item.max)
    errors = ((item.rounded(original) - original) / original)[inside].abs()
    gradients = torch.logspace(-10, -1, _SAMPLES, dtype=torch.float64)
    large = torch.logspace(1, 6, _SAMPLES, dtype=torch.float64)
    # Half a step beyond the largest number; for FP64 itself that is infinite.
    overflow_at = (
        item.max + 2.0 ** math.floor(math.log2(item.max) - 1e-9) * item.epsilon / 2 if item.max < 1e300 else math.inf
    )
    beyond = item.rounded(torch.tensor([4 * overflow_at], dtype=torch.float64)).item()
    p95, p99 = torch.quantile(errors, torch.tensor([0.95, 0.99], dtype=torch.float64)).tolist()
    return FormatAnalysis(
        item.name,
        item.exponent_bits,
        item.mantissa_bits,
        item.bytes_each,
        item.needs_hardware,
        item.max,
        item.smallest_normal,
        item.smallest_subnormal,
        item.epsilon,
        20 * (math.log10(item.max) - math.log10(item.smallest_subnormal)),
        errors.mean().item(),
        errors.std().item(),
        p95,
        p99,
        errors.max().item(),
        1.0 - inside.double().mean().item(),
        (item.rounded(gradients) == 0).double().mean().item(),
        item.smallest_subnormal / 2,  # halfway to 0, and a tie goes to the even number: 0
        _recommended_scale(item),
        (large >= overflow_at).double().mean().item(),
        overflow_at,
        "max" if math.isfinite(beyond) else str(beyond),
    )


def _recommended_scale(item: Format) -> float:
    if item.exponent_bits >= 8:
        return 1.0
    wanted = _TARGET_GRADIENT / (item.smallest_subnormal / 2)
    return 2.0 ** math.floor(math.log2(min(max(wanted, 1.0), _MAX_SCALE)))
