"""What can be seen of why training is slow: the checks of an investigation. Pure: the controller asks Prometheus."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from precision_operator.api.text import names
from precision_operator.api.wire import count_text
from precision_operator.signals.port import Sample

ALIGNMENT = 8
"""Tensor cores want sizes that are multiples of this."""
IDLE_SHARE = 0.01
"""Tensor cores that are busy for less than this of the time are not used."""
THROTTLED_SHARE = 0.05
"""Of the scheduler's periods: beyond this the CPU limit slows what feeds the device."""


@dataclass(frozen=True, slots=True)
class SlownessCheck:
    """One question to Prometheus, and how its answer is said."""

    name: str
    source: str
    """The series that it lives on, named where there are none."""
    query: str
    """``$namespace`` is filled in; the answer has a ``pod`` label."""
    value: Callable[[Sample], float | None]
    bad: Callable[[float], bool]
    wording: Callable[[float], str]


def _batch(sample: Sample) -> float | None:
    size = count_text(sample.labels.batch_size)
    return float(size) if size else None


def of_pods(metric: str) -> str:
    """A query for another exporter's gauge by pod; its own labels stand as exported_* where Prometheus attaches its own."""
    return (
        f'avg by (pod) ({metric}{{namespace="$namespace"}}) or avg by (pod) (label_replace('
        f'{metric}{{exported_namespace="$namespace"}}, "pod", "$1", "exported_pod", "(.*)"))'
    )


_TENSOR = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
_CFS = "container_cpu_cfs"

CHECKS = (
    SlownessCheck(
        "batch",
        "genesis_run_info",
        'max by (pod, batch_size) (genesis_run_info{namespace="$namespace"})',
        _batch,
        lambda size: size % ALIGNMENT != 0,
        lambda size: f"{size:.0f}, {'no' if size % ALIGNMENT else 'a'} multiple of {ALIGNMENT}",
    ),
    SlownessCheck(
        "tensor cores",
        _TENSOR,
        of_pods(_TENSOR),
        lambda sample: sample.value,
        lambda share: share < IDLE_SHARE,
        lambda share: f"busy {share:.0%} of the time",
    ),
    SlownessCheck(
        "CPU",
        f"{_CFS}_throttled_periods_total",
        f'sum by (pod) (rate({_CFS}_throttled_periods_total{{namespace="$namespace"}}[5m])) / '
        f'sum by (pod) (rate({_CFS}_periods_total{{namespace="$namespace"}}[5m]))',
        lambda sample: sample.value,
        lambda share: share > THROTTLED_SHARE,
        lambda share: f"throttled in {share:.0%} of its periods",
    ),
)


def say(check: SlownessCheck, answer: Sequence[Sample] | str, pods: Mapping[str, str]) -> str:
    """The check in words, of these pods (name → workload) only.

    Args:
        check: what was asked.
        answer: the vector, or the reason why there is none.
        pods: the pods of the slow workloads.
    """
    if isinstance(answer, str):
        return f"{check.name}: unknown ({answer})"
    found: dict[str, float] = {}
    for sample in answer:
        value, workload = check.value(sample), pods.get(sample.labels.pod)
        if workload is not None and value is not None and value == value:
            found[workload] = max(found.get(workload, value), value, key=lambda v: (check.bad(v), v))
    if not found:
        return f"{check.name}: unknown (no {check.source})"
    said = [f"{check.name}: {text}" for text in _grouped(check, found)]
    missing = names([*set(pods.values()) - set(found)], limit=3)
    return "; ".join([*said, f"unknown in {missing}"] if missing else said)


def _grouped(check: SlownessCheck, found: Mapping[str, float]) -> list[str]:
    """What is bad first; workloads with the same answer are named together."""
    alike: dict[str, set[str]] = {}
    for workload, value in sorted(found.items(), key=lambda item: (not check.bad(item[1]), item[0])):
        alike.setdefault(check.wording(value), set()).add(workload)
    return [f"{text} ({names([*workloads], limit=3)})" for text, workloads in alike.items()]
