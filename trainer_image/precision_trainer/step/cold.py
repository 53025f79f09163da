"""The cold modes: 16-bit weights in the model, their FP32 masters in the optimizer.

A cold mode changes the state itself, so it is chosen at the start and never by a request: reach it, or leave it, by saving
a checkpoint (which is FP32, from the masters) and starting anew. It saves the memory and the casts of autocast's copies, and
rounds every activation, the losses and norms of autocast's FP32 list included. One process only.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.utils._pytree import tree_map

from ..errors import ConfigError
from ..values.modes import PrecisionMode

_DTYPES = {PrecisionMode.FP16: torch.float16, PrecisionMode.BF16: torch.bfloat16}


class ColdWeights:
    """Owns the masters of one model. Gradients come in 16 bits, are unscaled and clipped in FP32."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, mode: PrecisionMode) -> None:
        """Halve the model's parameters and put FP32 masters in their place in ``optimizer``.

        Raises:
            ConfigError: the optimizer has stepped before; its state would belong to other parameters.
        """
        if optimizer.state:
            raise ConfigError(
                "the optimizer already has state: a cold mode is chosen before the first step; build a new one"
            )
        self._model, self._dtype = model, _DTYPES[mode]
        self._names = [name for name, _ in model.named_parameters()]
        self._halves: list[torch.Tensor] = [parameter for _, parameter in model.named_parameters()]
        self._masters: list[torch.Tensor] = [torch.nn.Parameter(half.detach().clone()) for half in self._halves]
        master_of = dict(zip(self._halves, self._masters, strict=True))
        for group in optimizer.param_groups:
            group["params"] = [master_of[half] for half in group["params"]]
        for half in self._halves:
            half.data = half.data.to(self._dtype)
        # Inputs of the model, and nothing else: targets and timestamps keep their bits.
        model.register_forward_pre_hook(self._narrow, with_kwargs=True)

    def _narrow(
        self, _module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        def narrow(value: object) -> object:
            floating = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(self._dtype) if floating and isinstance(value, torch.Tensor) else value

        narrowed: tuple[tuple[object, ...], dict[str, object]] = tree_map(narrow, (args, kwargs))
        return narrowed

    def gather(self) -> None:
        """Hand the model's gradients to the masters, in FP32."""
        for half, master in zip(self._halves, self._masters, strict=True):
            master.grad = None if half.grad is None else half.grad.float()
            half.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model."""
        torch._foreach_copy_(self._halves, self._masters)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The model's state with FP32 weights: the one layout of all modes."""
        state: dict[str, torch.Tensor] = self._model.state_dict()
        state.update(zip(self._names, (master.detach() for master in self._masters), strict=True))
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take FP32 weights over, without rounding the masters. Raises RuntimeError where names or shapes differ."""
        self._model.load_state_dict(state)
        for name, master in zip(self._names, self._masters, strict=True):
            master.copy_(state[name])
        self.publish()
