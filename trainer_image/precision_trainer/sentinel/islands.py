"""Modules that compute in FP32 while the rest of the model runs under autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from torch.utils._pytree import tree_map

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


class Islands:
    """Pins layers to FP32 and lets them go. What is not pinned costs nothing; in FP32 a pinned layer changes nothing."""

    def __init__(self, layers: Layers, device: torch.device) -> None:
        self._layers, self._device_type = layers, device.type
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
                vars(module)["forward"] = _in_fp32(module.forward, self._device_type)

    def _release(self, index: int) -> None:
        own = self._pinned.pop(index)
        attributes = vars(self._layers.modules[index])
        if own is None:
            del attributes["forward"]
        else:
            attributes["forward"] = own
