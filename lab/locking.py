"""One at a time: what two programs of this machine must not build or change at once."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from lab import paths
from lab.progress import say


@contextmanager
def machine_lock(name: str) -> Iterator[None]:
    """Hold the machine's lock of that name; the kernel frees it when we end, however we end."""
    paths.MACHINE.mkdir(parents=True, exist_ok=True)
    with (paths.MACHINE / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another program that works on: {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
