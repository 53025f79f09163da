"""Judges the tests: a mutant of the core runs through them, the fast ones first, then through the explorer.

Each mutant lives in a process forked from this one, which has the libraries loaded but not the core: the mutated module is
compiled from memory, so the checkout is never touched and two mutants never meet.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import pickle
import random
import resource
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import BinaryIO

import hypothesis
import pytest
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import precision_operator
from lab import paths
from lab.errors import LabError
from lab.model.mutants import Mutant, mutants
from lab.progress import console

FAST = ("tests/unit/core", "tests/property")
SLOW = ("tests/property/test_invariants.py",)
"""The tests that judge: these after those and the explorer, for they try many examples."""

_EXAMPLES = 25
"""Examples of a property, for each mutant."""

_DEPTH, _FAULTS = 3, 1
_CPU_SECONDS = 120
"""A mutant that has used so much processor time does not end: killed."""

_RELOADED = ("precision_operator.core", "lab.model", "tests")


@dataclass(frozen=True)
class Mutation:
    """A mutant, and who noticed."""

    name: str
    diff: str
    killed_by: str | None


def mutate(*, count: int, seed: int, seconds: float, only: str = "") -> list[Mutation]:
    """Judge a seeded sample of the core's mutants, two at a time; where ``seconds`` end first, a smaller one.

    Raises:
        LabError: the tests fail on the core as it is.
    """
    everything = [mutant for mutant in _all() if only in mutant.name]
    sample = random.Random(seed).sample(everything, min(count, len(everything)))
    begun = time.monotonic()
    clean = next(_judged([None], 1))[1]
    if clean.killer is not None:
        raise LabError("tests that pass on the core as it is", f"{clean.killer}: {clean.output}", "mend them first")
    found: dict[Mutant, str | None] = {}
    columns = (TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as bar:
        task = bar.add_task("", total=len(sample))
        for mutant, verdict in _judged(sample, 2, clean.violations, lambda: time.monotonic() - begun < seconds):
            assert mutant is not None
            found[mutant] = verdict.killer
            alive = sum(killer is None for killer in found.values())
            bar.update(task, advance=1, description=f"{alive} survive")
    return sorted(
        (Mutation(mutant.name, mutant.diff, killer) for mutant, killer in found.items()), key=lambda entry: entry.name
    )


def _all() -> Iterator[Mutant]:
    package = Path(precision_operator.__file__).parent
    for path in sorted((package / "core").rglob("*.py")):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        yield from mutants(module, path)


@dataclass(frozen=True)
class _Verdict:
    killer: str | None
    violations: frozenset[str] = frozenset()
    output: str = ""


def _judged(
    sample: Sequence[Mutant | None],
    processes: int,
    known: frozenset[str] = frozenset(),
    go_on: Callable[[], bool] = lambda: True,
) -> Iterator[tuple[Mutant | None, _Verdict]]:
    """Each mutant's verdict, as they come. None stands for the core as it is."""
    waiting = list(reversed(sample))
    running: dict[int, tuple[int, Mutant | None, BinaryIO]] = {}
    while running or (waiting and go_on()):
        while waiting and len(running) < processes and go_on():
            mutant = waiting.pop()
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                _live(mutant, write, known)
            os.close(write)
            running[read] = (child, mutant, os.fdopen(read, "rb"))
        for ready in select.select(list(running), [], [])[0]:
            child, mutant, stream = running.pop(ready)
            with stream:
                answer = stream.read()
            _, state = os.waitpid(child, 0)
            yield mutant, pickle.loads(answer) if answer else _Verdict("time" if os.WIFSIGNALED(state) else "crash")


def _live(mutant: Mutant | None, write: int, known: frozenset[str]) -> None:
    """The life of a mutant's process: it ends here."""
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    try:
        verdict = _judge(mutant, known)
    except BaseException:  # noqa: BLE001  whatever a mutant raises, it was noticed
        verdict = _Verdict("an error", output=traceback.format_exc())
    with os.fdopen(write, "wb") as stream_out:
        pickle.dump(verdict, stream_out)
    os._exit(0)


def _judge(mutant: Mutant | None, known: frozenset[str]) -> _Verdict:
    for name in [name for name in sys.modules if name.startswith(_RELOADED)]:
        if name not in (__name__, "lab.model.mutants"):
            del sys.modules[name]
    if mutant is not None:
        sys.meta_path.insert(0, _Finder(mutant))
    os.chdir(paths.ROOT)
    sys.path.insert(0, str(paths.ROOT))
    failed = _tested(FAST, besides=SLOW)
    if failed is None:
        found = _explored()
        failed = "the explorer" if found - known and mutant is not None else _tested(SLOW)
        return _Verdict(failed, found)
    return _Verdict(failed)


def _tested(folders: tuple[str, ...], *, besides: tuple[str, ...] = ()) -> str | None:
    """The first test that fails, or None."""
    watcher = _FewExamples()
    words = ["-x", "-q", "-p", "no:cacheprovider", "--assert=plain", "--timeout=0"]
    code = pytest.main([*words, *(f"--ignore={path}" for path in besides), *folders], plugins=[watcher])
    return None if code == pytest.ExitCode.OK else watcher.failed or f"pytest {code!r}"


def _explored() -> frozenset[str]:
    from lab.model.explore import Explorer  # the mutated one, therefore not at the top
    from lab.model.scenarios import scenarios

    return frozenset(
        f"{finding.scenario} {finding.violation}"
        for scenario in scenarios()
        for finding in Explorer(scenario).run(depth=_DEPTH, faults=_FAULTS, seconds=float("inf")).findings
    )


class _FewExamples:
    """A pytest plugin: properties try fewer examples, the same ones each time."""

    failed = ""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            test = getattr(item, "obj", None)
            own = getattr(test, "_hypothesis_internal_use_settings", None)
            if test is not None and own is not None:
                fewer = min(own.max_examples, _EXAMPLES)
                settings = hypothesis.settings(own, max_examples=fewer, derandomize=True, database=None)
                getattr(test, "__func__", test)._hypothesis_internal_use_settings = settings

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = report.nodeid


class _Finder(importlib.machinery.SourceFileLoader):
    """Finds and loads the mutated module instead of the one on disk."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(mutant.path))
        self._mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of the mutated module; None for any other."""
        if name != self._mutant.module:
            return None
        return importlib.util.spec_from_file_location(name, self._mutant.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        """The mutant's code."""
        return compile(ast.parse(self._mutant.source), str(self._mutant.path), "exec")
