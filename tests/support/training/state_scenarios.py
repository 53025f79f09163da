"""What the ranks of a process group do in the tests of checkpoints; run by process_group.py as scenarios.py is."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import torch

from precision_trainer import PrecisionMode
from precision_trainer.distributed.process_group import exchange, lost_peer
from precision_trainer.store.agree import take_lease_together
from precision_trainer.store.checkpointer import Checkpointer
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.store.lease import Lease
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from precision_trainer.values.request import PrecisionRequest

from .checkpoints import stale
from .scenarios import Result, fingerprint, make, step

SAVED, COMPARED, SAVED_AGAIN = 10, 15, 20


def _advance(checkpointer: Checkpointer, until: int) -> list[str]:
    """Steps up to ``until``; the fingerprint before each."""
    prints = []
    while checkpointer._trainer.step < until:
        checkpointer.observe(checkpointer._trainer.begin_step().records)
        prints.append(fingerprint(checkpointer._trainer))
        step(checkpointer._trainer)
        torch.rand(1)  # the random state moves, as dropout would move it
    return prints


def _until_healthy(checkpointer: Checkpointer, store: CheckpointStore, rank: int) -> None:
    while not exchange({"healthy": rank == 0 and bool(store.healthy_steps())})[0]["healthy"]:
        _advance(checkpointer, checkpointer._trainer.step + 1)


def rewind_after_poisoned_weights(rank: int, world: int) -> Result:
    """Rank 1's weights become NaN; a request makes both ranks go back to the healthy checkpoint at one boundary."""
    trainer, metrics = make(rank, world, PrecisionMode.FP32), Metrics()
    directory = str(exchange({"path": tempfile.mkdtemp() if rank == 0 else ""})[0]["path"])
    store = CheckpointStore(directory, JsonLog(rank, world))
    checkpointer = Checkpointer(
        trainer, store, "data", 8, log=JsonLog(rank, world), metrics=metrics, healthy_after_steps=3
    )
    checkpointer.resume()
    _advance(checkpointer, SAVED)
    trainer.begin_step()
    at_saved, random = fingerprint(trainer), torch.get_rng_state()
    checkpointer.save()
    reference = _advance(checkpointer, COMPARED + 1)[-1]
    _until_healthy(checkpointer, store, rank)
    _advance(checkpointer, max(SAVED_AGAIN, trainer.step))
    checkpointer.save(patient=True)
    _advance(checkpointer, trainer.step + 1)

    if rank == 1:
        with torch.no_grad():
            next(trainer.model.parameters()).fill_(float("nan"))
    if rank == 0:
        trainer.request_source = lambda applied: (
            None if applied else PrecisionRequest(1, PrecisionMode.FP32, rewind=True)
        )
    while not (boundary := trainer.begin_step()).rewind:
        checkpointer.observe(boundary.records)
        step(trainer)
    checkpointer.observe(trainer.drain().records)
    asked_at, step_now = trainer.step, checkpointer.rewind("request")
    went_back = fingerprint(trainer) == at_saved and torch.equal(torch.get_rng_state(), random)
    samples = checkpointer.samples
    replayed = _advance(checkpointer, COMPARED + 1)[-1] == reference
    finite = all(bool(p.isfinite().all()) for p in trainer.model.parameters())
    files = sorted(entry.name for entry in Path(directory).iterdir() if entry.is_dir())
    checkpointer.close()
    exchange({})
    if rank == 0:
        shutil.rmtree(directory)
    gauges = {f.name: f.samples[0].value for f in metrics.collect() if f.name.startswith("genesis_rew")}
    return {
        "asked_at": asked_at, "step": step_now, "went_back": went_back, "samples": samples, "replayed": replayed,
        "finite": finite, "files": files, "generation": trainer.generation, "metrics": gauges, "print": fingerprint(trainer),
        "sources": [entry["source"] for entry in checkpointer.history],
    }  # fmt: skip


def rewind_with_nothing_healthy(rank: int, world: int) -> Result:
    """No checkpoint has proven itself: nothing changes, on any rank."""
    return _refused_rewind(rank, world, contextlib.nullcontext())


def rewind_from_a_stale_volume(rank: int, world: int) -> Result:
    """Rank 0 cannot list the checkpoints: nothing changes, on any rank, and no rank waits for it."""
    volume = mock.patch.object(Path, "iterdir", stale) if rank == 0 else contextlib.nullcontext()
    return _refused_rewind(rank, world, volume)


def _refused_rewind(rank: int, world: int, volume: contextlib.AbstractContextManager[object]) -> Result:
    trainer = make(rank, world, PrecisionMode.FP32)
    directory = str(exchange({"path": tempfile.mkdtemp() if rank == 0 else ""})[0]["path"])
    checkpointer = Checkpointer(
        trainer, CheckpointStore(directory, JsonLog(rank, world)), "data", 8, log=JsonLog(rank, world)
    )
    checkpointer.resume()
    _advance(checkpointer, 3)
    trainer.begin_step()
    checkpointer.save()
    before = fingerprint(trainer)
    with volume:
        result = checkpointer.rewind("request")
    checkpointer.close()
    exchange({})
    shutil.rmtree(directory, ignore_errors=True)
    return {"result": result, "unchanged": fingerprint(trainer) == before, "step": trainer.step}


def wait_for_a_lease_while_the_other_rank_dies(rank: int, world: int) -> Result:
    """Rank 0 waits for a lease that nobody gives back; rank 1's process is gone."""
    if rank == 1:
        return {"exit": True}
    directory, log = tempfile.mkdtemp(), JsonLog(rank, world)
    other, mine = (Lease(directory, holder, log=log, metrics=Metrics()) for holder in ("other", "mine"))
    other.take(0.0)
    try:
        take_lease_together(mine, 120.0)
    except RuntimeError as error:
        return {"lost": lost_peer(error), "timed out": "timed out" in str(error).lower()}
    finally:
        other.release()
        shutil.rmtree(directory, ignore_errors=True)
    return {}
