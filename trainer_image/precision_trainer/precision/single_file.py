"""A trainer's state in one file, for scripts of one's own.

``precision-trainer train`` uses store/checkpointer.py, which also keeps the position in the data, random state and several
generations of checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..checkpoint import files, plain
from ..checkpoint.format import check_model, check_scaler
from ..checkpoint.nest import as_saved, check_loads
from ..checkpoint.optimizer import check_optimizer, load_optimizer
from ..checkpoint.tensors import load_weights, untrained
from ..errors import CheckpointError

if TYPE_CHECKING:
    from .trainer import ExtendedFP16Trainer


def save(trainer: ExtendedFP16Trainer, path: Path) -> None:
    """Write FP32 weights, optimizer, scaler and step, whatever the mode. Rank 0 writes; complete, or not there at all.

    Raises:
        CheckpointError: the disk refuses, or a load would: it would take a good file's place.
    """
    if trainer.rank:
        return
    weights = trainer.cold.state_dict() if trainer.cold is not None else trainer.model.state_dict()
    weights, moments, scaler = as_saved((weights, trainer.optimizer.state_dict(), trainer.scaler.state_dict()))
    check_model(
        weights,
        path,
        trainer.model if trainer.cold is None else None,
        nonfinite_buffers=trainer.nonfinite_buffers,
        infinite=untrained(trainer.model),
        other_types=trainer.other_types,
    )
    check_optimizer(moments, path, trainer.optimizer)
    check_scaler(scaler, path)
    state = {
        plain.MODEL: weights,
        plain.OPTIMIZER: moments,
        "scaler": scaler,
        "step": trainer.step,
        "mode": trainer.mode.value,
    }
    check_loads(state, str(path))
    plain.write(path, state)


def load(trainer: ExtendedFP16Trainer, path: Path) -> None:
    """Read such a file, or any with ``model_state_dict`` and perhaps ``optimizer_state_dict``, in whatever mode. Every rank.

    Raises:
        CheckpointError: it is missing, damaged, of another model, or holds more than tensors and plain values. Then
            nothing has changed.
    """
    raw = files.read_plain(path)
    # In a cold mode the trained weights are 16 bits wide, and have their FP32 values beside them.
    weights, moments = plain.content(raw, path, trainer.model, in_its_types=trainer.cold is None)
    if moments is not None:
        check_optimizer(moments, path, trainer.optimizer)
    scaler = plain.scaler_state(raw)
    if scaler is not None:
        check_scaler(scaler, path)
    if trainer.cold is not None:
        _load_cold(trainer, weights, path)
    else:
        check_model(
            weights,
            path,
            trainer.model,
            nonfinite_buffers=trainer.nonfinite_buffers,
            infinite=untrained(trainer.model),
        )
        load_weights(trainer.model, weights)
    if moments is not None:
        load_optimizer(trainer.optimizer, moments)
    step: object = raw.get("step") if isinstance(raw, dict) else None
    other: object = raw.get("scaler") if isinstance(raw, dict) else None
    if scaler is not None:
        trainer.scaler.load_state_dict(scaler)
    elif other is not None and not (isinstance(other, dict) and not other):  # a GradScaler switched off saves nothing
        trainer.log.warning(
            "scaler_ignored",
            f"{path}: expected the state of a loss scaler under 'scaler', found something else, or a scale of 0; the scale "
            f"stays {float(trainer.scaler.scale_value):g}",
            path=str(path),
        )
    trainer.step = step if isinstance(step, int) else 0
    if not isinstance(step, int):
        trainer.log.warning(
            "resumed_plain",
            f"{path}: weights{'' if moments is None else ' and optimizer'} taken over, counting steps from 0; this trainer "
            "did not write it, and nothing vouches for its age or origin",
            path=str(path),
        )


def _load_cold(trainer: ExtendedFP16Trainer, weights: dict[str, torch.Tensor], path: Path) -> None:
    assert trainer.cold is not None
    try:
        trainer.cold.load_state_dict(weights)
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"{path} is of another model: {str(error).splitlines()[0]}; build the model it was made of"
        ) from error
