"""One row a signal, written by hand: what pods report of it, what its query makes of that, and its criterion's defaults.

promtool judges the built-in queries and the recording rules by these rows. A real Prometheus scrapes the bad pod, and the
API server is asked for the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from precision_operator.api.signals import Signal


@dataclass(frozen=True)
class SignalRow:
    """One signal."""

    series: Mapping[str, tuple[float, float]]
    """All that its query asks for: metric → what a good and a bad pod in FP16 report; a counter grows so much a second.

    Labels of its own stand in braces. Two rows say the same of a metric that both have.
    """
    values: tuple[float, float]
    """What the query gives of a good and of a bad pod."""
    defaults: Mapping[str, Any]
    """Its criterion in a policy that is only a selector."""
    a_second: bool = False
    """``values`` are of one second of the window."""
    baseline: str = ""
    """The metric that it is relative to: without that there is no value."""
    on_cpu: float | None = None
    """The value of a pod that trains in FP32 on a CPU: no baseline, no step in FP16, no run ended. None: it has none."""
    of_fp32: bool = False
    """It is judged in FP32 too."""
    scraped_within: float = 1e-6
    """How far, relative, the value may be off where scrapes are not quite on time."""

    def over(self, seconds: float) -> tuple[float, float]:
        """The values where the window is so long."""
        good, bad = self.values
        return (good * seconds, bad * seconds) if self.a_second else (good, bad)


ROWS: Mapping[Signal, SignalRow] = {
    Signal.OVERFLOW: SignalRow(
        series={"fp16_training_steps_total": (20.0, 20.0), "fp16_overflow_steps_total": (0.0, 8.0)},
        values=(0.0, 0.4),
        defaults={
            "enabled": True,
            "severity": "P1",
            "enter": 0.3,
            "leave": 0.2,
            "promoteBelow": 0.05,
            "warn": 0.1,
            "warnSeverity": "P2",
            "alertAfter": "0s",
        },
        scraped_within=0.03,
    ),
    Signal.DIVERGENCE: SignalRow(
        series={"training_loss": (1.5, 2.5), "fp32_baseline_loss": (2.0, 2.0)},
        values=(-0.25, 0.25),
        defaults={
            "enabled": True,
            "severity": "P1",
            "enter": 0.2,
            "leave": 0.1,
            "promoteBelow": 0.05,
            "warn": 0.05,
            "warnSeverity": "P3",
            "alertAfter": "30m",
        },
        baseline="fp32_baseline_loss",
    ),
    Signal.FAILURES: SignalRow(
        series={"training_total": (4.0, 4.0), "training_success_total": (4.0, 1.0)},
        values=(0.0, 0.75),
        defaults={"enabled": True, "severity": "P0", "enter": 0.5, "leave": 0.25, "promoteBelow": 0.05},
        on_cpu=math.nan,
        of_fp32=True,
        scraped_within=0.03,
    ),
    Signal.NON_FINITE: SignalRow(
        series={"nonfinite_loss_steps_total": (0.0, 2.0)},
        values=(0.0, 2.0),
        defaults={"enabled": True, "severity": "P0"},
        a_second=True,
        on_cpu=0.0,
        of_fp32=True,
        scraped_within=0.1,
    ),
    Signal.SPEED: SignalRow(
        series={"training_samples_total": (125.0, 60.0), "fp32_baseline_samples_per_second": (100.0, 100.0)},
        values=(1.25, 0.6),
        defaults={"enabled": True, "severity": "P2", "enter": 0.8, "leave": 0.9, "expected": 1.5},
        baseline="fp32_baseline_samples_per_second",
        scraped_within=0.1,
    ),
    Signal.MEMORY: SignalRow(
        series={'cuda_memory_allocated_bytes{mode="fp16"}': (2e9, 3.4e9), "fp32_baseline_peak_bytes": (4e9, 4e9)},
        values=(0.5, 0.85),
        defaults={"enabled": True, "severity": "P3", "enter": 0.8, "leave": 0.75, "alertAfter": "15m"},
        baseline="fp32_baseline_peak_bytes",
        on_cpu=0.0,
    ),
}

JUDGED_IN_FP32 = {signal for signal, row in ROWS.items() if row.of_fp32}


def reported(*, good: bool) -> dict[str, float]:
    """All that such a pod reports of signals."""
    found: dict[str, float] = {}
    for signal, row in ROWS.items():
        for metric, (fine, wrong) in row.series.items():
            value = fine if good else wrong
            assert found.setdefault(metric, value) == value, (
                f"expected {metric} {found[metric]} of {signal} as of the rows above it, found {value}: "
                "let both rows say the same"
            )
    return found


def scraped(target: str, values: Mapping[str, float], *, interval_seconds: float, scrapes: int = 40) -> dict[str, str]:
    """The series of a target with these labels, as promtool reads them: metric → value, or growth a second of a counter.

    Counters lie far from 0: there `increase` looks beyond the first sample.
    """
    found = {}
    for metric, value in values.items():
        name, _, own = metric.removesuffix("}").partition("{")
        samples = f"1000+{value * interval_seconds}x{scrapes}"
        if math.isnan(value):
            samples = "NaN " * (scrapes + 1)
        elif not name.endswith("_total"):
            samples = f"{value} " * (scrapes + 1)
        found[f"genesis_{name}{{{','.join(filter(None, (target, own)))}}}"] = samples.rstrip()
    return found
