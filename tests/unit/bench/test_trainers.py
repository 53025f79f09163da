"""What the trainers of benchmarks and tests export: of each enabled signal, and while they are made to breach."""

from __future__ import annotations

import re

import pytest

from lab.bench.trainers import SPEED_UP, STEPS_PER_SECOND, _series, _Trainer
from precision_operator.api.modes import Mode
from precision_operator.api.reenable import ReenableSpec
from precision_operator.api.signal_records import SIGNALS
from tests.support.shadow_trainers import _Pod

SERIES = re.compile(r"\bgenesis_[a-z0-9_]+")
ABOUT_THE_PROCESS = {"genesis_precision_info", "genesis_run_info"}
ONLY_OF_A_GPU = {"genesis_cuda_memory_allocated_bytes", "genesis_fp32_baseline_peak_bytes"}


@pytest.mark.parametrize(
    ("mode", "diverged", "steps"),
    [(Mode.FP16, True, 2 * SPEED_UP * STEPS_PER_SECOND), (Mode.FP16, False, 0.0), (Mode.FP32, True, 0.0)],
)
def test_losses_are_not_finite_where_a_diverged_namespace_trains_in_a_reduced_precision(
    mode: Mode, diverged: bool, steps: float
) -> None:
    trainer = _Trainer("w", mode, 1, at=0.0)
    trainer.advance(2.0, overflow=0.0, diverged=diverged)
    assert f'genesis_nonfinite_loss_steps_total{{namespace="ns",pod="p"}} {steps:.1f}' in _series("ns", "p", trainer)


def test_a_reduced_precision_is_faster_than_the_baseline_as_a_second_promotion_asks_for() -> None:
    trainer = _Trainer("w", Mode.BF16, 1, at=0.0)
    trainer.advance(1.0, overflow=0.0, diverged=False)
    series = dict(line.split(" ") for line in _series("ns", "p", trainer).splitlines())
    where = '{namespace="ns",pod="p"}'
    samples, baseline = (
        series[f"genesis_training_samples_total{where}"],
        series[f"genesis_fp32_baseline_samples_per_second{where}"],
    )
    assert float(samples) / float(baseline) > ReenableSpec().speed


@pytest.mark.parametrize(
    "exported",
    [set(SERIES.findall(_series("ns", "p", _Trainer("w", Mode.FP16, 1, at=0.0)))), {*_Pod("w").series()}],
    ids=["benchmarks", "tests"],
)
def test_every_series_that_an_enabled_signal_asks_for_is_exported(exported: set[str]) -> None:
    asked = {name for r in SIGNALS.values() if r.default.enabled for name in SERIES.findall(r.query)}
    missing = asked - exported - ABOUT_THE_PROCESS - ONLY_OF_A_GPU
    assert not missing, (
        "add them to STEADY of lab/bench/trainers.py, else the signal is Unknown and nothing is promoted"
    )
