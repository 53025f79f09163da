"""`python -m lab.faults`: writes of the operator meet faults, policies are odd, a cluster dies piece by piece.

A checker replays what came of it. Writes build/faults.json, and the traces that the checker read to build/faults/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from lab import paths
from lab.cluster.full import require_machine
from lab.errors import LabError
from lab.faults.campaign import Campaign
from lab.faults.misoperation import Misoperation, misoperate
from lab.faults.soak import SoakResult, require_no_cluster
from lab.faults.soak import run as soak
from lab.faults.stage import staged
from lab.faults.workflows import WORKFLOWS, Plane, workflow
from lab.interrupts import INTERRUPTED, take_sigterm_as_interrupt
from lab.progress import console, say, step
from precision_operator.api.wire import integer

TRACES = paths.BUILD / "faults"
RESULT = paths.BUILD / "faults.json"
COUNT = 600
"""Of injections in a sample, so that 500 are done: on a busy machine one write in nine does not come in its run."""

ODD = 600
"""In a sample: about a quarter of what the schema gives."""
ODD_TAKEN = 20
"""The least of these that the operator must have met. The API server takes about one in ten: some 60 in a sample."""
SOAK_MINUTES = 20.0
SOAK_KILLS = 24

Figures = dict[str, object]


@dataclass
class Found:
    """What came of the parts that were run."""

    campaign: Campaign
    odd: Misoperation | None = None
    soak: SoakResult | None = None
    complete: bool = False
    """Whether all that was asked for came to its end by itself."""
    began_at: float = field(default_factory=time.monotonic)

    @property
    def violations(self) -> list[str]:
        """Of all parts."""
        odd = self.odd.violations if self.odd is not None else ()
        soak = self.soak.violations if self.soak is not None else ()
        return [*self.campaign.violations, *(f"odd policies: {v}" for v in odd), *soak]

    @property
    def crashes(self) -> list[str]:
        """Of all parts."""
        odd = self.odd.crashes if self.odd is not None else ()
        soak = self.soak.crashes if self.soak is not None else ()
        return [*self.campaign.crashes, *odd, *soak]

    def figures(self) -> Figures:
        """What is written for programs. None: that part was not run."""
        soak, odd, campaign = self.soak, self.odd, self.campaign
        return {
            "complete": self.complete,
            "minutes": round((time.monotonic() - self.began_at) / 60, 1),
            "seed": campaign.seed,
            "workflows": len(campaign.learned),
            "writes": sum(map(len, campaign.learned.values())),
            "kills": campaign.kills,
            "injections": campaign.injections,
            "missed": campaign.missed,
            "violations": len(self.violations),
            "gaps": campaign.gaps + (odd.gaps if odd is not None else 0) + (soak.gaps if soak is not None else 0),
            "odd_policies": odd.count if odd is not None else None,
            "odd_policies_taken": odd.taken if odd is not None else None,
            "odd_policies_refused": odd.refused if odd is not None else None,
            "crashes": len(self.crashes),
            "soak_minutes": soak.minutes if soak is not None else None,
            "soak_faults": sum(soak.faults.values()) if soak is not None else None,
            "steps_lost_hot": soak.steps_lost_hot if soak is not None else None,
        }

    def too_few(self, floors: Mapping[str, int]) -> list[str]:
        """What was done too seldom to show anything, for people."""
        figures = self.figures()
        return [
            f"expected at least {least} {name}, found {figures[name]}: run it again, with nothing else on the machine"
            for name, least in floors.items()
            if integer(figures[name], 0) < least
        ]

    def show(self) -> None:
        """For a person."""
        table = Table("faults", "")
        for name, value in self.figures().items():
            table.add_row(name, str(value))
        for fault, count in sorted(self.campaign.by_fault.items()):
            table.add_row(f"  {fault}", str(count))
        console.print(table)
        for title, texts in (("violation", self.violations), ("crash", self.crashes)):
            for text in texts:
                console.print(f"[red]{title}[/red] ", end="")
                console.print(text, markup=False, highlight=False)


async def inject(found: Found, *, odd: int) -> None:
    """The parts that need no kubelet."""
    await found.campaign.run()
    if odd:
        found.odd = Misoperation()
        with tempfile.TemporaryDirectory(prefix="odd-") as directory:
            async with staged(Plane.SHARED, Path(directory)) as stage:
                await misoperate(stage, found.odd, seed=found.campaign.seed, count=odd, directory=TRACES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, write, show; 1 where anything was violated, an operator crashed, a step was lost, or too little was done."""
    options = _options(arguments)
    chosen = [workflow(name) for name in options.workflows] or WORKFLOWS
    soaks = not options.workflows and options.soak_minutes > 0
    take_sigterm_as_interrupt()
    try:
        if soaks:  # before the other parts have taken their time
            require_no_cluster()
            require_machine()
    except LabError as error:
        console.print(f"[red]stopped[/red]: {error}")
        return 1
    _empty(TRACES)
    RESULT.unlink(missing_ok=True)  # who is killed must not leave the figures of the run before
    found = Found(Campaign(options.seed, None if options.full else options.count, TRACES, chosen))
    try:
        odd = sys.maxsize if options.full else options.odd
        asyncio.run(inject(found, odd=0 if options.workflows else odd))
        if soaks:
            with step(f"{options.soak_minutes:g} minutes of soak"):
                found.soak = soak(options.seed, options.soak_minutes, kills=SOAK_KILLS, directory=TRACES, say=say)
        found.complete = True
    except KeyboardInterrupt:
        say("interrupted: what was started has been stopped")
        return INTERRUPTED
    except LabError as error:
        console.print(f"[red]stopped[/red]: {error}")
        return 1
    finally:
        RESULT.write_text(json.dumps(found.figures(), indent=2) + "\n")
        found.show()
    too_few = found.too_few(floors(options))
    for text in too_few:
        console.print("[red]too few[/red] ", end="")
        console.print(text, markup=False, highlight=False)
    lost = found.soak is not None and found.soak.steps_lost_hot > 0
    return 1 if found.violations or found.crashes or lost or too_few else 0


def floors(options: argparse.Namespace) -> dict[str, int]:
    """Figure → the least that it must be, of each part that was asked for in its default size or larger."""
    if options.workflows:
        return {}
    injected = options.full or options.count >= COUNT
    least = {"injections": 500, "writes": 100, "kills": 2 * len(WORKFLOWS)} if injected else {}
    least |= {"odd_policies": 300, "odd_policies_taken": ODD_TAKEN} if options.full or options.odd >= ODD else {}
    return least | ({"soak_faults": 20} if options.soak_minutes >= SOAK_MINUTES else {})


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=16, help="of everything random (default: %(default)s)")
    parser.add_argument("--count", type=int, default=COUNT, help="injections in the sample (default: %(default)s)")
    parser.add_argument("--full", action="store_true", help="every fault at every write, and every odd policy")
    parser.add_argument("--odd", type=int, default=ODD, help="odd policies; 0: none (default: %(default)s)")
    parser.add_argument(
        "--soak-minutes", type=float, default=SOAK_MINUTES, help="0: no soak, which needs root (default: %(default)s)"
    )
    names = [work.name for work in WORKFLOWS]
    parser.add_argument("workflows", nargs="*", metavar="WORKFLOW", help=f"only these of: {', '.join(names)}")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.workflows) - set(names))
    if unknown:
        parser.error(f"expected workflows among {', '.join(names)}; found {', '.join(unknown)}")
    return options


def _empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


if __name__ == "__main__":
    sys.exit(main())
