"""Errors a person can act on: each message says what was expected, what was found, and the next step."""

from __future__ import annotations

EXIT_OK = 0
"""Stopped as asked, with a checkpoint; or all requested steps done."""
EXIT_FAILED = 1
"""Anything that is neither of the other two."""
EXIT_INTERRUPTED = 130
"""Ctrl-C in a command that has nothing to save (``train`` saves a checkpoint and ends with 0)."""
EXIT_DIVERGED = 17
"""The loss stayed non-finite in FP32: not a fault of precision (docs/contract.md)."""


class TrainerError(Exception):
    """Base of the errors this package raises on purpose; shown to a person without a traceback."""


class ConfigError(TrainerError, ValueError):
    """A setting is out of range or cannot be read. Names the field, the value and the range."""


class CheckpointError(TrainerError):
    """A checkpoint cannot be used: missing, broken, or of another model."""


class RankMismatchError(TrainerError):
    """The ranks of one gang were started differently."""


class DivergedError(TrainerError):
    """The loss stayed non-finite in FP32; ends the process with exit code 17."""


class GangError(TrainerError):
    """A peer is gone or silent; this rank cannot go on alone."""
