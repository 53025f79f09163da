"""Which faults are injected: all of them, or a sample by a seed that leaves no workflow and no kind of fault out. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence

from lab.faults.rules import KILLS, Fault, Injection, Write

KILLS_EACH = 4
"""Of each workflow, at least: half of them before a write, half after."""

Together = tuple[Injection, ...]
"""Faults that one run meets, of one workflow."""


def every(learned: Mapping[str, Sequence[Write]]) -> list[Injection]:
    """Each fault at each write of each workflow, by name: writes never arrive in the same order twice."""
    return [
        Injection(name, write, fault)
        for name, writes in sorted(learned.items())
        for write in sorted(writes, key=str)
        for fault in Fault
    ]


def sample(
    learned: Mapping[str, Sequence[Write]], *, seed: int, count: int, slow: Collection[str] = ()
) -> list[Injection]:
    """So many of them, or all there are: of each workflow some kills and one of every other fault first.

    The rest is drawn evenly, but for kills and for the slow workflows: those take longer than all others. Of no count, only
    first writes of a name are drawn: further ones are not in every run.

    Args:
        learned: workflow → the writes of a run without a fault, in any order.
        seed: of the draw.
        count: how many.
        slow: workflows that have only what each workflow has.
    """
    chance = random.Random(seed)
    chosen: dict[Injection, None] = {}
    for name, writes in sorted(learned.items()):
        named = sorted((write for write in writes if count > 0 or write.nth == 1), key=str)
        for fault in Fault:
            wanted = KILLS_EACH // len(KILLS) if fault in KILLS else 1
            some = chance.sample(named, min(wanted, len(named)))
            chosen |= {Injection(name, write, fault): None for write in some}
    quick = {name: writes for name, writes in learned.items() if name not in slow}
    rest = [injection for injection in every(quick) if injection not in chosen and injection.fault not in KILLS]
    chosen |= dict.fromkeys(chance.sample(rest, max(0, min(count - len(chosen), len(rest)))))
    return list(chosen)


def combined(injections: Sequence[Injection], *, most: int) -> list[Together]:
    """Runs of up to so many faults each, in the given order: no two at one write, no two alike, and each kill alone."""
    runs: list[list[Injection]] = []
    for injection in injections:
        fits = (run for run in runs if len(run) < most and all(_apart(injection, other) for other in run))
        run = next(fits, None)
        if run is None:
            runs.append([injection])
        else:
            run.append(injection)
    return [tuple(run) for run in runs]


def _apart(one: Injection, other: Injection) -> bool:
    alike = one.fault is other.fault or one.write == other.write
    return one.workflow == other.workflow and not alike and KILLS.isdisjoint((one.fault, other.fault))


def grouped(runs: Sequence[Together], *, size: int, kills: int) -> Iterator[list[Together]]:
    """Batches in which as much runs side by side: kills apart, because each of them hits all runs of its batch.

    ``size``, ``kills``: how many runs a batch has, and one of kills. Runs of one workflow follow one another, so that
    a batch does not wait long for its slowest.
    """
    deadly = [run for run in runs if run[0].fault in KILLS]
    others = [run for run in runs if run[0].fault not in KILLS]
    for some, most in ((others, size), (deadly, kills)):
        ordered = sorted(some, key=lambda run: run[0].workflow)
        for start in range(0, len(ordered), most):
            yield ordered[start : start + most]
