"""A person's view of a training run: a bar on stderr, only where that is a terminal. Programs read the JSON lines."""

from __future__ import annotations

import sys
from importlib.util import find_spec


class Bar:
    """Step, mode and loss, a few times a second. Costs the training thread nothing between two reports."""

    def __init__(self, total_steps: int) -> None:
        """``total_steps``: 0 where training has no end of its own."""
        # Here: training itself does not need the library, and an image may be without it.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description:5}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(
            *columns,
            console=Console(stderr=True),
            refresh_per_second=4,
            # On the same terminal the lines go above the bar; into a file they go as they are.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=total_steps or None, loss="-")
        self._progress.start()

    def show(self, step: int, mode: str, loss: float | None) -> None:
        """``step`` of the run are done, the last of them in ``mode``; ``loss`` is the running mean."""
        said = "-" if loss is None else f"{loss:.4f}"
        self._progress.update(self._task, completed=step, description=mode, loss=said)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()


def bar_for(rank: int, total_steps: int) -> Bar | None:
    """The process group's bar, on rank 0 and where somebody looks at it."""
    watched = rank == 0 and sys.stderr.isatty() and find_spec("rich") is not None
    return Bar(total_steps) if watched else None
