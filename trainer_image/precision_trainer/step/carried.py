"""What a function carries from one call to the next: found, and put back where that harms nobody else."""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Container, Iterable, Iterator
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

PLAIN = (int, float, bool, str, type(None))
"""Values that are the same where they are equal."""
_KINDS: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
"""Of collections; an ordered dict keeps its order beside."""
_COLLECTIONS = (list, dict, set, deque, OrderedDict, defaultdict, Counter)
"""Of exactly these types: what a subclass does when it is filled anew, nobody knows."""
_MOST_ENTRIES = 100_000
"""That are watched: more than that are data, which a step does not change."""
_TORCHS = frozenset(vars(torch.nn.Module()))
"""Attributes of a module that are torch's: its parameters, hooks and the like."""


class Contents:
    """What one list, dict, set or deque holds, as it is now.

    By these types' own methods: those of a subclass may forbid it, or do more.
    """

    def __init__(self, container: object) -> None:
        # Any: values are put back as they were, whatever they are.
        self._container: Any = container
        self._kind = next(kind for kind in _KINDS if isinstance(container, kind))
        self.before = self.now()

    def now(self) -> list[Any]:
        """Its entries; of a dict each key and its value, one after the other."""
        if issubclass(self._kind, dict):
            return [part for pair in self._kind.items(self._container) for part in pair]
        return [*self._kind.__iter__(self._container)]

    def holds(self, entries: list[Any]) -> bool:
        """Whether it holds these."""
        now = self.now()
        return len(now) == len(entries) and not any(map(_differ, now, entries))

    def put_back(self) -> None:
        """Fill it as it was, in place."""
        kind, held, before = self._kind, self._container, self.before
        entries: Any = before
        if issubclass(kind, dict):
            entries = dict(zip(before[::2], before[1::2], strict=True))
        elif kind is set:
            entries = set(before)
        kind.clear(held)  # once nothing can fail any more
        (kind.extend if kind in (list, deque) else kind.update)(held, entries)


class Collections:
    """Lists, dicts, sets and deques as they are now, with those inside of them."""

    def __init__(self, values: Iterable[object]) -> None:
        """Of those among ``values``. Never raises: what another thread changes meanwhile is not watched."""
        self._kept: list[Contents] = []
        todo, seen, room = list(values), set[int](), _MOST_ENTRIES
        while todo:
            value: Any = todo.pop()
            if type(value) in _COLLECTIONS and id(value) not in seen and len(value) <= room:
                seen.add(id(value))
                with contextlib.suppress(RuntimeError):
                    contents = Contents(value)
                    self._kept.append(contents)
                    todo += contents.before
                    room -= len(value)

    def __len__(self) -> int:
        return len(self._kept)

    def put_back(self, *, only_look: bool = False) -> bool:
        """Fill those that changed as they were, unless the call is ``only_look``; returns whether there were any."""
        changed = False
        for contents in self._kept:
            with contextlib.suppress(Exception):  # another thread fills it, or a key has lost its hash
                if not contents.holds(contents.before):
                    changed = True
                    if not only_look:
                        contents.put_back()
        return changed


def own_collections(module: torch.nn.Module) -> Iterator[object]:
    """Attributes of a module that its author gave it, and that may be collections."""
    names: dict[str, object] = dict(vars(module))
    return (value for name, value in names.items() if name not in _TORCHS)


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
        self._collections: list[tuple[str | None, Collections]] = []
        """With the name; None for those of modules."""
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
            self._keep_collections((name, content) for name, _, content in cells)
            self._names(vars(held))
            return [content for _, _, content in cells]
        if isinstance(held, torch.nn.Module):
            for part in held.modules():
                if part not in theirs:
                    self._keep_collections((None, value) for value in own_collections(part))
                    for names in (vars(part), part._buffers, part._parameters):
                        self._names(names, of_module=True)
        elif hasattr(held, "__dict__") and not isinstance(held, type | ModuleType | torch.Tensor):
            self._names(vars(held))
        return []

    def _names(self, names: object, *, of_module: bool = False) -> None:
        if isinstance(names, dict):  # scripted modules have something else
            self._attributes.append((names, dict(names), of_module))
            if not of_module:
                self._keep_collections(names.items())

    def _keep_collections(self, named: Iterable[tuple[str | None, object]]) -> None:
        self._collections += [(name, found) for name, value in named if (found := Collections([value]))]

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
        return changed + self._put_collections_back()

    def _put_collections_back(self) -> list[str]:
        changed: list[str] = []
        for name, collections in self._collections:
            others = name is not None and threading.active_count() > 1  # which may be the ones that filled it
            if collections.put_back(only_look=others) and name is not None:
                changed.append(name)
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
