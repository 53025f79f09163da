"""``python -m lab.faults.soak``: one soak; its trace and logs go to build/faults. 1 where anything was violated."""

from __future__ import annotations

import argparse
import sys

from rich.table import Table

from lab import paths
from lab.errors import LabError
from lab.faults.soak import SoakResult, run
from lab.interrupts import INTERRUPTED, take_sigterm_as_interrupt
from lab.progress import console, say

DIRECTORY = paths.BUILD / "faults"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.faults.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of what is killed when (default 1)")
    parser.add_argument("--minutes", type=float, default=20.0, help="how long faults last (default 20)")
    parser.add_argument("--kills", type=int, default=24, help="how many (default 24)")
    return parser.parse_args()


def show(result: SoakResult) -> None:
    """For a person."""
    table = Table("fault", "times", "recovery in seconds")
    for kind, count in sorted(result.faults.items()):
        table.add_row(kind, str(count), ", ".join(f"{s:.1f}" for s in result.recovery_seconds.get(kind, ())))
    console.print(table)
    for text in (*result.violations, *result.crashes):
        console.print(f"violated: {text}", style="red", markup=False)
    say(f"{result.minutes:g} minutes, {sum(result.faults.values())} faults, {result.rollbacks} rollbacks retried")
    bad = f"{len(result.violations)} violations, {len(result.crashes)} crashes of the operator"
    say(f"{result.steps_hot} steps trained, {result.steps_lost_hot} lost, {bad}")
    say(f"trace: {result.trace}")


def main() -> int:
    """Soak and show."""
    arguments = _arguments()
    take_sigterm_as_interrupt()
    try:
        result = run(arguments.seed, arguments.minutes, kills=arguments.kills, directory=DIRECTORY, say=say)
    except KeyboardInterrupt:
        say("interrupted: the cluster has been stopped")
        return INTERRUPTED
    except LabError as error:
        console.print(f"[red]stopped[/red]: {error}")
        return 1
    show(result)
    return 1 if result.violations or result.crashes or result.steps_lost_hot else 0


if __name__ == "__main__":
    sys.exit(main())
