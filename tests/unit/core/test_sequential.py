"""A test that may be looked at after every observation keeps its promise, and finds what is there."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.canary import CanaryVerdict, Comparison
from precision_operator.api.codec import decode, encode
from precision_operator.core.rollback.sequential import fewest_looks, look, verdict

ALPHA, MARGIN = 0.05, 0.10


def run(differences: list[float], *, margin: float = MARGIN) -> Comparison:
    state = Comparison()
    for difference in differences:
        state = look(state, difference, margin=margin)
    return state


def ended(differences: list[float]) -> tuple[CanaryVerdict, int]:
    """The first verdict, and after how many looks; Open where there is none."""
    state = Comparison()
    for difference in differences:
        state = look(state, difference, margin=MARGIN)
        if verdict(state, alpha=ALPHA) is not CanaryVerdict.OPEN:
            break
    return verdict(state, alpha=ALPHA), state.looks


def test_the_greatest_difference_is_shown_after_eight_looks_and_none_is_never_shown() -> None:
    assert fewest_looks(margin=MARGIN, alpha=ALPHA) == 8
    assert ended([1.0] * 50) == (CanaryVerdict.BETTER, 8)
    assert ended([-1.0] * 50) == (CanaryVerdict.WORSE, 8)
    assert ended([0.0] * 3000) == (CanaryVerdict.OPEN, 3000)
    assert ended([MARGIN] * 3000) == (CanaryVerdict.OPEN, 3000)


def test_less_is_staked_on_differences_that_scatter_than_on_steady_ones_of_the_same_mean() -> None:
    steady, scattered = (run(differences * 6) for differences in ([0.2, 0.2], [1.0, -0.6]))
    assert steady.looks == scattered.looks
    assert steady.total == pytest.approx(scattered.total)
    assert (
        look(steady, 0.5, margin=MARGIN).better - steady.better
        > look(scattered, 0.5, margin=MARGIN).better - scattered.better
    )


@given(st.lists(st.floats(-1.0, 1.0), max_size=60))
def test_better_and_worse_are_mirrors_and_a_fortune_never_falls_below_nothing(differences: list[float]) -> None:
    one, other = run(differences), run([-d for d in differences])
    assert (one.better, one.worse) == pytest.approx((other.worse, other.better), abs=1e-3)
    assert math.isfinite(one.better)
    assert math.isfinite(one.worse)


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=40), st.integers(0, 39))
def test_a_new_process_goes_on_where_the_old_one_was(differences: list[float], cut: int) -> None:
    before = run(differences[:cut])
    stored = decode(encode(before), Comparison())
    assert stored == before
    for difference in differences[cut:]:
        stored = look(stored or Comparison(), difference, margin=MARGIN)
    assert stored == run(differences)


@pytest.mark.slow
@pytest.mark.parametrize("spread", [0.05, 0.3, 0.9])
def test_looking_after_every_observation_calls_no_difference_more_often_than_promised(spread: float) -> None:
    dice = random.Random(20261121)
    for mean in (0.0, MARGIN):
        calls = 0
        for _ in range(400):
            differences = [mean + dice.choice((-1.0, 1.0)) * spread * min(1.0, 1.0 - mean) for _ in range(100)]
            calls += ended(differences)[0] is not CanaryVerdict.OPEN
        # At the edge of the margin the promise is half of alpha for each side; the rest is the chance of 400 runs.
        assert calls / 400 <= ALPHA


def test_a_noisy_difference_is_found() -> None:
    dice = random.Random(7)
    found = [ended([min(1.0, max(-1.0, dice.gauss(0.5, 0.4))) for _ in range(48)]) for _ in range(200)]
    assert sum(outcome is CanaryVerdict.BETTER for outcome, _ in found) >= 190
    assert all(outcome is not CanaryVerdict.WORSE for outcome, _ in found)


@pytest.mark.parametrize("value", [1.1, -1.1, math.nan, math.inf])
def test_what_is_no_difference_of_shares_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="expected a difference from -1 to 1"):
        look(Comparison(), value, margin=MARGIN)


def test_nothing_is_staked_on_a_difference_that_has_not_shown_itself_beyond_the_margin() -> None:
    even = Comparison(looks=9, total=0.0, squares=0.09)
    assert look(even, 1.0, margin=MARGIN).better == 0.0
    ahead = Comparison(looks=9, total=4.5, squares=2.3)
    assert look(ahead, 1.0, margin=MARGIN).better > 0.0


@pytest.mark.parametrize(("short", "better"), [(0.0, CanaryVerdict.BETTER), (1e-6, CanaryVerdict.OPEN)])
def test_evidence_that_has_just_reached_its_bound_is_enough(short: float, better: CanaryVerdict) -> None:
    """Ville's inequality: with probability alpha at most the fortune ever reaches 1/alpha."""
    reached = math.log(2.0 / ALPHA) - short
    assert verdict(Comparison(better=reached), alpha=ALPHA) is better
    assert (verdict(Comparison(worse=reached), alpha=ALPHA) is CanaryVerdict.WORSE) is (better is CanaryVerdict.BETTER)
