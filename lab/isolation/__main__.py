"""``python -m lab.isolation [part …]``: measures, writes build/isolation.json, shows it; 1 where a bound is missed."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from rich.table import Table

from lab import paths
from lab.errors import LabError
from lab.interrupts import take_sigterm_as_interrupt
from lab.isolation.part import Part, Section
from lab.progress import console, step

SECTIONS = ("hung_endpoint", "throttled_namespace", "receiver", "tenant_text", "redaction", "decide")
"""The keys of the file, in its order."""
RESULT = paths.BUILD / "isolation.json"


def parts() -> dict[str, Part]:
    """The parts that are there, by key."""
    names = {name: f"{__package__}.{name}" for name in SECTIONS}
    return {key: cast(Part, importlib.import_module(n)) for key, n in names.items() if importlib.util.find_spec(n)}


def show(found: dict[str, Section]) -> None:
    """For a person."""
    table = Table("isolation", "", "")
    for key, section in found.items():
        for figures in [section] if isinstance(section, Mapping) else section:
            for name, value in figures.items():
                table.add_row(key, name, str(value))
    console.print(table)


def main() -> int:
    """Measure what is asked for, write, show."""
    there = parts()
    parser = argparse.ArgumentParser(prog="python -m lab.isolation", description="How well tenants are kept apart.")
    parser.add_argument("parts", nargs="*", help=f"which to measure; all where none is named: {', '.join(there)}")
    wanted = parser.parse_args().parts or list(there)
    if unknown := sorted(set(wanted) - set(there)):
        parser.error(f"expected parts of {', '.join(there)}; found {', '.join(unknown)}")
    take_sigterm_as_interrupt()
    found: dict[str, Section] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    missed: list[str] = []
    for key in wanted:
        found.pop(key, None)
        with step(key), tempfile.TemporaryDirectory(prefix=f"isolation-{key}-") as directory:
            try:
                found[key] = there[key].measure(Path(directory))
            except LabError as error:
                missed.append(f"{key}: {error}")
            else:
                missed += [f"{key}: {sentence}" for sentence in there[key].missed(found[key])]
        RESULT.parent.mkdir(parents=True, exist_ok=True)
        ordered = {name: found[name] for name in SECTIONS if name in found}
        RESULT.write_text(json.dumps(ordered, indent=1) + "\n")
    show(found)
    for sentence in missed:
        print(sentence, file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
