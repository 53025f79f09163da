"""Waiting on conditions with deadlines, the only waiting this project does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from lab.errors import DeadlineExceeded

T = TypeVar("T")

Fault = Callable[[], str]


def wait_for(
    probe: Callable[[], T | None],
    *,
    what: str,
    seconds: float,
    every: float = 0.2,
    found: Fault | None = None,
    next_step: str = "read the logs named above, or raise the deadline if the machine is merely slow",
) -> T:
    """Call `probe` until it returns something truthy, and return that.

    An exception of `probe` is not caught: a probe says "not yet" by returning None or False, and everything else is a
    fault that more waiting cannot mend. `found` is asked only at the deadline, so it may be expensive (a log's tail, a
    pod's events).
    """
    deadline = time.monotonic() + seconds
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= deadline:
            state = found() if found else f"last answer {value!r}"
            raise DeadlineExceeded(f"{what} within {seconds:g} s", state, next_step)
        time.sleep(every)
