"""Loss average and the FP32 baseline, from step records alone. Saved with the checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass

DECAY = 0.98
MIN_BASELINE_STEPS = 10
"""A shorter FP32 phase (say, a flip right after start) says nothing and leaves the old baseline."""


@dataclass(slots=True)
class Progress:
    """All fields are floats, so that they go into a checkpoint as they are; negative means *none yet*."""

    weighted_loss: float = 0.0
    weight: float = 0.0
    in_fp32: float = 1.0
    stretch_steps: float = 0.0
    stretch_samples: float = 0.0
    stretch_seconds: float = 0.0
    baseline_loss: float = -1.0
    baseline_samples_per_second: float = -1.0

    @property
    def loss(self) -> float | None:
        """Exponential average of the finite losses, bias-corrected; None before the first."""
        return self.weighted_loss / self.weight if self.weight else None

    def observe(self, loss: float, *, fp32: bool, samples: int, seconds: float) -> None:
        """Take a step in.

        Args:
            loss: mean of all ranks; may be non-finite.
            fp32: whether it ran in FP32.
            samples: consumed by the process group in it.
            seconds: wall time since the step before.
        """
        if fp32 != bool(self.in_fp32):
            self._turn(fp32)
        if loss - loss == 0.0:
            self.weighted_loss = DECAY * self.weighted_loss + (1 - DECAY) * loss
            self.weight = DECAY * self.weight + (1 - DECAY)
        self.stretch_steps += 1
        self.stretch_samples += samples
        self.stretch_seconds += seconds

    def _turn(self, fp32: bool) -> None:
        loss = self.loss
        if self.in_fp32 and self.stretch_steps >= MIN_BASELINE_STEPS and loss is not None and self.stretch_seconds > 0:
            self.baseline_loss = loss
            self.baseline_samples_per_second = self.stretch_samples / self.stretch_seconds
        self.in_fp32 = float(fp32)
        self.stretch_steps = self.stretch_samples = self.stretch_seconds = 0.0

    def forget_baseline(self) -> None:
        """What the checkpoint said of FP32 belongs to another model, other data or other hardware."""
        self.baseline_loss = self.baseline_samples_per_second = -1.0

    def state_dict(self) -> dict[str, float]:
        """All fields."""
        return asdict(self)

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take saved fields over; unknown ones are left out, missing ones keep their value."""
        for name in asdict(self):
            value = state.get(name)
            if isinstance(value, float):
                setattr(self, name, value)
