"""`python -m lab.faults`: every write of the operator meets faults, and a checker replays what came of it.

Writes build/faults.json, and the traces that the checker read to build/faults/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from lab import paths
from lab.faults.campaign import Campaign
from lab.faults.workflows import WORKFLOWS, workflow
from lab.progress import console

TRACES = paths.BUILD / "faults"
RESULT = paths.BUILD / "faults.json"
COUNT = 520
"""Of injections in a sample: a few more than are promised, because a run may end before its write."""

Figures = dict[str, object]


def figures(campaign: Campaign) -> Figures:
    """What is written for programs."""
    return {
        "seed": campaign.seed,
        "workflows": len(campaign.learned),
        "writes": sum(map(len, campaign.learned.values())),
        "kills": campaign.kills,
        "injections": campaign.injections,
        "missed": campaign.missed,
        "violations": len(campaign.violations),
        "crashes": len(campaign.crashes),
    }


def show(found: Figures, campaign: Campaign) -> None:
    """For a person."""
    table = Table("faults", "")
    for name, value in found.items():
        table.add_row(name, str(value))
    for fault, count in sorted(campaign.by_fault.items()):
        table.add_row(f"  {fault}", str(count))
    console.print(table)
    for violation in campaign.violations:
        console.print(f"[red]violation[/red] {violation}", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, show; 1 where anything was violated, or an operator crashed."""
    parser = argparse.ArgumentParser(prog="python -m lab.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=16, help="of the sample (default: %(default)s)")
    parser.add_argument("--count", type=int, default=COUNT, help="injections in it (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="every fault at every write")
    names = [work.name for work in WORKFLOWS]
    parser.add_argument("workflows", nargs="*", metavar="WORKFLOW", help=f"only these of: {', '.join(names)}")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.workflows) - set(names))
    if unknown:
        parser.error(f"expected workflows among {', '.join(names)}; found {', '.join(unknown)}")
    chosen = [workflow(name) for name in options.workflows] or WORKFLOWS
    _empty(TRACES)
    campaign = Campaign(options.seed, None if options.full else options.count, TRACES, chosen)
    asyncio.run(campaign.run())
    found = figures(campaign)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    show(found, campaign)
    return 1 if campaign.violations or campaign.crashes else 0


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


if __name__ == "__main__":
    sys.exit(main())
