"""Judges a trace: `check(trace)` replays etcd's order against the invariants, one row of a table each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lab.faults.checker import ends, safety
from lab.faults.checker.replay import Step, replay
from lab.faults.trace import Trace


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold, and where."""

    invariant: str
    text: str
    revision: int | None = None
    """None: at the end of the trace."""

    def __str__(self) -> str:
        where = "at the end" if self.revision is None else f"at revision {self.revision}"
        return f"{self.invariant} {where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant: how it is checked in a trace, or where it is checked instead."""

    id: str
    sentence: str
    step: Callable[[Step, Trace], str | None] | None = None
    """Judges one revision."""
    end: Callable[[Trace], list[str]] | None = None
    """Judges the whole trace."""
    elsewhere: str = ""


INVARIANTS = (
    Invariant("I1", "What is rolled back stays in the fallback until a person retries.", safety.latch),
    Invariant("I2", "Nothing is promoted on missing data, or early.", safety.no_promotion_on_missing_data),
    Invariant("I3", "A write takes at most one edge, and counts it.", safety.single_edge),
    Invariant("I4", "A suspension is recorded before the Job is suspended.", safety.suspensions_written_ahead),
    Invariant("I5", "No more of the fleet is assigned the target than the step's weight.", safety.blast_radius),
    Invariant(
        "I6", "The operator writes only what it may.", elsewhere="audit log: tests/cluster/test_least_privilege.py"
    ),
    Invariant("I7", "What was held is not moved again without a retry.", safety.no_flap),
    Invariant("I8", "No write of an older leader lands; generations and epochs only grow.", safety.fencing),
    Invariant("I9", "Pods in the wrong mode are taken away at most twice.", safety.no_fight, ends.no_fight),
    Invariant("I10", "A deletion is done in 30 s.", end=ends.deletion),
    Invariant("I11", "No secret stands in status or state.", safety.secrecy),
    Invariant(
        "I12",
        "Nothing in one namespace or endpoint delays another's evaluation.",
        elsewhere="measured: lab/isolation/neighbours.py (make isolation)",
    ),
    Invariant("L1", "Once faults stop, every fleet comes to rest where it should.", end=ends.converged),
    Invariant("L2", "A breach is answered in time.", elsewhere="tests/cluster/test_triggers.py; lab.bench.rollbacks"),
    Invariant("L3", "Who is not evaluated is noticed.", elsewhere="tests/unit/runtime/test_watchdog.py"),
    Invariant("L4", "At rest nothing is written but Leases.", end=ends.quiescent),
    Invariant(
        "Trace", "What may be missing from the trace is named, and nothing is missing at rest.", end=ends.complete
    ),
)


def check(trace: Trace, *, secrets: Mapping[str, str] | None = None) -> list[Violation]:
    """Every violation, in the trace's order; those of its end last.

    ``secrets``: name → what nobody may read (I11). They are not in the trace's header, so they are written to no file.
    """
    if secrets:
        more = {**trace.header.expectations, "secrets": dict(secrets)}
        trace = replace(trace, header=replace(trace.header, expectations=more))
    found = [
        Violation(invariant.id, text, step.entry.revision)
        for step in replay(trace)
        for invariant in INVARIANTS
        if invariant.step is not None and (text := invariant.step(step, trace)) is not None
    ]
    ended = [Violation(i.id, text) for i in INVARIANTS if i.end is not None for text in i.end(trace)]
    return [*found, *ended]
