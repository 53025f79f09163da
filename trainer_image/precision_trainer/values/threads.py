"""Work in a thread of its own, for which nobody has to wait: a volume may hang. The threads are daemons: none of them keeps
the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from ..errors import NoThreadError

T = TypeVar("T")


def begin(work: Callable[[], T], name: str, *, or_here: bool = False) -> Future[T]:
    """Start ``work`` in a thread of that ``name``; what it raises is raised where the result is asked for.

    Args:
        work: what to do.
        name: of the thread.
        or_here: where no thread is to be had (the pod's limit of processes), do it in this one, however long it takes. Else
            it is not done, and the result is a NoThreadError.
    """
    job: Future[T] = Future()

    def run() -> None:
        try:
            job.set_result(work())
        except BaseException as error:  # noqa: BLE001  (nobody else would hear of it)
            job.set_exception(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except Exception as error:  # noqa: BLE001  (a RuntimeError, or that no memory is left for it)
        if or_here:
            run()
        else:
            job.set_exception(
                NoThreadError(
                    f"no thread can be started for it ({error}); raise the pod's limit of processes (pids.max)"
                )
            )
    return job


def briefly(work: Callable[[], None], name: str, seconds: float) -> None:
    """Do ``work``, but go on after ``seconds`` while it still runs. What it raises is raised here.

    Where no thread is to be had it is done in this one: what a process does at its end matters more than how long it takes.
    """
    job = begin(work, name, or_here=True)
    if wait([job], seconds).done:
        job.result()
