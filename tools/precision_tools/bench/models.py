"""Both models in every precision the device has: speed, memory, and how much of the device's own peak a step uses.

The steps take turns, strict FP32 among them. The peak is the fastest matrix product measured in the same format in this
run, never a data sheet's. A precision that the device lacks, or only emulates, is a row that says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from precision_trainer.models.task import to_device
from precision_trainer.precision.setup import set_tf32
from precision_trainer.step import fp8
from precision_trainer.step.hardware import detect
from precision_trainer.values.modes import PrecisionMode

from ..analyzer import gemm
from .rounds import Tick, interleave
from .speed import kept_bytes, trainer_in
from .workloads import Workload, transformer, world_model

ROUNDS, WARM_UP = 5, 2
MODES = {
    "fp32": PrecisionMode.FP32,
    "tf32": PrecisionMode.FP32,
    "bf16": PrecisionMode.MIXED_BF16,
    "fp16": PrecisionMode.MIXED_FP16,
    "fp8": PrecisionMode.MIXED_BF16,
}
PEAKS = {"fp8": "fp8_e4m3"}
"""The product whose speed bounds a precision, where it has another name."""
NO_TF32 = "the device has no TF32"
Make = Callable[[], Workload]


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model in one precision. None: not measured, see ``missing``."""

    workload: str
    device: str
    asked: str
    """``fp32`` is strict."""
    ran: str | None
    """Mode after the last step; ``tf32`` is FP32 with TF32 allowed, ``fp8`` BF16 whose linear layers multiply in FP8."""
    step_seconds: float | None
    """Median over the rounds."""
    speedup: float | None
    """Median over the rounds of strict FP32's time over this one's."""
    flops: int
    """Of the products of a step, forward and backward, attention as if nothing were masked."""
    of_peak: float | None
    """``flops`` a second, as a share of the fastest product measured here in this format, before and after the steps. None
    also where it came out above 1: then others disturbed the products more than the steps, and the peak is not known."""
    activation_bytes: int | None
    """Kept for the backward pass, parameters left out."""
    peak_bytes: int | None
    """Of CUDA memory, the model alone with its gradients and optimizer; None on a CPU."""
    missing: str | None


def workloads(device: torch.device) -> tuple[Make, ...]:
    """The two models, on a GPU at sizes that can fill one."""
    if device.type == "cuda":
        return (
            partial(transformer, width=1024, layers=8, context=512, batch_size=16),
            partial(world_model, width=1024, length=64, batch_size=64),
        )
    return transformer, world_model


def measure(device: torch.device, makes: Sequence[Make], tick: Tick, *, rounds: int = ROUNDS) -> list[ModelRow]:
    """Time every workload in every precision; ``tick`` is called after every round of each."""
    hardware = detect()
    tf32, fp8_too = hardware.tf32, hardware.fp8_missing is None
    products = gemm.measure(device, tf32=tf32, fp8=fp8_too)
    missing = {item.format: NO_TF32 for item in products if item.format == "tf32" and item.gflops is None}
    missing |= gemm.emulated(products, tuple(MODES))
    if hardware.fp8_missing is not None:
        missing["fp8"] = hardware.fp8_missing
    rows: list[ModelRow] = []
    for make in makes:
        load = make()
        run = {name: _Contender(load, name, device) for name in MODES if name not in missing}
        flops = run["fp32"].flops()
        timed = interleave(
            {name: one.step for name, one in run.items()}, rounds=rounds, steps=1, warm_up=WARM_UP, tick=tick
        ).wall
        for name in MODES:
            if name in missing:
                rows.append(_left_out(load, device, name, flops, missing[name]))
                continue
            rows.append(
                ModelRow(
                    workload=load.name,
                    device=device.type,
                    asked=name,
                    ran=run[name].ran,
                    step_seconds=statistics.median(timed[name]),
                    speedup=statistics.median(a / b for a, b in zip(timed["fp32"], timed[name], strict=True)),
                    flops=flops,
                    of_peak=None,
                    activation_bytes=run[name].activation_bytes,
                    peak_bytes=run[name].peak_bytes,
                    missing=None,
                )
            )
        set_tf32(device, allowed=False)
    peaks: dict[str, float] = {}
    for item in (*products, *gemm.measure(device, tf32=tf32, fp8=fp8_too)):
        peaks[item.format] = max(item.gflops or 0.0, peaks.get(item.format, 0.0))
    return [replace(row, of_peak=_share(row, peaks[PEAKS.get(row.asked, row.asked)])) for row in rows]


def _share(row: ModelRow, peak_gflops: float) -> float | None:
    if row.step_seconds is None or not peak_gflops:
        return None
    share = row.flops / row.step_seconds / (peak_gflops * 1e9)
    return share if share <= 1 else None


def _left_out(load: Workload, device: torch.device, name: str, flops: int, why: str) -> ModelRow:
    return ModelRow(load.name, device.type, name, None, None, None, flops, None, None, None, why)


class _Contender:
    """One precision of one workload."""

    def __init__(self, load: Workload, name: str, device: torch.device) -> None:
        self._load, self._name, self._device = load, name, device
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        self._task = load.make(0)
        self._task.model.to(device)
        if name == "fp8":
            fp8.install(self._task.model, "current")
        self._trainer = trainer_in(MODES[name], self._task.model)
        other = trainer_in(MODES[name], self._task.model)  # this forward pass is never followed by a backward pass
        self.activation_bytes = kept_bytes(
            self._task.model, lambda: other.training_step(self._batch(), self._task.loss)
        )
        self.peak_bytes: int | None = None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.step()
            self.step()  # the first one makes the optimizer's state
            self.peak_bytes = torch.cuda.max_memory_allocated(device) - before

    @property
    def ran(self) -> str:
        mode = self._trainer.mode.wire
        return self._name if (self._name, mode) in (("tf32", "fp32"), ("fp8", "bf16")) else mode

    def step(self) -> None:
        """One step, until the device is done with it."""
        set_tf32(self._device, allowed=self._name == "tf32")
        self._trainer.backward_and_step(self._trainer.training_step(self._batch(), self._task.loss))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def flops(self) -> int:
        """Of one forward and backward pass."""
        task = self._load.make(0)
        model = task.model.to(self._device)
        # Fused attention is not counted on every device; its two products are.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            torch.autograd.backward(task.loss(model, self._batch()))
        return int(counter.get_total_flops())

    def _batch(self) -> object:
        size = self._load.batch_size
        return to_device(self._task.batches(self._trainer.step * size, size), self._device)
