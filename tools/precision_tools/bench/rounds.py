"""Interleaved timing: the contenders take turns, each time in another order, so that a busy machine hurts all alike."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import operator
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

Step = Callable[[], object]
Tick = Callable[[], None]
"""Called after every round, for a progress bar."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds a step, one value a round, by contender."""

    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]
    """CPU time of the calling thread: what a step costs where others hold the core meanwhile. Says nothing about a GPU."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the interval that holds the true one with CONFIDENCE."""

    median: float
    lower: float
    upper: float


def median_interval(values: Sequence[float]) -> Interval:
    """Median with its distribution-free interval: order statistics whose ranks follow from the binomial distribution.

    Args:
        values: independent measurements, at least 6 (fewer cannot carry CONFIDENCE).

    Raises:
        ValueError: fewer than 6.
    """
    ordered, count = sorted(values), len(values)
    if count < 6:
        raise ValueError(f"{count} values: expected at least 6 for a {CONFIDENCE:.0%} interval; take more rounds")
    tail, rank = 0.0, 0
    while True:
        tail += math.comb(count, rank) / 2**count
        if tail > (1 - CONFIDENCE) / 2:
            break
        rank += 1
    # Between the rank-th smallest and the rank-th largest (counted from 1).
    return Interval(statistics.median(ordered), ordered[rank - 1], ordered[count - rank])


class OwnTime:
    """A ``time.monotonic`` for one contender, which stands still while others have their turn.

    Else what it does every tenth of a second would be done in every turn, and each of its steps would pay for the others'.
    """

    def __init__(self) -> None:
        self._real: Callable[[], float] = time.monotonic
        self._left_at = self._real()
        self._behind = 0.0

    def __enter__(self) -> None:
        """The turn begins: everybody in this process who asks for the time is told this one."""
        self._behind += self._real() - self._left_at
        # Iterators, because no Python then runs when the time is asked for: real() - behind, without an end.
        now = map(operator.sub, iter(self._real, None), itertools.repeat(self._behind))
        setattr(time, "monotonic", now.__next__)  # noqa: B010  (mypy: a module's function)

    def __exit__(self, *_error: object) -> None:
        """The turn is over."""
        self._left_at = self._real()
        setattr(time, "monotonic", self._real)  # noqa: B010


def interleave(
    contenders: Mapping[str, Step],
    *,
    rounds: int,
    steps: int,
    warm_up: int,
    tick: Tick,
    groups: Sequence[Sequence[str]] = (),
    turns: int = 1,
    lead: int = 0,
    clocks: Mapping[str, OwnTime] = MappingProxyType({}),
    seed: int = 0,
) -> Rounds:
    """Time contenders in turns.

    Args:
        contenders: what to time, by name; one call is one step.
        rounds: values for each contender.
        steps: calls a round and contender.
        warm_up: calls before the first round, not counted.
        tick: called after every round.
        groups: names of contenders that have their turns one right after the other; all together, where none is given.
        turns: of each contender in a round, a divisor of ``steps``. The speed of a machine that others use changes within
            a tenth of a second: the shorter a turn, and the smaller a group, the less of that is in a difference.
        lead: calls at the start of each turn that are not counted: they find the caches as the others left them.
        clocks: of those contenders that do something by the clock.
        seed: of the order within the rounds.
    """
    if steps % turns:
        raise ValueError(f"{steps} steps in {turns} turns: expected a multiple of them")
    for name, step in contenders.items():
        with clocks.get(name, contextlib.nullcontext()):
            for _ in range(warm_up):
                step()
    order, chance = [list(group) for group in groups] or [list(contenders)], random.Random(seed)
    result = Rounds({name: [] for name in contenders}, {name: [] for name in contenders})
    # Modules of all peers are garbage nobody collects: without this, whoever fills a generation pays for them all.
    gc.collect()
    gc.freeze()
    try:
        for _ in range(rounds):
            wall, cpu = dict.fromkeys(contenders, 0.0), dict.fromkeys(contenders, 0.0)
            for _ in range(turns):
                for name in _in_turn(order, chance):
                    with clocks.get(name, contextlib.nullcontext()):
                        seconds = _take(contenders[name], steps // turns, lead)
                    wall[name] += seconds[0]
                    cpu[name] += seconds[1]
            for name in contenders:
                result.wall[name].append(wall[name] / steps)
                result.cpu[name].append(cpu[name] / steps)
            tick()
    finally:
        gc.unfreeze()
    return result


def _in_turn(groups: list[list[str]], chance: random.Random) -> Iterator[str]:
    """Every name once, those of a group together, in another order each time."""
    chance.shuffle(groups)
    for group in groups:
        chance.shuffle(group)
        yield from group


def _take(step: Step, calls: int, lead: int) -> tuple[float, float]:
    """Wall and CPU seconds of so many calls after the ``lead``."""
    for _ in range(lead):
        step()
    started, cpu_started = time.perf_counter(), time.thread_time()
    for _ in range(calls):
        step()
    return time.perf_counter() - started, time.thread_time() - cpu_started


def paired(seconds: Mapping[str, Sequence[float]], name: str, reference: str) -> list[float]:
    """Differences of two contenders, round by round."""
    return [mine - other for mine, other in zip(seconds[name], seconds[reference], strict=True)]
