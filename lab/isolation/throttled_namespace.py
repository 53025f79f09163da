"""A namespace of 20 policies whose writes all end in 429: a P0 in another one is decided."""

from __future__ import annotations

from pathlib import Path

from lab.bench.fleet import INTERVAL_SECONDS
from lab.isolation.neighbours import decided_seconds
from lab.isolation.part import Section, late


def measure(directory: Path) -> Section:
    """See the module."""
    found = decided_seconds(directory, hung_policies=0, throttled=True)
    return {"breach_to_decided_seconds": found, "interval_seconds": INTERVAL_SECONDS}


def missed(found: Section) -> list[str]:
    """Decided within an interval and a second."""
    return late(found, INTERVAL_SECONDS + 1.0)
