"""How things are shown: for people on a terminal, in a pipe, and for programs."""

import json
import re
import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from precision_operator.api.spec import PolicyEnforcement, PolicySpec
from precision_operator.api.state import Phase

PIPE_WIDTH = 100_000
"""Columns where there is no terminal: who reads a pipe wants whole lines."""

PHASE_STYLES: Mapping[Phase, str] = {
    Phase.PENDING: "cyan",
    Phase.PROGRESSING: "blue",
    Phase.PAUSED: "yellow",
    Phase.HEALTHY: "green",
    Phase.DEGRADED: "red",
    Phase.ROLLING_BACK: "bold red",
    Phase.HELD: "bold red",
}


def console() -> Console:
    """The terminal, or a pipe, in which no line is broken."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def table(*headings: str) -> Table:
    """One without lines, whose cells wrap where they are too long."""
    return Table(*(Column(heading, overflow="fold") for heading in headings), box=None, pad_edge=False)


def write_json(value: object) -> None:
    """One JSON document, a line where nobody looks at it. What would steer a terminal is escaped, as JSON allows."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(_UNPRINTABLE.sub(_escaped, json.dumps(value, indent=indent, ensure_ascii=False)) + "\n")
    sys.stdout.flush()


def write_document(value: object, output: str) -> None:
    """One document, as ``-o json`` or ``-o yaml`` asks."""
    if output == "yaml":
        import yaml

        text = json.dumps(value, ensure_ascii=False)
        # YAML takes for printable what moves a terminal's cursor, or the direction in which it writes.
        harmless = all(found[0].isprintable() for found in _UNPRINTABLE.finditer(text))
        sys.stdout.write("---\n" + yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=harmless))
        sys.stdout.flush()
    else:
        write_json(value)


DOCUMENTS = ("json", "yaml")


def write_name(name: str) -> None:
    """A policy as ``-o name`` has it: kubectl takes it as it is."""
    sys.stdout.write(f"precisionpolicy.precision.genesis.ai/{name}\n")


_UNPRINTABLE = re.compile(r"[^ -~\n]")
"""A candidate: most of these are letters, and stay."""


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def said(text: str, style: str = "") -> Text:
    """What somebody else wrote, as plain text: neither markup nor control sequences reach the terminal."""
    return Text("".join(c if c.isprintable() else "�" for c in text.replace("\n", " ")), style=style)


def age(since: float | None, *, now: float | None = None) -> str:
    """``"3m12s"``; ``"unknown"`` where it is not known since when."""
    if since is None:
        return "unknown"
    seconds = int(max(0.0, (time.time() if now is None else now) - since))
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    parts = []
    for name, size in units:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{name}")
    return "".join(parts[:2]) or "0s"


def phase_text(phase: Phase, spec: PolicySpec) -> Text:
    """The phase in its colour, and whether the policy is paused or only observes."""
    shown = Text(str(phase), style=PHASE_STYLES.get(phase, ""))
    if spec.suspend:
        return shown.append(" (paused)", style="yellow")
    observes = spec.enforcement is PolicyEnforcement.OBSERVE
    return shown.append(" (observing)", style="yellow") if observes else shown
