"""The dashboard as a person uses it: its tests in headless Chromium, and the figures that they leave in their report."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TypedDict

from lab import paths
from lab.errors import LabError

TESTS = "tests/cluster/test_dashboard.py"
REPORT = paths.BUILD / "reports" / "webpage.xml"
LEAST_FLOWS = 6


class Webpage(TypedDict):
    """What was found."""

    flows: list[str]
    """Ways that a person goes through the page; all of them passed."""
    axe_violations: int
    """In all pages that were judged, light and dark."""
    workloads: int
    """Of the largest fleet that was shown."""
    first_paint_seconds: float
    """From the navigation until that fleet stood in the grid."""


def webpage() -> Webpage:
    """Go every way through the page.

    Raises:
        LabError: one of them failed, or there are fewer than ``LEAST_FLOWS``.
    """
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={REPORT}", TESTS]
    code = subprocess.run(command, cwd=paths.ROOT, check=False).returncode
    if code != 0 or not REPORT.exists():
        raise LabError("every way through the dashboard to pass", f"exit code {code}", f"run {' '.join(command[1:])}")
    found = figures(REPORT)
    if len(found["flows"]) < LEAST_FLOWS:
        raise LabError(f"at least {LEAST_FLOWS} ways", f"{', '.join(found['flows'])}", f"look into {TESTS}")
    return found


def figures(report: Path) -> Webpage:
    """What the tests left in their report."""
    left: dict[str, list[str]] = {}
    for entry in ElementTree.parse(report).iter("property"):
        left.setdefault(entry.attrib["name"], []).append(entry.attrib["value"])
    return Webpage(
        flows=sorted(set(left.get("flow", []))),
        axe_violations=sum(map(int, left.get("axe_violations", []))),
        workloads=max(map(int, left.get("workloads", ["0"]))),
        first_paint_seconds=max(map(float, left.get("first_paint_seconds", ["nan"]))),
    )
