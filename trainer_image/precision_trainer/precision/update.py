"""From gradients to new weights: unscale, measure, clip, then step or skip, without the host looking."""

from __future__ import annotations

import torch

from .scaler import LossScaler


class GradientUpdate:
    """The update of one optimizer. A step with non-finite gradients changes nothing, in any mode."""

    def __init__(self, optimizer: torch.optim.Optimizer, max_grad_norm: float) -> None:
        """Clip to the global norm ``max_grad_norm`` (0: not at all)."""
        self._optimizer = optimizer
        self._max_norm = max_grad_norm
        # Set by torch for optimizers whose kernel reads found_inf itself.
        self._fused = bool(getattr(optimizer, "_step_supports_amp_scaling", False))

    def __call__(self, scaler: LossScaler | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Update the weights once, and drop the gradients.

        Args:
            scaler: unscales, finds inf, and is updated. None where no scaler runs: then the norm tells.

        Returns:
            found_inf (1.0: the update was skipped) and the gradient norm before clipping, both 0-dim; and the norm of each
            parameter's gradient before clipping, [P]. All on the device.
        """
        # Asked for at every step: a group may have been added (gradual unfreezing).
        parameters: list[torch.Tensor] = [p for group in self._optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        found_inf = scaler.unscale_(gradients) if scaler is not None else None
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = torch.linalg.vector_norm(norms)
        if found_inf is None:
            # inf - inf and NaN - NaN are NaN, which differs from 0; isfinite() says the same with twice the kernels.
            found_inf = norm.sub(norm).ne_(0.0)
        if self._max_norm > 0:
            # What clip_grad_norm_ computes, max_norm / (norm + 1e-6) up to 1, in place.
            coefficient = norm.add(1e-6).reciprocal_().mul_(self._max_norm).clamp_(max=1.0)
            torch._foreach_mul_(gradients, coefficient)
        self._step(found_inf)
        if scaler is not None:
            scaler.update(found_inf)
        for parameter in parameters:  # zero_grad(set_to_none=True), without its profiling of every call
            parameter.grad = None
        return found_inf, norm, norms

    def _step(self, found_inf: torch.Tensor) -> None:
        if not self._fused:
            # Any other optimizer has to be told by the host: one wait a step.
            if not found_inf.item():
                self._optimizer.step()
            return
        # The contract between torch.amp and fused optimizers: the kernel reads found_inf and rolls its own step count back.
        # Gradients are unscaled already, hence no grad_scale. vars(): the attributes are not declared on Optimizer.
        vars(self._optimizer).update(grad_scale=None, found_inf=found_inf)
        try:
            self._optimizer.step()
        finally:
            del vars(self._optimizer)["grad_scale"], vars(self._optimizer)["found_inf"]
