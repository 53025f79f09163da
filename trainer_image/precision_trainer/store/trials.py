"""Modes that killed the process which tried them: out of memory, a kernel that faults. Nothing in that process can say so.

So a note is written before the first step in a mode, and taken away after it. A process that finds notes of as many earlier
ones as MOST_DEATHS, of the same mode and request, does not try it again: else the restarts would go on for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path

from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.threads import begin
from .lease import Lease

MOST_DEATHS = 2
"""One may be of another cause: a node that was lost, a pod that was deleted in that moment."""
WAIT_SECONDS = 1.0
"""How long a step waits for a note: a volume that hangs must not stop training."""


class TrialNotes:
    """The note of one checkpoint directory. Rank 0 only."""

    def __init__(self, directory: str, log: JsonLog, lease: Lease | None = None) -> None:
        """Read what earlier processes left; nothing is written while ``lease`` is not held."""
        self._path = Path(directory) / "trial.json"
        self._log, self._lease = log, lease
        self._key, self._deaths = self._read()
        self._job: Future[None] | None = None
        self._open = False

    def deaths(self, mode: PrecisionMode, generation: int) -> int:
        """How many processes in a row ended in their first step in ``mode``, under this request."""
        return self._deaths if self._key == (mode.wire, generation) else 0

    def begin(self, mode: PrecisionMode, generation: int) -> None:
        """The first step in ``mode`` comes next; may be repeated while it does."""
        if self._open and self._key == (mode.wire, generation):
            return
        deaths = self.deaths(mode, generation) + 1
        self._key, self._deaths, self._open = (mode.wire, generation), deaths, True
        self._do(self._write)

    def end(self) -> None:
        """It is over, well or not; or this process ends and can say why."""
        if self._open:
            self._key, self._deaths, self._open = ("", 0), 0, False
            self._do(lambda: self._path.unlink(missing_ok=True))

    def _do(self, work: Callable[[], None]) -> None:
        if self._job is not None and not self._job.done():
            return  # the volume hangs: a note more or less is not worth a wait
        self._job = begin(work, "trial")
        if wait([self._job], WAIT_SECONDS).done and (error := self._job.exception()) is not None:
            self._log.warning(
                "trial_not_noted",
                f"{self._path} cannot be written ({error}); a mode that kills the process would be tried at every restart",
            )

    def _write(self) -> None:
        if self._lease is not None:
            self._lease.check()
        temporary = self._path.with_suffix(".tmp")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"mode": self._key[0], "generation": self._key[1], "deaths": self._deaths}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _read(self) -> tuple[tuple[str, int], int]:
        try:
            raw = json.loads(self._path.read_text(encoding="utf-8"))
            mode, generation, deaths = raw["mode"], raw["generation"], raw["deaths"]
        except FileNotFoundError:
            return ("", 0), 0
        except (OSError, ValueError, TypeError, KeyError):
            mode = generation = deaths = None
        if isinstance(mode, str) and type(generation) is int and type(deaths) is int:
            return (mode, generation), deaths
        self._log.warning(
            "trial_unreadable", f"{self._path} is no note of a trial; modes are tried as if none had failed"
        )
        return ("", 0), 0
