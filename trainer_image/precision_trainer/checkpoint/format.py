"""What a checkpoint holds, and the checks that what was read is that: plain values, FP32, finite, of this model.

All checks are made before anything is put into a model or an optimizer: a refused checkpoint leaves both as they were.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NotRequired, TypedDict, cast

import torch

from ..errors import CheckpointError
from ..values.modes import WIRE_NAMES
from ..values.request import MAX_GENERATION
from .optimizer import HOW
from .tensors import check_dense, check_finite

FORMAT = 1
MAX_STEP = 10**12 - 1
"""The directory's name has twelve digits."""


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
    other_types: NotRequired[list[str]]
    """Tensors of the model that are not FP32 by its author's choice: frozen weights, buffers."""
    parts: NotRequired[dict[str, dict[str, object]]]
    """What others keep beside it (sentinel, baseline…), by name: plain values; see Checkpointer.attach."""


_TYPES: dict[str, type] = {
    "format": int, "step": int, "samples": int, "model_state_dict": dict, "optimizer_state_dict": dict, "scaler": dict,
    "rng": list, "mode": str, "generation": int, "mode_history": list, "progress": dict, "data_fingerprint": str,
}  # fmt: skip
_ADAM = ("step", "exp_avg", "exp_avg_sq")
_ELEMENTWISE = frozenset(
    {
        "acc_delta", "ax", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg", "max_exp_avg_sq", "momentum_buffer", "prev",
        "square_avg", "step_size", "sum", "variance",
    }
)  # fmt: skip
"""What torch's optimizers keep in the shape of the parameter."""
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
    check_model(raw["model_state_dict"], where, model, nonfinite_buffers=nonfinite, other_types=others)
    check_optimizer(raw["optimizer_state_dict"], where, optimizer)
    check_scaler(raw["scaler"], where)
    for rank, random_state in enumerate(raw["rng"]):
        _check_random_state(random_state, f"{where}: rng of rank {rank}")
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
        value = raw[key]
        if not isinstance(value, int) or not low <= value <= high:
            raise CheckpointError(f"{where}: {key} {value!r}: expected a whole number in [{low}, {high}]")
    if raw["mode"] not in WIRE_NAMES:
        raise CheckpointError(f"{where}: mode {raw['mode']!r}: expected one of {', '.join(WIRE_NAMES)}")


def check_model(
    saved: dict[str, object],
    where: Path,
    model: torch.nn.Module | None,
    *,
    nonfinite_buffers: Collection[str] = (),
    other_types: Collection[str] = (),
) -> None:
    """Refuse weights that are not finite (but for ``nonfinite_buffers``), or not of ``model``.

    Without a model, refuse what is not FP32, but for ``other_types``.

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
        elif found.is_floating_point() and found.dtype is not torch.float32 and name not in other_types:
            raise CheckpointError(f"{where}: {name}: expected torch.float32, found {found.dtype}; convert it first")
    check_finite(saved, f"{where}: model_state_dict", nonfinite_buffers)


def check_optimizer(saved: dict[str, object], where: Path, optimizer: torch.optim.Optimizer | None) -> None:
    """Refuse an optimizer state that is not one, not finite, or not over the parameters of ``optimizer``.

    Optimizer.load_state_dict itself compares the numbers of parameters only, and would take moments of any shape. A shape
    that nobody knows before the optimizer made one is taken: the tensor is as large as its file at most.

    Raises:
        CheckpointError: with the parameter that does not fit.
    """
    state, groups = saved.get("state"), saved.get("param_groups")
    if not isinstance(state, dict) or not isinstance(groups, list):
        raise CheckpointError(f"{where}: optimizer_state_dict: expected the keys state and param_groups")
    sizes = [
        len(group["params"]) for group in groups if isinstance(group, dict) and isinstance(group.get("params"), list)
    ]
    parameters: list[torch.Tensor] = []
    if optimizer is not None:
        wanted = [len(group["params"]) for group in optimizer.param_groups]
        if sizes != wanted:
            raise CheckpointError(
                f"{where}: optimizer_state_dict: expected groups of {wanted} parameters, found {sizes}; it is of another "
                "optimizer"
            )
        for number, (group, ours) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
            _check_group(group, ours, f"{where}: optimizer_state_dict: param_groups[{number}]")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    needed = _ADAM if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) else ()
    for index, entry in state.items():
        what = f"{where}: optimizer state of parameter {index}"
        if not isinstance(index, int) or not isinstance(entry, dict) or not 0 <= index < sum(sizes):
            raise CheckpointError(f"{what}: expected a dictionary for a parameter in [0, {sum(sizes) - 1}]")
        missing = [name for name in needed if entry and not isinstance(entry.get(name), torch.Tensor)]
        if missing:
            raise CheckpointError(
                f"{what}: expected a tensor {missing[0]}, found {entry.get(missing[0])!r}; it is damaged"
            )
        for name, value in entry.items():
            if not isinstance(value, torch.Tensor):
                tensor = optimizer is not None and _is_tensor(name, parameters[index], optimizer)
                if tensor and value is not None:  # SGD without momentum keeps None
                    raise CheckpointError(f"{what}: expected a tensor {name}, found {value!r}; it is damaged")
                continue
            check_dense(value, f"{what}: {name}")
            shape = _shape(name, parameters[index], optimizer) if optimizer is not None else None
            if shape is not None and value.shape != shape:
                raise CheckpointError(f"{what}: {name}: expected {tuple(shape)}, found {tuple(value.shape)}")
        check_finite(entry, what)


def _is_tensor(name: object, parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> bool:
    """Whether what ``optimizer`` keeps under ``name`` is one. One that is not torch's may keep a number under any name."""
    if isinstance(optimizer.state.get(parameter, {}).get(name), torch.Tensor):
        return True
    return name in _ELEMENTWISE and type(optimizer).__module__.startswith("torch.optim.")


def _shape(name: object, parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Size | None:
    """Of what ``optimizer`` keeps of ``parameter`` under ``name``; None: it is not known."""
    live = optimizer.state.get(parameter, {}).get(name)
    if isinstance(live, torch.Tensor):
        return live.shape
    shape = parameter.shape
    if name == "row_var":  # Adafactor's
        return torch.Size((*shape[:-1], 1))
    if name == "col_var":
        return torch.Size((*shape[:-2], 1, *shape[-1:]))
    return shape if name in _ELEMENTWISE else None


def _check_group(group: dict[object, object], ours: dict[str, object], what: str) -> None:
    """Refuse settings that the optimizer would trip over in its first step; those in HOW are never taken over."""
    for name, value in ours.items():
        if name not in ("params", *HOW) and name in group and not _fits(group[name], value):
            raise CheckpointError(
                f"{what}.{name}: expected a value such as {value!r}, found {group[name]!r}; the checkpoint is damaged"
            )


def _fits(value: object, ours: object) -> bool:
    if isinstance(ours, (list, tuple)):
        same = isinstance(value, (list, tuple)) and len(value) == len(ours)
        return same and all(map(_fits, cast("list[object]", value), ours))
    return not isinstance(ours, (int, float)) or isinstance(value, (int, float, torch.Tensor))


def check_scaler(scaler: dict[str, object], where: Path) -> None:
    """Refuse a scaler's state that is not one. Raises CheckpointError."""
    scale, tracker = scaler.get("scale"), scaler.get("growth_tracker")
    if not isinstance(scale, float) or not 0 < scale < float("inf"):
        raise CheckpointError(f"{where}: scaler.scale {scale!r}: expected a finite number above 0")
    if not isinstance(tracker, float) or not 0 <= tracker < float("inf"):
        raise CheckpointError(f"{where}: scaler.growth_tracker {tracker!r}: expected a finite number from 0 on")
    factor, interval = scaler.get("factor", 1.0), scaler.get("growth_interval", 1.0)  # absent: nobody asked
    if not isinstance(factor, float) or not 0 < factor < float("inf"):
        raise CheckpointError(f"{where}: scaler.factor {factor!r}: expected a finite number above 0")
    if not isinstance(interval, float) or not 1 <= interval < 2**31 or not interval.is_integer():
        raise CheckpointError(
            f"{where}: scaler.growth_interval {interval!r}: expected a whole number in [1, 2147483647]"
        )


def _check_random_state(state: object, what: str) -> None:
    # Of the CPU's generator alone the size is the same everywhere; a CUDA device checks its own when it is set.
    expected = 2 * torch.get_rng_state().numel()
    if not isinstance(state, dict):
        raise CheckpointError(f"{what}: expected dict, found {type(state).__name__}; the checkpoint is damaged")
    for kind, text in state.items():
        try:
            bytes.fromhex(text)
        except (ValueError, TypeError):
            raise CheckpointError(f"{what}: {kind}: expected hexadecimal text; the checkpoint is damaged") from None
        if kind == "cpu" and len(text) != expected:
            raise CheckpointError(f"{what}: {kind}: expected {expected} digits, found {len(text)}")
