"""What a function carries from one call to the next: found, and put back where that harms nobody else."""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import sys
import threading
from collections.abc import Container, Iterator
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

PLAIN = (int, float, bool, str, type(None))
"""Values that are the same where they are equal."""


@contextlib.contextmanager
def kept(function: object, model: torch.nn.Module) -> Iterator[list[str]]:
    """Puts back what a function assigns to what it holds.

    Gives a list of the names that changed, which is filled at the end.

    Nothing tells who assigned it: what a signal's handler may have set (a flag), or another thread (a number), is left as it
    is. Modules stay as they were, without an error; those of ``model`` are left to :class:`ForwardState`.
    """
    held = _Held(function, set(model.modules()))
    drawn, numpy_drawn = random.getstate(), _numpy_state()
    changed: list[str] = []
    try:
        yield changed
    finally:
        changed += held.put_back()
        if random.getstate() != drawn:
            changed.append("the state of Python's random")
            if threading.active_count() == 1:  # else another thread may have drawn, and would draw the same again
                random.setstate(drawn)
        if numpy_drawn is not None and pickle.dumps(_numpy_state()) != pickle.dumps(numpy_drawn):
            changed.append("the state of NumPy's random")
            if threading.active_count() == 1:
                sys.modules["numpy.random"].set_state(numpy_drawn)


def _numpy_state() -> object:
    """Of its global generator; None where nobody can have drawn from it, or it has none."""
    numpy_random = sys.modules.get("numpy.random")
    with contextlib.suppress(Exception):  # a stub of it, or half of it: then it is not watched
        return numpy_random.get_state(legacy=False) if numpy_random is not None else None
    return None


class _Held:
    """What a function may assign to: variables that it closes over, attributes of itself and of the objects that these are,
    or that it belongs to; the same of the functions among them."""

    def __init__(self, function: object, theirs: Container[object]) -> None:
        """As it is now; ``theirs``: modules to leave out."""
        # Any: values are put back as they were, whatever they are.
        self._attributes: list[tuple[dict[str, Any], dict[str, Any], bool]] = []
        """A namespace, what it held, and whether it is a module's."""
        self._cells: list[tuple[str, CellType, object]] = []
        todo, seen = [function], set[int]()
        while todo:
            held = todo.pop()
            if id(held) not in seen:
                seen.add(id(held))
                with contextlib.suppress(Exception):  # an object that answers no question: it is not watched
                    todo += self._keep(held, theirs)

    def _keep(self, held: object, theirs: Container[object]) -> list[object]:
        """Keep what is assigned to one object; returns what it holds besides."""
        if isinstance(held, functools.partial):
            return [held.func, *held.args, *held.keywords.values()]
        if isinstance(held, MethodType):
            return [held.__self__, held.__func__]
        if isinstance(held, FunctionType):
            closed = zip(held.__code__.co_freevars, held.__closure__ or (), strict=True)
            cells = [(name, cell, _content(cell)) for name, cell in closed]
            self._cells += cells
            self._names(vars(held))
            return [content for _, _, content in cells]
        if isinstance(held, torch.nn.Module):
            for part in held.modules():
                if part not in theirs:
                    for names in (vars(part), part._buffers, part._parameters):
                        self._names(names, of_module=True)
        elif hasattr(held, "__dict__") and not isinstance(held, type | ModuleType | torch.Tensor):
            self._names(vars(held))
        return []

    def _names(self, names: object, *, of_module: bool = False) -> None:
        if isinstance(names, dict):  # scripted modules have something else
            self._attributes.append((names, dict(names), of_module))

    def put_back(self) -> list[str]:
        """Put back what a replay may have assigned; returns the names of all that changed, but for modules'."""
        changed: list[str] = []
        for name, cell, before in self._cells:
            now = _content(cell)
            if _differ(now, before):
                changed.append(name)
                if before is _NOTHING:
                    if isinstance(now, torch.Tensor):
                        del cell.cell_contents
                elif _is_a_replays(before, now):
                    cell.cell_contents = before
        for names, kept, of_module in self._attributes:
            for name in {**kept, **names}:
                before, now = kept.get(name, _NOTHING), names.get(name, _NOTHING)
                if not _differ(now, before):
                    continue
                if not of_module:
                    changed.append(name)
                if _is_a_replays(before, now):
                    if before is _NOTHING:
                        del names[name]
                    else:
                        names[name] = before  # in its place: the order of buffers matters
        return changed


_NOTHING = object()


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned
        return _NOTHING


def _is_a_replays(before: object, now: object) -> bool:
    """Whether nobody but the replay is likely to have assigned it."""
    if isinstance(before, torch.Tensor) or isinstance(now, torch.Tensor):
        return True
    return type(before) is type(now) and type(now) in (int, float) and threading.active_count() == 1


def _differ(one: object, other: object) -> bool:
    """Whether another object was assigned, plain values by what they say."""
    if one is other:
        return False
    return not (type(one) is type(other) and type(one) in PLAIN and one == other)
