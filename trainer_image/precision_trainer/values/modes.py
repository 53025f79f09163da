"""Precision modes. A mode is an autocast dtype plus "does a loss scaler run"; it never touches the FP32 state.

This module imports no torch: the command line and the request reader use it too.
"""

from __future__ import annotations

from enum import Enum


class PrecisionMode(Enum):
    """How forward and backward are computed.

    FP32, MIXED_FP16 and MIXED_BF16 can be switched hot. FP16 and BF16 (16-bit *weights*) are cold modes: they change the
    state itself, so they are reached through a checkpoint only, never by a request.
    """

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    MIXED_FP16 = "mixed_fp16"
    MIXED_BF16 = "mixed_bf16"

    def __init__(self, name: str) -> None:
        # Attributes, not properties: they are asked for several times a step.
        self.uses_scaler = name.endswith("fp16")
        """True if gradients need loss scaling: FP16's exponent is too short for small ones, BF16's is not."""
        self.wire = name.removeprefix("mixed_")
        """The mode's name in requests, metrics and log lines: fp32, fp16 or bf16."""

    @classmethod
    def from_wire(cls, name: str) -> PrecisionMode | None:
        """The mode a policy, a request or an annotation means: there ``fp16`` and ``bf16`` are the mixed ones.

        Returns None for a name that is not one of ``fp32``, ``fp16``, ``bf16`` (any case, surrounding spaces allowed).
        """
        return _FROM_WIRE.get(name.strip().lower())

    @property
    def hot(self) -> bool:
        """True if the mode can be switched to while training: its state is the canonical FP32 one."""
        return self in _FROM_WIRE.values()

    @property
    def code(self) -> int:
        """The mode as a small whole number, for the telemetry channel; among hot ones the safer is the smaller."""
        return _CODES[self]

    @classmethod
    def from_code(cls, code: int) -> PrecisionMode:
        """The inverse of :attr:`code`. Raises KeyError for a number that is no mode."""
        return _FROM_CODE[code]


_FROM_WIRE = {"fp32": PrecisionMode.FP32, "fp16": PrecisionMode.MIXED_FP16, "bf16": PrecisionMode.MIXED_BF16}
_CODES = {PrecisionMode.FP32: 1, PrecisionMode.MIXED_BF16: 2, PrecisionMode.MIXED_FP16: 3,
          PrecisionMode.BF16: 4, PrecisionMode.FP16: 5}  # fmt: skip
_FROM_CODE = {code: mode for mode, code in _CODES.items()}
WIRE_NAMES = tuple(_FROM_WIRE)
HOT = tuple(_FROM_WIRE.values())
"""The modes that a request can ask for."""
