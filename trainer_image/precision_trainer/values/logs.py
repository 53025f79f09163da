"""JSON log lines on stdout, one a line, from every rank (docs/contract.md, "Trainer log lines")."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import TypeAlias

Field: TypeAlias = "str | int | float | bool | list[str] | list[int] | None"


class JsonLog:
    """Writes events as single lines; safe from several threads.

    ``rank`` and ``world_size`` are added to every line, so that a reader of a pod's mixed output can tell the ranks apart.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        self._common: dict[str, Field] = {"rank": rank, "world_size": world_size}
        self._lock = threading.Lock()

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
            record[key] = None if isinstance(value, float) and not _finite(value) else value
        record["time"] = round(time.time() if at is None else at, 6)
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        with self._lock:
            # One write of a whole line: lines of two ranks that share a pipe do not mix (PIPE_BUF is 4096 bytes).
            sys.stdout.write(line)
            sys.stdout.flush()

    def warning(self, event: str, message: str, **fields: Field) -> None:
        """An event that a person should read; training goes on."""
        self._write(event, None, {"level": "warning", "message": message, **fields})

    def error(self, event: str, message: str, **fields: Field) -> None:
        """An event that needs a person; says expected, found and the next step."""
        self._write(event, None, {"level": "error", "message": message, **fields})


def from_env() -> JsonLog:
    """A log for this rank, by torchrun's RANK and WORLD_SIZE (0 and 1 where unset or unreadable)."""
    return JsonLog(_env_int("RANK", 0), _env_int("WORLD_SIZE", 1))


def _env_int(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


def _finite(value: float) -> bool:
    return value - value == 0.0
