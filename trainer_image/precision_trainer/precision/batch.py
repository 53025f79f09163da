"""A batch as it was before its loss was computed: what the loss takes out of it, puts in or overwrites can be put back.

An iterator cannot be kept, nor can an object that holds one, a module or a thread: that is a program, whose parts belong
together.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from ..step.carried import PLAIN, Contents
from ..step.replay import tensors_in, version

_MAX_KEPT_BYTES = 256 * 2**20
"""Of tensors: a larger batch may be a whole data set in a file."""
_MAX_VALUES = 10_000
"""In all containers together: a list of more is left as it is, since walking it takes longer than the step."""
_MAX_DEPTH = 8
_DATA = {"argparse", "collections", "types"}
"""Of the standard library, where plain objects that hold data are made."""
_PROGRAMS = {"_queue", "_thread", "asyncio", "concurrent", "multiprocessing", "precision_trainer", "queue", "threading"}
"""Packages whose objects change by themselves."""

Container = dict[Any, Any] | list[Any]  # Any: values are put back as they were, whatever they are


class KeptBatch:
    """Tensors and containers of a batch, as they are now."""

    def __init__(self, batch: object) -> None:
        """Of what is reached from ``batch``, as far as it can be kept: a batch that cannot is trained on all the same."""
        self._tensors: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        """Tensors, their versions, and copies."""
        self._contents: list[Contents] = []
        self._after: list[int] = []
        """Versions of the tensors once the loss was computed."""
        self._held_after: list[list[object] | None] = []
        """What the containers held then; None: another thread was at it."""
        outer: list[torch.Tensor] = []
        inner: list[torch.Tensor] = []
        with contextlib.suppress(Exception):
            outer = tensors_in(batch)
        with contextlib.suppress(Exception):
            inner = self._keep_contents(batch)
        left = _MAX_KEPT_BYTES
        seen = set[int]()
        for tensors in (outer, inner):
            # No memory for it, or tensors that are not copied: then it is not kept.
            with contextlib.suppress(Exception):
                found = [tensor for tensor in tensors if id(tensor) not in seen]
                size = sum(tensor.numel() * tensor.element_size() for tensor in found)
                if size <= left:
                    self._tensors += [(tensor, version(tensor), tensor.detach().clone()) for tensor in found]
                    left -= size
                    seen.update(map(id, found))

    def _keep_contents(self, batch: object) -> list[torch.Tensor]:
        """Keep what containers hold; returns the tensors among it."""
        tensors: list[torch.Tensor] = []
        left, seen = _MAX_VALUES, set[int]()
        todo: deque[tuple[object, int]] = deque([(batch, 0)])
        while todo:
            value, depth = todo.popleft()
            if type(value) in PLAIN or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, torch.Tensor):
                tensors.append(value)
                continue
            parts: list[object] = []
            with contextlib.suppress(Exception):  # an object that answers no question
                for container in _containers(value):
                    if len(container) <= left:
                        left -= len(container)
                        contents = Contents(container)
                        self._contents.append(contents)
                        parts += contents.before
            if isinstance(value, tuple) and len(value) <= left:
                left -= len(value)
                parts += value
            if depth < _MAX_DEPTH:
                todo.extend((part, depth + 1) for part in parts)
        return tensors

    def computed(self) -> None:
        """The loss is computed: what is written to the batch from here on is the script's own."""
        self._after = [version(tensor) for tensor, _, _ in self._tensors]
        self._held_after = []
        for contents in self._contents:
            held: list[object] | None = None
            with contextlib.suppress(Exception):
                held = contents.now()
            self._held_after.append(held)

    def leave_rewritten(self) -> None:
        """Let go of what the script has filled anew since then."""
        pairs = zip(self._tensors, self._after, strict=True)
        self._tensors = [kept for kept, after in pairs if version(kept[0]) == after]
        held = zip(self._contents, self._held_after, strict=True)
        self._contents = [contents for contents, after in held if after is not None and _holds(contents, after)]

    def restore(self) -> None:
        """Put it back, in place; may be repeated."""
        for contents in self._contents:
            if not _holds(contents, contents.before):
                with contextlib.suppress(Exception):  # another thread changes it
                    contents.put_back()
        for tensor, before, value in self._tensors:
            if version(tensor) != before or tensor.is_inference():
                # What refuses to be written was not written by the loss either.
                with contextlib.suppress(RuntimeError), torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(value)


def _holds(contents: Contents, entries: list[object]) -> bool:
    """False also where another thread changes it."""
    with contextlib.suppress(Exception):
        return contents.holds(entries)
    return False


def _containers(value: object) -> Iterator[Container]:
    """What can be taken out of ``value``, or put in."""
    if isinstance(value, dict | list):
        yield value
    package = _package(value)
    if callable(value) or _runs(value) or isinstance(value, ModuleType) or package == "torch":
        return
    if package in sys.stdlib_module_names - _DATA:
        return
    names = vars(value) if hasattr(value, "__dict__") else None
    if isinstance(names, dict) and not any(map(_runs, names.values())):
        yield names


def _runs(value: object) -> bool:
    """Whether it is a part of a program, and no data."""
    is_program = isinstance(value, torch.nn.Module | torch.optim.Optimizer) or hasattr(type(value), "__next__")
    return is_program or _package(value) in _PROGRAMS


def _package(value: object) -> str:
    return type(value).__module__.partition(".")[0]
