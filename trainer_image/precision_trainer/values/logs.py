"""JSON log lines on stdout, one a line, from every rank (docs/contract.md, "Trainer log lines")."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

Field: TypeAlias = "str | int | float | bool | list[str] | list[int] | None"


class JsonLog:
    """Writes events as single lines; safe from several threads.

    ``rank`` and ``world_size`` are added to every line, so that a reader of a pod's mixed output can tell the ranks apart.

    A line that cannot be written (a full volume, a reader that is gone) is lost: it must end neither training nor a thread.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self._common: dict[str, Field] = {"rank": rank, "world_size": world_size}
        self._lock = threading.Lock()
        self.on_lost: Callable[[], None] = lambda: None
        """Called for each line that could not be written."""

    def event(self, event: str, *, at: float | None = None, **fields: Field) -> None:
        """Write one line.

        Args:
            event: the line's name, e.g. ``precision_changed``.
            at: wall-clock seconds since the epoch when it happened; now, if None.
            fields: further values. A non-finite float is written as null: JSON has no NaN.
        """
        self._write(event, at, fields)

    def _write(self, event: str, at: float | None, fields: Mapping[str, Field]) -> None:
        record: dict[str, Field] = {"event": event, **self._common}
        for key, value in fields.items():
            record[key] = None if isinstance(value, float) and not math.isfinite(value) else value
        record["time"] = round(time.time() if at is None else at, 6)
        try:
            with self._lock:
                try:
                    _put(json.dumps(record, ensure_ascii=False, allow_nan=False))
                except UnicodeEncodeError:
                    _put(json.dumps(record, allow_nan=False))
        except (OSError, ValueError):
            self.on_lost()

    def warning(self, event: str, message: str, **fields: Field) -> None:
        """An event that a person should read; training goes on."""
        self._write(event, None, {"level": "warning", "message": message, **fields})

    def error(self, event: str, message: str, **fields: Field) -> None:
        """An event that needs a person; says expected, found and the next step."""
        self._write(event, None, {"level": "error", "message": message, **fields})


def _put(line: str) -> None:
    # One write of a whole line: lines of two ranks that share a pipe do not mix (PIPE_BUF is 4096 bytes).
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def from_env() -> JsonLog:
    """A log for this rank, by torchrun's RANK and WORLD_SIZE (0 and 1 where unset or unreadable)."""
    return JsonLog(_env_int("RANK", 0), _env_int("WORLD_SIZE", 1))


def _env_int(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default
