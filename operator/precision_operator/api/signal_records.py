"""One record a signal: what it means, how it is judged by default, what is asked of Prometheus, and what a breach is called.

The CRD's block, its CEL rules, lint, the built-in query, the recording rules, the readings' rules, the words of a rollback
and the values of fleets in memory follow from the record. A name and a record are not enough: CONTRIBUTING.md, "A signal",
lists the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_operator.api.choices import Severity
from precision_operator.api.criteria import Criterion
from precision_operator.api.fields import Field, Rule
from precision_operator.api.series import (
    BASELINE_LOSS,
    LOSS,
    ON_CPU,
    REDUCED,
    SAMPLES_PER_SECOND,
    baseline,
    increase,
    metric,
)
from precision_operator.api.signals import Signal
from precision_operator.reasons import Reason

_SHARE = Field(least=0, most=1)
_MULTIPLE = Field(above=0, most=10)

COMMON = ("enabled", "severity", "query", "promql")
"""Attributes that each criterion has."""
_THRESHOLDS = ("enter", "leave")
_WARNING = ("warn", "warn_severity", "alert_after_seconds")


@dataclass(frozen=True, slots=True)
class SignalRecord:
    """One signal."""

    text: str
    """What its value is; the description of its criterion."""
    default: Criterion
    attributes: tuple[str, ...]
    """Of a criterion, beside ``COMMON``."""
    query: str
    """The built-in PromQL: one sample a pod. ``signals/queries.py`` says what is filled in.

    The same text becomes a recording rule over all namespaces, where pods may share a name. Write ``by (pod)`` and
    ``on (pod)``: the rule adds the namespace to both.

    If the signal is enabled by default, the query must give a value in every reduced mode. A mode without one is Unknown,
    and no rollout to it is promoted.
    """
    reason: Reason
    """What a rollback for it is called."""
    fault: str
    """What the review of an incident calls it."""
    good: float
    """A value that promotes, of a process in reduced precision. Test fleets and benchmarks report it."""
    bad: float
    """A value beyond the default threshold."""
    title: str = ""
    """Above a chart of it; empty: its name."""
    measure: str = "share"
    """What a value is a number of; free text.

    It completes the CRD's descriptions ("above this share"; a count needs "number of …"), and it is the unit in evidence
    and plots.
    """
    bounds: Field = _SHARE
    """Of its thresholds."""
    severities: tuple[Severity, ...] = (Severity.P0, Severity.P1, Severity.P2)
    alert: Reason | None = None
    """What an alert (P3) of it is called; None: as a rollback."""
    at_once: bool = False
    """One sample is enough: a single NaN loss or crash needs no step count behind it."""
    of_fp32: bool = False
    """It is judged of a workload that trains in FP32 too; the others compare with FP32, or need a loss scale."""
    of_loss: bool = False
    """Made of losses: what is not finite there is not silence but the fault itself, and the weights may be poisoned."""
    price: bool = False
    """In FP32 it is FP32's price, or cannot be: a canary that was rolled back is not compared by it."""
    compared: bool = False
    """A rollout's canary is compared by it with what has not been moved."""

    @property
    def unit(self) -> str:
        """Of its value: share, multiple (of FP32), or steps where it is a count and has no thresholds."""
        return self.measure if self.attributes else "steps"

    def rules(self) -> tuple[Rule, ...]:
        """The CEL rules of its criterion."""
        default, signal = self.default, self.default.signal
        leave, enter, promote = default.leave, default.enter, default.promote_below
        found = [
            Rule(
                "!has(self.query) || !has(self.promql)",
                "a criterion takes query or promql, not both: name a query of the catalogue, or bring your own",
                field="promql",
            )
        ]
        if "leave" in self.attributes:
            order, side = (">", "above") if default.lower_is_worse else ("<", "below")
            why = (
                "because lower is worse here: raise leave or lower enter"
                if default.lower_is_worse
                else "so that a value between them keeps its state: lower leave or raise enter"
            )
            message = f"{signal}: leave (default {leave}) must be {side} enter (default {enter}), {why}"
            rule = f"!has(self.leave) || !has(self.enter) || self.leave {order} self.enter"
            found.append(Rule(rule, message, field="leave"))
        if promote is not None:
            message = (
                f"{signal}: promoteBelow (default {promote}) must not be above enter (default {enter}), because a breach "
                "never promotes: lower promoteBelow or raise enter"
            )
            rule = "!has(self.promoteBelow) || !has(self.enter) || self.promoteBelow <= self.enter"
            found.append(Rule(rule, message, field="promoteBelow"))
        return tuple(found)


_RECORDS = (
    SignalRecord(
        "Share of FP16/BF16 steps that the loss scaler skipped for infinite gradients, 0 to 1. Skipped steps leave weights "
        "intact.",
        Criterion(Signal.OVERFLOW, Severity.P1, enter=0.30, leave=0.20, promote_below=0.05, warn=0.10),
        (*_THRESHOLDS, "promote_below", *_WARNING),
        # Absent below $minSteps of them.
        query=(
            f"max by (pod) ({increase('fp16_overflow_steps_total')}"
            f" / ({increase('fp16_training_steps_total')} >= $minSteps))"
        ),
        reason=Reason.OVERFLOW_RATE_HIGH,
        fault="High overflow rate",
        good=0.0,
        bad=0.6,
        price=True,
    ),
    SignalRecord(
        "How far the loss lies above the workload's own FP32 baseline, as a share of it: 0.2 is 20 % worse. Better is "
        "never a breach.",
        Criterion(
            Signal.DIVERGENCE,
            Severity.P1,
            enter=0.20,
            leave=0.10,
            promote_below=0.05,
            warn=0.05,
            warn_severity=Severity.P3,
            alert_after_seconds=1800.0,
        ),
        (*_THRESHOLDS, "promote_below", *_WARNING),
        # Absent without a baseline.
        query=f"max by (pod) (({LOSS} - {BASELINE_LOSS}) / (abs({BASELINE_LOSS}) > 0 < Inf))",
        reason=Reason.LOSS_DIVERGED,
        fault="Loss divergence",
        good=-0.1,
        bad=0.5,
        bounds=_MULTIPLE,
        alert=Reason.LOSS_DIVERGING,
        of_loss=True,
        compared=True,
    ),
    SignalRecord(
        "Share of training runs within the window that failed, 0 to 1; crashed ones count.",
        Criterion(Signal.FAILURES, Severity.P0, enter=0.50, leave=0.25, promote_below=0.05),
        (*_THRESHOLDS, "promote_below"),
        # NaN where none ended; absent where they are not counted, or the counters are NaN: that is neither >= 0 nor == 0.
        query=(
            f"max by (pod) (clamp_min(1 - ({increase('training_success_total')} >= 0)"
            f" / ({increase('training_total')} > 0), 0)"
            f" or 0 * ({increase('training_success_total')} >= 0) / ({increase('training_total')} == 0))"
        ),
        reason=Reason.TRAINING_FAILING,
        fault="Training failures",
        good=0.0,
        bad=0.9,
        at_once=True,
        of_fp32=True,
        compared=True,
    ),
    SignalRecord(
        "Non-finite losses in steps that the scaler did not skip: one is a breach, because weights may be poisoned. "
        "Skipped steps are overflow.",
        Criterion(Signal.NON_FINITE, Severity.P0, enter=0.0, leave=0.0),
        (),
        query=f"max by (pod) ({increase('nonfinite_loss_steps_total')})",
        reason=Reason.LOSS_NOT_FINITE,
        fault="Training failures (non-finite losses)",
        title="Non-finite losses",
        good=0.0,
        bad=3.0,
        at_once=True,
        of_fp32=True,
        of_loss=True,
    ),
    SignalRecord(
        "Throughput as a multiple of the workload's own FP32 baseline: 0.8 is 20 % slower. Lower is worse, so leave lies "
        "above enter. Switch it off on CPUs, where FP16 is no faster.",
        Criterion(Signal.SPEED, Severity.P2, enter=0.8, leave=0.9, expected=1.5, lower_is_worse=True),
        (*_THRESHOLDS, "promote_above", "expected"),
        # Absent without a baseline.
        query=f"min by (pod) ({SAMPLES_PER_SECOND} / {baseline('samples_per_second')})",
        reason=Reason.TRAINING_SLOW,
        fault="Performance regression",
        good=1.25,
        bad=0.5,
        measure="multiple",
        bounds=_MULTIPLE,
        compared=True,
    ),
    SignalRecord(
        "Device memory allocated in low precision as a multiple of the workload's own FP32 peak: 0.8 saves a fifth. It "
        "costs no training, so by default it is reported and nothing is promoted. Workloads on CPUs allocate none.",
        Criterion(Signal.MEMORY, Severity.P3, enter=0.8, leave=0.75, alert_after_seconds=900.0),
        (*_THRESHOLDS, "alert_after_seconds"),
        # The most that was seen; absent without a baseline. A trainer that says itself that it runs on a CPU allocates none
        # on a device: that is data, not the want of it.
        query=(
            f"max by (pod) (max_over_time({metric('cuda_memory_allocated_bytes', REDUCED)}[$window]))"
            f" / max by (pod) {baseline('peak_bytes')}"
            f" or 0 * max by (pod) ({metric('run_info', ON_CPU)})"
        ),
        reason=Reason.MEMORY_RATIO_HIGH,
        fault="Little memory saved",
        good=0.6,
        bad=0.9,
        measure="multiple",
        bounds=_MULTIPLE,
        severities=(Severity.P2, Severity.P3),
        price=True,
    ),
)

SIGNALS: Mapping[Signal, SignalRecord] = {record.default.signal: record for record in _RECORDS}
"""All of them, in the order of the API."""

DEFAULT_CRITERIA = tuple(record.default for record in _RECORDS)
