"""An optimizer's saved state: checked, and given back without what torch would change on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import torch

from ..errors import CheckpointError
from ..values.numbers import is_number
from .tensors import check_dense, check_finite

HOW = ("fused", "foreach", "capturable", "differentiable")
"""How the optimizer computes: a property of this process, not of the training."""
_FORM = frozenset({"state", "param_groups"})
_MOST_NAMES = 6
_ADAM = ("step", "exp_avg", "exp_avg_sq")
_ELEMENTWISE = frozenset(
    {
        "acc_delta", "ax", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg", "max_exp_avg_sq", "momentum_buffer", "prev",
        "square_avg", "step_size", "sum", "variance",
    }
)  # fmt: skip
"""What torch's optimizers keep in the shape of the parameter."""
_SQUARES = frozenset(
    {
        "acc_delta", "col_var", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "row_var", "square_avg", "step_size", "sum",
        "variance",
    }
)  # fmt: skip
"""What torch's optimizers take the root of, or divide by: never negative. Where inf is, the weight stays as it is."""
_ADDED = frozenset({"acc_delta", "ax", "exp_avg", "grad_avg", "momentum_buffer", "prev", "step"})
"""What makes weights inf or NaN in the next step where it is inf itself."""


def load_optimizer(
    optimizer: torch.optim.Optimizer, saved: dict[str, object], *, keep_learning_rate: bool = False
) -> None:
    """Load a state that ``format.check_optimizer`` found good; gradients are dropped.

    Args:
        optimizer: takes the state; a setting that the saved one lacks stays as it is.
        saved: its ``state_dict``.
        keep_learning_rate: this process was told its learning rate, and means it; otherwise the saved one is taken.

    ``load_state_dict`` would also take over how the saved optimizer computed. An unfused one in place of a fused one no
    longer reads found_inf, and would put non-finite gradients into the weights.
    """
    own = (*HOW, "lr") if keep_learning_rate else HOW
    if "param_groups" not in saved:
        before = [{name: group[name] for name in own if name in group} for group in optimizer.param_groups]
        optimizer.load_state_dict(saved)
        for group, mine in zip(optimizer.param_groups, before, strict=True):
            group.update(mine)
        optimizer.zero_grad(set_to_none=True)
        return
    groups = cast("list[dict[str, object]]", saved["param_groups"])
    torchs = _is_torchs(optimizer)
    kept = [
        {
            **ours,
            **(_with_switches(group, ours) if torchs else group),
            **{name: ours[name] for name in own if name in ours},
        }
        for group, ours in zip(groups, optimizer.param_groups, strict=True)
    ]
    state = cast("dict[object, object]", saved["state"])
    if torchs and not isinstance(optimizer, torch.optim.SparseAdam):  # which counts in ints
        state = {index: _with_step(entry) for index, entry in state.items()}
    optimizer.load_state_dict({**saved, "state": state, "param_groups": kept})
    optimizer.zero_grad(set_to_none=True)


def _with_step(entry: object) -> object:
    """``entry``, as torch up to 1.11 saved it, with the tensor that its kernels count in now."""
    if not isinstance(entry, dict) or not _is_count(entry.get("step")):
        return entry
    return {**entry, "step": torch.tensor(float(entry["step"]), dtype=torch.float32)}


def _is_count(value: object) -> bool:
    return is_number(value) and value >= 0


def _with_switches(group: dict[str, object], ours: dict[str, object]) -> dict[str, object]:
    """``group``, as old files and files by hand have it, with the bools that torch's fused kernels insist on."""
    switches = {name: value for name, value in ours.items() if isinstance(value, bool) and name in group}
    return {**group, **{name: own if group[name] is None else bool(group[name]) for name, own in switches.items()}}


def check_optimizer(saved: dict[str, object], where: Path, optimizer: torch.optim.Optimizer | None) -> list[str]:
    """Refuse an optimizer state that is not one, not finite, or not over the parameters of ``optimizer``.

    Optimizer.load_state_dict itself compares the numbers of parameters only, and would take moments of any shape, in any
    order: its kernels read beyond them. A shape that nobody knows before the optimizer made one is taken: the tensor is as
    large as its file at most.

    Returns:
        What holds inf though weights can be trained on with it: the square of a huge gradient, which only stops its weight.

    Raises:
        CheckpointError: with the parameter that does not fit.
    """
    state, groups = saved.get("state"), saved.get("param_groups")
    if _is_of_a_kind_of_its_own(saved, where, optimizer):
        return _check_nest(saved, f"{where}: optimizer_state_dict")
    if not isinstance(state, dict) or not isinstance(groups, list):
        raise CheckpointError(f"{where}: optimizer_state_dict: expected the keys state and param_groups")
    known = [group for group in groups if isinstance(group, dict) and isinstance(group.get("params"), list)]
    count = sum(len(group["params"]) for group in known)
    parameters: list[torch.Tensor] = []
    if optimizer is not None:
        _check_groups(known, optimizer, where)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    adam = _ADAM if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) else ()
    amsgrad = {index for group in known if _is_on(group.get("amsgrad")) for index in group["params"]}
    infinite: list[str] = []
    for index, entry in state.items():
        if isinstance(index, str) and not index.isdigit():
            infinite += _check_nest({index: entry}, f"{where}: optimizer state")  # of all parameters together
            continue
        what = f"{where}: optimizer state of parameter {index}"
        if not isinstance(index, int) or not isinstance(entry, dict) or not 0 <= index < count:
            raise CheckpointError(f"{what}: expected a dictionary for a parameter in [0, {count - 1}]")
        needed = (*adam, "max_exp_avg_sq") if adam and index in amsgrad else adam
        given = {name for name, value in entry.items() if isinstance(value, torch.Tensor)}
        if _is_count(entry.get("step")):
            given.add("step")
        missing = [name for name in needed if entry and name not in given]
        if missing:
            raise CheckpointError(
                f"{what}: expected a tensor {missing[0]}, found {entry.get(missing[0])!r}; it is damaged"
            )
        for name, value in entry.items():
            _check_kept(name, value, what, (parameters[index], optimizer) if optimizer is not None else None)
        found = check_finite(entry, what, infinite=entry.keys() - _ADDED)
        infinite += [f"{name} of parameter {index}" for name in found]
    return infinite


def _is_of_a_kind_of_its_own(saved: dict[str, object], where: Path, optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether it is in another form than torch's, by an optimizer around another one, say; it must be in that one's."""
    if optimizer is None:
        return bool(saved) and not saved.keys() & _FORM
    ours: dict[str, object] = optimizer.state_dict()
    if ours.keys() >= _FORM:
        return False
    if saved.keys() != ours.keys():
        raise CheckpointError(
            f"{where}: optimizer_state_dict: expected the keys {sorted(map(str, ours))}, found "
            f"{sorted(map(str, saved))[:_MOST_NAMES]}; it is of another optimizer"
        )
    return True


def _check_nest(nest: dict[str, object], what: str) -> list[str]:
    """What nobody knows the meaning of is taken as it is, as long as it is no poison; returns what holds inf."""
    tensors = dict(_tensors(nest, ""))
    for name, value in tensors.items():
        check_dense(value, f"{what}: {name}")
    taken = {name for name in tensors if name.rpartition(".")[2] not in _ADDED}
    return check_finite(tensors, what, infinite=taken)


def _tensors(value: object, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(item, f"{name}.{key}" if name else str(key))


def _check_groups(groups: Sequence[dict[str, object]], optimizer: torch.optim.Optimizer, where: Path) -> None:
    what = f"{where}: optimizer_state_dict"
    numbers = [cast("list[object]", group["params"]) for group in groups]
    sizes, wanted = list(map(len, numbers)), [len(group["params"]) for group in optimizer.param_groups]
    if sizes != wanted:
        raise CheckpointError(
            f"{what}: expected groups of {wanted} parameters, found {sizes}; it is of another optimizer"
        )
    # torch gives each number's state to the parameter at its place.
    ours_too = [group["params"] for group in optimizer.state_dict()["param_groups"]]
    if numbers != ours_too or any(type(number) is not int for group in numbers for number in group):
        raise CheckpointError(
            f"{what}: expected parameters numbered {str(ours_too)[:60]}, found {str(numbers)[:60]}; it is damaged"
        )
    for number, (group, ours) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        _check_group(group, ours, f"{what}: param_groups[{number}]", strictly=_is_torchs(optimizer))


def _check_kept(name: object, value: object, what: str, of: tuple[torch.Tensor, torch.optim.Optimizer] | None) -> None:
    """What is kept under ``name``; ``of``: the parameter, and its optimizer."""
    if not isinstance(value, torch.Tensor):
        counts = name == "step" and _is_count(value) and of is not None and _is_torchs(of[1])
        # SGD without momentum keeps None.
        if of is not None and value is not None and not counts and _is_tensor(name, *of):
            raise CheckpointError(f"{what}: expected a tensor {name}, found {value!r}; it is damaged")
        return
    check_dense(value, f"{what}: {name}")
    if value.is_quantized:
        raise CheckpointError(f"{what}: {name}: expected numbers, found {value.dtype}; it is damaged")
    if of is not None and value.is_complex() and _is_torchs(of[1]) and not of[0].is_complex():
        raise CheckpointError(f"{what}: {name}: expected real numbers, found {value.dtype}; it is damaged")
    odd = value.numel() != 1 or value.is_complex() or value.dtype is torch.bool or float(value) < 0
    if name == "step" and odd and (of is None or _is_torchs(of[1])):
        raise CheckpointError(f"{what}: step: expected one number from 0 on, found {value!r}; it is damaged")
    if name in _SQUARES and of is not None and _is_torchs(of[1]) and not _is_positive(value):
        raise CheckpointError(f"{what}: {name}: expected numbers from 0 on, found negative ones; it is damaged")
    shape = _shape(name, *of) if of is not None else None
    if shape is not None and value.shape != shape:
        raise CheckpointError(f"{what}: {name}: expected {tuple(shape)}, found {tuple(value.shape)}")


def _is_positive(value: torch.Tensor) -> bool:
    return not value.is_floating_point() or not value.numel() or not bool(value.float().min() < 0)


def _is_on(value: object) -> bool:
    return isinstance(value, (bool, int, float)) and bool(value)


def _is_tensor(name: object, parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> bool:
    """Whether what ``optimizer`` keeps under ``name`` is one. One that is not torch's may keep a number under any name."""
    if isinstance(optimizer.state.get(parameter, {}).get(name), torch.Tensor):
        return True
    return name in _ELEMENTWISE and _is_torchs(optimizer)


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


def _is_torchs(optimizer: torch.optim.Optimizer) -> bool:
    """One of torch's own, of which it is known what its settings mean."""
    return type(optimizer).__module__.startswith("torch.optim.")


def _check_group(group: dict[str, object], ours: dict[str, object], what: str, *, strictly: bool) -> None:
    """Refuse settings that the optimizer would trip over in its first step; those in HOW are never taken over."""
    for name, value in ours.items():
        if name in ("params", *HOW) or name not in group:
            continue
        found = group[name]
        if name.endswith("lr") and isinstance(found, torch.Tensor) and found.numel() == 1:
            found = found.item()  # torch takes either
        if not _fits(found, value) or (strictly and not _is_sound(name, found, value)):
            raise CheckpointError(
                f"{what}.{name}: expected a value such as {value!r}, found {found!r}; the checkpoint is damaged"
            )


def _fits(value: object, ours: object) -> bool:
    if isinstance(ours, (list, tuple)):
        same = isinstance(value, (list, tuple)) and len(value) == len(ours)
        return same and all(map(_fits, cast("list[object]", value), ours))
    if isinstance(ours, bool) and value is None:
        return True
    return not isinstance(ours, (int, float)) or isinstance(value, (int, float, torch.Tensor))


def _is_sound(name: str, value: object, ours: object) -> bool:
    """What torch's constructors ask of it: a switch, or a finite number from 0 on, and below 1 where it is a beta's."""
    if isinstance(ours, (list, tuple)):
        return all(_is_sound(name, one, other) for one, other in zip(cast("list[object]", value), ours, strict=True))
    if isinstance(ours, bool):
        return value is None or (isinstance(value, (bool, int, float)) and value in (False, True))
    if not isinstance(ours, (int, float)):
        return True
    if isinstance(value, torch.Tensor) or not isinstance(value, (int, float)):
        return False
    try:
        number = float(value)
    except OverflowError:
        return False
    if name.endswith("lr"):  # a schedule that runs past its end goes below 0
        return math.isfinite(number)
    return value == ours or (math.isfinite(number) and number >= 0 and (name != "betas" or number < 1))
