"""A task that never comes to its first step: what a test stops while it starts."""

from __future__ import annotations

import threading
from typing import NoReturn

from precision_trainer.job import signals
from precision_trainer.values.logs import JsonLog

signals._EARLY_EXIT_SECONDS = 60.0  # the lease is given back, however slow the machine's disk is


def build() -> NoReturn:
    """Say that the trainer has come so far, and stay there."""
    JsonLog().event("task_blocked")
    threading.Event().wait()
    raise AssertionError
