"""``python -m lab.operate [part …]``: measures, writes build/operate.json, shows it; 1 where a bound is missed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab import paths
from lab.isolation.part import Section
from lab.operate import messages, panels, rules, webpage
from lab.parts import run

SECTIONS = ("alerts", "recording_rules", "panels", "messages", "dashboard")
"""The keys of the file, in its order."""
RESULT = paths.BUILD / "operate.json"


@dataclass(frozen=True)
class OperatePart:
    """A part made of two functions."""

    measuring: Callable[[Path], Section]
    missing: Callable[[Section], list[str]]

    def measure(self, directory: Path) -> Section:
        """Measure; ``directory`` is an empty folder for logs."""
        return self.measuring(directory)

    def missed(self, found: Section) -> list[str]:
        """The bounds that it misses."""
        return self.missing(found)


PARTS = {
    "alerts": OperatePart(rules.alerts, rules.missed),
    "recording_rules": OperatePart(rules.recording_rules, rules.missed),
    "panels": OperatePart(panels.measure, panels.missed),
    "messages": OperatePart(messages.messages, messages.missed),
    "dashboard": OperatePart(lambda _: webpage.webpage(), webpage.missed),
}


def main() -> int:
    """Measure what is asked for, write, show."""
    return run("operate", "What a person operates by.", there=PARTS, order=SECTIONS, result=RESULT)


if __name__ == "__main__":
    sys.exit(main())
