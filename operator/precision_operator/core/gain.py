"""What precision has brought, worked out from the readings of a pass. Unknown stays Unknown: it is never 0 of anything.

All of it is relative to each workload's own FP32 baseline, and all but the work so far is read for the promotion checks
anyway. A signal that a policy asks in words of its own may be relative to something else, so it is not taken.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from precision_operator.api.gain import Gain, Measured
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec
from precision_operator.core.evidence.assessment import Assessment
from precision_operator.core.evidence.readings import Unknown
from precision_operator.core.model import Evaluation, PodSignals, PodView
from precision_operator.core.progress import live_pods

HOUR_SECONDS = 3600.0
LARGEST_RATIO = 100.0
"""A trainer's text: what says that it is so many times faster, slower, larger or worse is not believed."""
LONGEST_SECONDS = 10 * 365 * 86400.0
"""Of work: the same."""


@dataclass(frozen=True, slots=True)
class WorkloadGain:
    """What it has brought to one workload; None: not known."""

    speed: float | None = None
    memory: float | None = None
    loss: float | None = None
    gpu_hours: float | None = None
    gpu_rate: float | None = None
    cpu_hours: float | None = None
    cpu_rate: float | None = None

    @property
    def compared(self) -> bool:
        """It has a baseline: something of it is known."""
        return any(value is not None for value in (self.speed, self.memory, self.loss))


def gain(verdicts: Sequence[Assessment], spec: PolicySpec, evaluation: Evaluation | None) -> Gain | None:
    """What a fleet has gained; None where nobody trains in the target, or nothing was read."""
    if evaluation is None or not verdicts:
        return None
    found = [gain_of(verdict, spec, evaluation) for verdict in verdicts]
    return Gain(
        measured_at=float(round(evaluation.at)),
        workloads=len(found),
        compared=sum(one.compared for one in found),
        speed=_median(one.speed for one in found),
        memory=_median(one.memory for one in found),
        loss=_median(one.loss for one in found),
        gpu_hours=_total(one.gpu_hours for one in found),
        cpu_hours=_total(one.cpu_hours for one in found),
        gpu_rate=_sum(one.gpu_rate for one in found),
        cpu_rate=_sum(one.cpu_rate for one in found),
    )


def gain_of(verdict: Assessment, spec: PolicySpec, evaluation: Evaluation) -> WorkloadGain:
    """What one workload has gained: as in its readings, its worst pod counts."""
    pods = [(pod, evaluation.pods.get(pod.name)) for pod in live_pods(verdict.workload) if not pod.pending]
    seen = [(pod, signals) for pod, signals in pods if signals is not None and signals.mode not in (None, Mode.FP32)]
    if not seen or len(seen) < len(pods):
        return WorkloadGain()
    speed = _ratio(_known(verdict, spec, Signal.SPEED))
    # A CPU reports 0: it allocates nothing on a device, and saves nothing there.
    memory = _ratio(_known(verdict, spec, Signal.MEMORY))
    on_gpu = bool(seen[0][0].gpus)
    hours, rate = _saved(seen, speed, of_gpus=on_gpu)
    return WorkloadGain(
        speed,
        memory,
        _known(verdict, spec, Signal.DIVERGENCE),
        gpu_hours=hours if on_gpu else None,
        gpu_rate=rate if on_gpu else None,
        cpu_hours=None if on_gpu else hours,
        cpu_rate=None if on_gpu else rate,
    )


def _known(verdict: Assessment, spec: PolicySpec, signal: Signal) -> float | None:
    """A breach is a value, too; one that is no finite number is none."""
    reading, criterion = verdict.readings.get(signal), spec.criterion(signal)
    if reading is None or isinstance(reading, Unknown) or criterion.query or criterion.promql:
        return None
    return reading.value if abs(reading.value) <= LARGEST_RATIO else None  # NaN is not


def _ratio(value: float | None) -> float | None:
    return value if value is not None and value >= 1 / LARGEST_RATIO else None


def _saved(
    pods: Sequence[tuple[PodView, PodSignals]], speed: float | None, *, of_gpus: bool
) -> tuple[float | None, float | None]:
    """Hours of GPUs (or of pods on CPUs) that the work so far has saved, and what an hour at this speed saves."""
    if speed is None:
        return None, None
    hours = rate = 0.0
    worked = True
    for pod, signals in pods:
        places = _places(pod, signals, of_gpus=of_gpus)
        if places is None:
            return None, None
        work = signals.fp32_work_seconds
        if work is not None and 0 <= work <= LONGEST_SECONDS:
            hours += places * work / HOUR_SECONDS
        else:
            worked = False
        rate += places
    return hours * (1.0 - 1.0 / speed) if worked else None, rate * (speed - 1.0)


def _places(pod: PodView, signals: PodSignals, *, of_gpus: bool) -> int | None:
    """GPUs of a pod, or 1 for a pod that says that it trains on a CPU; None: not known, or not as its workload's others."""
    if of_gpus:
        return pod.gpus or None
    on = signals.runs_on
    return 1 if pod.gpus == 0 and on is not None and on.device == "cpu" else None


def _median(values: Iterable[float | None]) -> Measured | None:
    known = [value for value in values if value is not None]
    return Measured(round(median(known), 4), len(known)) if known else None


def _total(values: Iterable[float | None]) -> Measured | None:
    known = [value for value in values if value is not None]
    return Measured(round(math.fsum(known), 2), len(known)) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    found = _total(values)
    return found.value if found is not None else None
