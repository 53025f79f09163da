"""The first steps of FP16, which say how far off the loss scale began, not how the training fares."""

from __future__ import annotations

from ..values.modes import PrecisionMode

WARM_UP_STEPS = 16
"""From 65536, the default scale, to 1, the lowest, in halves."""


class WarmUp:
    """Tells warm-up steps from others. FP16 begins with the process, or with a change from another mode."""

    def __init__(self) -> None:
        self._mode: PrecisionMode | None = None
        self._left = 0

    def observe(self, mode: PrecisionMode) -> bool:
        """Take a step's mode in, in order; True where it is one of the first ``WARM_UP_STEPS`` of its stretch of FP16."""
        if mode is not self._mode:
            self._mode = mode
            self._left = WARM_UP_STEPS if mode.uses_scaler else 0
        warming = self._left > 0
        self._left -= warming
        return warming
