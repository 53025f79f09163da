"""Runs: an endless training seen as a row of segments of N steps, each of which ends well or does not.

A process writes to disk that it has a run open before its first step. So one that crashes cannot forget that it tried: the
next one in its pod finds an open run and counts it as ended, not well. A run that SIGTERM or the loss of another pod's rank
interrupted is suspended, and goes on after the resume. Between its first and its last step a process writes nothing: a
volume that hangs would stop training.

A run that another pod left open is Unknown: that pod may have been preempted, evicted or lost with its node. It counts
neither as ended nor as ended well, unless its process could still write that training failed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..checkpoint.files import read_json, replace_json
from ..errors import CheckpointError
from ..telemetry.metrics import Metrics
from ..values.logs import JsonLog
from ..values.threads import briefly
from .lease import Lease

END_SECONDS = 10.0
"""How long a process tries to write how it ends: it has to end where the volume hangs."""


@dataclass(slots=True)
class _Ledger:
    open_since: int = -1
    """First step of the open run; -1 if none is open. On disk that of the process's first one, until it ends."""
    suspended: bool = False
    seconds: float = 0.0
    """Wall time the open run took before it was suspended."""
    crashed: bool = False
    """The process that had the run open wrote, at its end, that training failed."""
    pod: str = ""
    """Of that process; empty in the file of an older image, which did not write it."""


_OPTIONAL = tuple(field.name for field in fields(_Ledger) if field.name != "open_since")


class Runs:
    """The runs of one workload. Rank 0 only. Without a directory nothing outlives the process."""

    def __init__(
        self,
        directory: str | None,
        segment_steps: int,
        log: JsonLog,
        *,
        pod: str,
        metrics: Metrics,
        lease: Lease | None = None,
    ) -> None:
        """Read the ledger of earlier processes; a broken one is reported and begun anew.

        Args:
            directory: where it is kept.
            segment_steps: of a run.
            log: hears of a ledger that cannot be read or written, and of a run that is Unknown.
            pod: this process runs in: pod.pod_identity().
            metrics: count what could not be written.
            lease: on that directory; nothing is written while it is not held.
        """
        self._path = Path(directory) / "runs.json" if directory else None
        self._segment = segment_steps
        self._log = log
        self._pod = pod
        self._metrics = metrics
        self._lease = lease
        self._unsaved = False
        self._nonfinite = 0
        self._ledger = self._load()
        self.crashed_before = self._close_left_open()
        """The process before this one crashed."""
        self._started_at = 0.0

    def _close_left_open(self) -> bool:
        """End the run that the process before left open, if it did; whether it counts."""
        ledger = self._ledger
        if ledger.open_since < 0 or ledger.suspended:
            return False
        counts = ledger.crashed or ledger.pod == self._pod
        if not counts:
            self._log.event(
                "run_unknown",
                step=ledger.open_since,
                pod=ledger.pod or None,
                message="another pod left the run of this step open, or this one did before its node restarted: it counts "
                "neither as failed nor as ended well",
            )
        ledger.open_since = -1
        return counts

    def begin_process(self, step: int, now: float) -> None:
        """Persist the attempt before the first step: go on with a suspended run, or open one.

        Args:
            step: about to begin.
            now: monotonic seconds.
        """
        ledger = self._ledger
        if ledger.open_since >= 0 and ledger.suspended and ledger.open_since <= step:
            self._started_at = now - ledger.seconds
            ledger.suspended = False
        else:
            self._open(step, now)
        ledger.pod, ledger.crashed = self._pod, False
        self._save()

    def observe(self, next_step: int, nonfinite: bool, now: float) -> tuple[bool, float] | None:
        """After each step. If it was the run's last one: (ended well, its seconds), and the next run is opened.

        A run ends well if at most half of its steps were non-finite; overflows that the scaler skipped are normal.
        """
        self._nonfinite += nonfinite
        length = next_step - self._ledger.open_since
        if length < self._segment:
            return None
        result = self._nonfinite * 2 <= length, now - self._started_at
        self._open(next_step, now)
        return result

    def suspend(self, now: float) -> None:
        """A stop that was asked for, or a rank of another pod that is gone: the run is neither ended nor failed."""
        self._ledger.suspended, self._ledger.seconds = True, now - self._started_at
        briefly(self._save, "runs", END_SECONDS)

    def fail(self) -> None:
        """Training diverged: the open run ends, not well."""
        self._ledger.open_since = -1
        briefly(self._save, "runs", END_SECONDS)

    def crash(self) -> None:
        """This process ends with an error: the next one counts the open run, in whatever pod it starts."""
        self._ledger.crashed = True
        briefly(self._save, "runs", END_SECONDS)

    def rewound(self, step: int, now: float) -> None:
        """Training went back to ``step``: the open run ends, not well, and another one begins."""
        self._open(step, now)

    def _open(self, step: int, now: float) -> None:
        ledger = self._ledger
        ledger.open_since, ledger.suspended, ledger.seconds = step, False, 0.0
        self._started_at, self._nonfinite = now, 0

    def _load(self) -> _Ledger:
        if self._path is None:
            return _Ledger()
        try:
            if not self._path.exists():
                return _Ledger()
            raw: dict[str, Any] = read_json(self._path)
            # Older images also wrote how many runs there were, which nothing read.
            ledger = _Ledger(raw["open_since"], **{name: raw[name] for name in _OPTIONAL if name in raw})
            values = asdict(ledger)
            if not isinstance(values.pop("pod"), str):
                raise ValueError("pod is not a string")
            if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in values.values()):
                raise ValueError("a value is not a number")
        except (OSError, ValueError, TypeError, KeyError, OverflowError, CheckpointError) as error:
            self._log.error(
                "runs_refused",
                f"{self._path} cannot be used ({type(error).__name__}: {error}); whether the run before failed is Unknown",
            )
            return _Ledger()
        return ledger

    def _save(self) -> None:
        """Write the ledger. A disk that refuses must not end training; the log says what that may cost."""
        if self._path is None:
            return
        try:
            if self._lease is not None:
                self._lease.check()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_json(self._path, asdict(self._ledger))
            self._unsaved = False
        except (OSError, RuntimeError, CheckpointError) as error:
            self._metrics.add({"genesis_runs_failures": 1.0})
            if not self._unsaved:
                message = (
                    f"{self._path} cannot be written ({error}); a crash from here on may not count as a failed run"
                )
                self._log.error("runs_not_saved", message)
            self._unsaved = True
