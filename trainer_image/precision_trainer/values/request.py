"""The request file: how a running trainer is asked for another precision.

The file is a downward-API volume. The kubelet replaces it by swapping a symlink, so a reader sees the old or the new whole
text; other writers may not be so careful, and a half-written file must never stop training. Only rank 0 reads it; the other
ranks learn of a request through the telemetry channel (agreement.py).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from ..errors import TrainerError
from .modes import WIRE_NAMES, PrecisionMode
from .numbers import is_number, is_whole

MAX_BYTES = 64 * 1024
MAX_GENERATION = 2**50 - 1
"""Highest generation the telemetry channel can carry exactly, by its contract with the operator."""
MAX_GROWTH_INTERVAL = 10**9
MIN_FACTOR, MAX_FACTOR = 2.0**-16, 2.0**16
"""Range of a loss-scale factor."""
LOSS_SCALE_FACTOR, GROWTH_INTERVAL = "lossScaleFactor", "growthInterval"
"""Keys of a request."""

MALFORMED = "Malformed"
UNKNOWN_MODE = "UnknownMode"
STALE_GENERATION = "StaleGeneration"
NOT_ALLOWED = "NotAllowed"
REASONS = (MALFORMED, UNKNOWN_MODE, STALE_GENERATION, NOT_ALLOWED)

OnError = Callable[[str, str], None]
"""Called with one of REASONS and a sentence for a person."""


class RequestError(TrainerError):
    """A request that cannot be taken. ``reason`` is one of REASONS."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class PrecisionRequest:
    """One request: train in ``mode`` from the next agreed step boundary on."""

    generation: int
    """Orders requests; [1, MAX_GENERATION]. One that is not above the last applied one is ignored."""
    mode: PrecisionMode
    checkpoint: bool = False
    """Also save a checkpoint at the same boundary."""
    rewind: bool = False
    """Also go back to the last checkpoint tagged healthy, at the same boundary: the weights are poisoned."""
    loss_scale_factor: float | None = None
    """Also multiply the loss scale by this, once, at the same boundary; [2^-16, 2^16], None: leave it."""
    growth_interval: int | None = None
    """Also let the loss scale grow after so many good steps from here on; [1, MAX_GROWTH_INTERVAL], None: as before."""

    @property
    def tunes(self) -> bool:
        """Whether it asks for anything of the loss scaler; without effect in a mode that has none."""
        return self.loss_scale_factor is not None or self.growth_interval is not None

    def to_wire(self) -> dict[str, object]:
        """As the contract has it; :func:`read_request` is the inverse."""
        wire: dict[str, object] = {"generation": self.generation, "mode": self.mode.wire}
        wire |= {name: True for name, flag in (("checkpoint", self.checkpoint), ("rewind", self.rewind)) if flag}
        tuning = {LOSS_SCALE_FACTOR: self.loss_scale_factor, GROWTH_INTERVAL: self.growth_interval}
        return wire | {name: value for name, value in tuning.items() if value is not None}


def parse_request(text: str) -> PrecisionRequest | None:
    """Read a request's JSON. None if there is none (empty file). Unknown keys are ignored: a newer operator may send more.

    Raises:
        RequestError: Malformed or UnknownMode.
    """
    if not text.strip():
        return None
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(MALFORMED, f"request {_short(text)} is not JSON ({error}); {_EXPECTED}") from None
    return read_request(value)


def read_request(value: object) -> PrecisionRequest:
    """Read a request from the value its JSON stands for.

    Raises:
        RequestError: Malformed or UnknownMode.
    """
    if not isinstance(value, dict):
        raise RequestError(MALFORMED, f"request {_short(repr(value))} is not a JSON object; {_EXPECTED}")
    generation: object = value.get("generation")
    mode_name: object = value.get("mode")
    flags: dict[str, object] = {name: value.get(name, False) for name in ("checkpoint", "rewind")}
    if not is_whole(generation, 1, MAX_GENERATION):
        _refuse("generation", generation, f"a whole number in [1, {MAX_GENERATION}]")
    if not isinstance(mode_name, str):
        _refuse("mode", mode_name, "a string")
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            _refuse(name, flag, "true or false")
    mode = PrecisionMode.from_wire(mode_name)
    if mode is None:
        raise RequestError(
            UNKNOWN_MODE, f"request: mode={mode_name!r}: expected one of {', '.join(WIRE_NAMES)}; write a new request"
        )
    return PrecisionRequest(
        generation,
        mode,
        checkpoint=flags["checkpoint"] is True,
        rewind=flags["rewind"] is True,
        loss_scale_factor=_factor(value),
        growth_interval=_interval(value),
    )


def _factor(value: dict[object, object]) -> float | None:
    if LOSS_SCALE_FACTOR not in value:
        return None
    factor = value[LOSS_SCALE_FACTOR]
    if not is_number(factor) or not MIN_FACTOR <= factor <= MAX_FACTOR:
        _refuse(LOSS_SCALE_FACTOR, factor, "a number in [2^-16, 2^16]")
    return float(factor)


def _interval(value: dict[object, object]) -> int | None:
    if GROWTH_INTERVAL not in value:
        return None
    interval = value[GROWTH_INTERVAL]
    if not is_whole(interval, 1, MAX_GROWTH_INTERVAL):
        _refuse(GROWTH_INTERVAL, interval, f"a whole number in [1, {MAX_GROWTH_INTERVAL}]")
    return interval


def _refuse(name: str, found: object, expected: str) -> NoReturn:
    raise RequestError(MALFORMED, f"request: {name}={found!r}: expected {expected}; {_EXPECTED}")


_EXPECTED = 'expected {"generation":17,"mode":"fp32"}; write a whole new request'


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


class RequestFile:
    """Polls one file. A missing or empty file is "no request", not an error."""

    def __init__(self, path: str, on_error: OnError, min_interval_seconds: float = 0.02) -> None:
        """Watch ``path``; ask the file system at most every ``min_interval_seconds``."""
        self._path = path
        self._on_error = on_error
        self._interval = min_interval_seconds
        self._next_poll = 0.0
        self._signature: tuple[int, int, int, int] | None = None
        self._text = ""

    def poll(self) -> PrecisionRequest | None:
        """The request, if the file changed since the last call and holds a good one; never raises for its content."""
        now = time.monotonic()
        if now < self._next_poll:
            return None
        self._next_poll = now + self._interval
        try:
            status = os.stat(self._path)
            # Taken before reading: a change during the read shows as a new signature at the next poll.
            signature = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
            if signature == self._signature:
                return None
            with open(self._path, "rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            self._signature, self._text = None, ""
            return None
        except OSError as error:
            self._complain_once(
                MALFORMED, f"request file {self._path} cannot be read ({error}); check its volume mount"
            )
            return None
        self._signature = signature
        if len(raw) > MAX_BYTES:
            self._complain_once(MALFORMED, f"request file {self._path} is larger than {MAX_BYTES} bytes; {_EXPECTED}")
            return None
        text = raw.decode("utf-8", errors="replace")
        if text == self._text:
            return None
        self._text = text
        try:
            return parse_request(text)
        except RequestError as error:
            self._on_error(error.reason, str(error))
            return None

    def _complain_once(self, reason: str, message: str) -> None:
        if self._text != message:
            self._text = message
            self._on_error(reason, message)


class Inbox:
    """Rank 0's waiting request: the highest acceptable generation offered and not applied yet."""

    def __init__(self, on_error: OnError, low_precision_refused: str | None = None) -> None:
        """Refuse FP16 and BF16 with the sentence ``low_precision_refused``, if one is given."""
        self._on_error = on_error
        self._refused = low_precision_refused
        self._pending: PrecisionRequest | None = None

    def admissible(self, request: PrecisionRequest) -> bool:
        """Whether this process may train in the request's mode; counts a refusal."""
        if request.mode is PrecisionMode.FP32 or self._refused is None:
            return True
        self._on_error(NOT_ALLOWED, f"request {request.generation} for {request.mode.wire} refused: {self._refused}")
        return False

    def offer(self, request: PrecisionRequest, applied: PrecisionRequest | None) -> None:
        """Take a request in, or refuse it.

        Args:
            request: what was read.
            applied: the last one applied in this process, None before any.
        """
        newest = self.pending(applied.generation if applied else 0) or applied
        if newest is not None and request.generation <= newest.generation:
            # The same request again (a restarted writer) is no news and no error.
            if request != newest:
                self._on_error(
                    STALE_GENERATION,
                    f"request generation {request.generation} is not above {newest.generation}; write a higher generation",
                )
            return
        if self.admissible(request):
            self._pending = request

    def pending(self, applied_generation: int) -> PrecisionRequest | None:
        """The request to propose to the other ranks; forgotten once it, or a later one, is applied."""
        if self._pending is not None and self._pending.generation <= applied_generation:
            self._pending = None
        return self._pending
