"""What the sentinel says: on rank 0 alone, since all ranks would say the same."""

from __future__ import annotations

from ..step.steps import StepRecord
from ..values.levels import Reason
from ..values.logs import Field, JsonLog


class Voice:
    """Log lines of one rank's sentinel."""

    def __init__(self, log: JsonLog, *, speaks: bool) -> None:
        self._log, self._speaks = log, speaks

    def say(self, event: str, **fields: Field) -> None:
        """An event."""
        if self._speaks:
            self._log.event(event, at=None, **fields)

    def warn(self, reason: Reason, record: StepRecord, message: str, **fields: Field) -> None:
        """Something that a person should look at; it changes no level."""
        if self._speaks:
            self._log.warning(
                "sentinel_warning", message, reason=reason.value, step=record.step, mode=record.mode.wire, **fields
            )
