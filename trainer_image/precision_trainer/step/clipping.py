"""Adaptive clipping: a gradient is clipped by how unusual its norm is, not only by how large (ZClip, arXiv 2504.02507).

A norm further above its exponential average than ``THRESHOLD`` standard deviations is brought down towards it, the more so
the further away it was. All of it on the device: the host reads nothing, and all ranks clip alike, since they hold the same
averaged gradients.
"""

from __future__ import annotations

import torch

THRESHOLD = 2.5
"""Standard deviations; the paper's."""
_DECAY = 0.97
_WARM_UP = 25.0
"""Finite norms before one is judged."""


class AdaptiveClip:
    """Average and variance of the global gradient norm. A ``Part`` of the checkpointer: a resume goes on with them."""

    def __init__(self, device: torch.device) -> None:
        self._mean, self._variance, self._seen = (torch.zeros((), device=device) for _ in range(3))

    def __call__(self, norm: torch.Tensor) -> torch.Tensor:
        """What to multiply the gradients by, (0, 1], 0-dim; then ``norm`` (0-dim, unscaled) is taken in, as clipped.

        A norm that is not finite is not taken in: that step is skipped.
        """
        sigma = self._variance.sqrt()
        distance = norm - self._mean
        spike = (distance > THRESHOLD * sigma) & (self._seen >= _WARM_UP) & (sigma > 0)
        # The paper's reciprocal clipping: z standard deviations above the average become THRESHOLD^2 / z.
        kept = torch.where(spike, self._mean + THRESHOLD**2 * sigma.square() / distance, norm)
        decay = (self._seen / (self._seen + 1.0)).clamp_(max=_DECAY)
        moved = kept - self._mean
        variance = decay * (self._variance + (1.0 - decay) * moved.square())
        finite = norm.isfinite() & variance.isfinite()  # the square of a finite norm may not be
        self._variance = torch.where(finite, variance, self._variance)
        self._mean = torch.where(finite, self._mean + (1.0 - decay) * moved, self._mean)
        self._seen = self._seen + finite.float()
        return torch.where(spike, kept / norm, 1.0)

    def state_dict(self) -> dict[str, object]:
        """Plain values, for a checkpoint; waits for the device."""
        mean, variance, seen = torch.stack((self._mean, self._variance, self._seen)).tolist()
        return {"mean": mean, "variance": variance, "seen": seen}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on from a saved state; one that cannot be used counts as never seen."""
        values = [state.get(name) for name in ("mean", "variance", "seen")]
        good = [value for value in values if isinstance(value, float) and 0 <= value < float("inf")]
        if len(good) == len(values):
            device = self._mean.device
            self._mean, self._variance, self._seen = (torch.tensor(value, device=device) for value in good)
