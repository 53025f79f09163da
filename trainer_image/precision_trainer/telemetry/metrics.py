"""The metrics of docs/contract.md, as plain numbers that the training thread writes and a scrape copies.

Nothing here touches torch: a scrape takes a lock for microseconds and never waits for the device.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..values.levels import FIRST_TRANSITIONS, Level
from ..values.request import REASONS

STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RUN_BUCKETS = (1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)

_COUNTERS = {
    "genesis_training_steps": "Steps tried in this process, any mode.",
    "genesis_training_samples": "Samples consumed in this process by the whole process group.",
    "genesis_fp16_training_steps": "Steps tried in FP16 or BF16, without the warm-up.",
    "genesis_fp16_overflow_steps": "Of those, skipped by the loss scaler (found_inf).",
    "genesis_fp16_warmup_overflow_steps": "Skipped in the first 16 steps of FP16, in which the scale finds its place.",
    "genesis_nonfinite_loss_steps": "Steps with a non-finite loss that the scaler did not skip; in FP32 and BF16 also with "
    "non-finite gradients. Their update is skipped.",
    "genesis_training": "Runs (segments of N steps) ended, well or not; a crash counts after the next first step.",
    "genesis_training_success": "Runs ended well.",
    "genesis_rewinds": "Times that training went back to the last healthy checkpoint, in this process.",
    "genesis_rewind_failures": "Rewinds that were asked for and not possible; nothing was changed then.",
    "genesis_checkpoint_failures": "Checkpoints or tags that could not be written; training went on.",
    "genesis_runs_failures": "Times that the list of runs (runs.json) could not be written; training went on, and a "
    "crash may not count as a failed run.",
    "genesis_checkpoint_lease_errors": "Times that the checkpoint directory's lease could not be read or written.",
    "genesis_log_lines_lost": "Log lines of this rank that could not be written to stdout; training went on.",
    "genesis_request_errors": "Requests refused.",
    "genesis_precision_transitions": "Changes of the sentinel's level.",
}
_GAUGES = {
    "genesis_sentinel_level": "How far the sentinel has gone: 0 nominal, 1 lower scale, 2 pinned layers, 3 BF16, 4 FP32, "
    "5 rewound.",
    "genesis_sentinel_pinned_layers": "Layers that compute in FP32.",
    "genesis_precision_gradient_cosine": "Between the gradients of one micro-batch in this mode and in FP32.",
    "genesis_precision_gradient_error_ratio": "Length of their difference over that of the FP32 gradient.",
    "genesis_precision_changed_timestamp_seconds": "When the precision mode last changed.",
    "genesis_training_step": "Global step; survives restarts.",
    "genesis_training_loss": "Exponential average of finite losses.",
    "genesis_fp32_baseline_loss": "The same average at the end of the last FP32 stretch.",
    "genesis_fp32_baseline_samples_per_second": "Throughput of the last FP32 stretch.",
    "genesis_fp32_baseline_step": "The step that FP32 stretch ended at.",
    "genesis_fp32_baseline_step_p95_seconds": "95th percentile of a step's duration in it.",
    "genesis_fp32_baseline_peak_bytes": "Most device memory allocated in it.",
    "genesis_fp32_baseline_success_ratio": "Runs that ended well, of those that ended in it.",
    "genesis_fp32_baseline_timestamp_seconds": "When it ended.",
    "genesis_memory_headroom_bytes": "Bytes that training may still allocate.",
    "genesis_loss_scale": "Current loss scale; 1 where no scaler runs.",
    "genesis_grad_norm": "Last finite global gradient norm, unscaled, before clipping.",
    "genesis_checkpoint_last_success_timestamp_seconds": "When the last checkpoint was complete on disk.",
    "genesis_checkpoint_step": "The step the last checkpoint holds.",
    "genesis_checkpoint_seconds": "From the last checkpoint's boundary until it was complete on disk.",
    "genesis_checkpoint_step_added_seconds": "How long the step waited for the last checkpoint's copy.",
    "genesis_checkpoint_lease_held": "1 while this process may write checkpoints to its directory, else 0.",
    "genesis_checkpoint_lease_wait_seconds": "How long this process has waited for that at its start.",
    "genesis_last_healthy_checkpoint_step": "The step of the newest checkpoint tagged healthy.",
    "genesis_cuda_memory_allocated_bytes": "Most CUDA memory allocated since the mode began.",
    "genesis_precision_info": "The mode all ranks train in; the last request.",
}
_LABELS = {
    "genesis_request_errors": ("reason",),
    "genesis_precision_transitions": ("from", "to", "reason"),
    "genesis_cuda_memory_allocated_bytes": ("mode",),
    "genesis_precision_info": ("mode", "generation"),
}
"""Of those metrics that have any."""


class _Histogram:
    """Counts per bucket and the sum; the last count is of values above all bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self.sum)


class Metrics(Collector):
    """All values of one process. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[tuple[str, ...], float]] = {
            **{name: {} if name in _LABELS else {(): 0.0} for name in _COUNTERS},
            **{name: {} for name in _GAUGES},
        }
        """By the values of the labels. A metric without any value is absent from the page."""
        self._values["genesis_request_errors"] = {(reason,): 0.0 for reason in REASONS}
        for level, reason in FIRST_TRANSITIONS:
            self._values["genesis_precision_transitions"][Level.NOMINAL.label, level.label, reason.value] = 0.0
        self._run_info: dict[str, str] | None = None
        self.fp32_baseline: dict[str, object] | None = None
        """The whole record (telemetry/baseline.py), for the export; None before one. Replaced, never changed."""
        self._step_seconds = _Histogram(STEP_BUCKETS)
        self._run_seconds = _Histogram(RUN_BUCKETS)
        self.last_step_at = time.monotonic()
        """Monotonic seconds of the last step, or of the start; while that waits for another process, of now."""

    def add(self, counters: dict[str, float], gauges: dict[str, float] | None = None) -> None:
        """Raise counters and set gauges together: a scrape sees all of it or nothing. Names without ``_total``."""
        with self._lock:
            for name, amount in counters.items():
                self._plain(name, _COUNTERS)[()] += amount
            if gauges:
                self._set(gauges)

    def set(self, gauges: dict[str, float]) -> None:
        """Set gauges. An unset gauge is absent from the page."""
        with self._lock:
            self._set(gauges)

    def clear(self, *names: str) -> None:
        """Take gauges off the page: what they said is not known of what runs now."""
        with self._lock:
            for name in names:
                self._plain(name, _GAUGES).clear()

    def _set(self, gauges: dict[str, float]) -> None:
        for name, value in gauges.items():
            self._plain(name, _GAUGES)[()] = value

    def _plain(self, name: str, table: Mapping[str, str]) -> dict[tuple[str, ...], float]:
        """Where the value of a metric of ``table`` stands that has no labels."""
        if name not in table or name in _LABELS:
            raise KeyError(name)
        return self._values[name]

    def gauge(self, name: str) -> float | None:
        """A gauge's value; None where it is absent from the page."""
        with self._lock:
            return self._plain(name, _GAUGES).get(())

    def acknowledge(self, mode: str, generation: int) -> None:
        """All ranks train in ``mode``. Replaces the old label set in one assignment: never two, never none."""
        self._values["genesis_precision_info"] = {(mode, str(generation)): 1.0}

    def run_info(self, labels: dict[str, str]) -> None:
        """What runs (docs/contract.md)."""
        self._run_info = labels

    def memory(self, mode: str, allocated_bytes: float) -> None:
        """CUDA memory allocated while training in ``mode``."""
        with self._lock:
            self._values["genesis_cuda_memory_allocated_bytes"] = {(mode,): allocated_bytes}

    def request_error(self, reason: str) -> None:
        """A request was refused."""
        with self._lock:
            self._values["genesis_request_errors"][reason,] += 1

    def transition(self, before: str, after: str, reason: str) -> None:
        """The sentinel changed its level (docs/sentinel.md)."""
        counts, key = self._values["genesis_precision_transitions"], (before, after, reason)
        with self._lock:
            counts[key] = counts.get(key, 0.0) + 1.0

    def step_seconds(self, *seconds: float) -> None:
        """Durations of steps, waiting for the next one's time (``--step-interval-seconds``) left out."""
        if not seconds:
            return
        with self._lock:
            for duration in seconds:
                self._step_seconds.observe(duration)
            self.last_step_at = time.monotonic()

    def starting(self) -> None:
        """Training is not stuck, but waits for another process or for the volume: no step can have ended."""
        self.last_step_at = time.monotonic()

    def run_seconds(self, seconds: float) -> None:
        """Duration of a run."""
        with self._lock:
            self._run_seconds.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client: a consistent copy of everything."""
        families: list[Metric] = []
        with self._lock:
            for kind, table in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
                for name, text in table.items():
                    if self._values[name]:
                        family = kind(name, text, labels=_LABELS.get(name, ()))
                        for labels, value in self._values[name].items():
                            family.add_metric(labels, value)
                        families.append(family)
            families.append(self._step_seconds.family("genesis_step_duration_seconds", "Duration of a step."))
            families.append(self._run_seconds.family("genesis_training_duration_seconds", "Duration of a run."))
        run_info = self._run_info
        if run_info is not None:
            info = GaugeMetricFamily("genesis_run_info", "What runs.", labels=list(run_info))
            info.add_metric(list(run_info.values()), 1.0)
            families.append(info)
        yield from families
