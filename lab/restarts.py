"""`python -m lab.restarts`: restarts every kind of workload on the full cluster, kills leaders in the middle of suspensions,
and predicts emergencies in the simulator; what was found goes to build/restarts.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from lab import paths, process
from lab.interrupts import take_sigterm_as_interrupt
from lab.model.predictions import Prediction, all_of_them
from lab.model.predictions import figures as predicted
from lab.progress import console, step
from precision_operator.core.model import RestartBy
from precision_operator.workloads.kinds import table

TESTS = ("tests/cluster/test_killed_suspensions.py", "tests/e2e/test_restarts.py")
REPORT = paths.BUILD / "reports" / "restarts.xml"
RESULT = paths.BUILD / "restarts.json"

KINDS = tuple(kind.singular for kind in table.KINDS if kind.restart_by is not RestartBy.NEVER)
"""Kinds that must have been restarted."""

WORST_P90_ERROR_RATIO = 0.5
LEAST_PREDICTIONS = 30
LEAST_KILLS = 4

Figures = dict[str, object]


def figures(report: Path, predictions: list[Prediction]) -> Figures:
    """What the tests left in their JUnit report, and how good the predictions were."""
    kinds: list[Figures] = []
    left: list[int] = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        found = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        if "completed_untrained" in found:  # the last that a test records: one that failed before is not counted
            kinds.append(
                {
                    "kind": found["restarted_kind"],
                    "restart_seconds": float(found["restart_seconds"]),
                    "backoff_used": int(found["backoff_used"]),
                    "steps_lost": int(found["steps_lost"]),
                    "completed_untrained": found["completed_untrained"] == "True",
                }
            )
        if "killed_at" in found:
            left.append(int(found["jobs_left_suspended"]))
    return {
        "kinds": kinds,
        "predictions": predicted(predictions),
        "kills": {"count": len(left), "jobs_left_suspended": sum(left)},
    }


def out_of_bounds(found: Figures) -> list[str]:
    """What was found and does not do, each with its bound; also where every test passed."""
    kinds, predictions, kills = _parts(found)
    missing = [kind for kind in KINDS if kind not in {row["kind"] for row in kinds}]
    untrained = sorted(str(row["kind"]) for row in kinds if row["completed_untrained"])
    count, ratio = predictions["count"], predictions["p90_error_ratio"]
    killed, left = kills["count"], kills["jobs_left_suspended"]
    bounds = {
        f"kinds: {', '.join(KINDS)} must be restarted, {', '.join(missing)} was not": missing,
        f"completed_untrained: no workload may, {', '.join(untrained)} did": untrained,
        f"predictions.count: at least {LEAST_PREDICTIONS}, found {count}": count < LEAST_PREDICTIONS,
        f"predictions.p90_error_ratio: at most {WORST_P90_ERROR_RATIO}, found {ratio}": not (
            ratio <= WORST_P90_ERROR_RATIO
        ),
        f"kills.count: at least {LEAST_KILLS}, found {killed}": killed < LEAST_KILLS,
        f"kills.jobs_left_suspended: 0, found {left}": left != 0,
    }
    return [bound for bound, broken in bounds.items() if broken]


def _parts(found: Figures) -> tuple[list[Figures], dict[str, float], dict[str, int]]:
    kinds, predictions, kills = found["kinds"], found["predictions"], found["kills"]
    assert isinstance(kinds, list)
    assert isinstance(predictions, dict)
    assert isinstance(kills, dict)
    return kinds, predictions, kills


def show(found: Figures) -> None:
    """For a person."""
    kinds, predictions, kills = _parts(found)
    table = Table("restarts", "", "")
    for kind in kinds:
        for name, value in kind.items():
            if name != "kind":
                table.add_row(str(kind["kind"]), name, str(value))
    for part, values in (("predictions", predictions), ("kills", kills)):
        for name, value in values.items():
            table.add_row(part, name, str(value))
    console.print(table)


def main(arguments: Sequence[str] = ()) -> int:
    """Run, predict, write, show; the tests' own exit code, or 1 where what was found is out of its bounds."""
    parser = argparse.ArgumentParser(prog="python -m lab.restarts", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the random fleets (default: %(default)s)")
    seed = parser.parse_args(arguments).seed
    take_sigterm_as_interrupt()
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    for old in (REPORT, RESULT):
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={REPORT}", *TESTS]
    code = process.call(command)
    if not REPORT.exists():
        return code or 1
    with step("emergencies of random fleets"):
        predictions = all_of_them(seed)
    found = {**figures(REPORT, predictions), "seed": seed}
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    broken = out_of_bounds(found)
    for bound in broken:
        console.print(f"[red]out of bounds[/red]: {bound} (all figures: {RESULT.relative_to(paths.ROOT)})")
    return code or int(bool(broken))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
