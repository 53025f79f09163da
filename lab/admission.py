"""`python -m lab.admission`: runs the tests of admission and of holds, those of an older minor of Kubernetes too; what they
counted goes to build/admission.json.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from rich.table import Table

from lab import paths
from lab.interrupts import take_sigterm_as_interrupt
from lab.process import call
from lab.progress import console

TESTS = tuple(f"tests/cluster/test_{name}.py" for name in ("admission", "webhook", "holds"))
REPORT = paths.BUILD / "reports" / "admission.xml"
RESULT = paths.BUILD / "admission.json"
ENFORCERS = ("policy", "webhook")

Figures = dict[str, object]


def figures(report: Path) -> Figures:
    """What the tests left in their JUnit report; a test that failed has kept nothing."""
    pods: Counter[str] = Counter()  # each is judged under several sets of assignments
    differences = denied = 0
    holds: dict[str, bool] = {}
    older: dict[str, list[bool]] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        found = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
        if "enforcer" in found:
            pods[found["enforcer"]] = max(pods[found["enforcer"]], int(found["pods"]))
            differences += int(found["differences"])
            denied += int(found["denied"])
        if "hold" in found:
            holds[found["hold"]] = _passed(case)
        if "older_minor" in found:
            older.setdefault(found["older_minor"], []).append(_passed(case))
    return {
        "corpus": {
            "pods": max(pods.values(), default=0),
            "function": max(pods.values(), default=0),
            **{name: pods[name] for name in ENFORCERS},
            "differences": differences,
            "denied": denied,
        },
        "older_minor": {"version": next(iter(older), None), "run": bool(older) and all(all(p) for p in older.values())},
        "holds": {"scenarios": len(holds), "kept": sum(holds.values())},
    }


def _passed(case: ElementTree.Element) -> bool:
    return all(case.find(ended) is None for ended in ("failure", "error", "skipped"))


def show(found: Figures) -> None:
    """For a person."""
    table = Table("admission", "", "")
    for part, values in found.items():
        assert isinstance(values, dict)
        for name, value in values.items():
            table.add_row(part, name, str(value))
    console.print(table)


def main() -> int:
    """Run, count, write, show; the tests' own exit code."""
    take_sigterm_as_interrupt()
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    for old in (REPORT, RESULT):
        old.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--older-minor", f"--junitxml={REPORT}", *TESTS]
    code = call(command)
    if not REPORT.exists():
        return code or 1
    found = figures(REPORT)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    return code


if __name__ == "__main__":
    sys.exit(main())
