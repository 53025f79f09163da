"""What a person reads of a running trainer without Prometheus: the same numbers as ``/metrics``, as JSON. Read only.

A value that is not there yet is absent or null, never 0.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable

from prometheus_client.core import Metric

from .metrics import Metrics

Json = dict[str, object]


def status(metrics: Metrics, stale_seconds: float) -> Json:
    """``/api/training/status``: is it training, in what, where is it, and since when."""
    age = time.monotonic() - metrics.last_step_at
    labels = _labels(metrics)
    return {
        "training": age <= stale_seconds,
        "last_step_age_seconds": round(age, 3),
        "step": metrics.gauge("genesis_training_step"),
        "precision": labels.get("genesis_precision_info"),
        "precision_changed_timestamp_seconds": metrics.gauge("genesis_precision_changed_timestamp_seconds"),
        "run": labels.get("genesis_run_info"),
    }


def stats(metrics: Metrics) -> Json:
    """``/api/training/stats``: every counter and gauge without labels by its name; rates where they can be told."""
    values = {
        sample.name: sample.value
        for family in metrics.collect()
        if family.type in ("counter", "gauge")
        for sample in family.samples
        if not sample.labels
    }
    return {
        **{name: _number(value) for name, value in values.items()},
        "overflow_rate": _ratio(values, "genesis_fp16_overflow_steps_total", "genesis_fp16_training_steps_total"),
        "success_rate": _ratio(values, "genesis_training_success_total", "genesis_training_total"),
    }


def export(metrics: Metrics) -> Json:
    """``/api/metrics/export``: all that ``/metrics`` shows, and the FP32 baseline with its loss by step."""
    return {
        "timestamp_seconds": round(time.time(), 3),
        "fp32_baseline": metrics.fp32_baseline,
        "metrics": [_family(family) for family in metrics.collect()],
    }


PATHS: dict[str, Callable[[Metrics, float], Json]] = {
    "/api/training/status": status,
    "/api/training/stats": lambda metrics, _: stats(metrics),
    "/api/metrics/export": lambda metrics, _: export(metrics),
}


def encode(value: Json) -> bytes:
    """As JSON that every reader takes: no NaN or infinity in it."""
    return (json.dumps(value, allow_nan=False) + "\n").encode()


def _family(family: Metric) -> Json:
    return {
        "name": family.name,
        "type": family.type,
        "help": family.documentation,
        "samples": [
            {"name": sample.name, "labels": sample.labels, "value": _number(sample.value)} for sample in family.samples
        ],
    }


def _labels(metrics: Metrics) -> dict[str, dict[str, str]]:
    return {family.name: family.samples[0].labels for family in metrics.collect() if family.name.endswith("_info")}


def _ratio(values: dict[str, float], part: str, whole: str) -> float | None:
    return values[part] / values[whole] if values[whole] else None


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
