"""Modules that compute in FP32 while the rest of the model runs under autocast."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch.utils._pytree import tree_map

from ..errors import ConfigError
from .guard import Guard
from .layers import Layers

_LOW = (torch.float16, torch.bfloat16)


def _widen(value: object) -> object:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _LOW else value


class _Wide:
    """A layer's forward pass in FP32. No function: a copy of the layer would go on with the weights of the original."""

    def __init__(
        self, layer: torch.nn.Module, device_type: str, failed: Callable[[Exception], None] | None = None
    ) -> None:
        """Of ``layer``; where it has no FP32, ``failed`` hears of it and it goes on as it was. None: that is an error."""
        self.__wrapped__: Callable[..., object] = layer.forward
        self._device_type, self._failed = device_type, failed
        self._works = True

    def __call__(self, *args: object, **kwargs: object) -> object:
        if not self._works:
            return self.__wrapped__(*args, **kwargs)
        try:
            with torch.autocast(self._device_type, enabled=False):
                return self.__wrapped__(*tree_map(_widen, args), **tree_map(_widen, kwargs))
        except Exception as error:
            if self._failed is None:
                raise
            failure = error.with_traceback(None)  # its frames hold what this pass computed
        # What fails here too is the layer's own error, such as a bad batch: the pin stays.
        result = self.__wrapped__(*args, **kwargs)
        self._works = False  # a kernel that exists in 16 bits only, or memory
        self._failed(failure)
        return result

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_failed": None if self._failed is None else _ignored}


def _ignored(_error: Exception) -> None:
    """In a copy: nobody watches it."""


def pin_by_name(model: torch.nn.Module, patterns: Sequence[str], device: torch.device) -> None:
    """Let the modules whose names match one of ``patterns`` compute in FP32, for good.

    One that is never called itself is pinned by what is: of a list of modules each, of a list of parameters or the output
    layer of an attention the module that computes with it.

    Raises:
        ConfigError: a pattern matches no module, or none that is called.
    """
    if not patterns:
        return
    # A shared module goes by each of its names.
    modules = dict(model.named_modules(remove_duplicate=False))
    names = [name for name in modules if name]
    pinned: dict[torch.nn.Module, None] = {}
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise ConfigError(
                f"fp32_modules {pattern!r} matches no module: expected a name or a glob of names such as "
                f"{', '.join(names[:6])}; correct it or leave it out"
            )
        called = dict.fromkeys(module for name in found for module in _called(modules, name))
        if not called:
            raise ConfigError(
                f"fp32_modules {pattern!r} matches {found[0]}, whose parameters the whole model computes with: expected a "
                "module that is called; put them into one of their own, or leave the pattern out"
            )
        pinned.update(called)
    for module in pinned:
        vars(module)["forward"] = _Wide(module, device.type)


def _called(modules: dict[str, torch.nn.Module], name: str) -> Iterator[torch.nn.Module]:
    """The modules that a forward pass calls to compute with the one of that ``name``."""
    module = modules[name]
    if _has_forward(module):
        parent = modules[name.rpartition(".")[0]]
        # One kernel computes an attention, given the weights of all its parts.
        inside = getattr(type(parent), "forward", None) is torch.nn.MultiheadAttention.forward
        yield parent if inside else module
    elif children := [child for child, _ in module.named_children()]:
        for child in children:
            yield from _called(modules, f"{name}.{child}")
    else:
        while name and not _has_forward(modules[name]):
            name = name.rpartition(".")[0]
        if name:  # else it would be the whole model, which nobody asked for
            yield modules[name]


def _has_forward(module: torch.nn.Module) -> bool:
    return "forward" in vars(module) or getattr(type(module), "forward", None) is not torch.nn.Module.forward


class Islands:
    """Pins layers to FP32 and lets them go. What is not pinned costs nothing; in FP32 a pinned layer changes nothing."""

    def __init__(self, layers: Layers, device: torch.device, guard: Guard) -> None:
        """Of ``layers``; ``guard`` hears of one that does not run in FP32, and that goes on as it was."""
        self._layers, self._device_type, self._guard = layers, device.type, guard
        self._pinned: dict[int, object] = {}

    @property
    def pinned(self) -> tuple[int, ...]:
        """Indices, in the order of pinning."""
        return tuple(self._pinned)

    def set(self, pins: Iterable[int]) -> None:
        """Pin these layers and no others."""
        wanted = tuple(pins)
        for index in [index for index in self._pinned if index not in wanted]:
            self._release(index)
        for index in wanted:
            if index not in self._pinned:
                module = self._layers.modules[index]
                # A forward of the instance, if the user has set one, is put back on release.
                self._pinned[index] = vars(module).get("forward")
                check = f"{self._layers.names[index]} in FP32"
                failed = functools.partial(self._guard.switch_off, check)
                vars(module)["forward"] = _Wide(module, self._device_type, failed)

    def _release(self, index: int) -> None:
        own = self._pinned.pop(index)
        attributes = vars(self._layers.modules[index])
        if own is None:
            del attributes["forward"]
        else:
            attributes["forward"] = own
