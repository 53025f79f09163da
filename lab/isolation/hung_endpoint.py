"""200 policies on an endpoint that accepts and never answers, and a namespace under 429: a P0 elsewhere is decided."""

from __future__ import annotations

from pathlib import Path

from lab.bench.fleet import INTERVAL_SECONDS
from lab.isolation.neighbours import decided_seconds
from lab.isolation.part import Section, late

POLICIES = 200


def measure(directory: Path) -> Section:
    """See the module."""
    found = decided_seconds(directory, hung_policies=POLICIES, throttled=True)
    return {"policies": POLICIES, "breach_to_decided_seconds": found, "interval_seconds": INTERVAL_SECONDS}


def missed(found: Section) -> list[str]:
    """Decided within an interval and a second."""
    return late(found, INTERVAL_SECONDS + 1.0)
