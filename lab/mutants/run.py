"""Judges the tests: breaks the operator in one place at a time, and asks those who call that place whether they notice.

Operator and tests are loaded once. Each mutant lives in a process forked from this one, in which the functions of its module
get the mutant's code: the checkout is never touched, and two mutants never meet.
"""

from __future__ import annotations

import gc
import os
import pickle
import random
import resource
import select
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import BinaryIO, NoReturn, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lab.errors import LabError
from lab.mutants.judges import PACKAGE, Judge, Trace, known, mutated, traced, with_judges
from lab.mutants.operators import Mutant, Place, places
from lab.progress import console, say

_PROCESSES = 2
_PARTS = 40
"""In so many the judges are measured; each has a process of its own."""

_COLUMNS = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
_BYTES = 4 << 30
"""What a mutant may allocate."""

_ENOUGH_SECONDS = 45.0
"""Of a processor: who has survived so long is counted as a survivor. All judges of a rollback need four times as much."""

_SPARE_SECONDS, _PATIENCE = 5.0, 10.0
"""A judge that needs these seconds of a processor, and so many times its own, will not end with this mutant: killed."""

_WAITING_SECONDS = 120.0
"""A judge that needs so long, and less of a processor, waits for what never comes with this mutant: killed."""


@dataclass(frozen=True)
class Mutation:
    """A mutant, and who noticed."""

    name: str
    diff: str
    killed_by: str
    """The first who noticed; empty: nobody."""


def mutate(*, count: int, seed: int, seconds: float, only: str = "") -> list[Mutation]:
    """Judge a seeded sample of the mutants; where ``seconds`` after the judges were measured end first, a smaller one.

    Raises:
        LabError: the tests or the explorer find a fault in the core as it is.
    """
    everywhere = [place for place in _places() if only in place.name]
    drawn = (place.mutant() for place in random.Random(seed).sample(everywhere, len(everywhere)))
    sample = list(islice(filter(None, drawn), count))
    found: list[Mutation] = []

    def judge(judges: list[Judge]) -> None:
        by_cost = _measured(judges)
        noticed = Counter[tuple[str, str]]()
        """How many mutants of a module a judge has noticed: who did so before is asked first."""
        until = time.monotonic() + seconds

        def life(mutant: Mutant) -> Callable[[], str]:
            order = sorted(by_cost, key=lambda judge: -noticed[mutant.module, judge.name])
            return partial(meet, mutant, order)

        lives = ((mutant, life(mutant)) for mutant in sample if time.monotonic() < until)
        with Progress(TextColumn("mutants"), *_COLUMNS, TextColumn("{task.description}"), console=console) as bar:
            task = bar.add_task("", total=len(sample))
            for mutant, killer in forked(lives, processes=_PROCESSES):
                found.append(Mutation(mutant.name, mutant.diff, "time" if killer is None else killer))
                noticed[mutant.module, found[-1].killed_by] += 1
                if killer == "":
                    say(f"{len(found)} judged; survived: {mutant.name}")
                bar.update(task, advance=1, description=f"{sum(not m.killed_by for m in found)} survive")

    with_judges(judge)
    return sorted(found, key=lambda mutation: (mutation.name, mutation.diff))


def _places() -> Iterator[Place]:
    for path in mutated():
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        yield from places(module, path)


def _measured(judges: Sequence[Judge]) -> list[Judge]:
    """The judges, the cheap ones first, with what they cost and call."""

    def life(part: Sequence[Judge]) -> Callable[[], list[Trace]]:
        return lambda: [traced(judge) for judge in part]

    found: list[Judge] = []
    parts = ((part, life(part)) for part in (judges[n::_PARTS] for n in range(_PARTS)) if part)
    with Progress(TextColumn("judges"), *_COLUMNS, console=console) as bar:
        task = bar.add_task("", total=len(judges))
        for part, traces in forked(parts, processes=_PROCESSES):
            if traces is None:
                raise LabError("tests that run to their end on the core as it is", "a process that died", "run pytest")
            found += map(known, part, traces)
            bar.update(task, completed=len(found))
    return sorted(found, key=lambda judge: judge.seconds)


def meet(mutant: Mutant, judges: Sequence[Judge]) -> str:
    """Who notices; empty: nobody, within ``_ENOUGH_SECONDS``."""
    wrong = _become(mutant)
    begun = time.process_time()
    for judge in judges:
        if time.process_time() - begun >= _ENOUGH_SECONDS:
            return ""
        if judge.reaches(wrong):
            # Unanswered, these end us.
            signal.setitimer(signal.ITIMER_PROF, _SPARE_SECONDS + _PATIENCE * judge.seconds)
            signal.setitimer(signal.ITIMER_REAL, _WAITING_SECONDS + _PATIENCE * judge.seconds)
            try:
                noticed = judge.run()
            except BaseException:  # noqa: BLE001  whatever a mutant raises, it was noticed
                noticed = traceback.format_exc()
            if noticed:
                return judge.name
    return ""


def _become(mutant: Mutant) -> frozenset[tuple[str, str]]:
    """Give the functions of this process the mutant's code; the (file, function) of those that differ by it."""
    right, wrong = (
        _codes(mutant.right, mutant.path),
        _codes(mutant.wrong, mutant.path),
    )
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__module__ == mutant.module:
            function.__code__ = wrong.get(function.__qualname__, function.__code__)
    return frozenset((str(mutant.path), name) for name, code in wrong.items() if code != right[name])


def _codes(source: str, path: Path) -> dict[str, CodeType]:
    """The code of every function and method of a module, by its qualified name."""

    def inside(code: CodeType) -> Iterator[CodeType]:
        for constant in code.co_consts:
            if isinstance(constant, CodeType) and "<" not in constant.co_qualname:
                yield constant
                yield from inside(constant)

    return {code.co_qualname: code for code in inside(compile(source, str(path), "exec"))}


_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")


def forked(
    lives: Iterator[tuple[_Key, Callable[[], _Answer]]], *, processes: int
) -> Iterator[tuple[_Key, _Answer | None]]:
    """What each comes to in a process of its own, as they come; None where it was ended from outside."""
    running: dict[int, tuple[int, _Key, BinaryIO]] = {}
    try:
        yield from _answers(lives, running, processes)
    finally:
        for child, _, stream in running.values():  # nobody waits for these any more
            stream.close()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _answers(
    lives: Iterator[tuple[_Key, Callable[[], _Answer]]],
    running: dict[int, tuple[int, _Key, BinaryIO]],
    processes: int,
) -> Iterator[tuple[_Key, _Answer | None]]:
    while True:
        for key, life in islice(lives, processes - len(running)):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(read)
                _live(life, write)
            os.close(write)
            running[read] = (child, key, os.fdopen(read, "rb"))
        if not running:
            return
        for ready in select.select(list(running), [], [])[0]:
            child, key, stream = running.pop(ready)
            with stream:
                answer = stream.read()
            os.waitpid(child, 0)
            yield key, pickle.loads(answer) if answer else None


def _live(life: Callable[[], object], write: int) -> NoReturn:
    """The life of a forked process: it ends here."""
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # a plugin of pytest may have its own
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    try:
        answer = pickle.dumps(life())
        with os.fdopen(write, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)
