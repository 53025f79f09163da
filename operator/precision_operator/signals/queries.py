"""The queries we ask, by name: each one vector for a whole namespace, one sample a pod.

``$namespace``, ``$window`` and ``$minSteps`` of a template are filled in by ``render``. Windows end at the evaluation.
``increase`` extrapolates to the window's edges, but not below a counter's 0: for the first window after one of two
counters left 0, their ratio may be off by a scrape interval's share of the window. Keep windows at five scrape intervals
or more.
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

_LOSS_BY_MODEL = (
    '(max by (pod) (genesis_training_loss{namespace="$namespace"})'
    ' * on (pod) group_left (model) max by (pod, model) (genesis_run_info{namespace="$namespace"}))'
)
_IN_FP32 = f'({_LOSS_BY_MODEL} and on (pod) genesis_precision_info{{namespace="$namespace",mode="fp32"}})'
_FP32_COHORT = f"(avg by (model) ({_IN_FP32}) and (count by (model) ({_IN_FP32}) >= 2))"

# Between two samples that were scraped, a window apart, over the time that lay between these: `rate` divides by the whole
# window, so that it takes a pod younger than the window, or a gap in the scrapes, for slowness. Absent for such a pod, and
# for one whose counter began anew.
_SAMPLES = 'genesis_training_samples_total{namespace="$namespace"}'
_SAMPLES_PER_SECOND = (
    f"(((sum by (pod) ({_SAMPLES}) - sum by (pod) ({_SAMPLES} offset $window))"
    f" / (max by (pod) (timestamp({_SAMPLES})) - max by (pod) (timestamp({_SAMPLES} offset $window))))"
    f" unless on (pod) (resets({_SAMPLES}[$window]) > 0))"
)

BUILT_IN: Mapping[str, str] = {
    # Value: when the acknowledgement was scraped, seconds since the epoch, by Prometheus' clock.
    ACK: 'max by (pod, mode, generation) (timestamp(genesis_precision_info{namespace="$namespace"})) - time()',
    # Training steps within the window.
    STEPS: 'sum by (pod) (increase(genesis_training_steps_total{namespace="$namespace"}[$window]))',
    # Bytes of device memory that FP32, by the most that it took before, would lack; absent where it fits, or is not known.
    SHORTAGE: (
        'max by (pod) (genesis_fp32_baseline_peak_bytes{namespace="$namespace"})'
        ' - max by (pod) (genesis_cuda_memory_allocated_bytes{namespace="$namespace",mode!="fp32"})'
        ' - min by (pod) (genesis_memory_headroom_bytes{namespace="$namespace"}) > 0'
    ),
    # Share (0..1) of the low-precision steps that the scaler skipped; absent below $minSteps of them.
    "overflow": (
        'sum by (pod) (increase(genesis_fp16_overflow_steps_total{namespace="$namespace"}[$window]))'
        ' / (sum by (pod) (increase(genesis_fp16_training_steps_total{namespace="$namespace"}[$window])) >= $minSteps)'
    ),
    # Steps with a non-finite loss that the scaler did not skip, within the window.
    "nonFinite": 'sum by (pod) (increase(genesis_nonfinite_loss_steps_total{namespace="$namespace"}[$window]))',
    # How far the loss lies above (positive) its FP32 baseline, relative; absent without a baseline.
    "divergence": (
        '(max by (pod) (genesis_training_loss{namespace="$namespace"})'
        ' - max by (pod) (genesis_fp32_baseline_loss{namespace="$namespace"}))'
        ' / abs(max by (pod) (genesis_fp32_baseline_loss{namespace="$namespace"}))'
    ),
    # Share (0..1) of the runs that ended badly within the window; absent where none ended.
    "failures": (
        'clamp_min(1 - sum by (pod) (increase(genesis_training_success_total{namespace="$namespace"}[$window]))'
        ' / (sum by (pod) (increase(genesis_training_total{namespace="$namespace"}[$window])) > 0), 0)'
    ),
    # Throughput relative to the FP32 baseline (1 = the same); absent without a baseline.
    "speed": (
        f"{_SAMPLES_PER_SECOND}"
        ' / (max by (pod) (genesis_fp32_baseline_samples_per_second{namespace="$namespace"}) > 0)'
    ),
    # Most device memory seen allocated in low precision, relative to the FP32 baseline's peak; absent without a baseline. A
    # trainer that says itself that it runs on a CPU allocates none on a device: that is data, not the want of it.
    "memory": (
        'max by (pod) (max_over_time(genesis_cuda_memory_allocated_bytes{namespace="$namespace",mode!="fp32"}[$window]))'
        ' / (max by (pod) (genesis_fp32_baseline_peak_bytes{namespace="$namespace"}) > 0)'
        ' or 0 * max by (pod) (genesis_run_info{namespace="$namespace",device="cpu"})'
    ),
    # In the place of divergence, by name, for workloads that never trained in FP32: how far the loss lies above the mean of
    # the pods of the same model that train in FP32 now, where there are two or more of them.
    "divergence-cohort": (
        "max by (pod) (("
        + _LOSS_BY_MODEL
        + " - on (model) group_left () "
        + _FP32_COHORT
        + ") / on (model) group_left () abs("
        + _FP32_COHORT
        + "))"
    ),
}
"""PromQL by signal name; ``ack``, ``steps`` and ``fp32Shortage`` are asked in every evaluation."""

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
