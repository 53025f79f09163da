"""``python -m lab.isolation [part …]``: measures, writes build/isolation.json, shows it; 1 where a bound is missed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import cast

from lab import paths
from lab.isolation.part import Part
from lab.parts import run

SECTIONS = (
    "hung_endpoint",
    "throttled_namespace",
    "receiver",
    "tenant_text",
    "disruption_budgets",
    "redaction",
    "decide",
)
"""The keys of the file, in its order."""
RESULT = paths.BUILD / "isolation.json"


def parts() -> dict[str, Part]:
    """The parts that are there, by key."""
    names = {name: f"{__package__}.{name}" for name in SECTIONS}
    return {key: cast(Part, importlib.import_module(n)) for key, n in names.items() if importlib.util.find_spec(n)}


def main() -> int:
    """Measure what is asked for, write, show."""
    return run("isolation", "How well tenants are kept apart.", there=parts(), order=SECTIONS, result=RESULT)


if __name__ == "__main__":
    sys.exit(main())
