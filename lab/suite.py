"""`python -m lab.suite check|test|test-all`: everything that must hold, stage by stage, with the time that each took.

All stages run even if one fails, so that one run tells all; none does on a machine that is refused. What the run
started, it removes, also when it is interrupted.
"""

from __future__ import annotations

import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from lab import paths
from lab.cluster import Cluster
from lab.cluster.full import require_machine
from lab.errors import LabError
from lab.interrupts import INTERRUPTED, take_sigterm_as_interrupt
from lab.process import call
from lab.progress import console, elapsed, say
from lab.release.tools import tools
from lab.setup.certmanager import cert_manager
from lab.setup.kube import ENVIRONMENT, MODULE, kube_binaries, test_command
from lab.setup.older import older_control_plane

_REPORTS = paths.BUILD / "reports"

Action = Callable[[], int]


CHECK_WORKERS = 2
"""One a core."""

CLUSTER_WORKERS = 2
"""These tests wait for other programs, which share the two cores with them: three end no sooner, and miss deadlines."""

TRAINER_WORKERS = 2
"""One a core. These tests share nothing that is dear to set up: who is done takes the next one, of whatever file."""


@dataclass
class Counts:
    """What pytest counted, over all its runs."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, report: Path) -> None:
        """Add the counts of a JUnit report."""
        for suite in ElementTree.parse(report).getroot().iter("testsuite"):
            total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            self.failed += failed
            self.skipped += skipped
            self.passed += total - failed - skipped


@dataclass
class Suite:
    """Runs stages and remembers how they went."""

    counts: Counts = field(default_factory=Counts)
    results: list[tuple[str, bool, float]] = field(default_factory=list)

    def stage(self, title: str, action: Action) -> bool:
        """Run one stage; a fault of the laboratory fails the stage, not the program."""
        say(f"━━ {title}")
        begun = time.monotonic()
        try:
            passed = action() == 0
        except LabError as error:
            console.print(f"[red]{title}[/red]: {error}")
            passed = False
        self.results.append((title, passed, time.monotonic() - begun))
        return passed

    def tool(self, *command: str) -> bool:
        """Run a program of the virtual environment."""
        program = str(Path(sys.executable).with_name(command[0]))
        return self.stage(" ".join(command), lambda: call([program, *command[1:]]))

    def pytest(self, *folders: str, workers: int = 1, by_file: bool = True, options: Sequence[str] = ()) -> bool:
        """Run the tests of folders. None found is a failure: pytest says so with an exit code of its own.

        ``workers``: processes that share the files among them, each with a control plane of its own: tests of one file
        share what they set up. Not ``by_file``: that share the tests. ``options``: pytest's own; they name the report too.
        """
        names = [*(Path(folder).name for folder in folders), *(option.strip("-") for option in options)]
        report = _REPORTS / f"{'-'.join(names)}.xml"
        report.unlink(missing_ok=True)

        def action() -> int:
            shared = ["-n", str(workers), "--dist", "loadfile" if by_file else "worksteal"] if workers > 1 else []
            report_to = f"--junitxml={report}"
            code = call([sys.executable, "-m", "pytest", "-q", "--durations=5", *shared, report_to, *options, *folders])
            if report.exists():
                self.counts.add(report)
            return code

        return self.stage(f"pytest {' '.join((*options, *folders))}", action)

    def conclude(self) -> int:
        """Print what happened, and return the exit code."""
        table = Table("stage", "", "seconds", title=f"{elapsed()} in all")
        for title, passed, seconds in self.results:
            table.add_row(title, "[green]passed[/green]" if passed else "[red]failed[/red]", f"{seconds:.1f}")
        console.print(table)
        counts = self.counts
        print(f"tests: {counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped", flush=True)
        return 0 if self.results and all(passed for _, passed, _ in self.results) else 1


def check(suite: Suite) -> None:
    """What is quick: style, types, architecture, and the tests of pure code but for the slow ones."""
    _static(suite)
    suite.pytest("tests/unit", workers=CHECK_WORKERS, options=("-m", "not slow"))


def _static(suite: Suite) -> None:
    """What runs no test."""
    suite.tool("ruff", "check", ".")
    suite.tool("ruff", "format", "--check", ".")
    suite.tool("mypy")
    suite.tool("lint-imports")
    suite.stage("generated files", lambda: call([sys.executable, "manifests/generate.py", "--check"]))
    suite.tool("mkdocs", "build", "--strict")


def test(suite: Suite, *more: str) -> bool:
    """Everything, from a bare machine: requirements, check, then tests against real programs and a real cluster.

    Returns whether anything could be tried at all: a machine that is a node of another cluster is left as it is.
    """
    if not suite.stage("requirements of the machine", _requirements):
        return False
    if not suite.stage("Kubernetes binaries", lambda: 0 if kube_binaries() else 1):
        return False
    _static(suite)
    suite.pytest("tests/unit", "tests/property", workers=CHECK_WORKERS)
    suite.stage("go test (lab/kube)", lambda: call(test_command(), cwd=MODULE, env=ENVIRONMENT))
    suite.pytest("tests/chart", workers=CLUSTER_WORKERS)
    suite.pytest("tests/trainer", workers=TRAINER_WORKERS, by_file=False)
    suite.pytest("tests/cluster", workers=CLUSTER_WORKERS)
    cluster = Cluster()
    found_running = cluster.running()
    try:
        if suite.stage("full cluster", lambda: _done(cluster.up())):
            for folder in ("tests/e2e", *more):
                suite.pytest(folder)
    finally:
        if not found_running:
            cluster.down()
    return True


def test_all(suite: Suite) -> None:
    """`test`, and what takes long."""
    more = (folder for folder in ("tests/faults", "tests/bench") if (paths.ROOT / folder).is_dir())
    if not test(suite, *more):
        return
    if suite.stage("a registry", lambda: 0 if tools(making=False) else 1):
        suite.pytest("tests/release")
    if suite.stage("an older minor of Kubernetes", lambda: 0 if older_control_plane() else 1):
        suite.pytest("tests/cluster", options=("--older-minor", "-m", "older_minor"))
    if suite.stage("cert-manager", lambda: 0 if cert_manager() else 1):
        suite.pytest("tests/cluster", options=("--cert-manager", "-m", "cert_manager"))


def main() -> int:
    """Run the suite that the command line names."""
    suites: dict[str, Callable[[Suite], object]] = {"check": check, "test": test, "test-all": test_all}
    if len(sys.argv) != 2 or sys.argv[1] not in suites:
        console.print(f"usage: python -m lab.suite {'|'.join(suites)}", markup=False)
        return 2
    take_sigterm_as_interrupt()
    _REPORTS.mkdir(parents=True, exist_ok=True)
    suite = Suite()
    try:
        suites[sys.argv[1]](suite)
    except KeyboardInterrupt:
        suite.results.append(("interrupted", False, 0.0))
        suite.conclude()
        return INTERRUPTED
    return suite.conclude()


def _requirements() -> int:
    require_machine()
    return 0


def _done(_: object) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main())
