"""What a person sees: the phase, the policy's own words, and the precision of every trainer as it changes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lab.cluster.kubectl import Json
from lab.progress import console, elapsed, step

COLOURS = {"fp32": "blue", "bf16": "cyan", "fp16": "magenta"}


class Timeline:
    """Prints a line whenever something changed; lines, not a screen, so that it reads the same in a CI log."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None
        self._modes: dict[str, str] = {}

    @contextmanager
    def phase(self, title: str) -> Iterator[None]:
        """One phase of the story, with its duration."""
        with step(title):
            yield

    def modes(self, modes: Mapping[str, str]) -> None:
        """The trainers' own word of what they train in."""
        if modes and dict(modes) != self._modes:
            self._modes = dict(modes)
            shown = "  ".join(f"{name} [{COLOURS[m]}]{m}[/]" for name, m in sorted(modes.items()) if m in COLOURS)
            console.print(f"[dim]{elapsed():>6}[/dim]   {shown}")

    def policy(self, status: Json, modes: Mapping[str, str]) -> None:
        """The policy's status, where it changed."""
        line = (str(status.get("phase", "")), str(status.get("message", "")))
        if line != self._last and line[0]:
            self._last = line
            step_text = f" step {status['step']}" if status.get("step") else ""
            console.print(
                f"[dim]{elapsed():>6}[/dim]   [bold]{line[0]}[/bold]{step_text} ({status.get('progress', '')}) {line[1]}"
            )
        self.modes(modes)
