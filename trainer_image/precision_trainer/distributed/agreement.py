"""How all ranks agree without a collective of their own.

A ``telemetry`` parameter rides in DDP's gradient bucket. In the backward pass of a step every rank gives it a *message* as
gradient; DDP averages gradients over the ranks, so after backward every rank holds the same mean. The message is a
second root of the backward pass (``torch.autograd.backward((loss, telemetry), (None, message))``): it is not
multiplied by the loss scale, and it arrives even if this rank's loss is inf or NaN.

Who writes what: rank 0 alone the request and the sentinel's verdict; every rank its wish to stop (0 or 1), the mode it runs
(so that a process group that fell apart is noticed), its finding about a bad step, and its loss. The sum over ranks is
``mean * world_size``, rounded to a whole number.

A message is read by all ranks or by none. Each sees its own mean alone, and a script may keep DDP from averaging it
(``no_sync()``), from all ranks taking part in it (``join()``), or compress it (a communication hook). So rank 0 marks its
message with a 1: averaged, the sum is 1; else it is ``world_size`` on rank 0, and 0 elsewhere. What rank 0 writes has check
digits. And what every rank must have said is told by zeros, since a rounded sum of many ranks is near its number at best.

This module is pure: floats in, values out. Every number that rank 0 writes alone is a whole number below 64, so it is exact
in FP32, and survives being divided, rounded and multiplied in a bucket that is compressed to FP16 or BF16.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..errors import RankMismatchError
from ..values.levels import Diagnosis, Finding, Level, Reason, Verdict
from ..values.modes import PrecisionMode
from ..values.request import PrecisionRequest

_BASE = 64
_LEAD, _CHECK = 0, 1
_CHECKS = 2
_WEIGHTED = 61
"""A prime above the number of digits: a change of one digit shows in the weighted sum, whichever it is."""
_MODE = _CHECK + _CHECKS
_FLAGS, _DIGIT0 = _MODE + 1, _MODE + 2
_CHECKPOINT, _REWIND = 1, 2
"""Bits of the flags."""
_DIGITS = 9
_FACTOR0 = _DIGIT0 + _DIGITS
_FACTOR_DIGITS = 11
"""Of the 64 bits of a loss-scale factor, so that every rank multiplies by the very same number. All 0: none."""
_INTERVAL0 = _FACTOR0 + _FACTOR_DIGITS
_INTERVAL_DIGITS = 5
_SERIAL0 = _INTERVAL0 + _INTERVAL_DIGITS
_SERIAL_DIGITS = _PIN_DIGITS = 2
_LEVEL = _SERIAL0 + _SERIAL_DIGITS
_REASON, _PIN0 = _LEVEL + 1, _LEVEL + 2
_STOP = _PIN0 + _PIN_DIGITS
"""The first number that every rank writes."""
_RUNNING0 = _STOP + 1
"""One number for each mode, so that "all in one" shows in the zeros of the others. Their sum: how many ranks took part."""
_SILENT = _RUNNING0 + len(PrecisionMode)
"""Of ranks that have no finding."""
_FP32_BAD, _FP32_UNKNOWN, _WEIGHTS_BAD, _WEIGHTS_UNKNOWN, _ORIGINS, _BIT0 = (_SILENT + 1 + n for n in range(6))
_BITS = 10
"""Of a layer's index (levels.MAX_LAYERS), each a number of its own: so a sum tells "all the same" from "different"."""
HEADER = _BIT0 + _BITS
"""Numbers in a message before the loss."""
WIDTH = HEADER + 1
"""Size of the telemetry parameter: header and loss."""
_ONE = 0.5
"""A sum from here on is that of one rank at least."""
_FP32_OFF, _COMPRESSED_OFF = 2**-20, 2**-8
"""How far off 1 a sum of it and of zeros may be, after two roundings in FP32, and in BF16."""
_FINE_BITS = 2**13 - 1
"""Bits of an FP32 number that are 0 where it was rounded to FP16 or BF16."""
_MOST = 0.75
"""Share of the ranks above which a rounded sum of all is taken for all: any group of fewer that averages is smaller."""


class Unread(Enum):
    """Why no rank read a step's message, in one CamelCase word; beside it its meaning and the next step."""

    NOT_AVERAGED = (
        "NotAveraged",
        "expected gradients averaged over all ranks, found a step without: no_sync(), a loss that uses another model than "
        "the one it is given, or a communication hook over fewer ranks (post_localSGD_hook). In such steps every rank keeps "
        "its mode, and requests, stops and the sentinel's decisions wait for one that is averaged: call the model that the "
        "loss is given, leave no_sync() to gradient_accumulation_steps, or remove the hook",
    )
    UNEVEN = (
        "UnevenInputs",
        "expected all ranks in every step, found that DDP goes on without those that have no input left (join()). The first "
        "step in another mode, a checkpoint and a rewind need all of them, so from here on every rank keeps its mode, and "
        "requests and the sentinel's decisions are not obeyed; a stop is, in a step of all ranks: give all ranks as many "
        "batches, leave join() out, and restart",
    )
    DAMAGED = (
        "Damaged",
        "expected the message that rank 0 wrote into the gradient bucket, found other numbers: a communication hook has "
        "changed them. In such steps every rank keeps its mode, and requests, stops and the sentinel's decisions wait: use "
        "a hook that keeps whole numbers up to 63, such as bf16_compress_hook, or none",
    )

    def __init__(self, reason: str, meaning: str) -> None:
        self.reason, self.meaning = reason, meaning


@dataclass(frozen=True, slots=True)
class Agreed:
    """What all ranks read from the same step."""

    request: PrecisionRequest | None
    verdict: Verdict | None
    diagnosis: Diagnosis | None
    """None unless every rank that took part looked into a bad step."""
    stop: bool
    """True if any rank was asked to stop."""
    loss: float
    """Mean loss over the ranks that took part; not finite if any rank's was not."""
    unread: Unread | None = None
    """Why there is no request and no verdict here, on any rank; None if the message was read."""


def encode(
    request: PrecisionRequest | None,
    *,
    leads: bool,
    stop: bool,
    running: PrecisionMode,
    verdict: Verdict | None = None,
    finding: Finding | None = None,
) -> list[float]:
    """This rank's header, length HEADER.

    Args:
        request: the waiting request (rank 0), None elsewhere.
        leads: whether this is rank 0.
        stop: whether this rank was asked to stop.
        running: the mode this rank computes the step in.
        verdict: the sentinel's (rank 0), None elsewhere.
        finding: this rank's, about a bad step; None if it looked into none.
    """
    header = [0.0] * HEADER
    header[_LEAD] = float(leads)
    header[_STOP] = float(stop)
    header[_RUNNING0 + running.code - 1] = 1.0
    if request is not None:
        header[_MODE] = float(request.mode.code)
        header[_FLAGS] = float(_CHECKPOINT * request.checkpoint + _REWIND * request.rewind)
        _put_digits(header, _DIGIT0, _DIGITS, request.generation)
        if request.loss_scale_factor is not None:
            bits = int.from_bytes(struct.pack("<d", request.loss_scale_factor), "little")
            _put_digits(header, _FACTOR0, _FACTOR_DIGITS, bits)
        _put_digits(header, _INTERVAL0, _INTERVAL_DIGITS, request.growth_interval or 0)
    if verdict is not None:
        _put_digits(header, _SERIAL0, _SERIAL_DIGITS, verdict.serial)
        header[_LEVEL], header[_REASON] = float(verdict.level), float(verdict.reason.code)
        _put_digits(header, _PIN0, _PIN_DIGITS, 0 if verdict.pin is None else verdict.pin + 1)
    header[_CHECK:_MODE] = map(float, _checks([int(digit) for digit in header[_MODE:_STOP]]))
    if finding is None:
        header[_SILENT] = 1.0
    else:
        header[_FP32_BAD] = float(finding.fp32_finite is False)
        header[_FP32_UNKNOWN] = float(finding.fp32_finite is None)
        header[_WEIGHTS_BAD] = float(finding.weights_finite is False)
        header[_WEIGHTS_UNKNOWN] = float(finding.weights_finite is None)
        if finding.origin is not None:
            header[_ORIGINS] = 1.0
            header[_BIT0:] = [float(finding.origin >> bit & 1) for bit in range(_BITS)]
    return header


def decode(means: Sequence[float], world_size: int, running: PrecisionMode, *, joins: bool = False) -> Agreed:
    """Read the averaged message, once :func:`is_quiet` has found that it says something.

    Args:
        means: the telemetry parameter's gradient after backward, length WIDTH.
        world_size: ranks that are to take part in the mean.
        running: the mode this rank computed the step in.
        joins: DDP goes on without ranks that have no input left (``join()``): they are missing in this mean, or will be in
            the next step, in which the others would wait for them.

    Raises:
        RankMismatchError: the ranks did not compute the step in one mode.
    """
    loss = means[HEADER]
    values = [mean * world_size for mean in means[:HEADER]]
    if not all(math.isfinite(value) for value in values):
        return Agreed(None, None, None, stop=False, loss=loss, unread=Unread.DAMAGED)
    sums = [round(value) for value in values]
    led = _is_one_of(means[_LEAD], world_size)
    if led and _checks(sums[_MODE:_STOP]) != tuple(sums[_CHECK:_MODE]):
        return Agreed(None, None, None, stop=False, loss=loss, unread=Unread.DAMAGED)
    if led:
        _check_modes(sums, world_size, running)
    took_part = sum(values[_RUNNING0:_SILENT])
    all_did = took_part > (world_size - _ONE if joins else world_size * _MOST)
    if joins or not (led and all_did):
        if not all_did and took_part >= _ONE:
            loss *= world_size / took_part
        # What some find out about a batch is worth knowing; of a rank that is alone in the mean nobody knows if it is.
        diagnosis = _diagnosis(sums) if led and took_part > 1 + _ONE else None
        # A rank that runs out of input after this step hears of a stop when it is back, and needs no meeting for it.
        stop = joins and led and all_did and sums[_STOP] > 0
        unread = Unread.UNEVEN if joins else Unread.NOT_AVERAGED
        return Agreed(None, None, diagnosis, stop=stop, loss=loss, unread=unread)
    try:
        return Agreed(_request(sums), _verdict(sums), _diagnosis(sums), stop=sums[_STOP] > 0, loss=loss)
    except (LookupError, ValueError, OverflowError):  # numbers that nobody writes, whose check digits fit by chance
        return Agreed(None, None, None, stop=False, loss=loss, unread=Unread.DAMAGED)


def is_quiet(means: Sequence[float], world_size: int, running: PrecisionMode, *, joins: bool) -> bool:
    """Whether it is what nearly every step says: nothing asked, nothing found, all ranks in one mode. See :func:`decode`."""
    if means[:HEADER] == _quiet(running, world_size):
        return True
    header = [*means[:HEADER]]
    # Of many ranks, rounded shares of 1 add up to nearly 1.
    ones = (_LEAD, _RUNNING0 + running.code - 1, _SILENT)
    lead, ran, silent = (header[place] for place in ones)
    if joins or min(ran, silent) <= _MOST or not _is_one_of(lead, world_size):
        return False
    for place in ones:
        header[place] = 0.0
    return not any(header)


def _is_one_of(mean: float, world_size: int) -> bool:
    """Whether ``mean`` is that of a 1 and of zeros from ``world_size`` ranks, and not from a few less."""
    off = abs(mean * world_size - 1)
    (bits,) = struct.unpack("<I", struct.pack("<f", mean))
    return off < _FP32_OFF or (off < _COMPRESSED_OFF and not bits & _FINE_BITS)


@functools.cache
def _quiet(running: PrecisionMode, world_size: int) -> list[float]:
    """The means of nearly every step, [HEADER]: nothing asked, nothing found, all ranks in the mode ``running``."""
    means = encode(None, leads=True, stop=False, running=running)
    (means[_LEAD],) = struct.unpack("<f", struct.pack("<f", 1 / world_size))
    return means


def _checks(digits: Sequence[int]) -> tuple[int, int]:
    weighted = sum(place * digit for place, digit in enumerate(digits, 1))
    return sum(digits) % _BASE, weighted % _WEIGHTED


def _check_modes(sums: Sequence[int], world_size: int, running: PrecisionMode) -> None:
    found = {mode: sums[_RUNNING0 + mode.code - 1] for mode in PrecisionMode}
    if any(ranks for mode, ranks in found.items() if mode is not running):
        counts = ", ".join(f"{ranks} in {mode.name.lower()}" for mode, ranks in found.items() if ranks)
        raise RankMismatchError(
            f"the ranks did not compute this step in one mode: expected {world_size} in {running.name.lower()}, found "
            f"{counts}; restart the process group from its last checkpoint"
        )


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
    serial, pin = _get_digits(sums, _SERIAL0, _SERIAL_DIGITS), _get_digits(sums, _PIN0, _PIN_DIGITS)
    if not serial:
        return None
    return Verdict(serial, Level(sums[_LEVEL]), Reason.from_code(sums[_REASON]), pin - 1 if pin else None)


def _diagnosis(sums: Sequence[int]) -> Diagnosis | None:
    if sums[_SILENT]:
        return None
    fp32_finite = False if sums[_FP32_BAD] else None if sums[_FP32_UNKNOWN] else True
    weights_finite = False if sums[_WEIGHTS_BAD] else None if sums[_WEIGHTS_UNKNOWN] else True
    finders, bits = sums[_ORIGINS], sums[_BIT0 : _BIT0 + _BITS]
    agree = finders > 0 and all(count in (0, finders) for count in bits)
    origin = sum(1 << bit for bit, count in enumerate(bits) if count) if agree else None
    return Diagnosis(fp32_finite, weights_finite, forward_overflow=finders > 0, origin=origin)
