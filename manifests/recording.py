"""The recording rules of trainers, from the operator's own queries: each signal by pod, by workload and by cohort.

By workload the worst pod counts, as it does for the operator. A cohort is what trains in one mode in a namespace.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from precision_operator.api.signal_records import SIGNALS, SignalRecord
from precision_operator.api.signals import Signal

WINDOW, MIN_STEPS = "5m", "20"
"""As `evaluation.window` and `evaluation.minSteps` are by default."""
PODS = "namespace_workload_pod:genesis_precision_info:relabel"
"""1 for each pod, with its workload and its mode."""
BEGIN = "# From here on made from the operator's signals by `make generate`; do not edit.\n"

_OWNERS = "namespace_workload_pod:kube_pod_owner:relabel"
"""Of kube-prometheus-stack."""
_HASH = "[bcdfghjklmnpqrstvwxz2456789]"
_NAMED = rf"(.+?)(?:-(?:{_HASH}{{7,10}}|[0-9]+))?-{_HASH}{{5}}|(.+)-[0-9]+"
"""Names that controllers give to pods: those of a Deployment, a Job, an indexed Job; of a StatefulSet."""


def with_records(text: str) -> str:
    """alerts.yaml with its last group as the signals have it."""
    head, _, _ = text.partition(BEGIN)
    return head + BEGIN + "".join(_group())


def _group() -> Iterator[str]:
    yield "  - name: genesis-training-precision.rules\n    rules:\n"
    yield _rule(
        PODS,
        f"""
        topk by (namespace, pod) (1,
          max by (namespace, workload, pod, mode) (
            max by (namespace, pod, mode) (genesis_precision_info)
            * on (namespace, pod) group_left (workload)
            topk by (namespace, pod) (1, max by (namespace, workload, pod) ({_OWNERS}))
          )
        )
        or on (namespace, pod)
        topk by (namespace, pod) (1,
          label_replace(
            label_replace(
              max by (namespace, pod, mode) (genesis_precision_info),
              "workload", "$1", "pod", "(.+)"
            ),
            "workload", "$1$2", "pod", "{_NAMED}"
          )
        )
        """,
    )
    yield _rule("namespace_mode:genesis_workloads:count", _workloads())
    for signal, record in SIGNALS.items():
        yield from _levels(signal, record)


def _workloads() -> str:
    return f"count by (namespace, mode) (count by (namespace, workload, mode) ({PODS}))"


def by_workload(signal: Signal) -> str:
    """The record of a signal by workload, whose worst pod counts."""
    worst = "min" if SIGNALS[signal].default.lower_is_worse else "max"
    return f"namespace_workload:genesis_{_name(signal)}:{worst}"


def _name(signal: Signal) -> str:
    return re.sub(r"(?=[A-Z])", "_", signal).lower()


def _levels(signal: Signal, record: SignalRecord) -> Iterator[str]:
    name = _name(signal)
    pod = f"namespace_workload_pod:genesis_{name}:window{WINDOW}"
    worst = "min" if record.default.lower_is_worse else "max"
    yield _rule(
        pod,
        f"({everywhere(record.query)})\n* on (namespace, pod) group_left (workload, mode) {PODS}",
    )
    known = f"{pod} == {pod}"  # what is no number is in no mean and is nobody's worst
    yield _rule(by_workload(signal), f"{worst} by (namespace, workload) ({known})")
    yield _rule(f"namespace_mode:genesis_{name}:avg", f"avg by (namespace, mode) ({known})")


def everywhere(query: str) -> str:
    """A built-in query for all namespaces at once."""
    query = re.sub(r'\{namespace="\$namespace",?(.*?)\}', lambda rest: f"{{{rest[1]}}}" if rest[1] else "", query)
    query = re.sub(r"\b(by|on) \(pod\b", r"\1 (namespace, pod", query)
    return query.replace("$window", WINDOW).replace("$minSteps", MIN_STEPS)


def _rule(name: str, expression: str) -> str:
    text = textwrap.indent(textwrap.dedent(expression).strip(), " " * 10)
    return f"      - record: {name}\n        expr: |\n{text}\n"
