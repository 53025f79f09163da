"""The divergence detectors and the baseline they judge by."""

from __future__ import annotations

import random

import pytest

from precision_tools.detectors import CANDIDATES
from precision_trainer.sentinel.detectors import LossBaseline
from precision_trainer.sentinel.signals import ScaleTrend, Spikes

SIGMA = 0.004


def _alarm(name: str, drift: float, blocks: int = 60, seed: int = 0) -> int | None:
    dice = random.Random(seed)
    detector = CANDIDATES[name](SIGMA)
    return next((n for n in range(1, blocks + 1) if detector.observe(dice.gauss(drift, SIGMA))), None)


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_is_silent_without_drift_and_finds_20_percent_at_once(name: str) -> None:
    assert all(_alarm(name, 0.0, seed=seed) is None for seed in range(50))
    assert all((_alarm(name, 0.2, seed=seed) or 99) <= 3 for seed in range(50))


def test_the_chosen_one_leaves_a_loss_at_the_margin_alone() -> None:
    chosen = "CUSUM, 5 sigma"
    assert sum(_alarm(chosen, 0.05, seed=seed) is not None for seed in range(200)) <= 4
    assert all((_alarm(chosen, 0.1, seed=seed) or 99) <= 2 for seed in range(50))


def _feed(baseline: LossBaseline, level: float, blocks: int, *, fp32: bool) -> bool:
    alarms = [baseline.observe(level * (1 + 0.001 * (n % 7)), fp32=fp32) for n in range(10 * blocks)]
    return any(alarms)


def test_low_precision_is_judged_against_the_fp32_stretch_before_it() -> None:
    baseline = LossBaseline(10)
    _feed(baseline, 2.0, 8, fp32=True)
    assert not _feed(baseline, 2.0, 30, fp32=False)
    assert _feed(baseline, 2.4, 5, fp32=False)
    assert baseline.level == pytest.approx(2.0, rel=0.01)


def test_too_short_an_fp32_stretch_is_unknown_and_alarms_never() -> None:
    baseline = LossBaseline(10)
    _feed(baseline, 2.0, 3, fp32=True)
    assert not _feed(baseline, 200.0, 30, fp32=False)
    assert baseline.level is None


def test_a_spike_stands_out_and_does_not_hide_the_next() -> None:
    spikes, dice = Spikes(), random.Random(0)
    assert not any(Spikes.is_spike(spikes.observe(dice.gauss(2.0, 0.05))) for _ in range(500))
    assert Spikes.is_spike(spikes.observe(20.0))
    spikes.observe(2.0)
    assert Spikes.is_spike(spikes.observe(20.0))


def test_a_collapsing_scale_has_a_slope_and_a_steady_one_has_none() -> None:
    trend = ScaleTrend()
    assert [trend.observe(100 * n, 65536.0) for n in range(5)] == [None, None, None, 0.0, 0.0]
    trend.reset()
    slopes = [trend.observe(100 * n, 65536.0 * 2.0**-n) for n in range(6)]
    assert slopes[-1] == pytest.approx(-10.0)
