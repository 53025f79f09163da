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
from functools import lru_cache

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

from precision_operator.api.series import FP32, LOSS, ON_CPU, REDUCED, baseline, increase, metric
from precision_operator.api.signal_records import SIGNALS
from precision_operator.errors import QueryInvalid

ACK = "ack"
STEPS = "steps"
SHORTAGE = "fp32Shortage"
FP32_MEMORY = "fp32Memory"
"""Asked only of policies that do not rest: it shows what a rollback came to."""
RUN = "run"
WORK = "fp32Work"
"""Asked seldom (``evaluator.WORK_SECONDS``): nothing is decided by it."""
CHECKPOINT = "checkpoint"
"""Asked only while a gradual rollback waits for work in flight."""
ALWAYS_ASKED = (ACK, STEPS, SHORTAGE, RUN)
"""Asked in every evaluation, beside the signals."""
OWN = (*ALWAYS_ASKED, FP32_MEMORY, WORK, CHECKPOINT)
"""All that are asked beside the signals. No policy and no admin writes them."""

# One model a pod: a pod that reports two must not make the query fail for its whole namespace.
_MODEL = f"topk by (pod) (1, max by (pod, model) ({metric('run_info')}))"
_LOSS_BY_MODEL = f"(max by (pod) ({LOSS}) * on (pod) group_left (model) {_MODEL})"
_IN_FP32 = f"({_LOSS_BY_MODEL} > -Inf < Inf and on (pod) {metric('precision_info', FP32)})"
_FP32_COHORT = f"(avg by (model) ({_IN_FP32}) and (count by (model) ({_IN_FP32}) >= 2))"

BUILT_IN: Mapping[str, str] = {
    # Value: when the acknowledgement was scraped, seconds since the epoch, by Prometheus' clock.
    ACK: f"max by (pod, mode, generation) (timestamp({metric('precision_info')})) - time()",
    # Training steps within the window.
    STEPS: f"max by (pod) ({increase('training_steps_total')})",
    # Bytes of device memory that FP32, by the most that it took before, would lack; absent where it fits, or is not known.
    SHORTAGE: (
        f"max by (pod) {baseline('peak_bytes')}"
        f" - max by (pod) ({metric('cuda_memory_allocated_bytes', REDUCED)})"
        f" - min by (pod) ({metric('memory_headroom_bytes')}) > 0"
    ),
    # Device memory allocated in FP32, relative to the baseline's peak; 0 on a CPU.
    FP32_MEMORY: (
        f"max by (pod) ({metric('cuda_memory_allocated_bytes', FP32)}) / max by (pod) {baseline('peak_bytes')}"
        f" or 0 * max by (pod) ({metric('run_info', ON_CPU)})"
    ),
    # What the process says that it runs on.
    RUN: f"max by (pod, torch, device, capability, world_size) ({metric('run_info')})",
    # Seconds that FP32, at its baseline's speed, would have taken for the steps since that baseline ended.
    WORK: (
        f"max by (pod) (({metric('training_step')} - {metric('fp32_baseline_step')} >= 0)"
        f" * ({metric('training_samples_total')} / ({metric('training_steps_total')} > 0))"
        f" / {baseline('samples_per_second')})"
    ),
    # How long ago the last checkpoint was complete, as a negative number; one in the future says that clocks disagree.
    CHECKPOINT: f"max by (pod) (({metric('checkpoint_last_success_timestamp_seconds')} > 0) - time() <= 0)",
    **{signal.value: record.query for signal, record in SIGNALS.items()},
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
_RENDERED = 4096
"""How many queries are kept as they are sent: in each interval the same ones are."""


@lru_cache(maxsize=_RENDERED)
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
