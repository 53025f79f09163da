"""What is tried before a rollback: the setting in ``spec.rollback.mitigation``, and what is remembered of it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from precision_operator.api.signals import Signal
from precision_operator.api.wire import (
    choice,
    duration_seconds,
    format_time,
    integer,
    mapping,
    number,
    parse_time,
    sequence,
    text,
    texts,
)
from precision_operator.api.workload import name_of


class Rung(StrEnum):
    """What is tried against overflow, from the mildest on."""

    HALVE_SCALE = "HalveScale"
    """The loss scale times 0.5, once."""
    GROWTH_INTERVAL = "GrowthInterval"
    """The loss scale grows half as often: after 4000 good steps."""
    BF16 = "BF16"
    """The range of FP32 without a loss scale, where the trainer's hardware has it."""


class Result(StrEnum):
    """How a window stands."""

    OPEN = "Open"
    MITIGATED = "Mitigated"
    """The signal was good for as long as asked: no rollback."""
    FAILED = "MitigationFailed"
    """It is in breach past its window, or something more severe came: rolled back."""


@dataclass(frozen=True, slots=True)
class MitigationSpec:
    """What is tried, and for how long, before a mild (P2) breach is rolled back gradually."""

    overflow_window_seconds: float = 1800.0
    """0: overflow is rolled back without a window."""
    ladder: tuple[Rung, ...] = tuple(Rung)
    dwell_seconds: float = 480.0
    """How long a rung's evidence must be good, and at least how long it is given."""
    rollback_above: float = 0.20
    """Past its window, overflow up to this share is said, and holds promotions, but is not rolled back."""
    speed_window_seconds: float = 3600.0
    """How long a slow workload may be investigated; 0: it is rolled back without a window."""


@dataclass(frozen=True, slots=True)
class Mitigation:
    """One workload's window for one signal; times are seconds since the epoch."""

    key: str
    """The workload's."""
    signal: Signal
    since: float
    until: float
    """When the window ends; a rollback's deadline counts from here. Earlier than planned where nothing is left to try."""
    rung: Rung | None = None
    """What is being tried, or helped; None: nothing of ours (an investigation by people)."""
    generation: int = 0
    """Of the request that carries the rung."""
    rung_since: float | None = None
    acknowledged_at: float | None = None
    """When every pod of the workload said that it had applied it; only then is it judged."""
    good_since: float | None = None
    """Since when every reading of the signal has been good, without a gap."""
    found: tuple[str, ...] = ()
    """What came of the rungs before, one each: ``HalveScale: 0.24``."""
    result: Result = Result.OPEN

    @property
    def name(self) -> str:
        """The workload's name, for a person."""
        return name_of(self.key)

    @property
    def open(self) -> bool:
        """Something may still come of it."""
        return self.result is Result.OPEN


def in_bf16(mitigations: Iterable[Mitigation]) -> frozenset[str]:
    """The keys of the workloads against whose overflow BF16 is tried, or has helped."""
    return frozenset(m.key for m in mitigations if m.rung is Rung.BF16)


def news(before: Iterable[Mitigation], after: Iterable[Mitigation]) -> list[tuple[Mitigation, str]]:
    """The windows in which something new began, or which ended; each with the reason that is said of it."""
    known = {(m.key, m.signal): m for m in before}
    found: list[tuple[Mitigation, str]] = []
    for window in after:
        old = known.get((window.key, window.signal))
        if window.open and (old is None or not old.open or old.rung is not window.rung):
            found.append((window, "Mitigating" if window.rung else "Investigating"))
        elif old is not None and old.open and not window.open:
            found.append((window, window.result))
    return found


def parse_mitigation_spec(raw: Mapping[str, object]) -> MitigationSpec:
    """Read ``spec.rollback.mitigation``."""
    base = MitigationSpec()
    overflow, speed = mapping(raw.get("overflow")), mapping(raw.get("speed"))
    asked = overflow.get("ladder")
    return MitigationSpec(
        overflow_window_seconds=duration_seconds(overflow.get("window"), base.overflow_window_seconds),
        ladder=base.ladder if asked is None else tuple(rung for rung in Rung if rung in sequence(asked)),
        dwell_seconds=duration_seconds(overflow.get("dwell"), base.dwell_seconds),
        rollback_above=number(overflow.get("rollbackAbove"), base.rollback_above),
        speed_window_seconds=duration_seconds(speed.get("window"), base.speed_window_seconds),
    )


def mitigation_bytes(mitigation: Mitigation) -> int:
    """What one window takes in the assignment."""
    return len(json.dumps(mitigations_to_wire([mitigation]), separators=(",", ":")))


def mitigations_to_wire(mitigations: Iterable[Mitigation]) -> list[dict[str, object]]:
    """As the assignment's ``state.mitigations`` has them; what is absent is left out."""
    return [
        {
            key: value
            for key, value in {
                "workload": m.key,
                "signal": str(m.signal),
                "since": format_time(m.since),
                "until": format_time(m.until),
                "rung": str(m.rung) if m.rung else None,
                "generation": m.generation or None,
                "rungSince": format_time(m.rung_since),
                "acknowledgedAt": format_time(m.acknowledged_at),
                "goodSince": format_time(m.good_since),
                "found": list(m.found) or None,
                "result": str(m.result),
            }.items()
            if value is not None
        }
        for m in mitigations
    ]


def parse_mitigations(raw: object) -> tuple[Mitigation, ...]:
    """Read the assignment's ``state.mitigations``; an entry without its times, or of a signal unknown here, is left out."""
    signals, rungs = {s.value: s for s in Signal}, {r.value: r for r in Rung}
    found = []
    for entry in map(mapping, sequence(raw)):
        since, until = parse_time(entry.get("since")), parse_time(entry.get("until"))
        signal = signals.get(text(entry.get("signal")))
        if since is None or until is None or signal is None:
            continue
        found.append(
            Mitigation(
                key=text(entry.get("workload")),
                signal=signal,
                since=since,
                until=until,
                rung=rungs.get(text(entry.get("rung"))),
                generation=integer(entry.get("generation"), 0),
                rung_since=parse_time(entry.get("rungSince")),
                acknowledged_at=parse_time(entry.get("acknowledgedAt")),
                good_since=parse_time(entry.get("goodSince")),
                found=texts(entry.get("found")),
                result=choice(entry.get("result"), Result.OPEN),
            )
        )
    return tuple(found)
