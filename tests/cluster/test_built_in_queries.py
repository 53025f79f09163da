"""The built-in queries, judged by Prometheus' own engine on series that are written down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from precision_operator.api.signals import Signal
from precision_operator.signals.queries import BUILT_IN, render
from tests.support.promtool import expect
from tests.support.signals import ROWS, scraped

POD, AGAIN = 'namespace="team",pod="a",job="trainers",instance="10.0.0.1:9100"', 'namespace="team",pod="a",job="pods"'
"""One process, as two jobs scrape it."""
WINDOW_SECONDS = 300.0


def series(target: str, values: Mapping[str, float]) -> dict[str, str]:
    return scraped(target, values, interval_seconds=15.0)


def given(name: str, directory: Path, written: Mapping[str, str], expected: float | None, pod: str = "a") -> None:
    """Assert the pod's value of a built-in query after ten minutes, over five; None: it has none."""
    query = render(BUILT_IN[name], "team", WINDOW_SECONDS, 20)
    if expected is not None and math.isnan(expected):  # promtool takes no NaN for another
        query, expected = f"({query}) != bool ({query})", 1.0
    found = {} if expected is None else {f'{{pod="{pod}"}}': expected}
    expect(directory, query, written, found, interval="15s", at="10m")


BAD = {
    signal: ({metric: bad for metric, (_, bad) in row.series.items()}, row.over(WINDOW_SECONDS)[1])
    for signal, row in ROWS.items()
}
WHOLE: dict[str, tuple[dict[str, float], float]] = {
    # query: what one scrape of the process holds, and what comes of it
    **{signal.value: whole for signal, whole in BAD.items()},
    "steps": ({"training_steps_total": 0.75}, 225.0),
    "fp32Memory": ({'cuda_memory_allocated_bytes{mode="fp32"}': 95.0, "fp32_baseline_peak_bytes": 100.0}, 0.95),
    "fp32Work": (
        {
            "training_step": 5000.0,
            "fp32_baseline_step": 1400.0,
            "training_samples_total": 13.0,
            "training_steps_total": 1.0,
            "fp32_baseline_samples_per_second": 80.0,
        },
        # 3600 steps since then, of 5.5 samples: counters have grown from 1000 to 8800 and 1600.
        247.5,
    ),
    "fp32Shortage": (
        {
            'cuda_memory_allocated_bytes{mode="fp16"}': 60.0,
            "fp32_baseline_peak_bytes": 100.0,
            "memory_headroom_bytes": 10.0,
        },
        30.0,
    ),
}


def test_each_signal_has_a_row() -> None:
    assert set(Signal) == ROWS.keys(), "expected one row a signal in tests/support/signals.py"


@pytest.mark.parametrize("name", WHOLE)
def test_a_pod_that_two_jobs_scrape_reads_as_one_that_is_scraped_once(name: str, tmp_path: Path) -> None:
    values, expected = WHOLE[name]
    once, twice = series(POD, values), {**series(POD, values), **series(AGAIN, values)}
    given(name, tmp_path, once, expected)
    given(name, tmp_path, twice, expected)


def test_of_two_containers_that_count_the_worse_one_speaks_for_the_pod(tmp_path: Path) -> None:
    fine = {"fp16_training_steps_total": 100.0, "fp16_overflow_steps_total": 0.0}
    values, worse = WHOLE["overflow"]
    given("overflow", tmp_path, {**series(POD, values), **series(AGAIN, fine)}, worse)


@pytest.mark.parametrize(("saved_at", "expected"), [(580.0, -20.0), (0.0, None), (601.0, None)])
def test_a_checkpoint_counts_by_its_age_and_none_or_one_in_the_future_does_not(
    saved_at: float, expected: float | None, tmp_path: Path
) -> None:
    values = {"checkpoint_last_success_timestamp_seconds": saved_at}
    given("checkpoint", tmp_path, {**series(POD, values), **series(AGAIN, values)}, expected)


BASELINES = {
    # query: the gauge that it is relative to
    **{signal.value: row.baseline for signal, row in ROWS.items() if row.baseline},
    "fp32Work": "fp32_baseline_samples_per_second",
    "fp32Shortage": "fp32_baseline_peak_bytes",
}


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("baseline", [0.0, math.nan, math.inf, -math.inf])
def test_a_baseline_of_0_or_that_is_not_finite_is_no_baseline(name: str, baseline: float, tmp_path: Path) -> None:
    values = {**WHOLE[name][0], BASELINES[name]: baseline}
    given(name, tmp_path, series(POD, values), None)


@pytest.mark.parametrize(
    ("loss", "baseline", "expected"),
    [(math.nan, 2.0, math.nan), (math.inf, 2.0, math.inf), (-1.5, -2.0, 0.25), (1.0, 2.0, -0.5)],
)
def test_a_loss_that_is_no_number_is_one_beside_a_baseline(
    loss: float, baseline: float, expected: float, tmp_path: Path
) -> None:
    values = {"training_loss": loss, "fp32_baseline_loss": baseline}
    given("divergence", tmp_path, series(POD, values), expected)


RUNS: dict[str, tuple[dict[str, float], float | None]] = {
    "none ended": ({"training_total": 0.0, "training_success_total": 0.0}, math.nan),
    "all ended well": ({"training_total": 3.0, "training_success_total": 3.0}, 0.0),
    "successes are not counted": ({"training_total": 3.0}, None),
    "runs are not counted": ({"training_success_total": 3.0}, None),
    "successes are no numbers": ({"training_total": 3.0, "training_success_total": math.nan}, None),
    "runs are no numbers": ({"training_total": math.nan, "training_success_total": 3.0}, None),
    "neither is a number": ({"training_total": math.nan, "training_success_total": math.nan}, None),
    "none ended, and successes are no numbers": (
        {"training_total": 0.0, "training_success_total": math.nan},
        None,
    ),
    "nothing is counted": ({"training_steps_total": 3.0}, None),
}


@pytest.mark.parametrize("name", RUNS)
def test_no_run_has_ended_is_told_apart_from_runs_that_nobody_counts(name: str, tmp_path: Path) -> None:
    values, expected = RUNS[name]
    given("failures", tmp_path, series(POD, values), expected)


def trainer(
    pod: str, loss: float, *, mode: str = "fp32", model: str = "world", job: str = "trainers"
) -> dict[str, str]:
    where = f'namespace="team",pod="{pod}",job="{job}"'
    info = {f'precision_info{{mode="{mode}",generation="1"}}': 1.0, f'run_info{{model="{model}"}}': 1.0}
    return series(where, {"training_loss": loss, **info})


COHORT = {**trainer("b", 2.0), **trainer("c", 2.0), **trainer("a", 3.0, mode="fp16")}


QUERY = render(BUILT_IN["divergence-cohort"], "team", WINDOW_SECONDS, 20)


@pytest.mark.parametrize(
    "beside",
    [{}, trainer("b", 2.0, job="pods"), trainer("d", math.nan), trainer("d", math.inf)],
    ids=["two in FP32", "one scraped twice", "one NaN", "one Inf"],
)
def test_the_fp32_cohort_is_the_mean_of_what_can_be_one(beside: dict[str, str], tmp_path: Path) -> None:
    query = f'({QUERY}) and on (pod) genesis_training_loss{{pod="a"}}'
    expect(tmp_path, query, {**COHORT, **beside}, {'{pod="a"}': 0.5}, interval="15s", at="10m")


def test_a_pod_that_reports_two_models_costs_nobody_else_the_answer(tmp_path: Path) -> None:
    other = {name: values for name, values in trainer("d", 2.0, model="zeta").items() if "run_info" in name}
    everyone = {**COHORT, **trainer("d", 2.0), **other}
    query = f'({QUERY}) and on (pod) genesis_training_loss{{pod="a"}}'
    expect(tmp_path, query, everyone, {'{pod="a"}': 0.5}, interval="15s", at="10m")


def test_a_cohort_of_losses_of_0_is_no_measure(tmp_path: Path) -> None:
    everyone = {**trainer("b", 0.0), **trainer("c", 0.0), **trainer("a", 3.0, mode="fp16")}
    expect(tmp_path, QUERY, everyone, {}, interval="15s", at="10m")
