"""What a step and a boundary come to: plain facts that all ranks hold alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..values.modes import PrecisionMode
from ..values.request import PrecisionRequest
from .replay import Replay


class Sent(NamedTuple):
    """What this rank keeps of a step until its record is read. A tuple: one is made every step."""

    number: int
    """Of the message, from 1; never goes back, also not by a rewind."""
    step: int
    mode: PrecisionMode
    generation: int
    norms: torch.Tensor | None
    """Gradient norm of each parameter in the optimizer's order, before clipping, on the device: [P]. None: not measured."""
    gradients: list[torch.Tensor]
    """Of a step that was not measured, unscaled, in the optimizer's order; good until the next backward pass."""
    replay: Replay | None
    """The last micro-batch, where a pure function computes it again. Keeps it alive for ``delay`` boundaries."""

    def gradient_norms(self) -> list[float]:
        """Gradient norm of each parameter, measured now if it was not; empty if there were no gradients. Waits for the
        device: for steps that need a closer look."""
        norms = self.norms
        if norms is None:
            if not self.gradients:
                return []
            norms = torch.stack(torch._foreach_norm(self.gradients))
        values: list[float] = norms.tolist()
        return values


class StepRecord(NamedTuple):
    """What one step came to, of all ranks; known ``delay`` boundaries later."""

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
    grad_norm: float | None
    """Global norm of the averaged, unscaled gradients, before clipping; None in a step that was not measured."""
    poisoned: bool = False
    """The weights are known not to be finite (weights.py): no scale helps."""

    @property
    def bad(self) -> bool:
        """Skipped, or with a loss that is not finite."""
        return self.skipped or self.loss - self.loss != 0.0

    @property
    def overflow(self) -> bool:
        """Skipped by the scaler. An infinite loss in such a step is part of the overflow, not a loss of its own."""
        return self.skipped and self.mode.uses_scaler and not self.poisoned

    @property
    def nonfinite(self) -> bool:
        """Non-finite where no scaler took care of it: the loss, or (in FP32 and BF16) the gradients, or the weights."""
        return not self.overflow if self.skipped else self.loss - self.loss != 0.0


@dataclass(frozen=True, slots=True)
class ModeChange:
    """The mode was changed at a boundary, or (``before`` equals ``after``) a request asked for the one already in force."""

    before: PrecisionMode
    after: PrecisionMode
    request: PrecisionRequest | None
    """The one applied; where the sentinel changed the mode, the one in force, None before any."""
    step: int
    """First step in the new mode."""
    time: float
    """Wall clock at the boundary, seconds since the epoch."""
    source: str = "request"
    """``request`` or ``sentinel``."""

    @property
    def generation(self) -> int:
        """Of the request in force; 0 before any."""
        return self.request.generation if self.request else 0


class Boundary(NamedTuple):
    """What was agreed between two steps. All ranks see the same one."""

    step: int
    """Number of the step about to begin."""
    records: tuple[StepRecord, ...]
    change: ModeChange | None
    checkpoint: bool
    stop: bool
    rewind: bool = False
    """Go back to the last healthy checkpoint (store/checkpointer.py): after the change of mode, in place of a checkpoint."""


def read_record(step: int, mode: PrecisionMode, generation: int, values: list[float]) -> StepRecord:
    """A record from what a step sent to the host after the header: the mean loss, found_inf, the loss scale (1 where no
    scaler runs) and, if it was measured, the gradient norm."""
    loss, found_inf, scale, *norm = values
    return StepRecord(step, mode, generation, loss, found_inf > 0, scale, norm[0] if norm else None)
