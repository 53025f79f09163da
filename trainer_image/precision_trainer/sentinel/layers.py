"""A model's layers by number, and which of them a step's non-finite gradient norms point at (signal S0)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..values.levels import MAX_LAYERS


class Layers:
    """The modules that have parameters of their own, in order of definition, which is taken for the order of the forward."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Number the layers of ``model``; ``optimizer`` gives the order of the norms."""
        self._optimizer = optimizer
        found = [pair for pair in model.named_modules() if next(pair[1].parameters(recurse=False), None) is not None]
        del found[MAX_LAYERS:]
        self.names = tuple(name or "model" for name, _ in found)
        self.modules = tuple(module for _, module in found)
        self._layer_of = {
            parameter: index
            for index, module in enumerate(self.modules)
            for parameter in module.parameters(recurse=False)
        }

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int | None) -> str | None:
        """A layer's name; None for None."""
        return None if index is None else self.names[index]

    def norms(self, norms: Sequence[float]) -> dict[str, float] | None:
        """Gradient norm of each layer, from those of its parameters; None if some parameter had no gradient.

        Args:
            norms: of the parameters' gradients, in the optimizer's order, before clipping.
        """
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        if len(parameters) != len(norms):
            return None
        squares = dict.fromkeys(self.names, 0.0)
        for parameter, norm in zip(parameters, norms, strict=True):
            index = self._layer_of.get(parameter)
            if index is not None:
                squares[self.names[index]] += norm * norm
        return {name: math.sqrt(square) if square == square else square for name, square in squares.items()}

    def origin(self, norms: Sequence[float]) -> int | None:
        """The layer at which gradients became non-finite on their way back, or None.

        An overflow in the backward pass spoils the gradients of all layers before it and of none after it: the last one
        that is not finite is where it came from. If the last layer of all is not finite, the loss was not, and the norms
        cannot tell; nor can they if a parameter had no gradient.
        """
        by_layer = self.norms(norms)
        if not by_layer:
            return None
        bad = [index for index, norm in enumerate(by_layer.values()) if not math.isfinite(norm)]
        return bad[-1] if bad and bad[-1] + 1 < len(self.names) else None
