"""What is made of the records of single steps: windows, spikes, the trend of the loss scale. Pure, and cheap: a few
additions a step, everything else once a window."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

_SPIKE_SIGMAS = 8.0
_DECAY = 0.98
_WARM_UP = 100
"""Values before a spike is judged: the first losses of a training fall too fast to have a spread."""


class Spikes:
    """How far a value lies above its own exponential average, in standard deviations (signal S3)."""

    def __init__(self) -> None:
        self._mean = self._variance = 0.0
        self._seen = 0

    def observe(self, value: float) -> float:
        """The z-score of a finite ``value`` against those before it; 0 while there are too few. Then it is taken in.

        A spike is taken in as the largest value that is none, so that it does not hide the next one.
        """
        seen = self._seen
        self._seen = seen + 1
        if seen == 0:
            self._mean = value
            return 0.0
        distance = value - self._mean
        sigma = math.sqrt(self._variance)
        z = distance / sigma if sigma > 0 and seen >= _WARM_UP else 0.0
        if z > _SPIKE_SIGMAS:
            distance = _SPIKE_SIGMAS * sigma
        decay = min(_DECAY, seen / (seen + 1.0))
        self._mean += (1 - decay) * distance
        self._variance = decay * (self._variance + (1 - decay) * distance * distance)
        return z

    @staticmethod
    def is_spike(z: float) -> bool:
        """Whether a z-score is one to warn of."""
        return z > _SPIKE_SIGMAS


class ScaleTrend:
    """The loss scale over the last windows: it collapses before training does (signal S1; OPT-175B's chronicles)."""

    def __init__(self, windows: int = 16) -> None:
        self._points: deque[tuple[int, float]] = deque(maxlen=windows)

    def observe(self, clock: int, scale: float) -> float | None:
        """Slope in log2(scale) per 1000 steps over the windows remembered; None with fewer than four."""
        self._points.append((clock, math.log2(scale) if scale > 0 else -149.0))
        if len(self._points) < 4:
            return None
        (first, low), (last, high) = self._points[0], self._points[-1]
        return (high - low) / (last - first) * 1000.0 if last > first else None

    def reset(self) -> None:
        """Forget: another mode trained in between."""
        self._points.clear()


@dataclass(slots=True)
class Window:
    """Sums over the steps of one window in one mode."""

    tried: int = 0
    skipped: int = 0
    nonfinite: int = 0
    held: int = 0
    """Skipped where no scaler does that: gradients that were not finite."""
    max_loss_z: float = 0.0
    max_norm_z: float = 0.0
    forward_overflow: bool = False
    fp32_finite: bool | None = None
    weights_finite: bool = True
    origins: list[int] = field(default_factory=list)
    """One for each bad step whose layer was found."""

    def guilty(self, layers: int) -> tuple[int, ...]:
        """The layer most bad steps agree on, and the one after it; empty unless more than half agree.

        The one after it: where a gradient overflowed on its way out of a layer, the first weights that show it are those of
        the layer before.
        """
        if not self.origins:
            return ()
        most = max(set(self.origins), key=self.origins.count)
        if self.origins.count(most) * 2 <= len(self.origins):
            return ()
        return tuple(index for index in (most, most + 1) if index < layers)
