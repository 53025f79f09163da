"""The FP32 baseline record: what this training did while it ran in FP32, for others to be judged against.

It is taken at the end of an FP32 phase, kept with checkpoints, and belongs to one fingerprint of model, data and hardware:
under another one it is dropped, and what it said is unknown again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from ..values.numbers import is_number
from .progress import MIN_BASELINE_STEPS

POINTS = 256
"""Of the loss curve kept; with more, neighbours are averaged and every point covers twice the steps."""
RECENT_STEPS = 1024
"""Steps that the 95th percentile is taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The record. None in a field: not known."""

    fingerprint: str
    first_step: int
    steps: int
    losses: tuple[float, ...]
    """Mean of the finite losses in every ``stride`` steps, from ``first_step`` on; NaN where there was none."""
    stride: int
    p95_seconds: float
    """95th percentile of a step's duration."""
    samples_per_second: float
    peak_bytes: int | None
    """Of device memory."""
    success_ratio: float | None
    """Runs that ended well, of those that ended in the stretch."""
    time: float
    """Wall clock at the end, seconds since the epoch."""

    def gauges(self) -> dict[str, float]:
        """What is exported of it, beside Progress' loss and throughput; what is not known is left out."""
        values = {
            "genesis_fp32_baseline_step": float(self.first_step + self.steps),
            "genesis_fp32_baseline_step_p95_seconds": self.p95_seconds,
            "genesis_fp32_baseline_peak_bytes": self.peak_bytes,
            "genesis_fp32_baseline_success_ratio": self.success_ratio,
            "genesis_fp32_baseline_timestamp_seconds": self.time,
        }
        return {name: float(value) for name, value in values.items() if value is not None}

    def to_wire(self) -> dict[str, object]:
        """Plain values, for a checkpoint and for the API; a block without a finite loss is null."""
        return {**asdict(self), "losses": [value if math.isfinite(value) else None for value in self.losses]}


def fingerprint(facts: Mapping[str, str]) -> str:
    """Names what a baseline belongs to: 16 hexadecimal digits of a sha256 over model, data and hardware."""
    return hashlib.sha256(json.dumps(dict(facts), sort_keys=True).encode()).hexdigest()[:16]


class BaselineRecorder:
    """Records while FP32 runs; :attr:`record` is the last stretch that was long enough. A ``Part`` of the checkpointer."""

    def __init__(self, fingerprint: str) -> None:
        """Record for ``fingerprint``: of model, data and hardware."""
        self._fingerprint = fingerprint
        self.record: Baseline | None = None
        self.stale = False
        """The checkpoint held a record that is not of this training: nothing it said counts here."""
        self._reset()

    def _reset(self) -> None:
        self._first = -1
        self._steps = self._samples = self._ended = self._well = 0
        self._seconds = 0.0
        self._durations: deque[float] = deque(maxlen=RECENT_STEPS)
        self._blocks: list[tuple[float, int]] = []
        self._stride = 1

    def observe(self, loss: float, step: int, *, samples: int, seconds: float) -> None:
        """Take a step in that ran in FP32.

        Args:
            loss: mean of all ranks; may be non-finite.
            step: its number.
            samples: consumed by the process group in it.
            seconds: wall time since the step before.
        """
        if self._first < 0:
            self._first = step
        if self._steps % self._stride == 0:
            if len(self._blocks) == POINTS:
                self._blocks = [
                    (a[0] + b[0], a[1] + b[1]) for a, b in zip(self._blocks[::2], self._blocks[1::2], strict=True)
                ]
                self._stride *= 2
            self._blocks.append((0.0, 0))
        if loss - loss == 0.0:
            total, count = self._blocks[-1]
            self._blocks[-1] = total + loss, count + 1
        self._steps += 1
        self._samples += samples
        self._seconds += seconds
        self._durations.append(seconds)

    @property
    def recording(self) -> bool:
        """Steps were taken in since the last end."""
        return self._steps > 0

    def run_ended(self, well: bool) -> None:
        """A run ended while FP32 was in force."""
        self._ended += 1
        self._well += well

    def end(self, now: float, peak_bytes: int | None) -> Baseline | None:
        """FP32 ends here: close the stretch.

        Args:
            now: wall clock, seconds since the epoch.
            peak_bytes: of device memory in the stretch; None where it is not known.

        Returns:
            The record, None if the stretch was too short to say anything (the old record then stays).
        """
        steps, seconds = self._steps, self._seconds
        if steps >= MIN_BASELINE_STEPS and seconds > 0:
            ordered = sorted(self._durations)
            self.record = Baseline(
                fingerprint=self._fingerprint,
                first_step=self._first,
                steps=steps,
                losses=tuple(total / count if count else math.nan for total, count in self._blocks),
                stride=self._stride,
                p95_seconds=ordered[math.ceil(0.95 * len(ordered)) - 1],
                samples_per_second=self._samples / seconds,
                peak_bytes=peak_bytes,
                success_ratio=self._well / self._ended if self._ended else None,
                time=now,
            )
            self._reset()
            return self.record
        self._reset()
        return None

    def state_dict(self) -> dict[str, object]:
        """The record, as plain values; empty before one."""
        return self.record.to_wire() if self.record is not None else {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take a record over; one of another fingerprint, or one that cannot be read, counts as none."""
        losses = state.get("losses")
        if not isinstance(losses, list):
            return
        self.stale = state.get("fingerprint") != self._fingerprint
        if self.stale:
            return
        try:
            record = Baseline(**{**state, "losses": tuple(losses)})  # type: ignore[arg-type]  # checked next
        except TypeError:  # fields of another version
            record = None
        self.stale = record is None or not _is_readable(record)
        if record is not None and not self.stale:
            known = tuple(math.nan if value is None else float(value) for value in losses)
            self.record = replace(record, losses=known)


def _is_readable(record: Baseline) -> bool:
    """Whether its fields are what metrics and API can be given: numbers that a float takes."""
    whole = (record.first_step, record.steps, record.stride, record.peak_bytes)
    known = (record.p95_seconds, record.samples_per_second, record.time, *whole[:3])
    return (
        all(value is None or (isinstance(value, int) and is_number(value)) for value in whole)
        and all(map(is_number, known))
        and all(value is None or is_number(value) for value in (record.success_ratio, *whole, *record.losses))
    )
