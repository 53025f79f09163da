"""What the reporter knows of a policy, and of an incident that is not closed."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from precision_operator.api.verification import Checks
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.report import Evidence, IncidentPhase, Report
from precision_operator.replay.recording import Recording

LEAD_UP = 2
"""Passes before the decision that are kept too."""


@dataclass(slots=True)
class Case:
    """An incident that is not closed."""

    report: Report
    version: str = ""
    """The object's resourceVersion; empty: not created yet."""
    recordings: list[Recording] = field(default_factory=list)
    dropped: int = 0
    unsaved: int = 0
    """Recordings that are not written yet."""
    written: Report | None = None
    """As it was written last."""
    saved_at: float = 0.0
    """When that was, by the monotonic clock."""
    updates: int = 0
    """Writes since its phase changed: each makes the next one wait longer."""
    asked: IncidentPhase | None = None
    """The phase that the evidence was last gathered in."""
    gathering: asyncio.Task[tuple[Evidence, ...]] | None = None
    """Asks for it, beside all else that is done: Prometheus may hang."""

    def leave(self) -> None:
        """Nothing more is asked for it."""
        if self.gathering is not None:
            self.gathering.cancel()
            self.gathering = None


@dataclass(slots=True, eq=False)
class Superseded:
    """A case that another one followed, until its object is closed and has its evidence."""

    case: Case
    last: RecordedPass
    """The last pass that was its own."""
    seen: RecordedPass
    """The pass that ended it."""
    closed: bool = False
    """Its object is."""
    failures: int = 0
    retry_at: float = 0.0

    @property
    def waits(self) -> bool:
        """Only for evidence that is still asked for."""
        gathering = self.case.gathering
        return self.closed and gathering is not None and not gathering.done()


@dataclass(slots=True)
class Track:
    """What is known of one policy."""

    recent: deque[RecordedPass] = field(default_factory=lambda: deque(maxlen=LEAD_UP))
    pending: deque[RecordedPass] = field(default_factory=deque)
    dropped: int = 0
    last: RecordedPass | None = None
    left: RecordedPass | None = None
    """The pass in which it left a rollback whose incident is closed: the object says when."""
    case: Case | None = None
    stale: Case | None = None
    """The case that somebody else wrote meanwhile: what it has is joined with what stands in the object."""
    superseded: list[Superseded] = field(default_factory=list)
    """The cases before, of which something is still to be written; the oldest first."""
    finished: str = ""
    """The newest incident that is closed, or too old to begin with."""
    verified: tuple[str, Checks] | None = None
    """(incident, its checklist, counted), once something was checked."""
    gone: bool = False
    failures: int = 0
    retry_at: float = 0.0

    @property
    def cases(self) -> list[Case]:
        """All that are worked on."""
        newest = [case for case in (self.case, self.stale) if case is not None]
        return [*newest, *(one.case for one in self.superseded)]

    def leave(self) -> None:
        """Nothing more is asked for its cases."""
        for case in self.cases:
            case.leave()
