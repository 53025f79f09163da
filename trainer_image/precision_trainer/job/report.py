"""From agreed facts to log lines and metrics. Log lines on every rank, metrics and runs on rank 0."""

from __future__ import annotations

import time

from ..precision.modes import PrecisionMode
from ..precision.steps import Boundary, ModeChange, StepRecord
from ..precision.trainer import ExtendedFP16Trainer
from ..sentinel.machine import Transition
from ..sentinel.shadow import ShadowReading
from ..sentinel.shell import Sentinel
from ..state.checkpoint import ModeEntry
from ..state.keeper import Keeper
from ..state.runs import Runs
from ..telemetry import memory
from ..telemetry.baseline import Baseline, BaselineRecorder
from ..telemetry.changes import tell_change, tell_tuning
from ..telemetry.logs import JsonLog
from ..telemetry.metrics import Metrics
from .boot import Start

_MEMORY_EVERY_STEPS = 50


class Reporter:
    """Takes in boundaries; knows the contract's names."""

    def __init__(
        self,
        trainer: ExtendedFP16Trainer,
        keeper: Keeper,
        metrics: Metrics,
        runs: Runs | None,
        samples_per_step: int,
        log: JsonLog,
        baseline: BaselineRecorder | None = None,
    ) -> None:
        self._trainer, self._keeper, self._metrics, self._runs, self._log = trainer, keeper, metrics, runs, log
        self._samples_per_step = samples_per_step
        self._baseline = baseline or BaselineRecorder("")
        self._bad_fp32_steps = 0
        self._last_record_at = time.monotonic()

    def begin(self, start: Start, run_info: dict[str, str], *, fresh: bool = True) -> None:
        """Before the first step: all ranks have agreed on ``start`` and loaded the same checkpoint.

        Args:
            start: the decision.
            run_info: labels of genesis_run_info.
            fresh: the checkpoint was made before the request that decided, if one did.
        """
        if start.request is not None and fresh:
            tell_tuning(self._log, start.request, step=self._trainer.step, loss_scale=self._scale())
        history, mode = self._keeper.history, self._trainer.mode
        if not history or history[-1]["mode"] != mode.wire:
            # The sentinel may go on where the process before left it: then it decides, not what was asked for.
            source = start.source if mode is start.mode else "sentinel"
            self._remember(mode, start.generation, source, time.time())
        metrics, step = self._metrics, self._trainer.step
        metrics.run_info(run_info)
        metrics.set(
            {
                "genesis_precision_changed_timestamp_seconds": history[-1]["time"],
                "genesis_training_step": float(step),
                "genesis_loss_scale": self._scale(),
            }
        )
        metrics.acknowledge(mode.wire, start.generation)
        if self._baseline.stale:
            self._keeper.progress.forget_baseline()
        self._show_baseline(self._baseline.record)
        if self._trainer.sentinel is not None:
            self._trainer.sentinel.observer = self._moved
            self._trainer.sentinel.measurements.observer = self._shadowed
            self._sentinel_gauges(self._trainer.sentinel)
        self._last_record_at = time.monotonic()
        if self._runs is not None:
            self._runs.begin_process(step, time.monotonic())

    def _scale(self) -> float:
        return float(self._trainer.scaler.scale_value.item()) if self._trainer.mode.uses_scaler else 1.0

    def _remember(self, mode: PrecisionMode, generation: int, source: str, at: float) -> None:
        step = self._trainer.step
        entry: ModeEntry = {"step": step, "mode": mode.wire, "generation": generation, "source": source, "time": at}
        self._keeper.history.append(entry)

    def _moved(self, transition: Transition, _layer: str | None) -> None:
        self._metrics.transition(transition.before.label, transition.after.label, transition.reason.value)
        if self._trainer.sentinel is not None:
            self._sentinel_gauges(self._trainer.sentinel)

    def _shadowed(self, shadow: ShadowReading) -> None:
        self._metrics.set(
            {
                "genesis_precision_gradient_cosine": shadow.cosine,
                "genesis_precision_gradient_error_ratio": shadow.error_ratio,
            }
        )

    def _sentinel_gauges(self, sentinel: Sentinel) -> None:
        level, pinned = float(sentinel.level), float(len(sentinel.pinned))
        self._metrics.set({"genesis_sentinel_level": level, "genesis_sentinel_pinned_layers": pinned})

    def boundary(self, boundary: Boundary) -> int:
        """Report what was agreed.

        Returns:
            How many FP32 steps in a row were non-finite up to now (the same number on all ranks).
        """
        for record in boundary.records:
            self._record(record)
        if boundary.change is not None:
            self._change(boundary.change)
        return self._bad_fp32_steps

    def _change(self, change: ModeChange) -> None:
        tell_change(self._log, change, loss_scale=self._scale())
        if change.before is not change.after:
            self._remember(change.after, change.generation, change.source, change.time)
            self._metrics.clear("genesis_precision_gradient_cosine", "genesis_precision_gradient_error_ratio")

    def _record(self, record: StepRecord) -> None:
        now = time.monotonic()
        fp32 = record.mode is PrecisionMode.FP32
        self._bad_fp32_steps = self._bad_fp32_steps + 1 if fp32 and record.nonfinite else 0
        progress = self._keeper.progress
        seconds = now - self._last_record_at
        progress.observe(record, fp32=fp32, samples=self._samples_per_step, seconds=seconds)
        self._last_record_at = now
        if self._runs is None:
            return
        if fp32:
            self._baseline.observe(record, record.step, samples=self._samples_per_step, seconds=seconds)
        elif self._baseline.recording:
            self._show_baseline(self._baseline.end(time.time(), memory.peak_bytes(self._trainer.device)))
        if record.step % _MEMORY_EVERY_STEPS == 0:
            self._show_memory(record.mode)
        counters = {"genesis_training_steps": 1.0, "genesis_training_samples": float(self._samples_per_step)}
        counters["genesis_fp16_training_steps"] = float(not fp32)
        counters["genesis_fp16_overflow_steps"] = float(record.overflow)
        counters["genesis_nonfinite_loss_steps"] = float(record.nonfinite)
        gauges = {"genesis_training_step": float(record.step + 1), "genesis_loss_scale": record.loss_scale}
        if progress.loss is not None:
            gauges["genesis_training_loss"] = progress.loss
        if record.grad_norm is not None and record.grad_norm - record.grad_norm == 0.0:
            gauges["genesis_grad_norm"] = record.grad_norm
        if progress.baseline_loss >= 0:
            gauges["genesis_fp32_baseline_loss"] = progress.baseline_loss
            gauges["genesis_fp32_baseline_samples_per_second"] = progress.baseline_samples_per_second
        gauges["genesis_precision_changed_timestamp_seconds"] = self._changed_at(record)
        counters |= self._run_counters(record, now)
        self._metrics.add(counters, gauges)
        # The record proves it: every rank ran this step in this mode (agreement.decode checks the sum).
        self._metrics.acknowledge(record.mode.wire, record.generation)

    def _show_baseline(self, baseline: Baseline | None) -> None:
        if baseline is not None:
            self._metrics.set(baseline.gauges())
            self._metrics.fp32_baseline = baseline.to_wire()

    def _show_memory(self, mode: PrecisionMode) -> None:
        device = self._trainer.device
        headroom, allocated = memory.headroom_bytes(device), memory.allocated_bytes(device)
        if headroom is not None:
            self._metrics.set({"genesis_memory_headroom_bytes": float(headroom)})
        if allocated is not None:
            self._metrics.memory(mode.wire, float(allocated))

    def _changed_at(self, record: StepRecord) -> float:
        history = self._keeper.history
        return next(
            (entry["time"] for entry in reversed(history) if entry["mode"] == record.mode.wire), history[-1]["time"]
        )

    def _run_counters(self, record: StepRecord, now: float) -> dict[str, float]:
        assert self._runs is not None
        counters: dict[str, float] = {}
        if self._runs.crashed_before:
            # Not before the first step: a counter must be seen at 0 before it rises.
            self._runs.crashed_before = False
            counters["genesis_training"] = 1.0
        ended = self._runs.observe(record.step + 1, record.nonfinite, now)
        if ended is not None:
            well, seconds = ended
            counters["genesis_training"] = counters.get("genesis_training", 0.0) + 1.0
            counters["genesis_training_success"] = float(well)
            if record.mode is PrecisionMode.FP32:
                self._baseline.run_ended(well)
            self._metrics.run_seconds(seconds)
        return counters

    def step_seconds(self, seconds: float) -> None:
        """Duration of the step just tried."""
        self._metrics.step_seconds(seconds)

    def rewound(self) -> None:
        """Training went back to a healthy checkpoint: the open run ends, not well."""
        self._bad_fp32_steps = 0
        if self._runs is not None:
            self._runs.rewound(self._trainer.step, time.monotonic())
            self._metrics.add({"genesis_training": 1.0})

    def suspended(self) -> None:
        """Training stops as asked; the open run goes on in the next process."""
        if self._runs is not None:
            self._runs.suspend(time.monotonic())

    def failed(self) -> None:
        """Training diverged."""
        if self._runs is not None:
            self._runs.fail()
            self._metrics.add({"genesis_training": 1.0})
