"""The queries we ask, by name: each one vector for a whole namespace, one sample a pod.

``$namespace``, ``$window`` and ``$minSteps`` of a template are filled in by ``render``. Windows end at the evaluation.
``increase`` extrapolates to the window's edges, but not below a counter's 0: for the first window after one of two
counters left 0, their ratio may be off by a scrape interval's share of the window. Keep windows at five scrape intervals
or more.

What was scraped twice (two jobs, two replicas of Prometheus) is two series of one process: each is worked out by itself,
and the worst of a pod counts. They are never added up. A baseline of 0, NaN or Inf is no baseline.
"""

import re
from collections.abc import Mapping

from promql_parser import (  # type: ignore[import-untyped, unused-ignore]
    AggregateExpr,
    BinaryExpr,
    Call,
    Expr,
    ParenExpr,
    SubqueryExpr,
    UnaryExpr,
    ValueType,
    VectorSelector,
    parse,
)

from precision_operator.errors import QueryInvalid

ACK = "ack"
STEPS = "steps"
SHORTAGE = "fp32Shortage"
FP32_MEMORY = "fp32Memory"
RUN = "run"
ALWAYS_ASKED = (ACK, STEPS, SHORTAGE, FP32_MEMORY, RUN)
"""Asked in every evaluation, beside the signals."""

_REDUCED, _FP32, _ON_CPU = ',mode!="fp32"', ',mode="fp32"', ',device="cpu"'


def _metric(name: str, labels: str = "") -> str:
    return f'genesis_{name}{{namespace="$namespace"{labels}}}'


def _increase(name: str) -> str:
    return f"increase({_metric(name)}[$window])"


def _baseline(name: str) -> str:
    """A ratio's denominator: positive and finite, or absent."""
    return f"({_metric(f'fp32_baseline_{name}')} > 0 < Inf)"


_LOSS, _BASELINE_LOSS = _metric("training_loss"), _metric("fp32_baseline_loss")

# One model a pod: a pod that reports two must not make the query fail for its whole namespace.
_MODEL = f"topk by (pod) (1, max by (pod, model) ({_metric('run_info')}))"
_LOSS_BY_MODEL = f"(max by (pod) ({_LOSS}) * on (pod) group_left (model) {_MODEL})"
_IN_FP32 = f"({_LOSS_BY_MODEL} > -Inf < Inf and on (pod) {_metric('precision_info', _FP32)})"
_FP32_COHORT = f"(avg by (model) ({_IN_FP32}) and (count by (model) ({_IN_FP32}) >= 2))"

# Between two samples that were scraped, a window apart, over the time that lay between these: `rate` divides by the whole
# window, so that it takes a pod younger than the window, or a gap in the scrapes, for slowness. Absent for such a pod, and
# for one whose counter began anew.
_SAMPLES = _metric("training_samples_total")
_SAMPLES_PER_SECOND = (
    f"((({_SAMPLES} - {_SAMPLES} offset $window) / (timestamp({_SAMPLES}) - timestamp({_SAMPLES} offset $window)))"
    f" unless (resets({_SAMPLES}[$window]) > 0))"
)

BUILT_IN: Mapping[str, str] = {
    # Value: when the acknowledgement was scraped, seconds since the epoch, by Prometheus' clock.
    ACK: f"max by (pod, mode, generation) (timestamp({_metric('precision_info')})) - time()",
    # Training steps within the window.
    STEPS: f"max by (pod) ({_increase('training_steps_total')})",
    # Bytes of device memory that FP32, by the most that it took before, would lack; absent where it fits, or is not known.
    SHORTAGE: (
        f"max by (pod) {_baseline('peak_bytes')}"
        f" - max by (pod) ({_metric('cuda_memory_allocated_bytes', _REDUCED)})"
        f" - min by (pod) ({_metric('memory_headroom_bytes')}) > 0"
    ),
    # Device memory allocated in FP32, relative to the baseline's peak; 0 on a CPU.
    FP32_MEMORY: (
        f"max by (pod) ({_metric('cuda_memory_allocated_bytes', _FP32)}) / max by (pod) {_baseline('peak_bytes')}"
        f" or 0 * max by (pod) ({_metric('run_info', _ON_CPU)})"
    ),
    # What the process says that it runs on.
    RUN: f"max by (pod, torch, device, capability, world_size) ({_metric('run_info')})",
    # Share (0..1) of the low-precision steps that the scaler skipped; absent below $minSteps of them.
    "overflow": (
        f"max by (pod) ({_increase('fp16_overflow_steps_total')}"
        f" / ({_increase('fp16_training_steps_total')} >= $minSteps))"
    ),
    # Steps with a non-finite loss that the scaler did not skip, within the window.
    "nonFinite": f"max by (pod) ({_increase('nonfinite_loss_steps_total')})",
    # How far the loss lies above (positive) its FP32 baseline, relative; absent without a baseline.
    "divergence": f"max by (pod) (({_LOSS} - {_BASELINE_LOSS}) / (abs({_BASELINE_LOSS}) > 0 < Inf))",
    # Share (0..1) of the runs that ended badly within the window; NaN where none ended; absent where they are not counted.
    "failures": (
        f"max by (pod) (clamp_min(1 - {_increase('training_success_total')} / ({_increase('training_total')} > 0), 0)"
        f" or 0 * {_increase('training_success_total')} / ({_increase('training_total')} == 0))"
    ),
    # Throughput relative to the FP32 baseline (1 = the same); absent without a baseline.
    "speed": f"min by (pod) ({_SAMPLES_PER_SECOND} / {_baseline('samples_per_second')})",
    # Most device memory seen allocated in low precision, relative to the FP32 baseline's peak; absent without a baseline. A
    # trainer that says itself that it runs on a CPU allocates none on a device: that is data, not the want of it.
    "memory": (
        f"max by (pod) (max_over_time({_metric('cuda_memory_allocated_bytes', _REDUCED)}[$window]))"
        f" / max by (pod) {_baseline('peak_bytes')}"
        f" or 0 * max by (pod) ({_metric('run_info', _ON_CPU)})"
    ),
    # In the place of divergence, by name, for workloads that never trained in FP32: how far the loss lies above the mean of
    # the pods of the same model that train in FP32 now, where there are two or more of them.
    "divergence-cohort": (
        f"max by (pod) (({_LOSS_BY_MODEL} - on (model) group_left () {_FP32_COHORT})"
        f" / on (model) group_left () (abs({_FP32_COHORT}) > 0))"
    ),
}
"""PromQL by signal name; those of ``ALWAYS_ASKED`` are asked in every evaluation."""

_VARIABLE = re.compile(r"\$(namespace|window|minSteps)\b")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LONGEST = 16 * 1024


def render(template: str, namespace: str, window_seconds: float, min_steps: int) -> str:
    """The query of ``template``. ``min_steps`` below 1 counts as 1: a ratio of no steps says nothing.

    Raises:
        QueryInvalid: the namespace is no DNS label, so that it could change the query's meaning; or the window is
            shorter than a millisecond.
    """
    if not _NAMESPACE.fullmatch(namespace):
        raise QueryInvalid(f"expected a namespace (a DNS label), found {namespace!r}")
    milliseconds = round(window_seconds * 1000)
    if milliseconds < 1:
        raise QueryInvalid(f"expected a window of at least 1 ms, found {window_seconds} s")
    window = f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"
    values = {"namespace": namespace, "window": window, "minSteps": str(max(1, min_steps))}
    return _VARIABLE.sub(lambda match: values[match[1]], template)


def check(template: str) -> None:
    """Whether an admin's query can be asked: it parses, is a vector, and stays within one namespace.

    Raises:
        QueryInvalid: saying what was expected and found.
    """
    if len(template) > _LONGEST:
        raise QueryInvalid(f"expected at most {_LONGEST} characters, found {len(template)}")
    if '"$namespace"' not in template and "'$namespace'" not in template:
        raise QueryInvalid('expected a matcher namespace="$namespace": without it pods of other namespaces are judged')
    try:
        kind = kind_of(parse(render(template, "default", 60.0, 1)))
    except ValueError as error:
        raise QueryInvalid(f"does not parse: {error}") from None
    if kind != "vector":
        raise QueryInvalid(f"expected an expression that gives an instant vector with a pod label, found a {kind}")


def kind_of(expression: Expr) -> str:
    """``vector``, ``scalar`` or something else that cannot be judged."""
    match expression:
        case VectorSelector() | AggregateExpr():
            return "vector"
        case ParenExpr() | UnaryExpr():
            return kind_of(expression.expr)
        case BinaryExpr():
            return "vector" if "vector" in (kind_of(expression.lhs), kind_of(expression.rhs)) else "scalar"
        case Call():
            return "vector" if expression.func.return_type == ValueType.Vector else "scalar"
        case SubqueryExpr():
            return "range of a subquery"
    return {"NumberLiteral": "scalar", "StringLiteral": "string"}.get(type(expression).__name__, "range vector")
