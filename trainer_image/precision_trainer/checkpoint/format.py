"""What a checkpoint holds, and the checks that what was read is that: plain values, FP32, finite, of this model.

All checks are made before anything is put into a model or an optimizer: a refused checkpoint leaves both as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import torch

from ..errors import CheckpointError
from ..values.modes import WIRE_NAMES
from ..values.numbers import is_whole
from ..values.request import MAX_GENERATION
from .optimizer import check_optimizer
from .rng import check_random_state
from .tensors import check_dense, check_finite, is_expanded, once

FORMAT = 1
MAX_STEP = 10**12 - 1
"""The directory's name has twelve digits."""
_SCALER: tuple[tuple[str, float | None, Callable[[float], bool], str], ...] = (
    ("scale", None, lambda v: 0 < v <= torch.finfo(torch.float32).max, "a finite FP32 number above 0"),
    ("growth_tracker", None, lambda v: 0 <= v < float("inf"), "a finite number from 0 on"),
    ("overflows_left", 1.0, lambda v: 0 <= v < 2**31, "a number in [0, 2147483647]"),
    ("factor", 1.0, lambda v: 0 < v < float("inf"), "a finite number above 0"),
    ("growth_interval", 1.0, lambda v: 1 <= v < 2**31 and v.is_integer(), "a whole number in [1, 2147483647]"),
)
"""What a scaler's state holds: name, what counts where it is absent, whether it is good, and what it must be. Absent are
``overflows_left`` in files from before there was hysteresis, and what nobody asked for."""


class ModeEntry(TypedDict):
    """One line of the mode history."""

    step: int
    mode: str
    generation: int
    source: str
    time: float


class TrainingState(TypedDict):
    """Everything needed to go on: plain values and tensors only, so that weights_only loading suffices."""

    format: int
    step: int
    """Steps tried so far; the next one has this number."""
    samples: int
    """Position in the data stream: samples consumed by the process group."""
    model_state_dict: dict[str, torch.Tensor]
    optimizer_state_dict: dict[str, object]
    scaler: dict[str, float]
    rng: list[dict[str, str]]
    """Random state of each rank, hexadecimal, by device kind."""
    mode: str
    generation: int
    mode_history: list[ModeEntry]
    progress: dict[str, float]
    data_fingerprint: str
    nonfinite_buffers: NotRequired[list[str]]
    """Buffers and frozen parameters that held inf or NaN from the start on, such as a mask: no poisoned weights."""
    untrained: NotRequired[list[str]]
    """Buffers and frozen parameters: those that hold inf become nonfinite_buffers when it is written. Not in the file."""
    unproven: NotRequired[list[str]]
    """What became inf in training: what it did to the training no step shows, so it is never tagged healthy."""
    other_types: NotRequired[list[str]]
    """Tensors of the model that are not FP32 by its author's choice: frozen weights, buffers."""
    parts: NotRequired[dict[str, dict[str, object]]]
    """What others keep beside it (sentinel, baseline…), by name: plain values; see Checkpointer.attach."""


_TYPES: dict[str, type] = {
    "format": int, "step": int, "samples": int, "model_state_dict": dict, "optimizer_state_dict": dict, "scaler": dict,
    "rng": list, "mode": str, "generation": int, "mode_history": list, "progress": dict, "data_fingerprint": str,
}  # fmt: skip
_ENTRY: dict[str, type] = {"step": int, "mode": str, "generation": int, "source": str, "time": float}


def validate(
    raw: object, where: Path, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None
) -> TrainingState:
    """Check what was read.

    Args:
        raw: the unpickled content.
        where: for messages.
        model: names, shapes and dtypes must fit it; None: any FP32 model.
        optimizer: its parameter groups and state must fit it; None: any.

    Raises:
        CheckpointError: with the key, what was expected and what was found.
    """
    if not isinstance(raw, dict):
        raise CheckpointError(
            f"{where}: expected a dictionary, found {type(raw).__name__}; it is not a checkpoint of ours"
        )
    for key, kind in _TYPES.items():
        _expect(raw.get(key), kind, f"{where}: {key}")
    _check_numbers(raw, where)
    nonfinite, others = _names(raw, "nonfinite_buffers", where), _names(raw, "other_types", where)
    _names(raw, "unproven", where)
    check_model(raw["model_state_dict"], where, model, nonfinite_buffers=nonfinite, other_types=others)
    check_optimizer(raw["optimizer_state_dict"], where, optimizer)
    check_scaler(raw["scaler"], where)
    for rank, random_state in enumerate(raw["rng"]):
        check_random_state(random_state, f"{where}: rng of rank {rank}")
    for number, entry in enumerate(raw["mode_history"]):
        _expect(entry, dict, f"{where}: mode_history[{number}]")
        for key, kind in _ENTRY.items():
            _expect(entry.get(key), kind, f"{where}: mode_history[{number}].{key}")
    for part, value in _expect(raw.get("parts", {}), dict, f"{where}: parts").items():
        _expect(value, dict, f"{where}: parts.{part}")
    return cast(TrainingState, raw)  # checked above, key by key


def _names(raw: dict[object, object], key: str, where: Path) -> list[str]:
    names = raw.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CheckpointError(f"{where}: {key}: expected a list of names; the checkpoint is damaged")
    return names


def _expect(value: object, kind: type, what: str) -> dict[object, object]:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CheckpointError(
            f"{what}: expected {kind.__name__}, found {type(value).__name__}; the checkpoint is damaged"
        )
    return value if isinstance(value, dict) else {}


def _check_numbers(raw: dict[str, object], where: Path) -> None:
    for key, low, high in (
        ("format", FORMAT, FORMAT),
        ("step", 0, MAX_STEP),
        ("samples", 0, 2**63 - 1),
        ("generation", 0, MAX_GENERATION),
    ):
        if not is_whole(raw[key], low, high):
            raise CheckpointError(f"{where}: {key} {raw[key]!r}: expected a whole number in [{low}, {high}]")
    if raw["mode"] not in WIRE_NAMES:
        raise CheckpointError(f"{where}: mode {raw['mode']!r}: expected one of {', '.join(WIRE_NAMES)}")


def check_model(
    saved: Mapping[str, object],
    where: Path,
    model: torch.nn.Module | None,
    *,
    nonfinite_buffers: Collection[str] = (),
    infinite: Collection[str] = (),
    other_types: Collection[str] = (),
) -> list[str]:
    """Refuse weights that are not finite (but for ``nonfinite_buffers``), or not of ``model``.

    Without a model, refuse what is not FP32, but for ``other_types``.

    Returns:
        Those of ``infinite`` that hold inf, and no NaN.

    Raises:
        CheckpointError: with the first name that does not fit.
    """
    wanted = model.state_dict() if model is not None else None
    if wanted is not None and set(saved) != set(wanted):
        difference = sorted(str(name) for name in set(saved) ^ set(wanted))[:4]
        raise CheckpointError(f"{where} is of another model: it differs in {difference}; use a directory of its own")
    for name, found in saved.items():
        if not isinstance(found, torch.Tensor):
            raise CheckpointError(f"{where}: {name}: expected a tensor, found {type(found).__name__}")
        check_dense(found, f"{where}: {name}")
        if wanted is not None:
            tensor = wanted[name]
            if found.shape != tensor.shape or found.dtype != tensor.dtype:
                raise CheckpointError(
                    f"{where} is of another model: {name}: expected {tuple(tensor.shape)} {tensor.dtype}, found "
                    f"{tuple(found.shape)} {found.dtype}; use a directory of its own"
                )
            if is_expanded(tensor) and not torch.equal(found, once(found, tensor).expand_as(found)):
                raise CheckpointError(
                    f"{where}: {name}: expected one number where the model repeats one, found several"
                )
        elif found.is_floating_point() and found.dtype is not torch.float32 and name not in other_types:
            raise CheckpointError(f"{where}: {name}: expected torch.float32, found {found.dtype}; convert it first")
    return check_finite(saved, f"{where}: model_state_dict", nonfinite_buffers, infinite)


def check_scaler(scaler: Mapping[str, object], where: Path) -> None:
    """Refuse a scaler's state that is not one. Raises CheckpointError."""
    for name, absent, good, expected in _SCALER:
        value = scaler.get(name, absent)
        if not isinstance(value, float) or not good(value):
            raise CheckpointError(f"{where}: scaler.{name} {value!r}: expected {expected}")
