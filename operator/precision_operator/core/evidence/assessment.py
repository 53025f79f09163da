"""What the metrics say of each workload."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precision_operator.api.modes import Mode
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Criterion, PolicySpec, Severity
from precision_operator.core.evidence.readings import Breach, Reading, Unknown, judge
from precision_operator.core.model import Evaluation, PodSignals, PodView, WorkloadView
from precision_operator.core.progress import live_pods
from precision_operator.reasons import Reason

SPEED_AGE_SHARE = 0.5
"""Of the window: a silence longer than this leaves two samples too close to one another to tell a speed from their scrapes'
jitter.
"""


@dataclass(frozen=True, slots=True)
class Assessment:
    """All readings of one workload."""

    workload: WorkloadView
    readings: Mapping[Signal, Reading]

    @property
    def breaches(self) -> tuple[Signal, ...]:
        """Signals in breach, in the order of their names in the API."""
        return tuple(s for s, r in self.readings.items() if isinstance(r, Breach))

    @property
    def unknown(self) -> tuple[tuple[Signal, Reason], ...]:
        """Signals without a believable value, and why."""
        return tuple((s, r.reason) for s, r in self.readings.items() if isinstance(r, Unknown))


def _pod_reading(
    criterion: Criterion, pod: PodView, spec: PolicySpec, evaluation: Evaluation, *, failing: bool
) -> Reading:
    signal = criterion.signal
    if signal is Signal.FAILURES and pod.crashing:
        # The metrics of a pod are gone *because* it crashes: that is a failure, not silence.
        return Breach(1.0, criterion.severity)
    if evaluation.errors:
        for query in ("ack", "steps", signal.value):
            if query in evaluation.errors:
                return Unknown(evaluation.errors[query].reason)
    signals = evaluation.pods.get(pod.name)
    if signals is None or signals.sampled_at is None:
        return Unknown(Reason.NO_SAMPLES)
    age_seconds = evaluation.at - signals.sampled_at
    if age_seconds > spec.evaluation.max_sample_age_seconds:
        return Unknown(Reason.SAMPLES_TOO_OLD)
    value = signals.values.get(signal)
    enough = signals.has_made(spec.evaluation.min_steps)
    if value is None:
        return Unknown(Reason.NO_SAMPLES if enough else Reason.TOO_FEW_STEPS)
    if signal is Signal.SPEED and age_seconds > SPEED_AGE_SHARE * spec.evaluation.window_seconds:
        return Unknown(Reason.SAMPLES_TOO_OLD)
    reading = judge(criterion, value, failing=failing)
    if not enough and not (SIGNALS[signal].at_once and isinstance(reading, Breach)):
        return Unknown(Reason.TOO_FEW_STEPS)
    return reading


def _worst(criterion: Criterion, readings: Sequence[Reading]) -> Reading:
    """The worst of a workload's pods: a breach beats Unknown beats Ok; among equals the worse value."""
    if len(readings) == 1:
        return readings[0]
    sign = -1.0 if criterion.lower_is_worse else 1.0

    def key(reading: Reading) -> tuple[int, float]:
        if isinstance(reading, Unknown):
            return (1, 0.0)
        return (
            2 if isinstance(reading, Breach) else 0,
            math.inf if math.isnan(reading.value) else sign * reading.value,
        )

    return max(readings, key=key, default=Unknown(Reason.NO_PODS))


def assess(
    workload: WorkloadView,
    spec: PolicySpec,
    evaluation: Evaluation,
    *,
    mode: Mode,
    failing: frozenset[Signal],
    confirmed: frozenset[Signal] = frozenset(),
) -> Assessment:
    """Judge every enabled signal of one workload that trains in ``mode``.

    Args:
        workload: the workload.
        spec: with the criteria.
        evaluation: what is judged.
        mode: what it trains in.
        failing: signals of which a breach stands: silence of any pod is Unknown there.
        confirmed: those of them with a breach of the criterion's own severity that was seen often enough to act on. Only
            these have to come back to ``leave``: one outlier must not make a breach of a value that is none.
    """
    live = live_pods(workload)
    # A pod that finds no node would hold a rollout for as long as it waits. But where none runs, or where a breach stands
    # (its pod may be the one that is being replaced), silence is Unknown.
    training = tuple(pod for pod in live if not pod.pending or pod.crashing or pod.name in evaluation.pods) or live
    readings: dict[Signal, Reading] = {}
    for criterion in spec.criteria:
        signal = criterion.signal
        if not criterion.enabled or (mode is Mode.FP32 and not SIGNALS[signal].of_fp32):
            continue
        stands = signal in failing
        judged = live if stands else training
        readings[signal] = _worst(
            criterion, [_pod_reading(criterion, pod, spec, evaluation, failing=signal in confirmed) for pod in judged]
        )
    return Assessment(workload, readings)


def lost(workload: WorkloadView, spec: PolicySpec, evaluation: Evaluation) -> bool:
    """A pod's loss is in breach of more than an alert, in whatever precision: the weights that give it are poisoned."""
    criteria = [criterion for criterion in spec.criteria if criterion.enabled and SIGNALS[criterion.signal].of_loss]
    readings = (_pod_reading(c, pod, spec, evaluation, failing=False) for pod in live_pods(workload) for c in criteria)
    return any(isinstance(found, Breach) and found.severity is not Severity.P3 for found in readings)


def cohort_breached(
    workloads: Iterable[WorkloadView], spec: PolicySpec, evaluation: Evaluation, signal: Signal
) -> tuple[int, int]:
    """(breached, judged) among workloads that train in FP32: is it the precision at all?"""
    breached = judged = 0
    for workload in workloads:
        reading = assess(workload, spec, evaluation, mode=Mode.FP32, failing=frozenset()).readings.get(signal)
        if reading is not None and not isinstance(reading, Unknown):
            judged += 1
            breached += isinstance(reading, Breach)
    return breached, judged


def trains_in(workload: WorkloadView, signals: Mapping[str, PodSignals], mode: Mode) -> bool:
    """Every pod's process reports ``mode``."""
    pods = live_pods(workload)
    return bool(pods) and all((s := signals.get(p.name)) is not None and s.mode is mode for p in pods)
