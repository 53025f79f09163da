"""Which checkpoint training goes on from: at start, after a rewind, or where another program left off."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint import plain
from ..checkpoint.format import TrainingState
from ..checkpoint.optimizer import load_optimizer
from ..checkpoint.tensors import load_weights
from ..errors import CheckpointError
from ..precision.trainer import ExtendedFP16Trainer
from ..values.logs import JsonLog
from .checkpoints import CheckpointStore, Loaded


def to_start(
    store: CheckpointStore, trainer: ExtendedFP16Trainer, rewind_generation: int, log: JsonLog
) -> Loaded | None:
    """Rank 0's choice as the only writer: the newest good one, None if there is none at all.

    Args:
        store: to choose from; its lease is held, unless the volume refuses that.
        trainer: whose model and optimizer it must fit.
        rewind_generation: of a request to rewind, carried out if the newest was made before it; 0: none.
        log: told of a rewind that is not possible.

    Raises:
        CheckpointError: there are checkpoints, but none can be used; or none is there, and none could be written.
    """
    store.begin()
    newest = store.load_newest(trainer.model, trainer.optimizer)
    if newest is None or newest.state["generation"] >= rewind_generation:
        return newest
    healthy = store.load_healthy(trainer.model, trainer.optimizer)
    if healthy is None:
        log.error("rewind_failed", "asked to rewind, but no checkpoint is tagged healthy; using the newest one")
        return newest
    try:
        store.reject_after(healthy.state["step"])
    except CheckpointError as error:
        # The next start rewinds again, as the newest checkpoint is still older than the request.
        log.error("checkpoint_failed", str(error), step=healthy.state["step"])
    return healthy


def to_rewind(store: CheckpointStore, trainer: ExtendedFP16Trainer) -> Loaded:
    """Rank 0's choice in the middle of training: the newest one tagged healthy. Raises CheckpointError: there is none."""
    loaded = store.load_healthy(trainer.model, trainer.optimizer)
    if loaded is None:
        raise CheckpointError(
            f"none of the checkpoints {store.steps()} is tagged healthy; restart from one of them, or from a backup"
        )
    return loaded


def begin_from(path: Path, trainer: ExtendedFP16Trainer, log: JsonLog) -> None:
    """Weights and optimizer from elsewhere; every rank reads the file itself.

    Raises:
        CheckpointError: it is damaged, or of another model.
    """
    model, optimizer = plain.load(path, trainer.model, trainer.optimizer)
    load_weights(trainer.model, model)
    if optimizer is not None:
        load_optimizer(trainer.optimizer, optimizer, keep_learning_rate=True)
    log.warning(
        "resumed_plain",
        f"{path}: weights{'' if optimizer is None else ' and optimizer'} taken over, counting steps and data from 0; a "
        "file without a manifest says nothing of its age or origin",
        path=str(path),
    )


def tell_differences(state: TrainingState, trainer: ExtendedFP16Trainer, fingerprint: str, log: JsonLog) -> None:
    """Say where this process is not what made the checkpoint; ``fingerprint`` is of its data."""
    ranks = len(state["rng"])
    if ranks != trainer.world_size:
        log.warning(
            "world_size_changed",
            f"the checkpoint was made by {ranks} ranks, now there are {trainer.world_size}: the data goes on "
            "where it stood; ranks that are new begin with the random state of --seed",
        )
    if state["data_fingerprint"] != fingerprint:
        log.warning(
            "data_changed", "the training data is not that of the checkpoint (another source, or Python version)"
        )
