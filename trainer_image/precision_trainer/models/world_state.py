"""The world model's checkpoints: the canonical layout (checkpoint/format.py) in one file, with its sizes and history."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..checkpoint import files, plain
from ..checkpoint.format import FORMAT, ModeEntry, TrainingState, check_model, validate
from ..checkpoint.nest import as_saved, check_loads
from ..checkpoint.optimizer import check_optimizer, load_optimizer
from ..checkpoint.rng import random_state, set_random_state
from ..errors import CheckpointError
from ..precision.trainer import ExtendedFP16Trainer
from .rssm import RssmConfig

PART = "world_model"


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that was read; nothing of it is applied yet."""

    path: Path
    weights: dict[str, torch.Tensor]
    moments: dict[str, object] | None
    state: TrainingState | None
    """None: a plain file, of which only weights and optimizer are taken."""
    config: RssmConfig | None
    """Sizes; None where the file says none."""
    history: list[dict[str, float]]


def save(
    path: Path,
    trainer: ExtendedFP16Trainer,
    config: RssmConfig,
    *,
    history: list[dict[str, float]],
    samples: int,
    fingerprint: str,
) -> None:
    """Write one file, FP32 in every mode; complete, or not there at all.

    Args:
        path: of the file.
        trainer: over the model.
        config: sizes of the model.
        history: of the training.
        samples: drawn so far.
        fingerprint: of the data.

    Raises:
        CheckpointError: the disk refuses, or a load would: it would take a good file's place.
    """
    entry: ModeEntry = {
        "step": trainer.step, "mode": trainer.mode.wire, "generation": trainer.generation, "source": "save",
        "time": time.time(),
    }  # fmt: skip
    state: TrainingState = {
        "format": FORMAT,
        "step": trainer.step,
        "samples": samples,
        "model_state_dict": trainer.model.state_dict(),
        "optimizer_state_dict": trainer.optimizer.state_dict(),
        "scaler": trainer.scaler.state_dict(),
        "rng": [random_state()],
        "mode": trainer.mode.wire,
        "generation": trainer.generation,
        "mode_history": [entry],
        "progress": {},
        "data_fingerprint": fingerprint,
        "parts": {PART: {"config": asdict(config), "history": history}},
    }
    state = as_saved(state)
    validate(state, path, trainer.model, trainer.optimizer)
    check_loads(state, str(path))
    plain.write(path, state)


def read(path: Path) -> Saved:
    """Read what :func:`save` wrote, a checkpoint of ``precision-trainer train``, or a file with weights and optimizer only.

    Raises:
        CheckpointError: it is missing, damaged, holds anything but tensors and plain values, or is no checkpoint.
    """
    if path.is_dir():
        raw = files.read(path)
    else:
        raw = files.read_plain(path)
        if not isinstance(raw, dict) or "format" not in raw:
            weights, moments = plain.content(raw, path)
            return Saved(path, weights, moments, None, None, [])
    state = validate(raw, path)
    part = state.get("parts", {}).get(PART, {})
    sizes, history = part.get("config"), part.get("history")
    config = None
    if isinstance(sizes, dict):
        try:
            config = RssmConfig(**sizes)
        except TypeError as error:
            raise CheckpointError(f"{path}: sizes {sizes!r} are not this version's: {error}") from None
    entries = list(history) if isinstance(history, list) else []
    return Saved(path, state["model_state_dict"], state["optimizer_state_dict"], state, config, entries)


def apply(saved: Saved, trainer: ExtendedFP16Trainer) -> None:
    """Put it into a trainer over a model of its sizes.

    Raises:
        CheckpointError: it is of another model or optimizer; then nothing has changed.
    """
    check_model(saved.weights, saved.path, trainer.model)
    if saved.moments is not None:
        check_optimizer(saved.moments, saved.path, trainer.optimizer)
    trainer.model.load_state_dict(saved.weights)
    if saved.moments is not None:
        load_optimizer(trainer.optimizer, saved.moments)
    trainer.step = 0
    if saved.state is not None:
        trainer.scaler.load_state_dict(saved.state["scaler"])
        trainer.step = saved.state["step"]
        if saved.state["rng"]:
            set_random_state(saved.state["rng"][0])
