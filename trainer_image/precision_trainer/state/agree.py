"""One checkpoint for all ranks, or none."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import CheckpointError
from ..gang import ddp
from ..precision.trainer import ExtendedFP16Trainer
from .checkpoint import CheckpointStore, Loaded


def load_together(
    store: CheckpointStore, trainer: ExtendedFP16Trainer, choose: Callable[[], Loaded | None]
) -> Loaded | None:
    """Rank 0 chooses, every rank reads; all ranks call it.

    Returns:
        The same checkpoint on every rank, nothing of it applied yet; None if rank 0 chose none.

    Raises:
        CheckpointError: on all ranks, if any of them found none that can be used.
    """
    loaded: Loaded | None = None
    error: str | None = None
    if trainer.rank == 0:
        try:
            loaded = choose()
        except CheckpointError as failed:
            # Rank 0 must not leave the others waiting: they get to know first.
            error = str(failed)
    step = ddp.exchange({"step": loaded.state["step"] if loaded is not None else None})[0]["step"]
    if isinstance(step, int) and loaded is None:
        try:
            loaded = store.load(step, trainer.model, trainer.optimizer)
        except CheckpointError as failed:
            error = f"rank {trainer.rank}: {failed}"
    errors = [str(one["error"]) for one in ddp.exchange({"error": error}) if one["error"] is not None]
    if errors:
        raise CheckpointError("; ".join(errors))
    return loaded
