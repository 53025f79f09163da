"""One checkpoint for all ranks, or none; and what one rank does on the volume, that all wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar, cast

import torch

from ..distributed import process_group
from ..errors import CheckpointError
from ..precision.trainer import ExtendedFP16Trainer
from ..values.threads import begin
from .checkpoints import CheckpointStore, Loaded
from .lease import Lease

_SLICE_SECONDS = 5.0

T = TypeVar("T")


class Limit:
    """How long training waits for a volume. Rank 0's clock decides for all ranks. A thread left behind changes nothing."""

    def __init__(self, seconds: float, waiting: Callable[[], None] = lambda: None) -> None:
        """Of so many ``seconds``, for each piece of work that the ranks do together; ``waiting`` is called meanwhile."""
        self.seconds, self._waiting = seconds, waiting
        self._until, self._given_up = 0.0, False
        self._job: Future[object] | None = None

    @property
    def hangs(self) -> bool:
        """Whether what was given up has not come to an end yet, on this rank."""
        return self._given_up and self._job is not None and not self._job.done()

    def begin(self, job: Future[object] | None) -> None:
        """The time runs; ``job`` is this rank's part."""
        self._job, self._until = job, time.monotonic() + self.seconds

    def left(self) -> float:
        """Seconds that are left."""
        self._waiting()
        return max(0.0, self._until - time.monotonic())

    def give_up(self) -> CheckpointError:
        """Nobody waits any more. Returns what to say of it."""
        self._given_up = True
        return CheckpointError(
            f"the volume did not answer within {self.seconds:g} s; check that it is mounted and responds, then ask again"
        )

    def permit(self) -> None:
        """Before each change on the volume. Raises CheckpointError where nobody waits for it any more."""
        if self._given_up:
            raise CheckpointError("given up")


def take_lease_together(lease: Lease | None, collective_seconds: float) -> None:
    """Wait until rank 0 has its lease, however long that takes; all ranks call it, with the process group formed.

    Args:
        lease: of rank 0; None on the others, and where it writes no checkpoints.
        collective_seconds: how long a rank waits in a collective for the others before it gives up.
    """
    wait_together(lambda seconds: lease is None or lease.take(seconds), collective_seconds)


def work_together(work: Callable[[], T] | None, collective_seconds: float) -> T | None:
    """Do ``work`` in a thread, and wait until all ranks are done with theirs, however long a volume takes; all call it.

    Where no thread is to be had it is done in this one: then it must not take longer than a collective may.

    Args:
        work: of this rank; None: it only waits.
        collective_seconds: see :func:`take_lease_together`.

    Returns:
        What ``work`` returned. What it raised is raised here, once all ranks are done.
    """
    job = _done_together(work, collective_seconds)
    return job.result() if job is not None else None


def _done_together(
    work: Callable[[], T] | None, collective_seconds: float, limit: Limit | None = None
) -> Future[T] | None:
    """The job of this rank, once all ranks are done with theirs. Raises CheckpointError on all of them after ``limit``."""
    # What this thread does cannot be given up.
    job = begin(_on_this_device(work), "volume", or_here=limit is None) if work is not None else None
    if limit is not None:
        limit.begin(cast("Future[object] | None", job))
    if not wait_together(lambda seconds: job is None or bool(wait([job], seconds).done), collective_seconds, limit):
        assert limit is not None
        raise limit.give_up()
    return job


def _on_this_device(work: Callable[[], T]) -> Callable[[], T]:
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def run() -> T:
        if device is not None:
            torch.cuda.set_device(device)  # each thread has its own
        return work()

    return run


def wait_together(done: Callable[[float], bool], collective_seconds: float, limit: Limit | None = None) -> bool:
    """The ranks meet again and again meanwhile. So no collective waits for long, and a rank that dies is noticed.

    Args:
        done: on this rank; waits for that, for so many seconds at most.
        collective_seconds: see :func:`take_lease_together`.
        limit: that has begun; None: there is none.

    Returns:
        Whether all ranks were done within ``limit``; the same on all of them.
    """
    slice_seconds = min(_SLICE_SECONDS, collective_seconds / 4)
    while True:
        mine = done(slice_seconds if limit is None else min(slice_seconds, limit.left()))
        everyone = process_group.exchange({"done": mine, "over": limit is not None and not limit.left()})
        if all(one["done"] for one in everyone):
            return True
        if everyone[0]["over"]:
            return False


def load_together(
    store: CheckpointStore,
    trainer: ExtendedFP16Trainer,
    choose: Callable[[], Loaded | None],
    *,
    collective_seconds: float,
    settle: Callable[[int], None] | None = None,
    limit: Limit | None = None,
) -> Loaded | None:
    """Rank 0 chooses, every rank reads, rank 0 settles it; all ranks call it.

    Args:
        store: to read from.
        trainer: whose model and optimizer it must fit.
        choose: what rank 0 does.
        collective_seconds: see :func:`take_lease_together`.
        settle: what rank 0 does with the step once every rank has read it.
        limit: for each of the three; None: however long it takes.

    Returns:
        The same checkpoint on every rank, nothing of it applied yet; None if rank 0 chose none.

    Raises:
        CheckpointError: on all ranks, if any of them found none that can be used, or after ``limit``.
    """
    first = choose if trainer.rank == 0 else None
    # Rank 0 must not leave the others waiting: they get to know of its error first.
    loaded, error = _outcome(_done_together(first, collective_seconds, limit))
    step = process_group.exchange({"step": loaded.state["step"] if loaded is not None else None})[0]["step"]
    if isinstance(step, int):
        load: Callable[[], Loaded | None] = partial(store.load, step, trainer.model, trainer.optimizer)
        job = _done_together(load if loaded is None else None, collective_seconds, limit)
        loaded, error = _outcome(job) if job is not None else (loaded, error)
        error = f"rank {trainer.rank}: {error}" if error is not None else None
    _raise_together(error)
    if settle is not None and isinstance(step, int):
        last = partial(settle, step) if trainer.rank == 0 else None
        _raise_together(_outcome(_done_together(last, collective_seconds, limit))[1])
    return loaded


def _raise_together(error: str | None) -> None:
    errors = [str(one["error"]) for one in process_group.exchange({"error": error}) if one["error"] is not None]
    if errors:
        raise CheckpointError("; ".join(errors))


def _outcome(job: Future[T] | None) -> tuple[T | None, str | None]:
    """What it returned, or what was wrong, whatever torch and the disk raise; nothing of none. The caller says it."""
    if job is None:
        return None, None
    error = job.exception()
    return (job.result(), None) if error is None else (None, str(error))
