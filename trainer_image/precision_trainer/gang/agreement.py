"""How all ranks agree without a collective of their own.

A ``telemetry`` parameter rides in DDP's gradient bucket. In the backward pass of a step every rank gives it a *message* as
gradient; DDP averages gradients over the ranks, so after backward every rank holds the same mean. The message is a
second root of the backward pass (``torch.autograd.backward((loss, telemetry), (None, message))``): it is not
multiplied by the loss scale, and it arrives even if this rank's loss is inf or NaN.

Who writes what: rank 0 alone the request; every rank its wish to stop (0 or 1) and the mode it runs (so that a gang
that fell apart is noticed); every rank its loss. The sum over ranks is ``mean * world_size``, rounded to a whole number.

This module is pure: floats in, values out. Every number in the message is a whole number below 1024 (the loss apart),
so it is exact in FP32, and would be in an FP16-compressed bucket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import RankMismatchError
from ..precision.modes import PrecisionMode
from .request import PrecisionRequest

_BASE = 1024
_DIGITS = 5
_MODE, _FLAGS, _STOP, _RUNNING, _DIGIT0 = 0, 1, 2, 3, 4
_CHECKPOINT, _REWIND = 1, 2
"""Bits of the flags."""
HEADER = _DIGIT0 + _DIGITS
"""Numbers in a message before the loss."""
WIDTH = HEADER + 1
"""Size of the telemetry parameter: header and loss."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks read from the same step."""

    request: PrecisionRequest | None
    stop: bool
    """True if any rank was asked to stop."""
    loss: float
    """Mean loss over the ranks; not finite if any rank's was not."""


def encode(request: PrecisionRequest | None, *, stop: bool, running: PrecisionMode) -> list[float]:
    """This rank's header, length HEADER.

    Args:
        request: the waiting request (rank 0), None elsewhere.
        stop: whether this rank was asked to stop.
        running: the mode this rank computes the step in.
    """
    header = [0.0] * HEADER
    header[_STOP] = float(stop)
    header[_RUNNING] = float(running.code)
    if request is not None:
        header[_MODE] = float(request.mode.code)
        header[_FLAGS] = float(_CHECKPOINT * request.checkpoint + _REWIND * request.rewind)
        rest = request.generation
        for digit in range(_DIGITS):
            rest, low = divmod(rest, _BASE)
            header[_DIGIT0 + digit] = float(low)
        if rest:
            raise ValueError(f"generation={request.generation}: expected at most {_BASE**_DIGITS - 1}")
    return header


def decode(means: Sequence[float], world_size: int, running: PrecisionMode) -> Agreed:
    """Read the averaged message.

    Args:
        means: the telemetry parameter's gradient after backward, length WIDTH.
        world_size: ranks that took part in the mean.
        running: the mode this rank computed the step in.

    Raises:
        RankMismatchError: the ranks did not compute the step in one mode, or the message is not readable.
    """
    header = [mean * world_size for mean in means[:HEADER]]
    if not all(math.isfinite(value) for value in header):
        raise RankMismatchError(
            f"the agreement message is not finite ({header}); a communication hook may have damaged the gradient bucket: "
            "remove it"
        )
    sums = [round(value) for value in header]
    if sums[_RUNNING] != running.code * world_size:
        raise RankMismatchError(
            f"the ranks did not compute this step in one mode: expected {world_size} x {running.code} ({running.wire}), "
            f"the sum is {sums[_RUNNING]}; restart the gang from its last checkpoint"
        )
    request = None
    if sums[_MODE]:
        generation = sum(sums[_DIGIT0 + digit] * _BASE**digit for digit in range(_DIGITS))
        flags = sums[_FLAGS]
        request = PrecisionRequest(
            generation,
            PrecisionMode.from_code(sums[_MODE]),
            checkpoint=bool(flags & _CHECKPOINT),
            rewind=bool(flags & _REWIND),
        )
    return Agreed(request, stop=sums[_STOP] > 0, loss=means[HEADER])
