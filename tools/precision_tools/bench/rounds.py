"""Interleaved timing: in every round each contender runs once, in another order, so that a busy machine hurts all alike."""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

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


def interleave(
    contenders: Mapping[str, Step], *, rounds: int, steps: int, warm_up: int, tick: Tick, seed: int = 0
) -> Rounds:
    """Time contenders in turns.

    Args:
        contenders: what to time, by name; one call is one step.
        rounds: turns of all contenders.
        steps: calls a turn and contender.
        warm_up: calls before the first round, not counted.
        tick: called after every round.
        seed: of the order within the rounds.

    """
    for step in contenders.values():
        for _ in range(warm_up):
            step()
    order, shuffle = list(contenders), random.Random(seed).shuffle
    result = Rounds({name: [] for name in contenders}, {name: [] for name in contenders})
    # Modules of all peers are garbage nobody collects: without this, whoever fills a generation pays for them all.
    gc.collect()
    gc.freeze()
    try:
        for _ in range(rounds):
            shuffle(order)
            for name in order:
                step = contenders[name]
                started, cpu_started = time.perf_counter(), time.thread_time()
                for _ in range(steps):
                    step()
                ended, cpu_ended = time.perf_counter(), time.thread_time()
                result.wall[name].append((ended - started) / steps)
                result.cpu[name].append((cpu_ended - cpu_started) / steps)
            tick()
    finally:
        gc.unfreeze()
    return result


def paired(seconds: Mapping[str, Sequence[float]], name: str, reference: str) -> list[float]:
    """Differences of two contenders, round by round."""
    return [mine - other for mine, other in zip(seconds[name], seconds[reference], strict=True)]
