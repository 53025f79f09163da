"""Writes that were made and cannot be seen in the caches yet.

Level-triggered planning would ask for them again on every pass until the watch has caught up. This is only thrift: an
entry expires after seconds, and a write made twice is harmless.
"""

from precision_operator.core.actions import Action, DeletePod, EvictPod, RequestPod, ResumeJob, SuspendJob
from precision_operator.runtime.clock import Clock

EXPIRY_SECONDS = 3.0
"""A watch that is later than this has missed the write, or the write was lost."""


def _key(action: Action) -> tuple[str, ...] | None:
    match action:
        case RequestPod():
            return ("request", action.pod.uid, str(action.generation), action.mode, action.pod.request_raw or "")
        case DeletePod():
            # One that is late is deleted again at once, with less grace.
            return ("delete", action.pod.uid, str(action.grace_seconds))
        case EvictPod():
            return ("evict", action.pod.uid)
        case SuspendJob():
            return ("suspend", action.workload.uid, str(action.workload.suspended))
        case ResumeJob():
            return ("resume", action.workload.uid, str(action.workload.suspended))
        case _:
            return None


class Expectations:
    """What was written a moment ago."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._written: dict[tuple[str, ...], float] = {}

    def fresh(self, action: Action) -> bool:
        """Whether the action was not carried out a moment ago."""
        key = _key(action)
        return key is None or self._written.get(key, 0.0) <= self._clock.monotonic()

    def wrote(self, action: Action) -> None:
        """The action was carried out."""
        self._expire()
        key = _key(action)
        if key is not None:
            self._written.pop(key, None)  # to the end: the order is that of expiry
            self._written[key] = self._clock.monotonic() + EXPIRY_SECONDS

    def _expire(self) -> None:
        now = self._clock.monotonic()
        while self._written and self._written[oldest := next(iter(self._written))] <= now:
            del self._written[oldest]
