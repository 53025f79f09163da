"""What a person sees while things are built: each step, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

console = Console(stderr=True, highlight=False, soft_wrap=True)
_started = time.monotonic()
_depth = 0


def elapsed() -> str:
    """Time since this program began, as m:ss."""
    minutes, seconds = divmod(int(time.monotonic() - _started), 60)
    return f"{minutes:d}:{seconds:02d}"


def say(message: str) -> None:
    """Print one line with the elapsed time before it."""
    console.print(f"[dim]{elapsed():>6}[/dim] {'  ' * _depth}{escape(message)}")


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step, and say how long it took or that it failed."""
    global _depth
    say(f"{title} …")
    _depth += 1
    begun = time.monotonic()
    outcome = "[red]failed[/red]"
    try:
        yield
        outcome = "[green]done[/green]"
    finally:
        _depth -= 1
        console.print(
            f"[dim]{elapsed():>6}[/dim] {'  ' * _depth}{escape(title)}: {outcome} in {time.monotonic() - begun:.1f} s"
        )
