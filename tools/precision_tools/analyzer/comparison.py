"""The same training in several precisions, side by side: loss, scale, gradient norm, step time, success.

All start from the same weights, see the same batches in the same order, and take turns step by step, so that whatever else
the machine does hits all alike.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import nn

from precision_trainer.precision.trainer import ExtendedFP16Trainer
from precision_trainer.step.steps import StepRecord
from precision_trainer.values.config import ExtendedFP16Config
from precision_trainer.values.modes import PrecisionMode

from .probe import Loss

WARM_UP = 3
"""Steps whose time does not count."""
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True)
class ModeRun:
    """What the steps in one mode came to."""

    mode: str
    steps: int
    steps_in_mode: int
    """Of those, really in ``mode``: the sentinel may have gone back towards FP32."""
    losses: tuple[float, ...]
    gradient_norm: float
    """Mean over the finite ones, before clipping."""
    final_scale: float
    success_rate: float
    """Share of steps whose update was made."""
    step_seconds: float
    """Median, warm-up left out."""
    step_seconds_p10: float
    step_seconds_p90: float
    speedup: float
    """Median over the steps of FP32's time for the same step over this mode's: both saw the same load. 1 for FP32."""
    peak_bytes: int | None
    """Of CUDA memory, three models with their optimizers included; None where there is no CUDA to ask."""

    @property
    def final_loss(self) -> float:
        """Mean over the last tenth of the steps."""
        return statistics.fmean(self.losses[-max(1, self.steps // 10) :])


@dataclass(slots=True)
class _Side:
    trainer: ExtendedFP16Trainer
    records: list[StepRecord] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int | None = None


def compare(
    model: nn.Module,
    batches: Callable[[int], object],
    loss: Loss,
    device: torch.device,
    *,
    modes: Sequence[str],
    steps: int,
    loss_scale: float,
    keep_fp32: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> tuple[ModeRun, ...]:
    """Train copies of ``model`` in each of ``modes`` (``fp32`` first, ``bf16``, ``fp16``) on ``batches(step)``.

    ``keep_fp32``: names of the modules that stay in FP32, by mode.
    """
    sides = {mode: _Side(_trainer(model, mode, device, loss_scale, keep_fp32.get(mode, ()))) for mode in modes}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for step in range(steps):
            batch = batches(step)
            for side in sides.values():
                torch.manual_seed(step)  # dropout and sampling alike in all of them
                _step(side, batch, loss, device)
    reference = sides[modes[0]].seconds
    return tuple(_run(mode, side, reference) for mode, side in sides.items())


def _trainer(
    model: nn.Module, mode: str, device: torch.device, loss_scale: float, keep_fp32: tuple[str, ...]
) -> ExtendedFP16Trainer:
    own = copy.deepcopy(model).to(device)
    precision = PrecisionMode.from_wire(mode)
    assert precision is not None
    config = ExtendedFP16Config(
        precision_mode=precision,
        enabled=mode != "fp32",
        loss_scale=loss_scale,
        min_loss_scale=min(1.0, loss_scale),
        allow_tf32=False,
        fp32_modules=keep_fp32,
    )
    optimizer = torch.optim.AdamW(own.parameters(), lr=LEARNING_RATE, fused=True)
    return ExtendedFP16Trainer(own, optimizer, config, device, allow_cpu=True)


def _step(side: _Side, batch: object, loss: Loss, device: torch.device) -> None:
    side.records += side.trainer.begin_step().records
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    side.trainer.backward_and_step(side.trainer.training_step(batch, loss))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        side.peak_bytes = max(side.peak_bytes or 0, torch.cuda.max_memory_allocated(device))
    side.seconds.append(time.perf_counter() - started)


def _run(mode: str, side: _Side, reference: list[float]) -> ModeRun:
    records = [*side.records, *side.trainer.drain().records]
    norms = [norm for record in records if (norm := record.grad_norm) is not None and math.isfinite(norm)]
    skip = WARM_UP if len(side.seconds) > WARM_UP else 0
    seconds = sorted(side.seconds[skip:])
    ratios = [theirs / own for theirs, own in zip(reference[skip:], side.seconds[skip:], strict=True)]
    return ModeRun(
        mode,
        len(records),
        sum(record.mode.wire == mode for record in records),
        tuple(record.loss for record in records),
        statistics.fmean(norms) if norms else math.nan,
        records[-1].loss_scale,
        1.0 - sum(record.skipped for record in records) / len(records),
        statistics.median(seconds),
        seconds[len(seconds) // 10],
        seconds[-1 - len(seconds) // 10],
        statistics.median(ratios),
        side.peak_bytes,
    )
