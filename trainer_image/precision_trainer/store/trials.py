"""Modes that ended the process which tried them: out of memory, a kernel that faults. Nothing in that process can go back.

So a note is written before the first step in a mode, and before the model is compiled for it. It is taken away at the
boundary after, or where the process is asked to stop. A process that finds a note of MOST_DEATHS earlier ones, of the same
mode, request and settings, does not try it again: else the restarts would go on for ever.
"""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple

from ..checkpoint.files import read_json, replace_json
from ..errors import CheckpointError
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.threads import begin
from .lease import Lease

MOST_DEATHS = 2
"""One may be of another cause: a node that was lost, a pod that was deleted in that moment."""
WAIT_SECONDS = 1.0
"""How long a step waits for a note: a volume that hangs must not stop training."""
_CLOSE_SECONDS = 5.0
GIVEN_UP = 1000
"""In the place of the number of processes: one was enough, as it knew that the mode may end each."""


class _Note(NamedTuple):
    """What is on the volume of one trial: of a mode's first step, or of its compilation, which each count by themselves."""

    generation: int
    """Of the request; 0 if none asked."""
    settings: str
    """A digest of the job's."""
    deaths: int


def _name(mode: PrecisionMode, compiles: bool) -> str:
    return f"{mode.wire} compiled" if compiles else mode.wire


class TrialNotes:
    """The notes of one checkpoint directory. Rank 0 only."""

    def __init__(self, directory: str, log: JsonLog, lease: Lease | None = None, *, settings: str = "") -> None:
        """Read what earlier processes left; nothing is written while ``lease`` is not held.

        ``settings``: of the job, as text. Where they are other ones now, what happened under the former says nothing.
        """
        self._path = Path(directory) / "trial.json"
        self._log, self._lease = log, lease
        self._settings = hashlib.sha256(settings.encode()).hexdigest()[:16]
        self._notes = self._read()
        self._lock = threading.Lock()
        self._job: Future[None] | None = None
        self._trying: tuple[str, int] | None = None
        """The trial that is noted now, and its generation."""
        self._stopped = False

    def deaths(self, mode: PrecisionMode, generation: int) -> int:
        """How many processes in a row ended where ``mode`` was tried, under this request and these settings."""
        return max(self._counted(_name(mode, compiles), generation) for compiles in (False, True))

    def begin(self, mode: PrecisionMode, generation: int, *, compiles: bool = False) -> None:
        """``mode`` is tried next, under the request of ``generation``; may be repeated while it is.

        ``compiles``: the model is compiled for it; else its first step comes.
        """
        name = _name(mode, compiles)
        with self._lock:  # a stop that comes meanwhile takes the note away
            if self._stopped or self._trying == (name, generation):
                return
            self._forget()
            self._notes[name] = _Note(generation, self._settings, self._counted(name, generation) + 1)
            self._trying = name, generation
        self._do()

    def end(self) -> None:
        """It is over, well or not."""
        with self._lock:
            forgotten = self._forget()
        if forgotten:
            self._do()

    def give_up(self) -> None:
        """The process goes on, but no later one tries the same under the same request and settings."""
        with self._lock:
            trying, self._trying = self._trying, None
            if trying is None:
                return
            self._notes[trying[0]] = self._notes[trying[0]]._replace(deaths=GIVEN_UP)
        self._do()

    def stop(self) -> None:
        """This process was asked to end: whatever becomes of it, the mode is not to blame. From any thread."""
        self._stopped = True
        self.end()

    def close(self) -> None:
        """Wait for what is being written, but not for a volume that hangs."""
        if self._job is not None:
            wait([self._job], _CLOSE_SECONDS)

    def _counted(self, name: str, generation: int) -> int:
        note = self._notes.get(name)
        return note.deaths if note is not None and note[:2] == (generation, self._settings) else 0

    def _forget(self) -> bool:
        """Whether a trial was noted, which is over. With the lock held."""
        trying, self._trying = self._trying, None
        return trying is not None and self._notes.pop(trying[0], None) is not None

    def _do(self) -> None:
        """Write the notes as they are now, after what is being written, whatever the volume takes for each."""
        with self._lock:
            before, notes = self._job, dict(self._notes)

            def in_order() -> None:
                if before is not None:
                    wait([before])
                self._write(notes)

            job = begin(in_order, "trial")
            # One that is done already may not have waited: there was no thread for it.
            self._job = before if job.done() else job
        if wait([job], WAIT_SECONDS).done and (error := job.exception()) is not None:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        self._log.warning(
            "trial_not_noted",
            f"{self._path} cannot be written ({error}); a mode that kills the process would be tried at every restart",
        )

    def _write(self, notes: dict[str, _Note]) -> None:
        if self._lease is not None:
            self._lease.check()  # else they are another process's
        if notes:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_json(self._path, {mode: note._asdict() for mode, note in notes.items()})
        else:
            self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, _Note]:
        try:
            if not self._path.exists():
                return {}
            found: dict[str, Any] = read_json(self._path)
            notes = {mode: _Note(**note) for mode, note in found.items()}
            if notes and all([type(value) for value in note] == [int, str, int] for note in notes.values()):
                return notes
        except (OSError, TypeError, CheckpointError):
            pass  # told below
        self._log.warning(
            "trial_unreadable", f"{self._path} holds no notes of trials; modes are tried as if none had failed"
        )
        return {}
