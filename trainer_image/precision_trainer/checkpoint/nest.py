"""What is about to be written, as a file can hold it: a nest of dictionaries and lists with tensors and plain values."""

from __future__ import annotations

import copy
import io
import sys
from typing import TypeVar, cast

import torch

from ..errors import CheckpointError
from .tensors import is_larger_than_stored

T = TypeVar("T")
_REASON = "WeightsUnpickler error: "
"""Before what torch has against a file, after much that is of no use here."""


def as_saved(value: T) -> T:
    """The same nest with numbers of NumPy as Python's, and each expanded tensor as large as it looks; else as it is.

    A learning rate that a script computed with NumPy is a class of NumPy's in the file, and no safe load takes it.
    """
    return cast(T, _as_saved(value))


def _as_saved(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.contiguous_format) if is_larger_than_stored(value) else value
    if isinstance(value, dict):
        items = {key: _as_saved(item) for key, item in value.items()}
        if all(items[key] is item for key, item in value.items()):
            return value
        changed = copy.copy(value)  # a model's state has its modules' versions beside it
        changed.update(items)
        return changed
    if isinstance(value, (list, tuple)):
        entries = [_as_saved(item) for item in value]
        return tuple(entries) if isinstance(value, tuple) else entries  # no class of a script's can be loaded
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def check_loads(state: object, what: str) -> None:
    """Refuse what a safe load would refuse: a good file would have been replaced by one that is of no use.

    Raises:
        CheckpointError: with what is wrong in it.
    """
    buffer = io.BytesIO()
    try:
        torch.save(_without_data(state), buffer)
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
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return None
    if isinstance(value, dict):
        emptied = copy.copy(value)
        emptied.update({key: _without_data(item) for key, item in value.items()})
        return emptied
    if type(value) in (list, tuple):
        return [_without_data(item) for item in cast("list[object]", value)]
    return value
