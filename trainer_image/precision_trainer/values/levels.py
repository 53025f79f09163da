"""How far the sentinel has gone, why, and the two small messages with which the ranks agree on it. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from .modes import PrecisionMode


class Level(IntEnum):
    """Each is safer than the one before. At every level the scaler skips a step whose gradients are not finite."""

    NOMINAL = 0
    """As requested."""
    LOWER_SCALE = 1
    """FP16 with a lower loss scale that may not grow."""
    PIN = 2
    """FP16, with the guilty modules computed in FP32."""
    BF16 = 3
    """No FP16."""
    FP32 = 4
    """No low precision."""
    REWIND = 5
    """FP32, from the last healthy checkpoint on."""
    EXIT = 6
    """Nothing in this process helps; exit code 17."""

    @property
    def label(self) -> str:
        """Its name in metrics and log lines."""
        return self.name.lower()

    @property
    def cap(self) -> PrecisionMode | None:
        """The riskiest mode that this level allows; None if it allows all."""
        if self < Level.BF16:
            return None
        return PrecisionMode.MIXED_BF16 if self is Level.BF16 else PrecisionMode.FP32


class Reason(Enum):
    """Why the level changed, or why a warning was given. One CamelCase word, the same in log and metric."""

    PERSISTENT_OVERFLOW = "PersistentOverflow"
    FORWARD_OVERFLOW = "ForwardOverflow"
    SCALE_AT_FLOOR = "ScaleAtFloor"
    PRECISION_FAULT = "PrecisionFault"
    NONFINITE_UNEXPLAINED = "NonFiniteUnexplained"
    LOSS_DRIFT = "LossDrift"
    NONFINITE_WEIGHTS = "NonFiniteWeights"
    DIVERGED_IN_FP32 = "DivergedInFp32"
    RECOVERED = "Recovered"
    REQUESTED = "Requested"
    DATA_FAULT = "DataFault"
    SCALE_FALLING = "ScaleFalling"
    LOSS_SPIKE = "LossSpike"
    GRADIENT_SPIKE = "GradientSpike"
    LOW_HEADROOM = "LowHeadroom"
    GRADIENTS_DISAGREE = "GradientsDisagree"

    @property
    def code(self) -> int:
        """A small whole number for the telemetry channel, 1 or more."""
        return _REASONS.index(self) + 1

    @classmethod
    def from_code(cls, code: int) -> Reason:
        """The inverse of :attr:`code`. Raises IndexError for a number that is no reason."""
        return _REASONS[code - 1]


_REASONS = tuple(Reason)

FIRST_TRANSITIONS = (
    (Level.LOWER_SCALE, Reason.PERSISTENT_OVERFLOW),
    (Level.PIN, Reason.FORWARD_OVERFLOW),
    (Level.PIN, Reason.SCALE_AT_FLOOR),
    (Level.BF16, Reason.FORWARD_OVERFLOW),
    (Level.BF16, Reason.SCALE_AT_FLOOR),
    (Level.FP32, Reason.FORWARD_OVERFLOW),
    (Level.FP32, Reason.SCALE_AT_FLOOR),
    (Level.FP32, Reason.LOSS_DRIFT),
    (Level.FP32, Reason.PRECISION_FAULT),
    (Level.FP32, Reason.NONFINITE_UNEXPLAINED),
    (Level.REWIND, Reason.NONFINITE_WEIGHTS),
    (Level.REWIND, Reason.DIVERGED_IN_FP32),
)
"""What can happen first, from NOMINAL: their counters are there, at 0, before it does."""

SERIALS = 1000
"""Verdicts are numbered 1 to SERIALS, then from 1 again; 0 means none."""
MAX_LAYERS = 1023
"""Layers that the channel can name; of a larger model the first ones (the sentinel then goes from a scale to a mode)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Rank 0's decision on its way to all ranks. It names the end state, so that it can be sent any number of times."""

    serial: int
    """[1, SERIALS]; a rank applies a serial once."""
    level: Level
    reason: Reason
    pin: int | None = None
    """Index of the layer to pin at this level; None for none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rank found out about a bad step of its own: the batch, computed again."""

    fp32_finite: bool | None
    """The batch gives a finite loss and gradients in FP32; None if that could not be computed."""
    weights_finite: bool | None
    """None if that could not be found out."""
    origin: int | None
    """Index of the first layer whose output is not finite in the mode that trained; None if all are."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All ranks' findings together; every rank holds the same one."""

    fp32_finite: bool | None
    """True if finite on all ranks, False if not on one, None if unknown on one and finite on the others."""
    weights_finite: bool | None
    """As above."""
    forward_overflow: bool
    """On some rank a layer's output was not finite: no loss scale helps against that."""
    origin: int | None
    """The layer, if all ranks that found one found the same."""


def safer(left: PrecisionMode, right: PrecisionMode | None) -> PrecisionMode:
    """The safer of two hot modes: fp32 > bf16 > fp16."""
    return left if right is None or left.code <= right.code else right
