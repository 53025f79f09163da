"""One checkpoint for all ranks, or none; and one lease, of rank 0, that all wait for."""

from __future__ import annotations

from collections.abc import Callable

from ..distributed import ddp
from ..errors import CheckpointError
from ..precision.trainer import ExtendedFP16Trainer
from .checkpoints import CheckpointStore, Loaded
from .lease import Lease

_SLICE_SECONDS = 5.0


def take_lease_together(lease: Lease | None, collective_seconds: float) -> None:
    """Wait until rank 0 has its lease, however long that takes; all ranks call it, with the process group formed.

    The ranks meet again and again meanwhile. So no collective waits for long, and a rank that dies is noticed.

    Args:
        lease: of rank 0; None: it writes no checkpoints. Of other ranks it is not looked at.
        collective_seconds: how long a rank waits in a collective for the others before it gives up.
    """
    slice_seconds = min(_SLICE_SECONDS, collective_seconds / 4)
    while not ddp.exchange({"go": lease is None or lease.take(slice_seconds)})[0]["go"]:
        pass


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
        except Exception as failed:  # noqa: BLE001  (whatever torch and the disk raise)
            # Rank 0 must not leave the others waiting: they get to know first.
            error = str(failed)
    step = ddp.exchange({"step": loaded.state["step"] if loaded is not None else None})[0]["step"]
    if isinstance(step, int) and loaded is None:
        try:
            loaded = store.load(step, trainer.model, trainer.optimizer)
        except Exception as failed:  # noqa: BLE001  (as above)
            error = f"rank {trainer.rank}: {failed}"
    errors = [str(one["error"]) for one in ddp.exchange({"error": error}) if one["error"] is not None]
    if errors:
        raise CheckpointError("; ".join(errors))
    return loaded
