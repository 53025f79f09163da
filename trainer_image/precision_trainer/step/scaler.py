"""Loss scaling, step for step what ``torch.amp.GradScaler`` does, with a floor, hysteresis and a ceiling; all on the device.

Why not torch's class: it has no floor (after ~150 overflows the scale is 0 and every later step is skipped for ever,
pytorch#99640), its state machine cannot be left alone while another mode trains, and it hides found_inf, which is the
only way to report skipped steps right with a fused optimizer (accelerate#4242). The kernels are the same ones, so the
numbers are too: tests/trainer/test_scaler.py compares them bit for bit.
"""

from __future__ import annotations

import torch

from ..errors import CheckpointError
from ..values.config import MAX_LOSS_SCALE, ExtendedFP16Config


class LossScaler:
    """Scale and growth tracker, both 0-dim tensors on ``device``. Frozen unless :meth:`update` is called."""

    def __init__(self, config: ExtendedFP16Config, device: torch.device) -> None:
        self._config = config
        self.scale_value = torch.full((), config.loss_scale, dtype=torch.float32, device=device)
        self._growth_tracker = torch.full((), 0, dtype=torch.int32, device=device)
        self._overflows_left = torch.full((), config.hysteresis, dtype=torch.int32, device=device)
        """Overflows until the scale backs off; only moves where hysteresis is above 1."""
        self._ceiling: torch.Tensor | None = None
        self._growth_interval = config.growth_interval
        self._factor = 1.0
        """Product of all factors that requests asked for."""

    @property
    def floor(self) -> float:
        """The scale never falls below this."""
        return self._config.min_loss_scale

    @property
    def limited(self) -> bool:
        """Whether :meth:`lower` put a ceiling on the scale."""
        return self._ceiling is not None

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """``loss`` (0-dim) times the scale."""
        return loss * self.scale_value

    def unscale_(self, gradients: list[torch.Tensor], out: torch.Tensor | None = None) -> torch.Tensor:
        """Divide FP32 gradients by the scale, in place.

        Args:
            gradients: on the scaler's device.
            out: takes found_inf, 0-dim; a new tensor if None.

        Returns:
            found_inf, 0-dim: 1.0 if any gradient holds inf or NaN, else 0.0. Not read on the host here.
        """
        device = self.scale_value.device
        found_inf = torch.zeros((), dtype=torch.float32, device=device) if out is None else out.zero_()
        if gradients:
            # Through float64, as GradScaler does: 1/scale in FP32 may be subnormal and flushed to 0.
            inverse = self.scale_value.double().reciprocal().float()
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse)
        return found_inf

    def update(self, found_inf: torch.Tensor) -> None:
        """Grow or back off after a step, on the device. A static scale stays as it is."""
        config = self._config
        if not config.dynamic_loss_scale:
            return
        before = self.scale_value.clone() if config.hysteresis > 1 else None
        torch._amp_update_scale_(
            self.scale_value,
            self._growth_tracker,
            found_inf,
            config.growth_factor,
            config.backoff_factor,
            self._growth_interval,
        )
        if before is not None:
            self._forgive(before, found_inf)
        if config.min_loss_scale > 0:
            self.scale_value.clamp_(min=config.min_loss_scale)
        if self._ceiling is not None:
            torch.minimum(self.scale_value, self._ceiling, out=self.scale_value)

    def _forgive(self, before: torch.Tensor, found_inf: torch.Tensor) -> None:
        """Hysteresis: take the back-off back while overflows are left; growth refills them.

        Refilled by growth alone, not by a good step: with every second step overflowing, the scale would never fall.
        """
        bad = found_inf > 0
        self._overflows_left.sub_(bad.int()).clamp_(min=0)
        forgiven = bad & (self._overflows_left > 0)
        grew = self.scale_value > before
        torch.where(forgiven, before, self.scale_value, out=self.scale_value)
        self._overflows_left.masked_fill_(grew, self._config.hysteresis)

    def lower(self, factor: float) -> None:
        """Multiply the scale by ``factor`` (below 1) and let it grow no further than that, until :meth:`release`."""
        self.scale_value.mul_(factor).clamp_(min=self._config.min_loss_scale)
        self._growth_tracker.zero_()
        self._ceiling = self.scale_value.clone()

    def tune(self, factor: float | None, growth_interval: int | None) -> None:
        """What a request asks for: the scale times ``factor``, growth after ``growth_interval`` good steps; None: as before.

        Counting good steps starts anew: torch's kernel grows *at* the interval, so a count beyond it would never meet it.
        """
        if factor is not None:
            self._factor = min(max(self._factor * factor, 2.0**-512), 2.0**512)
            self.scale_value.mul_(factor).clamp_(min=self._config.min_loss_scale, max=MAX_LOSS_SCALE)
            if self._ceiling is not None:
                torch.minimum(self.scale_value, self._ceiling, out=self.scale_value)
        if growth_interval is not None:
            self._growth_interval = growth_interval
        self._growth_tracker.zero_()

    def release(self) -> None:
        """Take the ceiling away."""
        self._ceiling = None

    def thaw(self) -> None:
        """Back to FP16 after another mode: the scale goes on where it was, counting good steps starts anew."""
        self._growth_tracker.zero_()

    def state_dict(self) -> dict[str, float]:
        """Scale, counts, and what requests asked for. Reads the device: for checkpoints, not for steps."""
        state = {
            # Without a floor it may have fallen to 0, which nothing grows from: whoever loads that begins anew.
            "scale": float(self.scale_value.item()) or float(self._config.loss_scale),
            "growth_tracker": float(self._growth_tracker.item()),
            "overflows_left": float(self._overflows_left.item()),
            "factor": self._factor,
        }
        if self._growth_interval != self._config.growth_interval:
            # Only then: a setting that nobody overruled may be another one in the next process.
            state["growth_interval"] = float(self._growth_interval)
        return state

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take a saved state over. Raises CheckpointError if it is not one."""
        scale, tracker = state.get("scale"), state.get("growth_tracker")
        if not isinstance(scale, float) or not isinstance(tracker, float) or not 0 <= scale < float("inf"):
            raise CheckpointError(f"scaler state {state!r}: expected finite numbers 'scale' and 'growth_tracker'")
        hysteresis = self._config.hysteresis
        left = state.get("overflows_left", float(hysteresis))  # absent before hysteresis was
        self.scale_value.fill_(scale)
        self._factor = state.get("factor", 1.0)
        self._growth_interval = int(state.get("growth_interval", self._config.growth_interval))
        # Saved under a longer interval, the count may be beyond this one, and would never meet it (see tune).
        self._growth_tracker.fill_(min(int(tracker), self._growth_interval - 1))
        self._overflows_left.fill_(min(int(left), hysteresis))

    def rewind(self, state: dict[str, float]) -> None:
        """Take the state of an earlier time over; what requests asked for since then stays. Raises CheckpointError."""
        factor, interval = self._factor, self._growth_interval
        self.load_state_dict(state)
        if factor != self._factor or interval != self._growth_interval:
            self.tune(factor / self._factor, interval)
