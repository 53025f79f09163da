"""How all ranks agree without a collective of their own.

A ``telemetry`` parameter rides in DDP's gradient bucket. In the backward pass of a step every rank gives it a *message* as
gradient; DDP averages gradients over the ranks, so after backward every rank holds the same mean. The message is a
second root of the backward pass (``torch.autograd.backward((loss, telemetry), (None, message))``): it is not
multiplied by the loss scale, and it arrives even if this rank's loss is inf or NaN.

Who writes what: rank 0 alone the request and the sentinel's verdict; every rank its wish to stop (0 or 1), the mode it runs
(so that a process group that fell apart is noticed), its finding about a bad step, and its loss. The sum over ranks is
``mean * world_size``, rounded to a whole number.

This module is pure: floats in, values out. Every number in the message is a whole number below 1024 (the loss apart),
so it is exact in FP32, and would be in an FP16-compressed bucket.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ConfigError, RankMismatchError
from ..values.levels import Diagnosis, Finding, Level, Reason, Verdict
from ..values.modes import PrecisionMode
from ..values.request import PrecisionRequest

UNUSED = (
    "parameters got no gradient in the last step, and DDP waits for all: expected a loss that depends on every parameter; "
    "set find_unused_parameters=True (--find-unused-parameters of train) where the parameters in use change from step to "
    "step, static_graph=True (--static-graph) where they never do, or freeze the unused ones with requires_grad_(False)"
)
"""What a person does where DDP averages nothing: its own advice names an argument that nobody here passes."""
_BASE = 1024
_DIGITS = 5
_MODE, _FLAGS, _STOP, _RUNNING, _DIGIT0 = 0, 1, 2, 3, 4
_CHECKPOINT, _REWIND = 1, 2
"""Bits of the flags."""
_FACTOR0 = _DIGIT0 + _DIGITS
_FACTOR_DIGITS = 7
"""Of the 64 bits of a loss-scale factor, so that every rank multiplies by the very same number. All 0: none."""
_INTERVAL0 = _FACTOR0 + _FACTOR_DIGITS
_INTERVAL_DIGITS = 3
_SERIAL = _INTERVAL0 + _INTERVAL_DIGITS
_LEVEL, _REASON, _PIN = _SERIAL + 1, _SERIAL + 2, _SERIAL + 3
_FOUND = _PIN + 1
_FP32_BAD, _FP32_UNKNOWN, _WEIGHTS_BAD, _WEIGHTS_UNKNOWN, _ORIGINS, _BIT0 = (_FOUND + 1 + n for n in range(6))
_BITS = 10
"""Of a layer's index (levels.MAX_LAYERS), each a number of its own: so a sum tells "all the same" from "different"."""
HEADER = _BIT0 + _BITS
"""Numbers in a message before the loss."""
WIDTH = HEADER + 1
"""Size of the telemetry parameter: header and loss."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks read from the same step."""

    request: PrecisionRequest | None
    verdict: Verdict | None
    diagnosis: Diagnosis | None
    """None unless every rank looked into a bad step."""
    stop: bool
    """True if any rank was asked to stop."""
    loss: float
    """Mean loss over the ranks; not finite if any rank's was not."""


def encode(
    request: PrecisionRequest | None,
    *,
    stop: bool,
    running: PrecisionMode,
    verdict: Verdict | None = None,
    finding: Finding | None = None,
) -> list[float]:
    """This rank's header, length HEADER.

    Args:
        request: the waiting request (rank 0), None elsewhere.
        stop: whether this rank was asked to stop.
        running: the mode this rank computes the step in.
        verdict: the sentinel's (rank 0), None elsewhere.
        finding: this rank's, about a bad step; None if it looked into none.
    """
    header = [0.0] * HEADER
    header[_STOP] = float(stop)
    header[_RUNNING] = float(running.code)
    if request is not None:
        header[_MODE] = float(request.mode.code)
        header[_FLAGS] = float(_CHECKPOINT * request.checkpoint + _REWIND * request.rewind)
        _put_digits(header, _DIGIT0, _DIGITS, request.generation)
        if request.loss_scale_factor is not None:
            bits = int.from_bytes(struct.pack("<d", request.loss_scale_factor), "little")
            _put_digits(header, _FACTOR0, _FACTOR_DIGITS, bits)
        _put_digits(header, _INTERVAL0, _INTERVAL_DIGITS, request.growth_interval or 0)
    if verdict is not None:
        pin = 0 if verdict.pin is None else verdict.pin + 1
        header[_SERIAL : _PIN + 1] = map(float, (verdict.serial, verdict.level, verdict.reason.code, pin))
    if finding is not None:
        header[_FOUND] = 1.0
        header[_FP32_BAD] = float(finding.fp32_finite is False)
        header[_FP32_UNKNOWN] = float(finding.fp32_finite is None)
        header[_WEIGHTS_BAD] = float(finding.weights_finite is False)
        header[_WEIGHTS_UNKNOWN] = float(finding.weights_finite is None)
        if finding.origin is not None:
            header[_ORIGINS] = 1.0
            header[_BIT0:] = [float(finding.origin >> bit & 1) for bit in range(_BITS)]
    return header


def decode(means: Sequence[float], world_size: int, running: PrecisionMode) -> Agreed:
    """Read the averaged message.

    Args:
        means: the telemetry parameter's gradient after backward, length WIDTH.
        world_size: ranks that took part in the mean.
        running: the mode this rank computed the step in.

    Raises:
        RankMismatchError: the ranks did not compute the step in one mode, or the message is not readable.
        ConfigError: DDP averaged nothing, since it still waits for parameters that got no gradient.
    """
    if means[:HEADER] == _QUIET[running]:  # what nearly every step says: nothing asked, nothing found, all in one mode
        return Agreed(None, None, None, stop=False, loss=means[HEADER])
    header = [mean * world_size for mean in means[:HEADER]]
    if not all(math.isfinite(value) for value in header):
        raise RankMismatchError(
            f"the agreement message is not finite ({header}); a communication hook may have damaged the gradient bucket: "
            "remove it"
        )
    sums = [round(value) for value in header]
    if world_size > 1 and sums[_RUNNING] == running.code:
        # Every mode's code is at least 1, so this is the rank's own number: nothing was averaged.
        raise ConfigError(UNUSED)
    if sums[_RUNNING] != running.code * world_size:
        raise RankMismatchError(
            f"the ranks did not compute this step in one mode: expected {world_size} x {running.code} ({running.wire}), "
            f"the sum is {sums[_RUNNING]}; restart the process group from its last checkpoint"
        )
    return Agreed(
        _request(sums), _verdict(sums), _diagnosis(sums, world_size), stop=sums[_STOP] > 0, loss=means[HEADER]
    )


_QUIET = {mode: encode(None, stop=False, running=mode) for mode in PrecisionMode}


def _put_digits(header: list[float], start: int, digits: int, number: int) -> None:
    rest = number
    for digit in range(digits):
        rest, low = divmod(rest, _BASE)
        header[start + digit] = float(low)
    if rest:
        raise ValueError(f"{number} does not fit into the agreement message: expected at most {_BASE**digits - 1}")


def _get_digits(sums: Sequence[int], start: int, digits: int) -> int:
    return sum(sums[start + digit] * _BASE**digit for digit in range(digits))


def _request(sums: Sequence[int]) -> PrecisionRequest | None:
    if not sums[_MODE]:
        return None
    flags = sums[_FLAGS]
    bits = _get_digits(sums, _FACTOR0, _FACTOR_DIGITS)
    factor: float | None = struct.unpack("<d", bits.to_bytes(8, "little"))[0] if bits else None
    return PrecisionRequest(
        _get_digits(sums, _DIGIT0, _DIGITS),
        PrecisionMode.from_code(sums[_MODE]),
        checkpoint=bool(flags & _CHECKPOINT),
        rewind=bool(flags & _REWIND),
        loss_scale_factor=factor,
        growth_interval=_get_digits(sums, _INTERVAL0, _INTERVAL_DIGITS) or None,
    )


def _verdict(sums: Sequence[int]) -> Verdict | None:
    serial, level, reason, pin = sums[_SERIAL : _PIN + 1]
    return Verdict(serial, Level(level), Reason.from_code(reason), pin - 1 if pin else None) if serial else None


def _diagnosis(sums: Sequence[int], world_size: int) -> Diagnosis | None:
    if sums[_FOUND] != world_size:
        return None
    fp32_finite = False if sums[_FP32_BAD] else None if sums[_FP32_UNKNOWN] else True
    weights_finite = False if sums[_WEIGHTS_BAD] else None if sums[_WEIGHTS_UNKNOWN] else True
    finders, bits = sums[_ORIGINS], sums[_BIT0 : _BIT0 + _BITS]
    agree = finders > 0 and all(count in (0, finders) for count in bits)
    origin = sum(1 << bit for bit, count in enumerate(bits) if count) if agree else None
    return Diagnosis(fp32_finite, weights_finite, forward_overflow=finders > 0, origin=origin)
