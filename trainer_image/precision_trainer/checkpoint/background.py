"""One job at a time beside training: its result, or its error, is picked up at a later boundary."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial

from ..errors import CheckpointError, NoThreadError
from ..values.threads import begin

_NICE = 10
Job = Callable[[], "list[int]"]
"""Does its work and returns the steps of the checkpoints that are there afterwards."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job."""

    name: str
    step: int
    steps: list[int]
    """Of the checkpoints on disk when it ended; empty if it failed."""
    error: CheckpointError | None
    time: float
    """Wall clock when it ended, seconds since the epoch."""
    seconds: float
    """From :meth:`Background.submit` to the end."""


class Background:
    """A thread for one job at a time. Steps come first: where two compete for a core, the job waits."""

    def __init__(self) -> None:
        self._job: Future[Outcome] | None = None
        self._about = "", 0
        """Name and step of that job."""

    @property
    def busy(self) -> bool:
        """Whether there is a job whose outcome was not picked up yet."""
        return self._job is not None

    def submit(self, name: str, step: int, job: Job) -> None:
        """Start a job about the checkpoint of ``step``. Raises RuntimeError while there is another one."""
        if self._job is not None:
            raise RuntimeError(f"{name} of step {step}: another job was not picked up yet; poll() first")
        self._about = name, step
        self._job = begin(partial(_run, name, step, job, time.monotonic()), "checkpoint")

    def poll(self, wait_seconds: float | None = 0.0) -> Outcome | None:
        """The job's outcome, once; None if there is none yet after ``wait_seconds`` (None: as long as it takes)."""
        if self._job is None:
            return None
        # Asked at every boundary: `done` is the cheap question.
        if not self._job.done() and (wait_seconds == 0 or not wait([self._job], wait_seconds).done):
            return None
        job, self._job = self._job, None
        try:
            return job.result()
        except NoThreadError as error:
            name, step = self._about
            return Outcome(name, step, [], failure(name, step, error), time.time(), 0.0)

    def close(self, wait_seconds: float) -> bool:
        """Wait for the job that runs, for ``wait_seconds`` at most; whether none runs any more."""
        job = self._job
        return job is None or bool(wait([job], wait_seconds).done)


def _run(name: str, step: int, job: Job, submitted: float) -> Outcome:
    _yield_to_training()
    steps: list[int] = []
    failed: CheckpointError | None = None
    try:
        steps = job()
    except CheckpointError as error:
        failed = error
    except Exception as error:  # noqa: BLE001  (torch and the disk raise what they like: none of it may end training)
        failed = failure(name, step, error)
    return Outcome(name, step, steps, failed, time.time(), time.monotonic() - submitted)


def failure(name: str, step: int, error: Exception) -> CheckpointError:
    """What kept ``name`` from being done to the checkpoint of ``step``, for a person."""
    if isinstance(error, CheckpointError):
        return error
    if isinstance(error, NoThreadError):
        return CheckpointError(f"{name} of step {step}: {error}")
    reason = (str(error).splitlines() or [""])[0]
    return CheckpointError(
        f"{name} of step {step}: {type(error).__name__} ({reason}); check that the volume is mounted, writable for this "
        "user, and not full"
    )


def _yield_to_training() -> None:
    # On Linux niceness is the thread's own. Where it may not be set, the job runs like any other thread.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
