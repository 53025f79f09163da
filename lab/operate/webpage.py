"""The dashboard as a person uses it: its tests in headless Chromium, and the figures that they leave in their report."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from lab import paths, process
from lab.errors import LabError
from lab.isolation.part import Section

TESTS = "tests/cluster/test_dashboard.py"
REPORT = paths.BUILD / "reports" / "webpage.xml"
LEAST_FLOWS = 6
LEAST_WORKLOADS = 2000
MOST_SECONDS = 3.0
"""Until so many workloads stand in the grid."""


class Webpage(TypedDict):
    """What was found."""

    flows: int
    """Ways that a person goes through the page; all of them passed."""
    flow_names: list[str]
    axe_violations: int
    """In all pages that were judged, light and dark."""
    workloads: int
    """Of the largest fleet that was shown."""
    first_paint_seconds: float | None
    """From the navigation until that fleet stood in the grid; None: no test has measured it."""


def webpage() -> Webpage:
    """Go every way through the page.

    Raises:
        LabError: one of them failed.
    """
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={REPORT}", TESTS]
    code = process.call(command)
    if code != 0 or not REPORT.exists():
        raise LabError("every way through the dashboard to pass", f"exit code {code}", f"run {' '.join(command[1:])}")
    return figures(REPORT)


def missed(found: Section) -> list[str]:
    """Too few ways, a rule of axe that is broken, too small a fleet, or one that is shown too late."""
    assert isinstance(found, Mapping)
    flows, violations, workloads = (found.get(name) for name in ("flows", "axe_violations", "workloads"))
    wrong = []
    if not isinstance(flows, int) or flows < LEAST_FLOWS:
        wrong.append(f"expected at least {LEAST_FLOWS} flows, found {flows}")
    if violations != 0:
        wrong.append(f"expected no axe_violations, found {violations}")
    if not isinstance(workloads, int) or workloads < LEAST_WORKLOADS:
        wrong.append(f"expected {LEAST_WORKLOADS} workloads, found {workloads}")
    seconds = found.get("first_paint_seconds")
    if not isinstance(seconds, int | float) or not seconds <= MOST_SECONDS:
        wrong.append(f"expected first_paint_seconds of at most {MOST_SECONDS:g}, found {seconds}")
    return wrong


def figures(report: Path) -> Webpage:
    """What the tests left in their report."""
    left: dict[str, list[str]] = {}
    for entry in ElementTree.parse(report).iter("property"):
        left.setdefault(entry.attrib["name"], []).append(entry.attrib["value"])
    names = sorted(set(left.get("flow", [])))
    return Webpage(
        flows=len(names),
        flow_names=names,
        axe_violations=sum(map(int, left.get("axe_violations", []))),
        workloads=max(map(int, left.get("workloads", ["0"]))),
        first_paint_seconds=max(map(float, left.get("first_paint_seconds", [])), default=None),
    )
