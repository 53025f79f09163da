"""Work in a thread of its own, for which nobody has to wait: a volume may hang. The threads are daemons: none of them keeps
the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], name: str) -> Future[T]:
    """Start ``work`` in a thread of that ``name``; what it raises is raised where the result is asked for."""
    job: Future[T] = Future()

    def run() -> None:
        try:
            job.set_result(work())
        except BaseException as error:  # noqa: BLE001  (nobody else would hear of it)
            job.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return job


def briefly(work: Callable[[], None], name: str, seconds: float) -> None:
    """Do ``work``, but go on after ``seconds`` while it still runs. What it raises is raised here."""
    job = begin(work, name)
    if wait([job], seconds).done:
        job.result()
