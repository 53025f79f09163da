"""What is made wrong, and who judges it: each test of it, and the exploration of each scenario; what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import hypothesis
import pytest

import precision_operator
from lab import paths
from lab.errors import LabError
from lab.model.explore import Explorer
from lab.model.scenarios import Scenario, scenarios
from lab.mutants.infection import Watcher
from lab.mutants.operators import Key

TESTS = (
    "tests/unit/core",
    "tests/property",
    "tests/unit/workloads",
    "tests/unit/admission",
    "tests/unit/controller/test_act.py",
    "tests/unit/controller/test_act_gives_way.py",
    "tests/unit/controller/test_act_restarts.py",
    "tests/unit/controller/test_basis.py",
    "tests/unit/controller/test_disruptions.py",
    "tests/unit/controller/test_outdated.py",
)
LEFT_OUT = ("tests/unit/core/test_bounds.py", "tests/unit/core/test_cost.py")
"""Fleets of thousands, which take as long as half of the other tests: they judge sizes and times, no decisions."""

EXPLORER = "explorer"
PACKAGE = Path(precision_operator.__file__).parent
CORE = PACKAGE / "core"
MUTATED = (
    CORE,
    PACKAGE / "admission" / "environment.py",
    PACKAGE / "admission" / "pod.py",
    PACKAGE / "controller" / "act.py",
    PACKAGE / "controller" / "basis.py",
    PACKAGE / "controller" / "disruptions.py",
    PACKAGE / "controller" / "sending.py",
    PACKAGE / "controller" / "writes.py",
    PACKAGE / "workloads" / "budgets.py",
    PACKAGE / "workloads" / "kinds",
    PACKAGE / "workloads" / "requests.py",
)
"""The core, and what else decides on a pod or a Job: how it is read, given its mode, written to, and left alone."""

COUNTING = CORE / "restart"
"""Counts what it lets begin while it asks: nothing in it may be evaluated twice."""

_EXAMPLES = 10
"""Examples of a property, for each mutant: the same ones each time."""

_DEPTH, _FAULTS = 2, 1
"""Of an exploration, for each mutant: with a depth of 3 all of them need two minutes of a processor."""


@dataclass(frozen=True, slots=True)
class Judge:
    """A test or an exploration."""

    name: str
    run: Callable[[], str]
    """What was noticed; empty: nothing."""
    seconds: float = 0.0
    """Of a processor, with the core as it is, watched."""
    infected: frozenset[Key] = frozenset()
    """The places of which a mutant changes its run: of others it can notice nothing."""


def mutated() -> list[Path]:
    """The modules that are made wrong."""
    return sorted(file for path in MUTATED for file in (path.rglob("*.py") if path.is_dir() else (path,)))


def is_pure(path: Path) -> bool:
    """Whether evaluating a part of a module once more changes nothing."""
    return path.is_relative_to(CORE) and not path.is_relative_to(COUNTING)


def with_judges(body: Callable[[list[Judge]], None]) -> None:
    """Load and collect the tests once, and call ``body`` while they can be run.

    Raises:
        LabError: the tests cannot be collected.
    """
    collected = _Collected(body)
    quiet = ["-qq", "--no-summary", "-p", "no:cacheprovider", "--capture=no", "--assert=plain", "--timeout=0"]
    ignored = (f"--ignore={paths.ROOT / name}" for name in LEFT_OUT)
    code = pytest.main([*quiet, *ignored, *(str(paths.ROOT / folder) for folder in TESTS)], plugins=[collected])
    if collected.error is not None:
        raise collected.error
    if code != pytest.ExitCode.OK:
        raise LabError("tests that can be collected", f"pytest {code!r}", f"run pytest {' '.join(TESTS)}")


class _Collected:
    """A pytest plugin: hands the tests over instead of running them."""

    def __init__(self, body: Callable[[list[Judge]], None]) -> None:
        self._body = body
        self._failed: list[str] = []
        self.error: BaseException | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = getattr(item, "obj", None)
            own = getattr(test, "_hypothesis_internal_use_settings", None)
            if test is not None and own is not None:
                fewer = min(own.max_examples, _EXAMPLES)
                settings = hypothesis.settings(own, max_examples=fewer, derandomize=True, database=None)
                getattr(test, "__func__", test)._hypothesis_internal_use_settings = settings

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # pytest says what cannot be collected
        tests = [Judge(item.nodeid, partial(self._tested, item)) for item in session.items]
        explorers = [Judge(f"{EXPLORER}::{entry.name}", partial(_explored, entry)) for entry in scenarios()]
        try:
            self._body([*tests, *explorers])
        except BaseException as error:  # noqa: BLE001  pytest would make a report of it: it is raised outside
            self.error = error
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.append(report.longreprtext)

    def _tested(self, item: pytest.Item) -> str:
        self._failed.clear()
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        return "".join(self._failed)


def _explored(scenario: Scenario) -> str:
    findings = Explorer(scenario).run(depth=_DEPTH, faults=_FAULTS, seconds=float("inf")).findings
    return str(findings[0].violation) if findings else ""


@dataclass(frozen=True, slots=True)
class Trace:
    """A judge on the core as it is; can be passed from one process to another."""

    noticed: str
    seconds: float
    infected: frozenset[Key]


def traced(judge: Judge, watcher: Watcher) -> Trace:
    """Run it on the core as it is, watched."""
    watcher.begin()
    begun = time.process_time()
    noticed = judge.run()
    return Trace(noticed, time.process_time() - begun, frozenset(watcher.infected))


def known(judge: Judge, trace: Trace) -> Judge:
    """The judge, with what it costs and notices.

    Raises:
        LabError: it notices something in the core as it is.
    """
    if trace.noticed:
        raise LabError(
            "a core in which no test and no scenario finds a fault", f"{judge.name}: {trace.noticed}", "mend it"
        )
    return replace(judge, seconds=trace.seconds, infected=trace.infected)
