"""What is measured part by part into one file: each part anew, the others' figures kept, and what misses its bounds said."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from lab.errors import LabError
from lab.interrupts import take_sigterm_as_interrupt
from lab.isolation.part import Part, Section
from lab.progress import console, step


def run(name: str, description: str, *, there: Mapping[str, Part], order: Sequence[str], result: Path) -> int:
    """Measure the parts that the command line names, or all that are there; write and show. 1 where a bound is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m lab.{name}", description=description)
    parser.add_argument("parts", nargs="*", help=f"which to measure; all where none is named: {', '.join(there)}")
    wanted = parser.parse_args().parts or list(there)
    if unknown := sorted(set(wanted) - set(there)):
        parser.error(f"expected parts of {', '.join(there)}; found {', '.join(unknown)}")
    take_sigterm_as_interrupt()
    found: dict[str, Section] = json.loads(result.read_text()) if result.exists() else {}
    missed: list[str] = []
    for key in wanted:
        found.pop(key, None)
        with step(key), tempfile.TemporaryDirectory(prefix=f"{name}-{key}-") as directory:
            try:
                found[key] = there[key].measure(Path(directory))
            except LabError as error:
                missed.append(f"{key}: {error}")
            except Exception as error:  # noqa: BLE001  what the other parts found is written all the same
                traceback.print_exc()
                missed.append(f"{key}: {type(error).__name__}: {error}")
            else:
                missed += [f"{key}: {sentence}" for sentence in there[key].missed(found[key])]
        result.parent.mkdir(parents=True, exist_ok=True)
        ordered = {each: found[each] for each in order if each in found}
        result.write_text(json.dumps(ordered, indent=1) + "\n")
    _show(name, found)
    for sentence in missed:
        print(sentence, file=sys.stderr)
    return 1 if missed else 0


def _show(name: str, found: Mapping[str, Section]) -> None:
    """For a person."""
    table = Table(name, "", "")
    for key, section in found.items():
        for figures in [section] if isinstance(section, Mapping) else section:
            for figure, value in figures.items():
                table.add_row(key, figure, str(value))
    console.print(table)
