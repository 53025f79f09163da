"""A task that never comes to its first step: what a test stops while it starts."""

from __future__ import annotations

import threading
from typing import NoReturn

from precision_trainer.values.logs import JsonLog


def build() -> NoReturn:
    """Say that the trainer has come so far, and stay there."""
    JsonLog().event("task_blocked")
    threading.Event().wait()
    raise AssertionError
