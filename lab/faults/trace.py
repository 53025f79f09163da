"""What happened in a run, in etcd's order: the recorder writes it, the checker reads it.

A file is JSON lines: a header, then one entry a line. Its name ends in ``.gz`` where it is compressed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, cast

from lab.errors import LabError
from precision_operator.api.wire import mapping, text

Object = Mapping[str, object]
"""A JSON object."""

COMPRESS_ABOVE_BYTES = 256 * 1024


class Note(StrEnum):
    """Kinds of entries that are no objects of the API server."""

    FAULT = "Fault"
    """What was injected. Body: as the injector has it."""
    KILL = "Kill"
    """A process was killed. Body: ``{process}``."""
    START = "Start"
    """A process was started. Body: ``{process}``."""
    WROTE = "Wrote"
    """The operator sent a write, whatever became of it. Body: ``{namespace, write}``."""
    REPORTED = "Reported"
    """What a trainer process trains in. Body: ``{namespace, pod, workload, mode, generation}``."""
    FAULTS_END = "FaultsEnd"
    """From here on nothing is injected and nobody edits: the fleet must come to rest."""
    REST = "Rest"
    """From here on the fleet is expected to be at rest: nothing more may be written."""
    GAP = "Gap"
    """A watch was refused on the way, and the resource listed again. Body: ``{resource, kind, reason, changed}``.

    It stands at the last revision that the watch had shown. ``changed`` names what was written since, as
    ``namespace/name``: of the next revision of each, what stood before is not known. ``?``: of any object of the kind.
    Empty: no object that stands was written; one that was made and deleted in between would be missing.
    """
    RESTORED = "Restored"
    """etcd was restored from a snapshot: revisions begin anew, in the next era."""


@dataclass(frozen=True, slots=True)
class Header:
    """What was run, and what it must come to."""

    workflow: str
    seed: int = 0
    injection: Object = field(default_factory=dict)
    expectations: Object = field(default_factory=dict)
    """``phases``: policy name → the phases in which it may end; ``reduced``: policies that end deleted, their assignments
    reduced; ``unreported``: processes may run that nobody asks what they train in. More as the checker's functions name it.
    """


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as it was written at a revision, or a note."""

    revision: int
    """etcd's. Of a note: the highest that the recorder had seen."""
    at_seconds: float
    """When it was recorded, since the trace began."""
    kind: str
    """An object's, or a ``Note``."""
    body: Object
    deleted: bool = False
    era: int = 0
    """How often etcd was restored before: revisions are ordered within an era only."""

    @property
    def name(self) -> str:
        """The object's name."""
        return text(mapping(self.body.get("metadata")).get("name"))

    @property
    def namespace(self) -> str:
        """The object's namespace; empty: it has none."""
        return text(mapping(self.body.get("metadata")).get("namespace"))

    @property
    def uid(self) -> str:
        """The object's uid."""
        return text(mapping(self.body.get("metadata")).get("uid"))


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole run, its entries in order."""

    header: Header
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, header: Header, entries: list[Entry]) -> Trace:
        """Put entries in order: by era and revision; of one revision, objects first, then as they came."""
        notes = frozenset(Note)
        return cls(header, tuple(sorted(entries, key=lambda e: (e.era, e.revision, e.kind in notes))))

    @property
    def gaps(self) -> tuple[Entry, ...]:
        """Where entries may be missing."""
        return tuple(entry for entry in self.entries if entry.kind == Note.GAP)


def bounded(body: Object) -> Object:
    """Without ``managedFields``, which nobody here reads and which are half of an object."""
    metadata = {k: v for k, v in mapping(body.get("metadata")).items() if k != "managedFields"}
    return {**body, "metadata": metadata} if metadata else body


def write_trace(trace: Trace, path: Path) -> Path:
    """Write a trace; a large one is compressed, and ``.gz`` is added to its name.

    Returns:
        where it was written.
    """
    lines = [json.dumps(asdict(trace.header)), *(json.dumps(_entry_to_wire(entry)) for entry in trace.entries)]
    content = "\n".join(lines) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(content) <= COMPRESS_ABOVE_BYTES:
        path.write_text(content)
        return path
    path = path.with_name(path.name + ".gz")
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(content)
    return path


def read_trace(path: Path) -> Trace:
    """Read a trace back.

    Raises:
        LabError: the file is no trace.
    """
    try:
        with _opened(path) as file:
            header = Header(**json.loads(file.readline()))
            return Trace(header, tuple(_entry_of_wire(json.loads(line)) for line in file))
    except (OSError, ValueError, TypeError) as error:
        raise LabError("a trace of `make faults`", f"{path}: {error!r}", "name a file of build/faults/") from error


def _opened(path: Path) -> IO[str]:
    return cast(IO[str], gzip.open(path, "rt", encoding="utf-8")) if path.suffix == ".gz" else path.open()


def _entry_to_wire(entry: Entry) -> dict[str, object]:
    wire = asdict(replace(entry, at_seconds=round(entry.at_seconds, 3)))
    return {key: value for key, value in wire.items() if key not in ("deleted", "era") or value}


def _entry_of_wire(wire: dict[str, object]) -> Entry:
    return Entry(**wire)  # type: ignore[arg-type]  # a wrong field is a TypeError, which the caller reports
