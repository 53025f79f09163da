"""Waiting on conditions with deadlines, the only waiting this project does."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
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


def answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a server says 200 there; False as long as it cannot be reached: a probe for `wait_for`."""
    try:
        with urllib.request.urlopen(url, context=context, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
