"""The first step in a mode that never ran in this process: all ranks prove the mode, or leave it together.

A model may fail in a mode: a kernel that does not exist for it, a type that does not fit, memory. That must not end
training, nor a restart under the same request. So this step is computed without DDP's reduction. The ranks tell each other
after the forward and after the backward pass of each micro-batch whether they failed. If one did, all compute it once more,
and then in the mode before. That is the one case in which a loss is computed again: otherwise training would end.
"""

from __future__ import annotations

import contextlib
import functools
import re
import traceback
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from ..distributed import process_group
from ..errors import MAX_ERROR
from ..step.replay import ForwardState, version
from ..values.modes import PrecisionMode
from ..values.request import PrecisionRequest
from .batch import KeptBatch

Result = TypeVar("Result")
_OF_A_MODE = re.compile(r"0x[0-9a-f]+|\d+|\b[KMGT]i?B\b|\w*(?:float|half)\w*", re.IGNORECASE)
"""In an error's text: addresses and sizes differ too where the error is the same."""
THE_MODEL = "the model"
"""In the place of a name, which the whole of it does not have."""


class Trial:
    """What there is to go back to, should the mode fail."""

    def __init__(self, mode: PrecisionMode, requested: PrecisionMode, applied: PrecisionRequest | None) -> None:
        """Of the time before: the mode in force, the one requested, and the last request applied."""
        self.mode, self.requested, self.applied = mode, requested, applied
        self.scaling: dict[str, float] | None = None
        """State of the loss scaler, where the request tunes it."""
        self.watch: dict[str, object] | None = None
        """State of the sentinel, where the request clears more than a lowered scale."""
        self._state: ForwardState | None = None
        self._batch: KeptBatch | None = None

    def remember(self, model: torch.nn.Module, device: torch.device, batch: object) -> None:
        """Keep what a forward pass changes, and what a loss may do to its batch."""
        self._state = ForwardState(model, device)
        self._batch = KeptBatch(batch)

    def computed(self) -> None:
        """The forward pass is over: what is done to the batch from here on is the script's own."""
        if self._batch is not None:
            self._batch.computed()

    def leave_rewritten(self) -> None:
        """Let go of what the script has filled anew since the forward pass."""
        if self._batch is not None:
            self._batch.leave_rewritten()

    def restore(self) -> None:
        """Put it back."""
        if self._state is not None:
            self._state.restore()
        if self._batch is not None:
            self._batch.restore()


class LastEntered:
    """Notes the module whose backward pass began last: autograd leaves no trace of it in an error.

    For a pass that is known to fail, as it asks every module. Hooks of tensors, since those of modules' backward passes make
    changes in place an error.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Of the modules of ``model``."""
        self.layer: str | None = None
        self._modules = {name or THE_MODEL: module for name, module in model.named_modules()}
        self._handles: list[RemovableHandle] = []
        self._seen: list[torch.Tensor] = []

    def __enter__(self) -> LastEntered:
        """The forward and the backward pass come in here."""
        self._handles = [
            module.register_forward_hook(functools.partial(self._forward, name))
            for name, module in self._modules.items()
        ]
        return self

    def __exit__(self, *_error: object) -> None:
        """Let go of the pass."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._seen = [], []

    def _forward(self, name: str, _module: torch.nn.Module, _inputs: object, output: object) -> None:
        for leaf in tree_leaves(output):
            # What an inner module gave out already is that one's.
            if (
                isinstance(leaf, torch.Tensor)
                and leaf.grad_fn is not None
                and not any(leaf is one for one in self._seen)
            ):
                self._seen.append(leaf)
                self._handles.append(leaf.register_hook(functools.partial(self._backward, name)))  # type: ignore[no-untyped-call]

    def _backward(self, name: str, _gradient: torch.Tensor) -> None:
        self.layer = name


def where_failed(model: torch.nn.Module, error: Exception, entered: LastEntered | None = None) -> str | None:
    """The innermost module whose pass the error came through, by its name; None if it is not known."""
    names = {id(module): name or THE_MODEL for name, module in model.named_modules()}
    layer = entered.layer if entered is not None else None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        layer = names.get(id(frame.f_locals.get("self")), layer)
    return layer


def what_failed(
    model: torch.nn.Module, error: Exception, direction: str = "", entered: LastEntered | None = None
) -> str:
    """What failed and where, for a person."""
    layer = where_failed(model, error, entered)
    text = _first_line(error)
    where = f" in {layer}" if layer is not None else ""
    during = f" in its {direction} pass" if direction else ""
    return f"{type(error).__name__}{during}{where} ({text})"


def kind_of(error: Exception) -> str:
    """What an error is, as far as it can be the same in two modes: their types and sizes differ."""
    return f"{type(error).__name__} {_OF_A_MODE.sub('', _first_line(error))}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:MAX_ERROR]


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed in one pass of the micro-batch, over all ranks."""

    reasons: list[str]
    """For a person."""
    kinds: frozenset[tuple[int, str]]
    """Ranks, and the kinds of their errors."""
    wrote: bool
    """The pass had changed weights on some rank, where each further one would change them again."""


@dataclass(frozen=True, slots=True)
class Pass(Generic[Result]):
    """What one pass of the micro-batch came to."""

    result: Result | None
    """Of this rank; None if it failed here."""
    failed: Failure | None
    """None if no rank failed."""
    apart: bool = False
    """The ranks are not in the same pass: one of them has left a batch out. Then ``failed`` says nothing."""


def guarded(
    compute: Callable[[], Result],
    model: torch.nn.Module,
    direction: str,
    *,
    micro: int,
    together: bool,
    entered: LastEntered | None = None,
) -> Pass[Result]:
    """Compute one pass of micro-batch ``micro``. A collective where the ranks train ``together``."""
    result: Result | None = None
    failed: str | None = None
    kind = ""
    weights = _versions(model)
    try:
        result = compute()
    except Exception as error:  # noqa: BLE001  (whatever a model raises in a mode that it was not written for)
        failed, kind = what_failed(model, error, direction, entered), kind_of(error)
    wrote = any(version(parameter) != before for parameter, before in weights)
    if not together:
        return Pass(result, None if failed is None else _failure([failed], {(0, kind)}, wrote=wrote))
    this_pass = f"{direction} {micro}"
    everyone = process_group.exchange({"pass": this_pass, "failed": failed, "kind": kind, "wrote": wrote})
    bad = [(rank, one) for rank, one in enumerate(everyone) if one["failed"] is not None]
    reasons = [f"rank {rank}: {one['failed']}" for rank, one in bad]
    kinds = {(rank, str(one.get("kind"))) for rank, one in bad}
    failure = _failure(reasons, kinds, wrote=any(one.get("wrote") for one in everyone)) if bad else None
    return Pass(result, failure, apart=any(one["pass"] != this_pass for one in everyone))


def _versions(model: torch.nn.Module) -> list[tuple[torch.Tensor, int]]:
    with contextlib.suppress(Exception):  # a parameter that has no shape before the first pass
        return [(parameter, version(parameter)) for parameter in model.parameters()]
    return []


def _failure(reasons: list[str], kinds: Set[tuple[int, str]], *, wrote: bool) -> Failure:
    # Copies of all weights would double their memory in the first step of every mode.
    stay = ["the pass had changed weights before it failed, and they are not put back"] if wrote else []
    return Failure([*reasons, *stay], frozenset(kinds), wrote)


def reduce(model: torch.nn.Module, message: torch.Tensor) -> torch.Tensor:
    """What DDP's backward pass does, afterwards: every gradient becomes the mean over the ranks.

    Args:
        model: whose gradients were computed on this rank alone.
        message: of this rank (distributed/agreement.py), [WIDTH].

    Returns:
        The mean of all ranks' messages.
    """
    world = dist.get_world_size()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    used = torch.tensor([int(parameter.grad is not None) for parameter in parameters], device=message.device)
    dist.all_reduce(used)
    for parameter, ranks in zip(parameters, used.tolist(), strict=True):
        if not ranks:  # used nowhere: no gradient, as without us
            continue
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradient.div_(world)
        dist.all_reduce(gradient)
        parameter.grad = gradient
    mean = message / world
    dist.all_reduce(mean)
    return mean
