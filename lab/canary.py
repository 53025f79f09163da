"""How often a canary is misjudged, and how soon it is judged: the shipped test on the noise of real metrics.

    python -m lab.canary

Each replication is one comparison of a canary with the rest, looked at after every window of the metrics. Loss noise is
what docs/sentinel.md measured (two seeds of one FP32 training differ by 0.33 % in means of 50 steps, lag-1
autocorrelation 0.09), that of throughput what docs/canary-rollback.md says; the noise of overflow and failures is that of
counting steps and runs.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from precision_operator.api.canary import CanarySpec, CanaryVerdict, Comparison, ComparisonSpec
from precision_operator.api.reenable import ReenableSpec
from precision_operator.api.signals import Signal
from precision_operator.api.spec import DEFAULT_CRITERIA, Criterion, Severity
from precision_operator.core.promotion.regression import shortfall
from precision_operator.core.rollback.canary import depth
from precision_operator.core.rollback.sequential import look, verdict

LOSS_SIGMA, LOSS_LAG = 0.0033, 0.09
"""Measured: docs/sentinel.md, *by measured noise*."""
SPEED_WINDOW_SECONDS = 10.0
SPEED_QUIET, SPEED_BUSY = (0.092, 0.70), (0.275, 0.69)
"""(sigma, lag-1 autocorrelation) of throughput in windows of this length, measured: docs/canary-rollback.md."""
RULES = CanarySpec()
ANSWERED = (Severity.P0, Severity.P1, Severity.P2)
WINDOW_SECONDS = 300.0
SHORT = round(RULES.window_seconds / WINDOW_SECONDS)
LONG = 2 * SHORT
"""Looks within the default window of two hours, and within four."""
_NAIVE = 1.96
"""The fixed-sample test that is no test any more once it is looked at again and again."""

Readings = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, float, int], Readings]
"""(dice, looks, level, workloads) → readings [looks, workloads]."""


def _series(dice: np.random.Generator, looks: int, workloads: int, sigma: float, lag: float) -> Readings:
    noise = dice.normal(0.0, sigma, (looks, workloads))
    for index in range(1, looks):
        noise[index] = lag * noise[index - 1] + math.sqrt(1.0 - lag**2) * noise[index]
    return noise


def loss(dice: np.random.Generator, looks: int, level: float, workloads: int) -> Readings:
    """Relative distance of the loss from its FP32 baseline, as an autoregressive series."""
    return level + _series(dice, looks, workloads, LOSS_SIGMA, LOSS_LAG)


def speed(sigma: float, lag: float) -> Draw:
    """Throughput relative to the FP32 baseline: means of what was measured in shorter windows."""
    parts = round(WINDOW_SECONDS / SPEED_WINDOW_SECONDS)

    def draw(dice: np.random.Generator, looks: int, level: float, workloads: int) -> Readings:
        noise = _series(dice, looks * parts, workloads, sigma, lag).reshape(looks, parts, workloads)
        means: Readings = noise.mean(axis=1)
        return level * (1.0 + means)

    return draw


def uneven(spread: float) -> Draw:
    """Loss whose level differs from workload to workload, for good: what no length of a comparison averages out."""

    def draw(dice: np.random.Generator, looks: int, level: float, workloads: int) -> Readings:
        return loss(dice, looks, level, workloads) + dice.normal(0.0, spread, workloads)

    return draw


def counted(trials: int) -> Draw:
    """Share of ``trials`` a window, e.g. steps that overflowed or runs that failed."""

    def draw(dice: np.random.Generator, looks: int, level: float, workloads: int) -> Readings:
        return dice.binomial(trials, level, (looks, workloads)) / trials

    return draw


ROLLOUT = ComparisonSpec()
DWELL = round(ReenableSpec().dwell_seconds / WINDOW_SECONDS)
"""Looks within the dwell of a retry, the longest step there is by default."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row: what the rest and the canary read."""

    text: str
    signal: Signal
    draw: Draw
    rest: float
    canary: float
    workloads: int = 4
    """One of them the canary."""


NONE = (
    Case("loss 12 % above FP32", Signal.DIVERGENCE, loss, 0.12, 0.12),
    Case("loss 13.5 % and 12 %: as far apart as the margin", Signal.DIVERGENCE, loss, 0.135, 0.12),
    Case("30 % of 4 runs a window fail", Signal.FAILURES, counted(4), 0.30, 0.30),
    Case("30 % of 20 runs a window fail", Signal.FAILURES, counted(20), 0.30, 0.30),
    Case("overflow 3 % of 1000 steps (the canary has none)", Signal.OVERFLOW, counted(1000), 0.03, 0.0),
    Case("the same of 20 steps", Signal.OVERFLOW, counted(20), 0.03, 0.0),
    Case("speed 0.85 of FP32's, on a quiet machine", Signal.SPEED, speed(*SPEED_QUIET), 0.85, 0.85),
    Case("the same, on one whose neighbours work", Signal.SPEED, speed(*SPEED_BUSY), 0.85, 0.85),
    Case("loss 12 %, workloads differ for good by 1 %", Signal.DIVERGENCE, uneven(0.01), 0.12, 0.12),
    Case("the same, by 3 %", Signal.DIVERGENCE, uneven(0.03), 0.12, 0.12),
    Case("the same, canary of 10 of 40", Signal.DIVERGENCE, uneven(0.03), 0.12, 0.12, 40),
)
SOME = (
    Case("overflow 15 % of 1000 steps, canary none", Signal.OVERFLOW, counted(1000), 0.15, 0.0),
    Case("overflow 8 % of 1000 steps, canary none", Signal.OVERFLOW, counted(1000), 0.08, 0.0),
    Case("loss 15 % above FP32, canary 2 %", Signal.DIVERGENCE, loss, 0.15, 0.02),
    Case("loss 10 %, canary 2 %", Signal.DIVERGENCE, loss, 0.10, 0.02),
    Case("speed 0.8 of FP32's, canary 1, quiet", Signal.SPEED, speed(*SPEED_QUIET), 0.8, 1.0),
    Case("the same, busy", Signal.SPEED, speed(*SPEED_BUSY), 0.8, 1.0),
    Case("60 % of 4 runs a window fail, canary 5 %", Signal.FAILURES, counted(4), 0.60, 0.05),
    Case("30 % of 4 runs a window fail, canary 5 %", Signal.FAILURES, counted(4), 0.30, 0.05),
)

SAME = (
    Case("loss as FP32's", Signal.DIVERGENCE, loss, 0.0, 0.0),
    Case("loss 2 % above FP32's, on both sides", Signal.DIVERGENCE, loss, 0.02, 0.02),
    Case("loss 1 % above the rest's: as far apart as the margin", Signal.DIVERGENCE, loss, 0.02, 0.03),
    Case("2 % of 20 runs a window fail", Signal.FAILURES, counted(20), 0.02, 0.02),
    Case("speed as FP32's, on a quiet machine", Signal.SPEED, speed(*SPEED_QUIET), 1.0, 1.0),
    Case("the same, on one whose neighbours work", Signal.SPEED, speed(*SPEED_BUSY), 1.0, 1.0),
)
WORSE = (
    Case("loss 2 % above FP32's, the rest as FP32", Signal.DIVERGENCE, loss, 0.0, 0.02),
    Case("loss 4 %", Signal.DIVERGENCE, loss, 0.0, 0.04),
    Case("4 % of 20 runs a window fail, of the rest none", Signal.FAILURES, counted(20), 0.0, 0.04),
    Case("speed 0.93 of FP32's, quiet", Signal.SPEED, speed(*SPEED_QUIET), 1.0, 0.93),
)


def fallings(case: Case, dice: np.random.Generator, looks: int) -> list[float]:
    """Rest minus rollout canary in shortfall, look by look."""
    criterion = next(c for c in DEFAULT_CRITERIA if c.signal is case.signal)
    first = max(1, case.workloads // 4)
    sides = (case.draw(dice, looks, case.canary, first), case.draw(dice, looks, case.rest, case.workloads - first))
    canary, rest = ([fmean(shortfall(criterion, v) for v in row) for row in side.tolist()] for side in sides)
    return [r - c for r, c in zip(rest, canary, strict=True)]


def regressed_after(series: Sequence[float]) -> int | None:
    """The look at which the shipped test of a rollout calls a regression; None: it never does."""
    state = Comparison()
    for difference in series:
        state = look(state, difference, margin=ROLLOUT.margin)
        if verdict(state, alpha=2.0 * ROLLOUT.false_alarm_rate) is CanaryVerdict.WORSE:
            return state.looks
    return None


def regression(case: Case, replications: int, dice: np.random.Generator) -> str:
    """A row of the third and fourth table."""
    series = [fallings(case, dice, DWELL) for _ in range(replications)]
    calls = [regressed_after(found) for found in series]
    found = sorted(call for call in calls if call is not None)
    shares = [sum(call <= looks for call in found) / replications for looks in (SHORT, DWELL)]
    mean = fmean(value for one in series for value in one)
    delay = f"{median(found):.0f} looks ({median(found) * WINDOW_SECONDS / 60:.0f} min)" if found else "-"
    return f"| {case.text} | {mean:+.2f} | {shares[0]:.1%} | {shares[1]:.1%} | {delay} |".replace("%", " %")


def differences(case: Case, dice: np.random.Generator, looks: int) -> list[float]:
    """Rest minus canary in trouble, look by look."""
    criterion = next(c for c in DEFAULT_CRITERIA if c.signal is case.signal)
    first = max(1, case.workloads // 4)
    canary = _trouble(criterion, case.draw(dice, looks, case.canary, first))
    rest = _trouble(criterion, case.draw(dice, looks, case.rest, case.workloads - first))
    return [r - c for r, c in zip(rest, canary, strict=True)]


def _trouble(criterion: Criterion, readings: Readings) -> Iterator[float]:
    return (sum([depth(criterion, value, ANSWERED) for value in row]) / len(row) for row in readings.tolist())


def judged(series: Sequence[float]) -> tuple[CanaryVerdict, int]:
    """What the shipped test says, and after how many looks; Open where it never says anything."""
    state = Comparison()
    for difference in series:
        state = look(state, difference, margin=RULES.margin)
        if (found := verdict(state, alpha=RULES.false_alarm_rate)) is not CanaryVerdict.OPEN:
            return found, state.looks
    return CanaryVerdict.OPEN, len(series)


def peeked(series: Sequence[float]) -> bool:
    """Whether a z-test at 5 %, looked at from the third observation on, ever calls a difference beyond the margin."""
    values = np.asarray(series)
    count = np.arange(1, len(values) + 1)
    mean = np.cumsum(values) / count
    error = np.sqrt(np.maximum(np.cumsum(values**2) / count - mean**2, 0.0) / count)
    return bool(np.any((np.abs(mean) - RULES.margin > _NAIVE * error)[2:]))


def false_alarms(case: Case, replications: int, dice: np.random.Generator) -> str:
    """A row of the first table."""
    called, peeks = [0, 0], [0, 0]
    means = []
    for _ in range(replications):
        series = differences(case, dice, LONG)
        means.append(fmean(series))
        found, looks = judged(series)
        called[1] += found is not CanaryVerdict.OPEN
        called[0] += found is not CanaryVerdict.OPEN and looks <= SHORT
        peeks[0] += peeked(series[:SHORT])
        peeks[1] += peeked(series)
    shares = [f"{100 * n / replications:.1f} %" for n in (*called, *peeks)]
    return f"| {case.text} | {fmean(means):+.2f} | {' | '.join(shares)} |"


def power(case: Case, replications: int, dice: np.random.Generator) -> str:
    """A row of the second table."""
    means, delays, soon, wrong = [], [], 0, 0
    for _ in range(replications):
        series = differences(case, dice, LONG)
        means.append(fmean(series))
        found, looks = judged(series)
        if found is CanaryVerdict.BETTER:
            delays.append(looks)
            soon += looks <= SHORT
        wrong += found is CanaryVerdict.WORSE
    late = f"{median(delays):.0f} looks ({median(delays) * WINDOW_SECONDS / 60:.0f} min)" if delays else "never"
    shares = [f"{100 * n / replications:.1f} %" for n in (soon, len(delays), wrong)]
    return f"| {case.text} | {fmean(means):+.2f} | {' | '.join(shares)} | {late} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print both tables as Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.canary", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--replications", type=int, default=2000, help="comparisons for each row (default 2000)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    begun, dice = time.process_time(), np.random.default_rng(given.seed)
    lines = [
        f"| nothing to find | mean difference | called in {SHORT} looks | in {LONG} | peeked z-test: {SHORT} | {LONG} |",
        "|---|---|---|---|---|---|",
        *(false_alarms(case, given.replications, dice) for case in NONE),
        "",
        f"| something to find | mean difference | found in {SHORT} looks | in {LONG} | called worse | median delay |",
        "|---|---|---|---|---|---|",
        *(power(case, given.replications, dice) for case in SOME),
        "",
        *(
            line
            for title, cases in (("the canary is as good", SAME), ("the canary is worse", WORSE))
            for line in (
                f"| rollout: {title} | mean difference | called in {SHORT} looks | in {DWELL} | median delay |",
                "|---|---|---|---|---|",
                *(regression(case, max(1, given.replications // 10), dice) for case in cases),
                "",
            )
        ),
        f"{given.replications} comparisons a row, seed {given.seed}, {time.process_time() - begun:.0f} s of one processor",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
