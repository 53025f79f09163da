"""Modes that ended the process which tried them: out of memory, a kernel that faults. Nothing in that process can go back.

So a note is written before the first step in a mode, and taken away at the boundary after it, or where the process is asked
to stop. A process that finds a note of MOST_DEATHS earlier ones, of the same mode, request and settings, does not try it
again: else the restarts would go on for ever.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import NamedTuple

from ..checkpoint.files import replace_json
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.threads import begin
from .lease import Lease

MOST_DEATHS = 2
"""One may be of another cause: a node that was lost, a pod that was deleted in that moment."""
WAIT_SECONDS = 1.0
"""How long a step waits for a note: a volume that hangs must not stop training."""
_CLOSE_SECONDS = 5.0


class _Note(NamedTuple):
    """What is on the volume."""

    mode: str
    generation: int
    """Of the request; 0 if none asked."""
    settings: str
    """A digest of the job's."""
    deaths: int


_NOTHING = _Note("", 0, "", 0)


class TrialNotes:
    """The note of one checkpoint directory. Rank 0 only."""

    def __init__(self, directory: str, log: JsonLog, lease: Lease | None = None, *, settings: str = "") -> None:
        """Read what earlier processes left; nothing is written while ``lease`` is not held.

        ``settings``: of the job, as text. Where they are other ones now, what happened under the former says nothing.
        """
        self._path = Path(directory) / "trial.json"
        self._log, self._lease = log, lease
        self._settings = hashlib.sha256(settings.encode()).hexdigest()[:16]
        self._note = self._read()
        self._lock = threading.Lock()
        self._job: Future[None] | None = None
        self._open = self._stopped = False

    def deaths(self, mode: PrecisionMode, generation: int) -> int:
        """How many processes in a row ended in their first step in ``mode``, under this request and these settings."""
        return self._note.deaths if self._note[:3] == (mode.wire, generation, self._settings) else 0

    def begin(self, mode: PrecisionMode, generation: int) -> None:
        """The first step in ``mode`` comes next; may be repeated while it does."""
        asked = mode.wire, generation, self._settings
        if self._stopped or (self._open and self._note[:3] == asked):
            return
        self._note, self._open = _Note(*asked, self.deaths(mode, generation) + 1), True
        self._do(self._write)

    def end(self) -> None:
        """It is over, well or not."""
        with self._lock:
            was_open, self._open = self._open, False
        if was_open:
            self._do(self._remove)

    def stop(self) -> None:
        """This process was asked to end: whatever becomes of it, the mode is not to blame. From any thread."""
        self._stopped = True
        self.end()

    def close(self) -> None:
        """Wait for what is being written, but not for a volume that hangs."""
        if self._job is not None:
            wait([self._job], _CLOSE_SECONDS)

    def _do(self, work: Callable[[], None]) -> None:
        """In the order of the calls, whatever the volume takes for each."""
        with self._lock:
            before = self._job

            def in_order() -> None:
                if before is not None:
                    wait([before])
                work()

            try:
                job = self._job = begin(in_order, "trial")
            except RuntimeError as failure:  # no thread to be had
                self._tell(failure)
                return
        if wait([job], WAIT_SECONDS).done and (error := job.exception()) is not None:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        self._log.warning(
            "trial_not_noted",
            f"{self._path} cannot be written ({error}); a mode that kills the process would be tried at every restart",
        )

    def _remove(self) -> None:
        if self._lease is not None:
            self._lease.check()  # else it is another process's note
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._lease is not None:
            self._lease.check()
        replace_json(self._path, self._note._asdict())

    def _read(self) -> _Note:
        try:
            note = _Note(**json.loads(self._path.read_text(encoding="utf-8")))
            if [type(value) for value in note] == [str, int, str, int]:
                return note
        except FileNotFoundError:
            return _NOTHING
        except (OSError, ValueError, TypeError, RecursionError):
            pass  # told below
        self._log.warning(
            "trial_unreadable", f"{self._path} is no note of a trial; modes are tried as if none had failed"
        )
        return _NOTHING
