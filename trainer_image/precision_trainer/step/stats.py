"""Totals of one process, as :meth:`ExtendedFP16Trainer.get_stats` gives them."""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import TypedDict

from ..values.modes import PrecisionMode
from .steps import StepRecord

SCALE_HISTORY = 1000
"""Changes of the loss scale kept; the oldest go first."""


class TrainingStats(TypedDict):
    """What :meth:`ExtendedFP16Trainer.get_stats` gives."""

    fp16_enabled_runtime: bool
    """Training is not in FP32 now."""
    precision_mode: str
    """In force: fp32, fp16 or bf16."""
    requested_mode: str
    """As asked for; differs where the sentinel went back towards FP32."""
    generation: int
    training_steps: int
    """Steps tried in this process."""
    fp16_steps: int
    """Of those, in FP16 or BF16."""
    overflow_steps: int
    overflow_rate: float
    """overflow_steps / fp16_steps, 0 before the first."""
    nonfinite_steps: int
    current_scale: float
    """1 where no scaler runs."""
    scale_history: list[tuple[int, float]]
    """(step, loss scale after it), one for each change; the last 1000."""
    allow_tf32: bool
    """FP32 matrix products or convolutions may run as TF32, as torch's flags are now."""
    sentinel_level: str
    pinned_layers: list[str]


class Totals:
    """Sums over step records."""

    def __init__(self) -> None:
        self.tried = self.low = self.overflows = self.nonfinite = 0
        self.scale_history: deque[tuple[int, float]] = deque(maxlen=SCALE_HISTORY)
        """(step, loss scale after it), one for each change."""

    def observe(self, record: StepRecord) -> None:
        """Take a step in."""
        self.tried += 1
        mode = record.mode
        self.low += mode is not PrecisionMode.FP32
        if record.bad:
            self.nonfinite += record.nonfinite
            self.overflows += record.overflow
        if mode.uses_scaler:
            history = self.scale_history
            if not history or history[-1][1] != record.loss_scale:
                history.append((record.step, record.loss_scale))

    def copy(self) -> Totals:
        """An independent copy."""
        twin = copy(self)
        twin.scale_history = self.scale_history.copy()
        return twin

    @property
    def overflow_rate(self) -> float:
        """Share of the FP16 and BF16 steps that the scaler skipped, [0, 1]; 0 before the first."""
        return self.overflows / self.low if self.low else 0.0
