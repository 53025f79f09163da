"""What is about to be written, as a file can hold it: a nest of dictionaries and lists with tensors and plain values."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable
from typing import TypeVar, cast

import torch

from ..errors import CheckpointError
from .tensors import is_larger_than_stored

T = TypeVar("T")
_REASON = "WeightsUnpickler error: "
"""Before what torch has against a file, after much that is of no use here."""


def mapped(nest: object, change: Callable[[object], object], *, plain: bool = False) -> object:
    """The same nest of dictionaries, lists and tuples, with what ``change`` makes of everything else in it.

    Args:
        nest: is not written to.
        change: given each value that is none of these, in their order.
        plain: each dictionary becomes a new one of Python's own; else one in which nothing changes is given as it is, and
            another is copied with all that belongs to its class.
    """
    if isinstance(nest, dict):
        items = {key: mapped(item, change, plain=plain) for key, item in nest.items()}
        if plain:
            return items
        if all(items[key] is item for key, item in nest.items()):
            return nest
        changed = copy.copy(nest)  # a model's state has its modules' versions beside it
        changed.update(items)
        return changed
    if isinstance(nest, (list, tuple)):
        entries = [mapped(item, change, plain=plain) for item in nest]
        return tuple(entries) if isinstance(nest, tuple) else entries  # no class of a script's can be loaded
    return change(nest)


def as_saved(value: T) -> T:
    """The same nest with numbers of NumPy as Python's, and each expanded tensor as large as it looks; else as it is.

    A learning rate that a script computed with NumPy is a class of NumPy's in the file, and no safe load takes it.
    """
    return cast(T, mapped(value, _as_saved))


def _as_saved(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.contiguous_format) if is_larger_than_stored(value) else value
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def check_loads(state: object, what: str) -> None:
    """Refuse what a safe load would refuse: a good file would have been replaced by one that is of no use.

    ``state``: as :func:`as_saved` gives it.

    Raises:
        CheckpointError: with what is wrong in it.
    """
    buffer = io.BytesIO()
    try:
        torch.save(mapped(state, _without_data), buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
    except Exception as error:
        # pickle, what it pickles and the unpickler raise many kinds of error; each means the same here.
        reason = str(error).split(_REASON)[-1].strip().partition(". ")[0].replace("\n", " ")
        raise CheckpointError(
            f"{what} not written: it could not be loaded ({type(error).__name__}: {reason}); keep only tensors, "
            "numbers, texts, lists and dictionaries in what the optimizer and the model save"
        ) from error


def _without_data(value: object) -> object:
    return None if type(value) in (torch.Tensor, torch.nn.Parameter) else value
