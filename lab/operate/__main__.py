"""``python -m lab.operate [part …]``: measures, writes build/operate.json, shows it; 1 where a bound is missed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from lab import paths
from lab.isolation.part import Section
from lab.operate import panels, rules
from lab.parts import run
from lab.progress import say

SECTIONS = ("alerts", "recording_rules", "panels", "messages", "dashboard")
"""The keys of the file, in its order."""
RESULT = paths.BUILD / "operate.json"


@dataclass(frozen=True)
class OperatePart:
    """A part made of two functions."""

    measuring: Callable[[Path], Section]
    missing: Callable[[Section], list[str]] = lambda _: []

    def measure(self, directory: Path) -> Section:
        """Measure; ``directory`` is an empty folder for logs."""
        return self.measuring(directory)

    def missed(self, found: Section) -> list[str]:
        """The bounds that it misses."""
        return self.missing(found)


def parts() -> dict[str, OperatePart]:
    """The parts that are there, by key."""
    found = {
        "alerts": OperatePart(rules.alerts, rules.missed),
        "recording_rules": OperatePart(rules.recording_rules, rules.missed),
        "panels": OperatePart(panels.measure, panels.missed),
    }
    if messages := _function("messages", "messages"):
        found["messages"] = OperatePart(messages)
    if webpage := _function("webpage", "webpage"):
        found["dashboard"] = OperatePart(lambda _: webpage())
    return found


def _function(module: str, name: str) -> Callable[..., Section] | None:
    """Of a module of this package; None where it is not there."""
    path = f"{__package__}.{module}"
    if importlib.util.find_spec(path) is None:
        return None
    return cast(Callable[..., Section], getattr(importlib.import_module(path), name))


def main() -> int:
    """Measure what is asked for, write, show."""
    there = parts()
    if absent := [key for key in SECTIONS if key not in there]:
        say(f"not there yet, and left out of {RESULT.name}: {', '.join(absent)}")
    return run("operate", "What a person operates by.", there=there, order=SECTIONS, result=RESULT)


if __name__ == "__main__":
    sys.exit(main())
