"""`python -m lab.suite check|test|test-all`: everything that must hold, stage by stage, with the time that each took.

All stages run even if one fails, so that one run tells all; none does on a machine that is refused. What the run
started, it removes, also when it is interrupted.

Tests of clusters wait for clocks and for other programs half of the time. What only computes runs beside them, at low
priority (`beside`), images are built there too, and its output follows when both are through.
"""

from __future__ import annotations

import json
import signal
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from lab import paths
from lab.cluster import Cluster
from lab.cluster.full import require_machine
from lab.errors import LabError
from lab.interrupts import INTERRUPTED, take_sigterm_as_interrupt
from lab.process import Daemon, call
from lab.progress import console, elapsed, say
from lab.release.tools import tools
from lab.setup.certmanager import cert_manager
from lab.setup.kube import ENVIRONMENT, MODULE, kube_binaries, test_command
from lab.setup.older import older_control_plane

_REPORTS = paths.BUILD / "reports"

Action = Callable[[], int]


CHECK_WORKERS = 2
"""One a core."""

CLUSTER_WORKERS = 3
"""These tests wait for other programs, and for clocks, half of the time."""

TRAINER_WORKERS = 2
"""One a core."""

NICE = 10
"""Of what runs beside tests of clusters. Each program of a cluster is a scheduling group of its own: these are many.

At 5 the tests of clusters took a fifth longer; at 10 what runs beside still ends before they do.
"""

BY_FILE = ("--dist", "loadfile")
"""Tests of one file share what they set up. Files of many tests first."""

BY_FILE_IN_ORDER = (*BY_FILE, "--no-loadscope-reorder")
"""In the order that the folder's conftest gives them."""

BY_TEST = ("--dist", "worksteal")
"""These tests share nothing that is dear to set up: who is done takes the next one, of whatever file."""


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
    """Runs stages and remembers how they went: title, whether it passed, seconds."""

    counts: Counts = field(default_factory=Counts)
    results: list[tuple[str, bool, float]] = field(default_factory=list)
    finished: bool = False
    """All stages were tried."""

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

    def pytest(
        self, *folders: str, workers: int = 1, share: Sequence[str] = BY_FILE, options: Sequence[str] = ()
    ) -> bool:
        """Run the tests of folders. None found is a failure: pytest says so with an exit code of its own.

        ``workers``: processes that share the tests among them as ``share`` says, each with a control plane of its own.
        ``options``: pytest's own; they name the report too.
        """
        names = [*(Path(folder).name for folder in folders), *(option.strip("-") for option in options)]
        report = _REPORTS / f"{'-'.join(names)}.xml"
        report.unlink(missing_ok=True)

        def action() -> int:
            shared = ["-n", str(workers), *share] if workers > 1 else []
            report_to = f"--junitxml={report}"
            code = call([sys.executable, "-m", "pytest", "-q", "--durations=5", *shared, report_to, *options, *folders])
            if report.exists():
                self.counts.add(report)
            return code

        return self.stage(f"pytest {' '.join((*options, *folders))}", action)

    def write(self, path: Path) -> None:
        """For :meth:`take`, by another process."""
        path.with_suffix(".tmp").write_text(json.dumps(asdict(self)))
        path.with_suffix(".tmp").replace(path)

    def take(self, title: str, path: Path) -> None:
        """Add what another process has written; that it did not finish is a failure of that ``title``."""
        found = json.loads(path.read_text()) if path.exists() else asdict(Suite())
        self.results += [(stage, passed, seconds) for stage, passed, seconds in found["results"]]
        for name, count in found["counts"].items():
            setattr(self.counts, name, getattr(self.counts, name) + count)
        if not found["finished"]:
            self.results.append((title, False, 0.0))

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
    """Everything, from a bare machine: requirements, then tests of clusters and, beside them, what only computes.

    Returns whether anything could be tried at all: a machine that is a node of another cluster is left as it is.
    """
    if not suite.stage("requirements of the machine", _requirements):
        return False
    if not suite.stage("Kubernetes binaries", lambda: 0 if kube_binaries() else 1):
        return False
    cluster = Cluster()
    found_running = cluster.running()
    try:
        with _beside(suite):
            suite.pytest("tests/chart", "tests/cluster", workers=CLUSTER_WORKERS, share=BY_FILE_IN_ORDER)
            if up := suite.stage("full cluster", lambda: _done(cluster.up())):
                suite.pytest("tests/e2e")
        for folder in more if up else ():  # benchmarks have the machine for themselves
            suite.pytest(folder)
    finally:
        if not found_running:
            cluster.down()
    return True


@contextmanager
def _beside(suite: Suite) -> Iterator[None]:
    """Run `beside` in a process of its own until the body is through and itself too; then show what it said."""
    program, report = _program_beside(), _REPORTS / "beside.json"
    for path in (program.log, report):
        path.unlink(missing_ok=True)
    try:
        program.start()
        say(
            f"beside the following: style, types, unit tests, images, trainer; see {program.log.relative_to(paths.ROOT)}"
        )
        yield
        if program.running():
            say("waiting for what runs beside …")
        while program.running():
            time.sleep(1)
    finally:
        program.stop(grace=60)
        if program.log.exists():
            sys.stdout.write(program.log.read_text(errors="replace"))
        suite.take("beside", report)


def _program_beside() -> Daemon:
    command = [sys.executable, "-m", "lab.suite", "beside"]
    return Daemon("beside", command, _REPORTS, nice=NICE, at_our_death=signal.SIGTERM)


def beside(suite: Suite) -> None:
    """What waits for nothing: style, types, tests that start no cluster, and the images that the full cluster needs."""
    report = _REPORTS / "beside.json"
    _static(suite)
    suite.write(report)
    suite.stage("images", lambda: call([sys.executable, "-m", "lab", "images"]))
    suite.pytest("tests/unit", "tests/property", workers=CHECK_WORKERS)
    suite.write(report)
    suite.stage("go test (lab/kube)", lambda: call(test_command(), cwd=MODULE, env=ENVIRONMENT))
    suite.pytest("tests/trainer", workers=TRAINER_WORKERS, share=BY_TEST)
    suite.finished = True
    suite.write(report)


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
    suites: dict[str, Callable[[Suite], object]] = {
        "check": check, "test": test, "test-all": test_all, "beside": beside,
    }  # fmt: skip
    if len(sys.argv) != 2 or sys.argv[1] not in suites:
        console.print("usage: python -m lab.suite check|test|test-all", markup=False)
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
    if _program_beside().running():
        raise LabError(
            "no other suite in this checkout", "one runs", "wait until it has ended, or use another checkout"
        )
    return 0


def _done(_: object) -> int:
    return 0


if __name__ == "__main__":
    sys.exit(main())
