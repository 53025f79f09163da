"""`python -m lab.faults.checker FILE...`: check kept traces again; 1 where anything is violated.

Credentials are written to no trace, so I11 is judged only in the run itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.errors import LabError
from lab.faults.checker import check
from lab.faults.trace import read_trace
from lab.progress import console


def main(arguments: Sequence[str] | None = None) -> int:
    """Check each file, and print what is violated in it, what may be missing from it, and its workflow."""
    parser = argparse.ArgumentParser(prog="python -m lab.faults.checker", description=__doc__)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a trace: build/faults/*.jsonl or *.jsonl.gz"
    )
    failed = False
    for file in parser.parse_args(arguments).files:
        try:
            trace = read_trace(file)
        except LabError as error:
            console.print(str(error), style="red", markup=False)
            failed = True
            continue
        found = check(trace)
        failed = failed or bool(found)
        for violation in found:
            print(f"{file}: {violation}")
        gaps = f", {len(trace.gaps)} gaps" if trace.gaps else ""
        print(f"{file}: {trace.header.workflow}, {len(trace.entries)} entries{gaps}, {len(found)} violations")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
