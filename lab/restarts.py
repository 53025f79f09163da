"""`python -m lab.restarts`: restarts every kind of workload on the full cluster, kills leaders in the middle of suspensions,
and predicts emergencies in the simulator; what was found goes to build/restarts.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from rich.table import Table

from lab import paths
from lab.model.predictions import Prediction, all_of_them
from lab.model.predictions import figures as predicted
from lab.progress import console, step

TESTS = ("tests/cluster/test_killed_suspensions.py", "tests/e2e/test_restarts.py")
REPORT = paths.BUILD / "reports" / "restarts.xml"
RESULT = paths.BUILD / "restarts.json"

Figures = dict[str, object]


def figures(report: Path, predictions: list[Prediction]) -> Figures:
    """What the tests left in their JUnit report, and how good the predictions were."""
    kinds: list[Figures] = []
    left: list[int] = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        found = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        if "restarted_kind" in found:
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


def show(found: Figures) -> None:
    """For a person."""
    kinds, predictions, kills = found["kinds"], found["predictions"], found["kills"]
    assert isinstance(kinds, list)
    assert isinstance(predictions, dict)
    assert isinstance(kills, dict)
    table = Table("restarts", "", "")
    for kind in kinds:
        for name, value in kind.items():
            if name != "kind":
                table.add_row(kind["kind"], name, str(value))
    for part, values in (("predictions", predictions), ("kills", kills)):
        for name, value in values.items():
            table.add_row(part, name, str(value))
    console.print(table)


def main() -> int:
    """Run, predict, write, show; the tests' own exit code."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    for old in (REPORT, RESULT):
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={REPORT}", *TESTS]
    code = subprocess.run(command, cwd=paths.ROOT, check=False).returncode
    if not REPORT.exists():
        return code or 1
    with step("emergencies of random fleets"):
        predictions = all_of_them()
    found = figures(REPORT, predictions)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    return code


if __name__ == "__main__":
    sys.exit(main())
