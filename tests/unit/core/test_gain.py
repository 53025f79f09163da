"""What precision has brought: only what was measured counts, and what was not is Unknown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.model.world import NAN
from precision_operator.api.gain import Gain, Measured
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicySpec
from precision_operator.api.state import Phase
from precision_operator.core.evidence.assessment import assess
from precision_operator.core.gain import LARGEST_RATIO, LONGEST_SECONDS, gain
from precision_operator.core.model import Evaluation, PodSignals, PodView, RunsOn, WorkloadView
from tests.support.fleets import promoted, until
from tests.support.views import pod, reported, workload

SPEC = PolicySpec()
ON_GPU, ON_CPU = RunsOn(device="cuda"), RunsOn(device="cpu")
RATIOS = {Signal.SPEED: 1.5, Signal.MEMORY: 0.6, Signal.DIVERGENCE: 0.003}


def trains(
    *, work: float | None = 36_000.0, on: RunsOn = ON_GPU, mode: Mode = Mode.FP16, **values: float
) -> PodSignals:
    """A process with a baseline; ``values`` by signal in the place of what it reads."""
    own = {**RATIOS, **{Signal(name): value for name, value in values.items()}}
    return PodSignals(mode, 1, 1000.0, 500.0, own, runs_on=on, fp32_work_seconds=work)


def without_baseline() -> PodSignals:
    """A process whose FP32 baseline is not known: nothing relative to it is."""
    return replace(trains(work=None), values={Signal.OVERFLOW: 0.0})


def one(name: str, *, gpus: int | None = 4) -> WorkloadView:
    """A workload with one pod of its name."""
    return workload(name, pods=(pod(name, gpus=gpus),))


def found(workloads: list[WorkloadView], evaluation: Evaluation, spec: PolicySpec = SPEC) -> Gain:
    """What a fleet of these has gained."""
    verdicts = [assess(w, spec, evaluation, mode=Mode.FP16, failing=frozenset()) for w in workloads]
    gained = gain(verdicts, spec, evaluation)
    assert gained is not None
    return gained


def test_a_fleet_is_compared_with_its_own_baselines() -> None:
    gained = found([one("a"), one("b")], reported(a=trains(), b=trains(speed=1.3, memory=0.7, divergence=0.001)))
    assert (gained.workloads, gained.compared) == (2, 2)
    assert (gained.speed, gained.memory) == (Measured(1.4, 2), Measured(0.65, 2))
    assert gained.loss == Measured(0.002, 2)


def test_work_of_ten_hours_in_fp32_at_one_and_a_half_of_its_speed_saves_a_third_of_them_on_each_gpu() -> None:
    gained = found([one("a")], reported(a=trains()))
    assert gained.gpu_hours == Measured(round(4 * 10 / 3, 2), 1)
    assert gained.gpu_rate == 4 * 0.5
    assert gained.cpu_hours is None


def test_slower_training_has_lost_hours() -> None:
    gained = found([one("a")], reported(a=trains(speed=0.5)))
    assert (gained.gpu_hours, gained.gpu_rate) == (Measured(-40.0, 1), -2.0)


def test_a_pod_on_a_cpu_saves_hours_of_its_own_and_no_memory() -> None:
    gained = found([one("a", gpus=0)], reported(a=trains(on=ON_CPU, memory=0.0)))
    assert (gained.cpu_hours, gained.cpu_rate) == (Measured(round(10 / 3, 2), 1), 0.5)
    assert (gained.gpu_hours, gained.gpu_rate, gained.memory) == (None, None, None)
    assert gained.compared == 1


@pytest.mark.parametrize("gpus", [0, None])
def test_on_a_gpu_that_is_not_counted_no_hours_are_saved(gpus: int | None) -> None:
    gained = found([one("a", gpus=gpus)], reported(a=trains()))
    assert gained.speed == Measured(1.5, 1)
    assert gained.known == {"speed", "memory", "loss"}


@pytest.mark.parametrize("gpus", [(4, 0), (0, 4)])
def test_of_a_workload_whose_pods_have_gpus_only_in_part_no_hours_are_known(gpus: tuple[int, int]) -> None:
    mixed = workload("a", pods=(pod("a", gpus=gpus[0]), pod("b", gpus=gpus[1])))
    assert found([mixed], reported(a=trains(on=ON_CPU), b=trains(on=ON_CPU))).known == {"speed", "memory", "loss"}


@pytest.mark.parametrize(
    ("ratio", "believed"),
    [(1 / LARGEST_RATIO, True), (LARGEST_RATIO, True), (0.99 / LARGEST_RATIO, False), (1.01 * LARGEST_RATIO, False)],
)
def test_a_speed_is_believed_within_its_limits(ratio: float, believed: bool) -> None:
    assert found([one("a")], reported(a=trains(speed=ratio))).speed == (Measured(ratio, 1) if believed else None)


def test_who_has_just_begun_is_known_to_have_saved_nothing_yet() -> None:
    assert found([one("a")], reported(a=trains(work=0.0))).gpu_hours == Measured(0.0, 1)


@pytest.mark.parametrize("work", [None, -1.0, 2 * LONGEST_SECONDS])
def test_work_of_any_pod_that_is_not_known_or_not_believed_makes_the_hours_unknown(work: float | None) -> None:
    pair = workload("a", pods=(pod("a", gpus=1), pod("b", gpus=1)))
    gained = found([pair], reported(a=trains(work=work), b=trains()))
    assert (gained.gpu_hours, gained.gpu_rate) == (None, 1.0)


def test_without_a_baseline_a_workload_counts_in_nothing_but_their_number() -> None:
    both = found([one("a"), one("b")], reported(a=trains(), b=without_baseline()))
    alone = found([one("a")], reported(a=trains()))
    assert replace(both, workloads=1) == alone
    assert found([one("b")], reported(b=without_baseline())).known == frozenset()


def test_the_worst_pod_counts_and_a_silent_one_makes_its_workload_unknown() -> None:
    pair = workload("a", pods=(pod("a", gpus=1), pod("b", gpus=1)))
    assert found([pair], reported(a=trains(), b=trains(speed=1.2))).speed == Measured(1.2, 1)
    assert found([pair], reported(a=trains())).known == frozenset()
    assert found([pair], reported(a=trains(), b=trains(work=None))).gpu_hours is None


@pytest.mark.parametrize("mode", [Mode.FP32, None])
def test_what_does_not_train_in_reduced_precision_has_gained_nothing_that_is_known(mode: Mode | None) -> None:
    pair = workload("a", pods=(pod("a", gpus=1), pod("b", gpus=1)))
    other = replace(trains(), mode=mode)
    assert found([one("a")], reported(a=other)).compared == 0
    assert found([pair], reported(a=trains(), b=other)).compared == 0


def test_a_breach_is_a_measured_value() -> None:
    assert found([one("a")], reported(a=trains(divergence=0.5))).loss == Measured(0.5, 1)


@pytest.mark.parametrize("own", [{"query": "divergence-cohort"}, {"promql": "sum by (pod) (loss)"}])
def test_a_signal_that_is_asked_in_other_words_is_not_relative_to_the_own_baseline(own: dict[str, str]) -> None:
    criteria = tuple(replace(c, **own) if c.signal is Signal.DIVERGENCE else c for c in SPEC.criteria)  # type: ignore[arg-type]
    gained = found([one("a")], reported(a=trains()), replace(SPEC, criteria=criteria))
    assert gained.known == {"speed", "memory", "gpu_hours", "gpu_rate"}


def test_a_signal_that_is_switched_off_is_unknown() -> None:
    criteria = tuple(replace(c, enabled=c.signal is not Signal.SPEED) for c in SPEC.criteria)
    assert found([one("a")], reported(a=trains()), replace(SPEC, criteria=criteria)).known == {"memory", "loss"}


def test_a_fleet_shows_what_it_has_gained_until_it_is_rolled_back() -> None:
    world = promoted()
    assert world.summary.gain is not None
    world.bad = dict.fromkeys(world.workloads, NAN)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK)
    assert world.summary.gain is None


def test_nothing_was_read_or_nobody_trains_in_the_target() -> None:
    assert gain([], SPEC, reported()) is None
    assert gain([assess(one("a"), SPEC, reported(), mode=Mode.FP16, failing=frozenset())], SPEC, None) is None


NUMBERS = st.none() | st.floats() | st.sampled_from([0.0, -0.0, 1e-300, 1e300, math.inf, math.nan])
PODS = st.builds(
    lambda mode, values, work, on: PodSignals(
        mode,
        1,
        1000.0,
        500.0,
        {signal: value for signal, value in zip(RATIOS, values, strict=True) if value is not None},
        runs_on=on,
        fp32_work_seconds=work,
    ),
    st.none() | st.sampled_from(Mode),
    st.tuples(NUMBERS, NUMBERS, NUMBERS),
    NUMBERS,
    st.sampled_from([None, ON_CPU, ON_GPU]),
)
VIEWS = st.builds(
    lambda gpus, pending: pod("p", gpus=gpus, pending=pending), st.sampled_from([None, 0, 8]), st.booleans()
)


@given(st.lists(st.tuples(VIEWS, st.none() | PODS), min_size=1, max_size=4))
def test_whatever_trainers_say_figures_are_finite_and_silence_changes_none(
    fleet: list[tuple[PodView, PodSignals | None]],
) -> None:
    views = [replace(view, name=f"p{index}") for index, (view, _) in enumerate(fleet)]
    signals = {view.name: said for view, (_, said) in zip(views, fleet, strict=True) if said is not None}
    workloads = [workload(f"w{index}", pods=(view,)) for index, view in enumerate(views)]
    evaluation = reported(**signals)
    gained = found(workloads, evaluation)
    figures = [gained.speed, gained.memory, gained.loss, gained.gpu_hours, gained.cpu_hours]
    limit = 8 * len(fleet) * LONGEST_SECONDS / 3600 * LARGEST_RATIO
    assert all(abs(figure.value) <= limit and 1 <= figure.workloads <= len(fleet) for figure in figures if figure)
    assert gained.compared <= gained.workloads == len(fleet)
    silent = [*workloads, workload("silent", pods=(pod("silent", gpus=8),))]
    assert replace(found(silent, evaluation), workloads=len(fleet)) == gained
