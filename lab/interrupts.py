"""SIGTERM ends a program of the laboratory as Ctrl-C does: whoever started something stops it."""

from __future__ import annotations

import signal
from types import FrameType

INTERRUPTED = 130
"""What a program that was interrupted ends with."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, taken as an interrupt that nobody else has got."""


def take_sigterm_as_interrupt() -> None:
    """From now on SIGTERM does what Ctrl-C does, an event loop's own way included: it cancels the main task."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler) and handler is not signal.default_int_handler:
        handler(signal.SIGINT, frame)
    else:
        raise Terminated(signal.Signals(number).name)
