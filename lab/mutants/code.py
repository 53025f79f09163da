"""Other code for the functions of a module that is loaded: the checkout is never touched."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CodeType, FunctionType


def recoded(module: str, source: str, path: Path) -> Callable[[], None]:
    """Give the functions of a module, in this process, the code of ``source``; returns what takes that back."""
    codes = dict(_inside(compile(source, str(path), "exec")))
    before = [
        (function, function.__code__)
        for function in gc.get_objects()
        if isinstance(function, FunctionType) and function.__module__ == module and function.__qualname__ in codes
    ]
    for function, _ in before:
        function.__code__ = codes[function.__qualname__]
    forget_cached(module)

    def undo() -> None:
        for function, code in before:
            function.__code__ = code
        forget_cached(module)

    return undo


def forget_cached(module: str) -> None:
    """What the functions of a module remember (``functools.cache``)."""
    for value in vars(sys.modules[module]).values():
        if isinstance(value, _lru_cache_wrapper):
            value.cache_clear()


def _inside(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """The code of every function and method by its qualified name."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and "<" not in constant.co_qualname:
            yield constant.co_qualname, constant
            yield from _inside(constant)
