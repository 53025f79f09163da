"""Which faults are injected: all of them, or a sample by a seed that leaves no workflow and no kind of fault out. Pure."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence

from lab.faults.rules import KILLS, Fault, Injection, Write

KILLS_EACH = 4
"""Of each workflow, at least: half of them before a write, half after."""


def every(learned: Mapping[str, Sequence[Write]]) -> list[Injection]:
    """Each fault at each write of each workflow."""
    return [Injection(name, write, fault) for name, writes in learned.items() for write in writes for fault in Fault]


def sample(
    learned: Mapping[str, Sequence[Write]], *, seed: int, count: int, slow: Collection[str] = ()
) -> list[Injection]:
    """So many of them, or all there are: of each workflow some kills and one of every other fault first.

    The rest is drawn evenly, but for kills and for the slow workflows: those take longer than all others.

    Args:
        learned: workflow → the writes of a run without a fault.
        seed: of the draw.
        count: how many.
        slow: workflows that have only what each workflow has.
    """
    chance = random.Random(seed)
    chosen: dict[Injection, None] = {}
    for name, writes in learned.items():
        for fault in Fault:
            wanted = KILLS_EACH // len(KILLS) if fault in KILLS else 1
            some = chance.sample(list(writes), min(wanted, len(writes)))
            chosen |= {Injection(name, write, fault): None for write in some}
    quick = {name: writes for name, writes in learned.items() if name not in slow}
    rest = [injection for injection in every(quick) if injection not in chosen and injection.fault not in KILLS]
    chosen |= dict.fromkeys(chance.sample(rest, max(0, min(count - len(chosen), len(rest)))))
    return list(chosen)


def grouped(injections: Sequence[Injection], *, size: int, kills: int) -> Iterator[list[Injection]]:
    """Batches in which as much runs side by side: kills apart, because each of them hits all runs of its batch.

    ``size``, ``kills``: how many runs a batch has, and one of kills. Runs of one workflow follow one another, so that
    a batch does not wait long for its slowest.
    """
    deadly = [injection for injection in injections if injection.fault in KILLS]
    others = [injection for injection in injections if injection.fault not in KILLS]
    for some, most in ((others, size), (deadly, kills)):
        ordered = sorted(some, key=lambda injection: injection.workflow)
        for start in range(0, len(ordered), most):
            yield ordered[start : start + most]
