"""What a step and a boundary come to: plain facts that all ranks hold alike."""

from __future__ import annotations

from dataclasses import dataclass

from ..gang.agreement import WIDTH
from ..gang.request import PrecisionRequest
from .modes import PrecisionMode


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step came to, gang-wide; known ``delay`` boundaries later."""

    step: int
    mode: PrecisionMode
    generation: int
    """Generation in force when the step ran. All ranks ran it in ``mode``: the channel checks that."""
    loss: float
    """Mean over ranks; not finite if any rank's was not."""
    skipped: bool
    """The optimizer update was skipped: gradients were not finite."""
    loss_scale: float
    """After the step; the frozen value where no scaler runs."""
    grad_norm: float
    """Global norm of the averaged, unscaled gradients, before clipping."""

    @property
    def overflow(self) -> bool:
        """Skipped by the scaler. An infinite loss in such a step is part of the overflow, not a loss of its own."""
        return self.skipped and self.mode.uses_scaler

    @property
    def nonfinite(self) -> bool:
        """Non-finite where no scaler took care of it: the loss, or (in FP32 and BF16) the gradients."""
        return not self.overflow and (self.skipped or not _finite(self.loss))


@dataclass(frozen=True, slots=True)
class ModeChange:
    """A request was applied at a boundary. ``before`` equals ``after`` if it asked for the mode already in force."""

    before: PrecisionMode
    after: PrecisionMode
    request: PrecisionRequest
    step: int
    """First step in the new mode."""
    time: float
    """Wall clock at the boundary, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """What was agreed between two steps. All ranks see the same one."""

    step: int
    """Number of the step about to begin."""
    records: tuple[StepRecord, ...]
    change: ModeChange | None
    checkpoint: bool
    stop: bool
    rewind: bool = False
    """Go back to the last healthy checkpoint (state/keeper.py), after the change of mode and instead of a checkpoint."""


def read_record(step: int, mode: PrecisionMode, generation: int, loss: float, values: list[float]) -> StepRecord:
    """A record from the numbers a step sent to the host: the averaged message, found_inf, loss scale, gradient norm."""
    found_inf, scale, norm = values[WIDTH:]
    return StepRecord(step, mode, generation, loss, found_inf > 0, scale if mode.uses_scaler else 1.0, norm)


def _finite(value: float) -> bool:
    return value - value == 0.0
