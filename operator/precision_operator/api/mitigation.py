"""What is tried before a rollback: the setting in ``spec.rollback.mitigation``, and what is remembered of it."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from precision_operator.api.codec import encode
from precision_operator.api.fields import Duration, Field, Time
from precision_operator.api.signals import Signal
from precision_operator.api.workload import name_of
from precision_operator.reasons import Reason


class Rung(StrEnum):
    """What is tried against overflow, from the mildest on."""

    HALVE_SCALE = "HalveScale"
    """The loss scale times 0.5, once."""
    GROWTH_INTERVAL = "GrowthInterval"
    """The loss scale grows half as often: after 4000 good steps."""
    BF16 = "BF16"
    """The range of FP32 without a loss scale, where the trainer's hardware has it."""


class MitigationResult(StrEnum):
    """How a window stands."""

    OPEN = "Open"
    MITIGATED = "Mitigated"
    """The signal was good for as long as asked: no rollback."""
    FAILED = "MitigationFailed"
    """It is in breach past its window, or something more severe came: rolled back."""


@dataclass(frozen=True, slots=True)
class MitigationSpec:
    """What is tried, and for how long, before a mild (P2) breach is rolled back gradually."""

    overflow_window_seconds: Annotated[
        float,
        Duration(
            "How long rungs may be tried ({default}). 0s: no window, overflow is rolled back.",
            name="overflow.window",
            least="0s",
            most="24h",
        ),
    ] = 1800.0
    ladder: Annotated[
        tuple[Rung, ...],
        Field(
            "What is tried, always from the mildest on (default all). HalveScale: the loss scale times 0.5. "
            "GrowthInterval: it grows after 4000 good steps. BF16: that mode, where the trainer's hardware takes it. "
            "After the last one: rollback.",
            name="overflow.ladder",
            longest=3,
            topology="set",
        ),
    ] = tuple(Rung)
    dwell_seconds: Annotated[
        float,
        Duration(
            "How long a rung is given, and how long overflow must then have been good ({default}).",
            name="overflow.dwell",
            least="0s",
            most="24h",
        ),
    ] = 480.0
    rollback_above: Annotated[
        float,
        Field(
            "Past its window, overflow up to this share holds promotions and is reported, but not rolled back "
            "({default}). 0: any is.",
            name="overflow.rollbackAbove",
            least=0,
            most=1,
        ),
    ] = 0.20
    speed_window_seconds: Annotated[
        float,
        Duration(
            "How long people may investigate ({default}). 0s: no window, slow training is rolled back.",
            name="speed.window",
            least="0s",
            most="24h",
        ),
    ] = 3600.0


MITIGATION = Field(
    "What is tried against a mild (P2) breach of a workload, or how long it may be looked into, before it is rolled back "
    "gradually. What is more severe ends the window at once; the deadline of P2 counts from the window's end. Not in a "
    "retry after a rollback of the fleet.",
    groups={
        "overflow": Field(
            "Overflow between criteria.overflow.warn and enter, on hot workloads that train in fp16.",
        ),
        "speed": Field("Training slower than criteria.speed.enter."),
    },
)
"""``spec.rollback.mitigation``."""


@dataclass(frozen=True, slots=True)
class Mitigation:
    """One workload's window for one signal; times are seconds since the epoch."""

    key: Annotated[str, Field(name="workload")]
    signal: Annotated[Signal, Field()]
    since: Annotated[float, Time()]
    until: Annotated[float, Time()]
    """When the window ends; a rollback's deadline counts from here. Earlier than planned where nothing is left to try."""
    rung: Annotated[Rung | None, Field()] = None
    """What is being tried, or helped; None: nothing of ours (an investigation by people)."""
    generation: Annotated[int, Field()] = 0
    """Of the request that carries the rung."""
    rung_since: Annotated[float | None, Time()] = None
    acknowledged_at: Annotated[float | None, Time()] = None
    """When every pod of the workload reported that it had applied it; only then is it judged."""
    good_since: Annotated[float | None, Time()] = None
    """Since when every reading of the signal has been good, without a gap."""
    found: Annotated[tuple[str, ...], Field()] = ()
    """What came of the rungs before, one each: ``HalveScale: 0.24``."""
    result: Annotated[MitigationResult, Field()] = MitigationResult.OPEN

    @property
    def name(self) -> str:
        """The workload's name, for a person."""
        return name_of(self.key)

    @property
    def open(self) -> bool:
        """Something may still come of it."""
        return self.result is MitigationResult.OPEN


def in_bf16(mitigations: Iterable[Mitigation]) -> frozenset[str]:
    """The keys of the workloads against whose overflow BF16 is tried, or has helped."""
    return frozenset(m.key for m in mitigations if m.rung is Rung.BF16)


def news(before: Iterable[Mitigation], after: Iterable[Mitigation]) -> list[tuple[Mitigation, Reason]]:
    """The windows in which something new began, or which ended; each with the reason that is said of it."""
    known = {(m.key, m.signal): m for m in before}
    found: list[tuple[Mitigation, Reason]] = []
    for window in after:
        old = known.get((window.key, window.signal))
        if window.open and (old is None or not old.open or old.rung is not window.rung):
            found.append((window, Reason.MITIGATING if window.rung else Reason.INVESTIGATING))
        elif old is not None and old.open and not window.open:
            helped = window.result is MitigationResult.MITIGATED
            found.append((window, Reason.MITIGATED if helped else Reason.MITIGATION_FAILED))
    return found


def mitigation_bytes(mitigation: Mitigation) -> int:
    """What one window takes in the assignment."""
    return len(json.dumps([encode(mitigation)], separators=(",", ":")))
