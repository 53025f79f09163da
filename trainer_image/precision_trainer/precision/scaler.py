"""Dynamic loss scaling, step for step what ``torch.amp.GradScaler`` does, with a floor; everything stays on the device.

Why not torch's class: it has no floor (after ~150 overflows the scale is 0 and every later step is skipped for ever,
pytorch#99640), its state machine cannot be left alone while another mode trains, and it hides found_inf, which is the
only way to report skipped steps right with a fused optimizer (accelerate#4242). The kernels are the same ones, so the
numbers are too: tests/trainer/test_scaler.py compares them bit for bit.
"""

from __future__ import annotations

import torch

from ..errors import CheckpointError
from .config import ExtendedFP16Config


class LossScaler:
    """Scale and growth tracker, both 0-dim tensors on ``device``. Frozen unless :meth:`update` is called."""

    def __init__(self, config: ExtendedFP16Config, device: torch.device) -> None:
        self._config = config
        self.scale_value = torch.full((), config.loss_scale, dtype=torch.float32, device=device)
        self._growth_tracker = torch.full((), 0, dtype=torch.int32, device=device)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """``loss`` (0-dim) times the scale."""
        return loss * self.scale_value

    def unscale_(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Divide FP32 gradients by the scale, in place.

        Returns:
            found_inf, 0-dim: 1.0 if any gradient holds inf or NaN, else 0.0. Not read on the host here.
        """
        found_inf = torch.zeros((), dtype=torch.float32, device=self.scale_value.device)
        if gradients:
            # Through float64, as GradScaler does: 1/scale in FP32 may be subnormal and flushed to 0.
            inverse = self.scale_value.double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse)
        return found_inf

    def update(self, found_inf: torch.Tensor) -> None:
        """Grow or back off after a step, on the device."""
        config = self._config
        torch._amp_update_scale_(
            self.scale_value,
            self._growth_tracker,
            found_inf,
            config.growth_factor,
            config.backoff_factor,
            config.growth_interval,
        )
        if config.min_loss_scale > 0:
            self.scale_value.clamp_(min=config.min_loss_scale)

    def thaw(self) -> None:
        """Back to FP16 after another mode: the scale goes on where it was, counting good steps starts anew."""
        self._growth_tracker.zero_()

    def state_dict(self) -> dict[str, float]:
        """Scale and growth tracker. Reads the device: for checkpoints, not for steps."""
        return {"scale": float(self.scale_value.item()), "growth_tracker": float(self._growth_tracker.item())}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take a saved state over. Raises CheckpointError if it is not one."""
        scale, tracker = state.get("scale"), state.get("growth_tracker")
        if not isinstance(scale, float) or not isinstance(tracker, float) or not 0 <= scale < float("inf"):
            raise CheckpointError(f"scaler state {state!r}: expected finite numbers 'scale' and 'growth_tracker'")
        self.scale_value.fill_(scale)
        self._growth_tracker.fill_(int(tracker))
