"""A test that may be looked at after every observation: by betting.

Waudby-Smith and Ramdas, *Estimating means of bounded random variables by betting*, JRSS B 86(1), 2024 (arXiv:2010.09686):
whoever bets on a bounded variable against the claim that its mean is at most ``m`` has a fortune that is a nonnegative
supermartingale while the claim is true. By Ville's inequality it exceeds 1/alpha, at any time whatever, with
probability alpha at most. So the test needs no plan of looks, no distribution and no equal variances: only that each
stake is fixed before its observation, and that, given the past, the mean is on the claim's side.

Two bets run: that the differences (rest minus canary, -1 to 1) lie above ``margin``, and that they lie below ``-margin``.
Each gets half of alpha. The stakes follow their approximate GRAPA rule (section 5.3), from a prior of one observation
half-way towards what is bet on: without it the first looks would stake nothing.

``confseq`` has the same method, but needs a C++ compiler and Boost, and calls itself early-stage and not stable.
"""

import math
from dataclasses import replace

from precision_operator.api.canary import CanaryVerdict, Comparison

STAKE = 0.75
"""Share of the fortune that one observation may cost: they recommend 1/2 or 3/4."""

_PRIOR_MEAN, _PRIOR_VARIANCE = 0.5, 0.25
_DIGITS = 6
"""The state goes through the API server: it is rounded here, so that every process decides on the same numbers."""


def look(comparison: Comparison, difference: float, *, margin: float) -> Comparison:
    """Take one observation in.

    Args:
        comparison: the state before it.
        difference: of the rest from the canary, -1 (canary worse) to 1 (canary better).
        margin: a mean difference up to this is none.

    Raises:
        ValueError: not a difference of two shares.
    """
    if not -1.0 <= difference <= 1.0:
        raise ValueError(f"expected a difference from -1 to 1, found {difference}; leave looks without data out")
    return replace(
        comparison,
        looks=comparison.looks + 1,
        total=round(comparison.total + difference, _DIGITS),
        squares=round(comparison.squares + difference * difference, _DIGITS),
        better=round(comparison.better + _gain(comparison, 1.0, difference, margin), _DIGITS),
        worse=round(comparison.worse + _gain(comparison, -1.0, difference, margin), _DIGITS),
    )


def verdict(comparison: Comparison, *, alpha: float) -> CanaryVerdict:
    """What has been shown by now, with probability ``alpha`` at most of ever showing a difference that is not there."""
    enough = math.log(2.0 / alpha)
    if comparison.better >= enough:
        return CanaryVerdict.BETTER
    return CanaryVerdict.WORSE if comparison.worse >= enough else CanaryVerdict.OPEN


def fewest_looks(*, margin: float, alpha: float) -> int:
    """How many looks at the greatest difference it takes to show it: a window of fewer cannot tell anything."""
    state = Comparison()
    while verdict(state, alpha=alpha) is CanaryVerdict.OPEN:
        state = look(state, 1.0, margin=margin)
    return state.looks


def _gain(before: Comparison, sign: float, difference: float, margin: float) -> float:
    """Growth of the logarithm of a bet on ``sign`` times the difference being above ``margin``."""
    count = before.looks + 1
    mean = (sign * before.total + _PRIOR_MEAN) / count
    scatter = before.squares - before.total * before.total / before.looks if before.looks else 0.0
    variance = (max(0.0, scatter) + _PRIOR_VARIANCE) / count
    edge = mean - margin
    stake = max(edge, 0.0) / (variance + edge * edge)
    # What can be lost is margin + 1: the fortune stays positive.
    return math.log1p(min(stake, STAKE / (1.0 + margin)) * (sign * difference - margin))
