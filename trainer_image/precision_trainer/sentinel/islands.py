"""Modules that compute in FP32 while the rest of the model runs under autocast."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.utils._pytree import tree_map

from ..errors import ConfigError
from .guard import Guard
from .layers import Layers

_LOW = (torch.float16, torch.bfloat16)


def _widen(value: object) -> object:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _LOW else value


def _in_fp32(forward: Callable[..., object], device_type: str) -> Callable[..., object]:
    @functools.wraps(forward)
    def wide(*args: object, **kwargs: object) -> object:
        with torch.autocast(device_type, enabled=False):
            return forward(*tree_map(_widen, args), **tree_map(_widen, kwargs))

    return wide


def _if_it_works(
    wide: Callable[..., object], forward: Callable[..., object], failed: Callable[[Exception], None]
) -> Callable[..., object]:
    """``wide`` until it raises, ``forward`` from then on: nobody asked for FP32 here."""
    works = True

    @functools.wraps(forward)
    def either(*args: object, **kwargs: object) -> object:
        nonlocal works
        if works:
            try:
                return wide(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  (a kernel that exists in 16 bits only)
                works = False
                failed(error)
        return forward(*args, **kwargs)

    return either


def pin_by_name(model: torch.nn.Module, patterns: Sequence[str], device: torch.device) -> None:
    """Let the modules whose names match one of ``patterns`` compute in FP32, for good.

    Raises:
        ConfigError: a pattern matches no module.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    for pattern in patterns:
        found = fnmatch.filter(modules, pattern)
        if not found:
            raise ConfigError(
                f"fp32_modules {pattern!r} matches no module: expected a name or a glob of names such as "
                f"{', '.join(list(modules)[:6])}; correct it or leave it out"
            )
        for name in found:
            vars(modules[name])["forward"] = _in_fp32(modules[name].forward, device.type)


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
                vars(module)["forward"] = _if_it_works(
                    _in_fp32(module.forward, self._device_type),
                    module.forward,
                    functools.partial(self._guard.switch_off, check),
                )

    def _release(self, index: int) -> None:
        own = self._pinned.pop(index)
        attributes = vars(self._layers.modules[index])
        if own is None:
            del attributes["forward"]
        else:
            attributes["forward"] = own
