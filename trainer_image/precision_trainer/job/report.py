"""From agreed facts to log lines and metrics. Log lines on every rank, metrics and runs on rank 0."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence

from ..precision.boot import Start
from ..precision.trainer import ExtendedFP16Trainer
from ..sentinel.machine import Transition
from ..sentinel.shadow import ShadowReading
from ..sentinel.shell import Sentinel
from ..step.steps import ModeChange, StepRecord
from ..store.checkpointer import Checkpointer
from ..store.runs import Runs
from ..telemetry import memory
from ..telemetry.bar import Bar
from ..telemetry.baseline import Baseline, BaselineRecorder
from ..telemetry.changes import tell_change, tell_tuning
from ..telemetry.metrics import Metrics
from ..telemetry.warm_up import WarmUp
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode

_MEMORY_EVERY_STEPS = 50


class Reporter:
    """Takes in what steps came to; knows the contract's names."""

    def __init__(
        self,
        trainer: ExtendedFP16Trainer,
        checkpointer: Checkpointer,
        metrics: Metrics,
        runs: Runs | None,
        samples_per_step: int,
        log: JsonLog,
        baseline: BaselineRecorder | None = None,
        bar: Bar | None = None,
    ) -> None:
        self._trainer, self._checkpointer, self._metrics = trainer, checkpointer, metrics
        self._runs, self._log = runs, log
        self._samples_per_step = samples_per_step
        self._baseline = baseline or BaselineRecorder("")
        self._bar = bar
        self._bad_fp32_steps = 0
        self._warm_up = WarmUp()
        self._last_record_at = time.monotonic()
        self._shown: tuple[PrecisionMode | None, int] = None, 0
        """Mode and generation of the last step reported."""

    def begin(self, start: Start, run_info: dict[str, str], *, fresh: bool = True) -> None:
        """Before the first step: all ranks have agreed on ``start`` and loaded the same checkpoint.

        Args:
            start: the decision.
            run_info: labels of genesis_run_info.
            fresh: the checkpoint was made before the request that decided, if one did.
        """
        if start.request is not None and fresh:
            tell_tuning(self._log, start.request, step=self._trainer.step, loss_scale=self._scale())
        history, mode = self._checkpointer.history, self._trainer.mode
        if not history or history[-1]["mode"] != mode.wire:
            # The sentinel may go on where the process before left it: then it decides, not what was asked for.
            source = start.source if mode is start.mode else "sentinel"
            self._checkpointer.remember(mode, start.generation, source, time.time())
        metrics, step = self._metrics, self._trainer.step
        metrics.run_info(run_info)
        metrics.set(
            {
                "genesis_precision_changed_timestamp_seconds": history[-1]["time"],
                "genesis_training_step": float(step),
                "genesis_loss_scale": self._scale(),
            }
        )
        if self._trainer.modes.proven:
            metrics.acknowledge(mode.wire, start.generation)
        if self._baseline.stale:
            self._checkpointer.progress.forget_baseline()
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

    def change(self, change: ModeChange) -> None:
        """The mode was changed, or a request for the one in force was applied."""
        tell_change(self._log, change, loss_scale=self._scale())
        if change.before is not change.after:
            self._checkpointer.remember(change.after, change.generation, change.source, change.time)
            self._metrics.clear("genesis_precision_gradient_cosine", "genesis_precision_gradient_error_ratio")

    def routine(self, record: StepRecord) -> bool:
        """Whether nobody has to hear of a step at once: it went well, in the mode that was last reported."""
        return not record.bad and record.mode is self._shown[0] and record.generation == self._shown[1]

    def steps(self, records: Sequence[StepRecord], read_at: Sequence[float]) -> int:
        """Report steps, in their order.

        Args:
            records: what they came to.
            read_at: monotonic seconds at which each was read.

        Returns:
            How many FP32 steps in a row were non-finite up to now (the same number on all ranks).
        """
        if not records:
            return self._bad_fp32_steps
        counters: dict[str, float] = defaultdict(float)
        progress, samples, mode = self._checkpointer.progress, self._samples_per_step, self._shown[0]
        for record, now in zip(records, read_at, strict=True):
            fp32, bad = record.mode is PrecisionMode.FP32, record.bad
            self._bad_fp32_steps = self._bad_fp32_steps + 1 if fp32 and bad and record.nonfinite else 0
            seconds = now - self._last_record_at
            self._last_record_at = now
            progress.observe(record.loss, fp32=fp32, samples=samples, seconds=seconds)
            if self._runs is None:
                continue
            warming = self._warm_up.observe(record.mode)
            counters["genesis_fp16_training_steps"] += not fp32 and not warming
            if bad:
                counters["genesis_fp16_overflow_steps"] += record.overflow and not warming
                counters["genesis_fp16_warmup_overflow_steps"] += record.overflow and warming
                counters["genesis_nonfinite_loss_steps"] += record.nonfinite
            if fp32:
                self._baseline.observe(record.loss, record.step, samples=samples, seconds=seconds)
            elif self._baseline.recording:
                self._show_baseline(self._baseline.end(time.time(), memory.peak_bytes(self._trainer.device)))
            if record.mode is not mode:
                mode = record.mode
                memory.begin_stretch(self._trainer.device)
            if record.step % _MEMORY_EVERY_STEPS == 0:
                self._show_memory(mode)
            self._count_runs(self._runs, record, now, counters)
        last = records[-1]
        self._shown = last.mode, last.generation
        if self._runs is not None:
            counters["genesis_training_steps"] = float(len(records))
            counters["genesis_training_samples"] = float(len(records) * samples)
            self._metrics.add(counters, self._gauges(records))
            # The record proves it: every rank ran this step in this mode (agreement.decode checks the sum).
            self._metrics.acknowledge(last.mode.wire, last.generation)
        if self._bar is not None:
            self._bar.show(last.step + 1, last.mode.wire, progress.loss)
        return self._bad_fp32_steps

    def _gauges(self, records: Sequence[StepRecord]) -> dict[str, float]:
        """What the last of these steps left."""
        last, progress = records[-1], self._checkpointer.progress
        gauges = {"genesis_training_step": float(last.step + 1), "genesis_loss_scale": last.loss_scale}
        if progress.loss is not None:
            gauges["genesis_training_loss"] = progress.loss
        norms = (record.grad_norm for record in reversed(records) if record.grad_norm is not None)
        norm = next((norm for norm in norms if math.isfinite(norm)), None)
        if norm is not None:
            gauges["genesis_grad_norm"] = norm
        if progress.baseline_loss >= 0:
            gauges["genesis_fp32_baseline_loss"] = progress.baseline_loss
            gauges["genesis_fp32_baseline_samples_per_second"] = progress.baseline_samples_per_second
        gauges["genesis_precision_changed_timestamp_seconds"] = self._changed_at(last)
        return gauges

    def _show_baseline(self, baseline: Baseline | None) -> None:
        if baseline is not None:
            self._metrics.set(baseline.gauges())
            self._metrics.fp32_baseline = baseline.to_wire()

    def _show_memory(self, mode: PrecisionMode) -> None:
        device = self._trainer.device
        headroom, peak = memory.headroom_bytes(device), memory.peak_bytes(device)
        if headroom is not None:
            self._metrics.set({"genesis_memory_headroom_bytes": float(headroom)})
        if peak is not None:
            self._metrics.memory(mode.wire, float(peak))

    def _changed_at(self, record: StepRecord) -> float:
        history = self._checkpointer.history
        return next(
            (entry["time"] for entry in reversed(history) if entry["mode"] == record.mode.wire), history[-1]["time"]
        )

    def _count_runs(self, runs: Runs, record: StepRecord, now: float, counters: dict[str, float]) -> None:
        if runs.crashed_before:
            # Not before the first step: a counter must be seen at 0 before it rises.
            runs.crashed_before = False
            counters["genesis_training"] += 1.0
        ended = runs.observe(record.step + 1, record.nonfinite, now)
        if ended is not None:
            well, seconds = ended
            counters["genesis_training"] += 1.0
            counters["genesis_training_success"] += well
            if record.mode is PrecisionMode.FP32:
                self._baseline.run_ended(well)
            self._metrics.run_seconds(seconds)

    def step_seconds(self, seconds: Sequence[float]) -> None:
        """Durations of the steps just tried."""
        self._metrics.step_seconds(*seconds)

    def rewound(self) -> None:
        """Training went back to a healthy checkpoint: the open run ends, not well."""
        self._bad_fp32_steps = 0
        if self._runs is not None:
            self._runs.rewound(self._trainer.step, time.monotonic())
            self._metrics.add({"genesis_training": 1.0})

    def suspended(self) -> None:
        """Training stops as asked, or for want of a lost rank; the open run goes on in the next process."""
        if self._runs is not None:
            self._runs.suspend(time.monotonic())

    def crashed(self) -> None:
        """Training ends with an error: the next process counts the open run."""
        if self._runs is not None:
            self._runs.crash()

    def failed(self) -> None:
        """Training diverged."""
        if self._runs is not None:
            self._runs.fail()
            self._metrics.add({"genesis_training": 1.0})
