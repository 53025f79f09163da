"""Checkpoints that this trainer did not write: a dictionary in a file by torch.save, as most programs keep them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from ..errors import CheckpointError
from . import files
from .format import check_model, check_optimizer, validate

MODEL, OPTIMIZER = "model_state_dict", "optimizer_state_dict"
_PREFIX = "module."
"""What DistributedDataParallel puts before every name."""


def write(path: Path, state: Mapping[str, object]) -> None:
    """One file, atomically: written beside, synced, renamed.

    Raises:
        CheckpointError: the disk refuses; what stood there before still does.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(
            f"{path} not written ({error}); check that the directory exists and is not full"
        ) from error


def load(
    path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], dict[str, object] | None]:
    """Weights and optimizer state from a checkpoint of ours, or from a plain file without a manifest.

    Args:
        path: a directory ``step-…``, or a file holding ``{"model_state_dict": …, "optimizer_state_dict": …}``; the latter
            key may be missing. 16-bit weights become FP32; names may carry DDP's ``module.`` prefix.
        model: names and shapes must fit it.
        optimizer: the groups of parameters must fit it.

    Returns:
        What to load into both; None for an optimizer state that is not there.

    Raises:
        CheckpointError: the file is damaged, of another model, or cannot be read safely.
    """
    if path.is_dir():
        state = validate(files.read(path), path, model, optimizer)
        return state["model_state_dict"], state["optimizer_state_dict"]
    weights, moments = content(path)
    check_model({**weights}, path, model)
    if moments is not None:
        check_optimizer(moments, path, optimizer)
    return weights, moments


def content(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, object] | None]:
    """Weights, as FP32, and optimizer state of a plain file; see :func:`load`. Raises CheckpointError."""
    raw = files.read_plain(path)
    saved: object = raw.get(MODEL) if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or not isinstance(saved, dict):
        found = sorted(map(str, raw))[:6] if isinstance(raw, dict) else type(raw).__name__
        raise CheckpointError(f"{path}: expected a dictionary with {MODEL} and {OPTIMIZER}, found {found}")
    moments: object = raw.get(OPTIMIZER)
    if moments is not None and not isinstance(moments, dict):
        raise CheckpointError(f"{path}: {OPTIMIZER}: expected a dictionary, found {type(moments).__name__}")
    prefixed = all(str(name).startswith(_PREFIX) for name in saved)
    weights = {
        str(name).removeprefix(_PREFIX) if prefixed else str(name): _fp32(value) for name, value in saved.items()
    }
    return weights, moments


def _fp32(value: torch.Tensor) -> torch.Tensor:
    # Exact: every FP16 and BF16 number is an FP32 number. What is not a tensor is refused by check_model.
    sixteen_bit = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if sixteen_bit else value
