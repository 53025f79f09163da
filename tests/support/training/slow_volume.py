"""A volume on which one piece of work lasts longer than the process group's time-out; run by process_group.py."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

from precision_trainer import PrecisionMode
from precision_trainer.checkpoint import files
from precision_trainer.distributed import process_group
from precision_trainer.store import checkpointer as checkpointer_module
from precision_trainer.store.agree import work_together
from precision_trainer.store.checkpointer import Checkpointer
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.values.logs import JsonLog

from .scenarios import Result, make, step

TIMEOUT_SECONDS = 10.0
_MEETINGS = 5
"""Of the ranks, while the work lasts: each takes a quarter of the time-out, so that together they take longer."""


@contextmanager
def _slow(name: str) -> Iterator[None]:
    """The function of ``files`` goes on only once the ranks have met so often after it began."""
    exchange, work = process_group.exchange, getattr(files, name)
    begun, over, meetings = threading.Event(), threading.Event(), iter(range(_MEETINGS - 1, -1, -1))

    def meet(value: Mapping[str, object]) -> list[dict[str, object]]:
        if begun.is_set() and next(meetings, 0) == 0:
            over.set()
        return exchange(value)

    def wait(*arguments: object) -> object:
        begun.set()
        assert over.wait(6 * TIMEOUT_SECONDS), "the ranks did not meet meanwhile"
        result: object = work(*arguments)
        return result

    with patch.object(process_group, "exchange", meet), patch.object(files, name, wait):
        yield


def _checkpointer(rank: int, world: int, directory: str) -> Checkpointer:
    trainer = make(rank, world, PrecisionMode.FP32)
    store = CheckpointStore(directory, JsonLog(rank, world))
    return Checkpointer(
        trainer,
        store,
        "data",
        8,
        log=JsonLog(rank, world),
        healthy_after_steps=1,
        collective_seconds=TIMEOUT_SECONDS,
    )


def _advance(checkpointer: Checkpointer, steps: int) -> None:
    trainer = checkpointer._trainer
    for _ in range(steps):
        checkpointer.observe(trainer.begin_step().records)
        step(trainer)
    checkpointer.observe(trainer.drain().records)


def _on_one(rank: int, world: int, scenario: Callable[[Checkpointer, str], int | None]) -> Result:
    """What ``scenario`` returned, with one directory for all ranks; and the steps on disk afterwards."""
    directory = str(process_group.exchange({"path": tempfile.mkdtemp() if rank == 0 else ""})[0]["path"])
    checkpointer = _checkpointer(rank, world, directory)
    checkpointer.resume()
    _advance(checkpointer, 3)
    try:
        result = scenario(checkpointer, directory)
        work_together(checkpointer.close, TIMEOUT_SECONDS)
        process_group.exchange({})
        saved = sorted(path.name for path in Path(directory).glob("step-*"))
        process_group.exchange({})
        return {"result": result, "saved": saved}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def finish(rank: int, world: int) -> Result:
    """The last checkpoint is written."""

    def scenario(checkpointer: Checkpointer, directory: str) -> int:
        with _slow("write"):
            checkpointer.finish()
        return checkpointer.saved_step

    return _on_one(rank, world, scenario)


def save_as_asked(rank: int, world: int) -> Result:
    """Somebody asks for a checkpoint while another one is written."""

    def scenario(checkpointer: Checkpointer, directory: str) -> int:
        with patch.object(checkpointer_module, "PATIENCE_SECONDS", 120.0), _slow("write"):
            checkpointer.save()
            _advance(checkpointer, 1)
            checkpointer.save(patient=True)
        return checkpointer.saved_step

    return _on_one(rank, world, scenario)


def resume(rank: int, world: int) -> Result:
    """All ranks read the checkpoint."""

    def scenario(checkpointer: Checkpointer, directory: str) -> int:
        checkpointer.finish()
        second = _checkpointer(rank, world, directory)
        with _slow("read"):
            second.resume()
        return second._trainer.step

    return _on_one(rank, world, scenario)


def rewind(rank: int, world: int) -> Result:
    """All ranks read the healthy one in the middle of training."""

    def scenario(checkpointer: Checkpointer, directory: str) -> int | None:
        checkpointer.finish()
        tag = partial(CheckpointStore(directory, JsonLog()).tag_healthy, 3, 1)
        work_together(tag if rank == 0 else None, TIMEOUT_SECONDS)
        _advance(checkpointer, 2)
        with _slow("read"):
            return checkpointer.rewind("request")

    return _on_one(rank, world, scenario)


@contextmanager
def _hung(owner: object, name: str) -> Iterator[threading.Event]:
    """That function goes on only once the event is set, as on a volume whose server is away."""
    work, back = getattr(owner, name), threading.Event()

    def wait(*arguments: object) -> object:
        assert back.wait(6 * TIMEOUT_SECONDS), "the volume stays away"
        result: object = work(*arguments)
        return result

    with patch.object(owner, name, wait):
        yield back


def _rewind_while_it_hangs(rank: int, world: int, owner: object, name: str, *, hangs_on: int) -> Result:
    found: Result = {}

    def scenario(checkpointer: Checkpointer, directory: str) -> int | None:
        root = Path(directory)
        checkpointer.finish()
        if rank == 0:
            CheckpointStore(directory, JsonLog()).tag_healthy(3, 1)
        for _ in range(2):
            process_group.exchange({})
            _advance(checkpointer, 1)
            checkpointer.finish()
        process_group.exchange({})
        before = sorted(path.name for path in root.glob("step-*"))
        hung = _hung(owner, name) if rank == hangs_on else nullcontext(threading.Event())
        with patch.object(checkpointer_module, "REWIND_SECONDS", 0.5), hung as back:
            found["first"] = checkpointer.rewind("request")
            found["again"] = checkpointer.rewind("request")
            found["untouched"] = sorted(path.name for path in root.glob("step-*")) == before
            found["step"] = checkpointer._trainer.step
            process_group.exchange({})
            back.set()
            job = checkpointer._rewind_limit._job
            if job is not None:
                job.exception(TIMEOUT_SECONDS)
        process_group.exchange({})
        found["left"] = sorted(path.name for path in root.glob("step-*"))
        process_group.exchange({})
        _advance(checkpointer, 1)
        return checkpointer.rewind("request")

    return {**_on_one(rank, world, scenario), **found}


def rewind_while_reading_hangs_on_rank_1(rank: int, world: int) -> Result:
    """Rank 0 has read the healthy checkpoint."""
    return _rewind_while_it_hangs(rank, world, files, "read", hangs_on=1)


def rewind_while_a_rename_hangs(rank: int, world: int) -> Result:
    """Both ranks have read the healthy checkpoint; two later ones are to be put aside."""
    return _rewind_while_it_hangs(rank, world, os, "rename", hangs_on=0)
