"""What is trained: a model, its data and its loss. The trainer looks into none of them.

A person's own model is a factory ``your.module:factory`` that takes no argument and returns ``(model, batches, loss)``, or
``(model, batches, loss, replay)``:

    model     an nn.Module with FP32 parameters, on the CPU
    batches   (position, size) -> batch: samples ``position`` to ``position + size - 1`` of an endless stream, as a tensor or
              a nest of tuples, lists and dicts of tensors. The same position always gives the same samples, so a resume
              or another number of ranks loses and repeats nothing.
    loss      (model, batch) -> 0-dim tensor, the mean over the batch. Call ``model`` as it is handed in: under DDP, where
              ranks train together, it is the wrapped one.
    replay    (model, batch) -> the same loss, as a pure function of the two: no collective, no state of its own, nothing
              written. With it the sentinel can tell bad precision from bad data; often it is ``loss`` itself.

examples/ holds one.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, cast

import torch
from torch.utils import _pytree

from ..errors import ConfigError
from ..step.replay import tensors_in

Batch = TypeVar("Batch")
Loss: TypeAlias = Callable[[torch.nn.Module, object], torch.Tensor]
_PROTOCOL = "expected (model, batches, loss) or (model, batches, loss, replay), see examples/"


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to train; see the module's text."""

    name: str
    """For people and for ``genesis_run_info``."""
    model: torch.nn.Module
    batches: Callable[[int, int], object]
    loss: Loss
    fingerprint: str
    """Of the data, kept with checkpoints: a resume on other data says so."""
    replay: Loss | None = None
    """The loss as a pure function, of the bare model; None: the sentinel computes nothing again."""


def make_task(
    name: str,
    model: torch.nn.Module,
    batches: Callable[[int, int], Batch],
    loss: Callable[[torch.nn.Module, Batch], torch.Tensor],
    fingerprint: str | None = None,
    *,
    replay: Callable[[torch.nn.Module, Batch], torch.Tensor] | None = None,
) -> Task:
    """Put a task together; without a ``fingerprint``, the data's first sample stands for the data."""
    # The batch is opaque from here on: only ``loss`` gets what ``batches`` made.
    return Task(
        name,
        model,
        batches,
        cast(Loss, loss),
        fingerprint or _fingerprint(batches(0, 1)),
        cast("Loss | None", replay),
    )


def load_task(target: str) -> Task:
    """The task of a person's factory.

    Args:
        target: ``your.module:factory``, importable from the working directory or the Python path.

    Raises:
        ConfigError: there is no such factory, or it returns something else.
    """
    module_name, _, name = target.partition(":")
    # A console script does not have the working directory on its path, `python -m` does: both should find the module.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not: the traceback says where
        raise ConfigError(
            f"{target}: there is no module {module_name}; run it from the folder that holds it, or set PYTHONPATH"
        ) from None
    factory: object = getattr(module, name, None)
    if not callable(factory):
        raise ConfigError(f"{target}: {module_name} has no function {name}; name the one that returns the model")
    made: object = factory()
    if not isinstance(made, tuple) or len(made) not in (3, 4):
        raise ConfigError(f"{target} returned {type(made).__name__}: {_PROTOCOL}")
    model, batches, loss, *rest = made
    if not isinstance(model, torch.nn.Module) or not all(callable(part) for part in made[1:]):
        found = ", ".join(type(part).__name__ for part in made)
        raise ConfigError(f"{target} returned ({found}): {_PROTOCOL}")
    return make_task(target, model, batches, loss, replay=rest[0] if rest else None)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with every tensor in it on ``device``; the copy does not wait where the memory is pinned."""
    if isinstance(batch, torch.Tensor):
        return cast(Batch, batch.to(device, non_blocking=True))
    moved: Batch = _pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True), batch)
    return moved


def _fingerprint(sample: object) -> str:
    digest = hashlib.sha256()
    for tensor in tensors_in(sample):
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
