"""The sentinel's checks may fail on a model that nobody foresaw; training goes on, and one line says what is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..errors import MAX_ERROR
from ..values.logs import JsonLog

Result = TypeVar("Result")


class Guard:
    """Runs checks. One that raises is reported once, on the rank where it did, and not run again in this process."""

    def __init__(self, log: JsonLog) -> None:
        self._log = log
        self._off: set[str] = set()

    def __call__(self, check: str, compute: Callable[[], Result]) -> Result | None:
        """What ``compute`` returns; None (unknown) if it raised, now or before."""
        if check in self._off:
            return None
        try:
            return compute()
        except Exception as error:  # noqa: BLE001  (whatever a model raises: it must not end its training)
            self.switch_off(check, error)
            return None

    def switch_off(self, check: str, error: Exception) -> None:
        """``check`` raised ``error``: from now on its result is unknown."""
        if check in self._off:
            return
        self._off.add(check)
        self._log.warning(
            "sentinel_check_off",
            f'expected the check "{check}" to run on this model, it raised {type(error).__name__}: it is off until the '
            "process ends, and what it would find is unknown; training is not affected",
            check=check,
            error=(str(error).splitlines() or [""])[0][:MAX_ERROR],
        )
