"""One checkpoint for all ranks, or none; and what one rank does on the volume, that all wait for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

import torch

from ..distributed import ddp
from ..errors import CheckpointError
from ..precision.trainer import ExtendedFP16Trainer
from ..values.threads import begin
from .checkpoints import CheckpointStore, Loaded
from .lease import Lease

_SLICE_SECONDS = 5.0

T = TypeVar("T")


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
    job = _done_together(work, collective_seconds, or_here=True)
    return job.result() if job is not None else None


def _done_together(work: Callable[[], T] | None, collective_seconds: float, *, or_here: bool) -> Future[T] | None:
    """The job of this rank, once all ranks are done with theirs."""
    if work is None:
        wait_together(lambda _: True, collective_seconds)
        return None
    job = begin(_on_this_device(work), "volume", or_here=or_here)
    wait_together(lambda seconds: bool(wait([job], seconds).done), collective_seconds)
    return job


def _on_this_device(work: Callable[[], T]) -> Callable[[], T]:
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def run() -> T:
        if device is not None:
            torch.cuda.set_device(device)  # each thread has its own
        return work()

    return run


def wait_together(done: Callable[[float], bool], collective_seconds: float) -> None:
    """The ranks meet again and again meanwhile. So no collective waits for long, and a rank that dies is noticed.

    Args:
        done: on this rank; waits for that, for so many seconds at most.
        collective_seconds: see :func:`take_lease_together`.
    """
    slice_seconds = min(_SLICE_SECONDS, collective_seconds / 4)
    while not all(one["done"] for one in ddp.exchange({"done": done(slice_seconds)})):
        pass


def load_together(
    store: CheckpointStore,
    trainer: ExtendedFP16Trainer,
    choose: Callable[[], Loaded | None],
    *,
    collective_seconds: float,
    or_here: bool = False,
) -> Loaded | None:
    """Rank 0 chooses, every rank reads; all ranks call it.

    Args:
        store: to read from.
        trainer: whose model and optimizer it must fit.
        choose: what rank 0 does.
        collective_seconds: see :func:`take_lease_together`.
        or_here: where no thread is to be had, read in this one; else that is an error like any other.

    Returns:
        The same checkpoint on every rank, nothing of it applied yet; None if rank 0 chose none.

    Raises:
        CheckpointError: on all ranks, if any of them found none that can be used.
    """
    first = choose if trainer.rank == 0 else None
    # Rank 0 must not leave the others waiting: they get to know of its error first.
    loaded, error = _outcome(_done_together(first, collective_seconds, or_here=or_here))
    step = ddp.exchange({"step": loaded.state["step"] if loaded is not None else None})[0]["step"]
    if isinstance(step, int):
        load = partial(store.load, step, trainer.model, trainer.optimizer)
        job = _done_together(load if loaded is None else None, collective_seconds, or_here=or_here)
        loaded, error = _outcome(job) if job is not None else (loaded, error)
        error = f"rank {trainer.rank}: {error}" if error is not None else None
    errors = [str(one["error"]) for one in ddp.exchange({"error": error}) if one["error"] is not None]
    if errors:
        raise CheckpointError("; ".join(errors))
    return loaded


def _outcome(job: Future[T] | None) -> tuple[T | None, str | None]:
    """What it returned, or what was wrong, whatever torch and the disk raise; nothing of none. The caller says it."""
    if job is None:
        return None, None
    error = job.exception()
    return (job.result(), None) if error is None else (None, str(error))
