"""Judges the tests: breaks the operator in one place at a time, and asks those whose run that changes whether they notice.

Operator and tests are loaded once. Each mutant lives in a process forked from this one, in which the functions of its module
get the mutant's code: the checkout is never touched, and two mutants never meet.
"""

from __future__ import annotations

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
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lab.errors import LabError
from lab.mutants.code import recoded
from lab.mutants.infection import watched
from lab.mutants.judges import PACKAGE, Judge, Trace, is_pure, known, mutated, traced, with_judges
from lab.mutants.operators import Mutant, places
from lab.mutants.typed import MYPY, refused
from lab.progress import console, say, step

_PROCESSES = 2
_PARTS = 40
"""In so many the judges are measured; each has a process of its own."""

_COLUMNS = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
_BYTES = 4 << 30
"""What a mutant may allocate."""

_ENOUGH_SECONDS = 120.0
"""Of a processor: who has survived so long is asked no further."""

_CONTROLS, _CONTROL_SECONDS = 8, 5.0
"""So many mutants of a sample are met as they are not, too, each for so long."""

_SPARE_SECONDS, _PATIENCE = 5.0, 10.0
"""A judge that needs these seconds of a processor, and so many times its own, will not end with this mutant: killed."""

_ENDED_BY = (signal.SIGPROF, signal.SIGALRM)
"""What the timers below send."""

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
    everywhere = [place for module, path in _modules() for place in places(module, path) if only in place.name]
    drawn = (place.mutant() for place in random.Random(seed).sample(everywhere, len(everywhere)))
    sample = list(islice(filter(None, drawn), count))
    found: list[Mutation] = []

    def judge(judges: list[Judge]) -> None:
        by_cost = _measured(judges)
        _control(sample[:_CONTROLS], by_cost)
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
        killers = {mutation.killed_by for mutation in found}
        _confirm(sample, [judge for judge in by_cost if judge.name in killers])

    with_judges(judge)
    left = {(mutation.name, mutation.diff) for mutation in found if not mutation.killed_by}
    with step(f"types of {len(left)} survivors"):
        survivors = (mutant for mutant in sample if (mutant.name, mutant.diff) in left)
        caught = {(mutant.name, mutant.diff) for mutant in refused(survivors)}
    found = [replace(m, killed_by=MYPY) if (m.name, m.diff) in caught else m for m in found]
    return sorted(found, key=lambda mutation: (mutation.name, mutation.diff))


def _control(mutants: Sequence[Mutant], judges: Sequence[Judge]) -> None:
    """Before all: who notices a mutant of which nothing is wrong would notice anything."""
    _notice_nothing((m.name, partial(meet, _right(m), judges, enough_seconds=_CONTROL_SECONDS)) for m in mutants)


def _confirm(mutants: Sequence[Mutant], killers: Sequence[Judge]) -> None:
    """At the end: who has noticed a mutant notices nothing in one that is right, as the only one in a process."""
    right = [_right(mutant) for mutant in mutants[:1]]
    alone = ((m, replace(judge, infected=frozenset({m.key}))) for m in right for judge in killers)
    _notice_nothing((judge.name, partial(meet, mutant, [judge])) for mutant, judge in alone)


def _right(mutant: Mutant) -> Mutant:
    return replace(mutant, wrong=mutant.right)


def _notice_nothing(lives: Iterator[tuple[str, Callable[[], str]]]) -> None:
    for name, noticed in forked(lives, processes=_PROCESSES):
        if noticed != "":  # None: it did not end
            found = f"{noticed or 'one that does not end'} at {name}"
            raise LabError("judges that notice nothing where nothing is wrong", found, "mend it")


def _modules() -> list[tuple[str, Path]]:
    return [
        (".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"), path)
        for path in mutated()
    ]


def _measured(judges: Sequence[Judge]) -> list[Judge]:
    """The judges, the cheap ones first, with what they cost and which mutants they may notice."""
    found: list[Judge] = []
    modules = [(module, path, is_pure(path)) for module, path in _modules()]
    columns = Progress(TextColumn("judges"), *_COLUMNS, console=console)
    with columns as bar, watched(modules) as watcher:

        def life(part: Sequence[Judge]) -> Callable[[], list[Trace]]:
            return lambda: [traced(judge, watcher) for judge in part]

        parts = ((part, life(part)) for part in (judges[n::_PARTS] for n in range(_PARTS)) if part)
        task = bar.add_task("", total=len(judges))
        for part, traces in forked(parts, processes=_PROCESSES):
            if traces is None:
                raise LabError("tests that run to their end on the core as it is", "a process that died", "run pytest")
            found += map(known, part, traces)
            bar.update(task, completed=len(found))
    return sorted(found, key=lambda judge: judge.seconds)


def meet(mutant: Mutant, judges: Sequence[Judge], *, enough_seconds: float = _ENOUGH_SECONDS) -> str:
    """Who notices; empty: nobody, within so many seconds of a processor."""
    recoded(mutant.module, mutant.wrong, mutant.path)
    begun = time.process_time()
    for judge in judges:
        if time.process_time() - begun >= enough_seconds:
            return ""
        if mutant.key in judge.infected:
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
            _, status = os.waitpid(child, 0)
            if not answer and not (os.WIFSIGNALED(status) and os.WTERMSIG(status) in _ENDED_BY):
                raise LabError("a process that answers, or takes too long", f"exit status {status}", f"look at {key}")
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
