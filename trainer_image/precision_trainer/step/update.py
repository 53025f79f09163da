"""From gradients to new weights: unscale, look for inf and NaN, clip, then step or skip, without the host looking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_
from typing import NamedTuple

import torch

from ..errors import ConfigError
from .clipping import AdaptiveClip
from .optimizer import take_step
from .scaler import LossScaler

NORM_EVERY_STEPS = 16
"""Without clipping nobody but the sentinel and the metrics wants norms: they are measured in one step of so many."""


class Updated(NamedTuple):
    """What an update leaves behind, all on the device."""

    found_inf: torch.Tensor
    """1.0: gradients were not finite, nothing was changed. 0-dim; the next update writes into it."""
    skipped: bool | None
    """The same on the host; None where the host has not looked."""
    norm: torch.Tensor | None
    """Of all gradients before clipping, 0-dim; None if it was not measured."""
    norms: torch.Tensor | None
    """Of each parameter's gradient before clipping, in the optimizer's order, [P]; None if they were not measured."""
    gradients: list[torch.Tensor]
    """Unscaled, in the optimizer's order; empty if they were measured."""


class GradientUpdate:
    """The update of one optimizer. A step with non-finite gradients changes nothing, in any mode."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
        adaptive: AdaptiveClip | None = None,
        *,
        device: torch.device,
        order: Iterable[torch.Tensor] = (),
    ) -> None:
        """Clip to the global norm ``max_grad_norm`` (0: not at all), and further where ``adaptive`` says so.

        ``order``: the model's parameters. The norm is summed in their order, as ``clip_grad_norm_`` of these
        does: the groups of an optimizer may have another one, and the sum another last bit.
        """
        self._optimizer = optimizer
        self._places = {parameter: place for place, parameter in enumerate(order)}
        self._ordered: tuple[list[torch.Tensor], torch.Tensor] | None = None
        """The optimizer's parameters in the model's order, and their places among its own, [P]; None: the orders are one."""
        self._known: list[torch.Tensor] = []
        """The optimizer's parameters, for which the order holds."""
        self._fixed, self._adaptive = max_grad_norm > 0, adaptive
        self._clips = self._fixed or adaptive is not None
        self._zeroed = False
        # Where the kernel reads found_inf itself (torch marks such optimizers), the host need not: that would wait for the
        # device. On a CPU there is nothing to wait for, and the kernel's way is the dearer one.
        self.on_device = device.type != "cpu" and bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self._settled = False
        # Constants and results have their tensors once: making them costs more than the arithmetic.
        self._max_norm, self._epsilon, self._one, self._found_inf, self._coefficient = (
            torch.full((), value, dtype=torch.float32, device=device) for value in (max_grad_norm, 1e-6, 1.0, 0.0, 0.0)
        )

    def __call__(self, scaler: LossScaler | None, *, measure: bool) -> Updated:
        """Update the weights once, and drop the gradients.

        Args:
            scaler: unscales, finds inf, and is updated. None where no scaler runs.
            measure: take the norms, also where clipping does not need them.

        Raises:
            ConfigError: a gradient is sparse (``functional.embedding(sparse=True)``), which no kernel unscales.
        """
        try:
            # Asked for at every step: a group may have been added (gradual unfreezing).
            parameters: list[torch.Tensor] = [p for group in self._optimizer.param_groups for p in group["params"]]
            gradients = [gradient for p in parameters if (gradient := p.grad) is not None]
            if len(parameters) != len(self._known) or not all(map(is_, parameters, self._known)):
                self._learn(parameters)
            if scaler is not None:
                scaler.unscale_(gradients, self._found_inf)
            norm = norms = None
            if gradients and (measure or self._clips):  # none: the loss went through other parameters
                each = torch._foreach_norm(gradients)
                norms = torch.stack(each)
                norm = torch.linalg.vector_norm(self._in_order(parameters, each, norms))
            if scaler is None:
                # Clipping by a norm that is not finite would spoil finite gradients too.
                self._check([norm] if norm is not None and self._clips else gradients)
            if norm is not None and self._clips:
                self._clip(gradients, norm)
            skipped = self._step(parameters)
            if scaler is not None:
                scaler.update(self._found_inf)
            self.drop()
            return Updated(self._found_inf, skipped, norm, norms, [] if norms is not None else gradients)
        except NotImplementedError as error:
            raise self._explained(error) from error

    def _learn(self, parameters: list[torch.Tensor]) -> None:
        """The optimizer has other parameters than in the last step."""
        self._known, self._settled = parameters, False
        last = len(self._places)
        ordered = sorted(parameters, key=lambda parameter: self._places.get(parameter, last))
        self._ordered = None
        if not all(map(is_, ordered, parameters)):
            places = {parameter: place for place, parameter in enumerate(parameters)}
            order = torch.tensor([places[parameter] for parameter in ordered], device=self._one.device)
            self._ordered = ordered, order

    def _in_order(
        self, parameters: list[torch.Tensor], each: Sequence[torch.Tensor], norms: torch.Tensor
    ) -> torch.Tensor:
        """``norms``, [P], which are ``each`` stacked, in the model's order of ``parameters``."""
        if self._ordered is None:
            return norms
        ordered, order = self._ordered
        if len(each) == len(ordered):
            return norms[order]
        found = dict(zip((parameter for parameter in parameters if parameter.grad is not None), each, strict=True))
        return torch.stack([found[parameter] for parameter in ordered if parameter in found])

    def check_others(self) -> None:
        """Refuse a loss scale where it would reach parameters that are not the optimizer's: nobody would take it out again.

        Raises:
            ConfigError: such a parameter of the model is trained.
        """
        own = {parameter for group in self._optimizer.param_groups for parameter in group["params"]}
        other = next((p for p in self._places if p.requires_grad and p not in own), None)
        if other is not None:
            raise ConfigError(
                f"a parameter of shape {tuple(other.shape)} is trained, but not by the trainer's optimizer: its gradient "
                "would be times the loss scale; give it to that optimizer, freeze it, or ask for bf16"
            )

    def _explained(self, error: NotImplementedError) -> Exception:
        """What a person can act on; asked for only when a kernel has failed, so that no step pays for it."""
        parameters = (p for group in self._optimizer.param_groups for p in group["params"])
        sparse = [tuple(p.shape) for p in parameters if p.grad is not None and p.grad.layout is not torch.strided]
        if not sparse:
            return error
        return ConfigError(
            f"the parameter of shape {sparse[0]} has a sparse gradient: expected a dense one, which can be unscaled and "
            "checked without a wait; call the embedding with sparse=False"
        )

    def drop(self) -> None:
        """Drop the gradients: zero_grad(set_to_none=True), without its profiling of every call."""
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _check(self, tensors: list[torch.Tensor]) -> None:
        """Set found_inf to 1.0 if a value is inf or NaN, else to 0.0: GradScaler's kernel, "unscaling" by 1."""
        if not self._zeroed:
            self._found_inf.zero_()
        if tensors:
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, self._found_inf, self._one)

    def _clip(self, gradients: list[torch.Tensor], norm: torch.Tensor) -> None:
        """What clip_grad_norm_ does, times max_norm / (norm + 1e-6), at most 1; or less, where the norm is unusual."""
        coefficient = self._coefficient
        if self._fixed:
            torch.add(norm, self._epsilon, out=coefficient).reciprocal_().mul_(self._max_norm)
            torch.minimum(coefficient, self._one, out=coefficient)
        else:
            coefficient.fill_(1.0)
        if self._adaptive is not None:
            torch.minimum(self._coefficient, self._adaptive(norm), out=self._coefficient)
        torch._foreach_mul_(gradients, self._coefficient)

    def _step(self, parameters: list[torch.Tensor]) -> bool | None:
        """Update the weights, or skip: whether it did, if the host knows."""
        # vars(): the attributes that follow are not declared on Optimizer.
        told = vars(self._optimizer)
        if not self.on_device or self._first_momentum(parameters):
            self._zeroed = not self._found_inf.tolist()
            try:
                if self._zeroed:
                    take_step(self._optimizer)
            finally:
                if "grad_scale" in told and getattr(self._optimizer, "_step_supports_amp_scaling", False):
                    del told["grad_scale"]
            return not self._zeroed
        self._zeroed = False
        # The contract between torch.amp and fused optimizers: the kernel reads found_inf and rolls its own step count back.
        # Gradients are unscaled already, so that a grad_scale is the script's: as with torch's scaler it is for one step.
        told.setdefault("grad_scale", None)
        told["found_inf"] = self._found_inf
        try:
            take_step(self._optimizer)
        finally:
            del told["grad_scale"], told["found_inf"]
        return None

    def _first_momentum(self, parameters: list[torch.Tensor]) -> bool:
        """Whether fused SGD would make a momentum buffer in this step: where it skips, torch leaves that uninitialised."""
        if self._settled:
            return False
        state = self._optimizer.state
        momentum = isinstance(self._optimizer, torch.optim.SGD) and any(
            group["momentum"] for group in self._optimizer.param_groups
        )
        missing = [p for p in parameters if momentum and state.get(p, {}).get("momentum_buffer") is None]
        if not missing:
            self._settled = True
        return any(p.grad is not None for p in missing)
