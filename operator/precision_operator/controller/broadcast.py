"""Events are sent beside the passes: none waits for them, for the next pass of an emergency may have to write at once."""

import asyncio
import logging
from collections.abc import Sequence

from precision_operator.api.policy import Policy
from precision_operator.core.actions import Notify
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.runtime.clock import Clock, within

_LOG = logging.getLogger(__name__)

EVENTS_AT_ONCE, EVENTS_SECONDS = 4, 10.0
"""So many at once of all policies, and those of a pass for so long. The rest is left."""


class EventBroadcaster:
    """Sends the Events of all policies in the background."""

    def __init__(self, recorder: EventRecorder, clock: Clock) -> None:
        self._recorder = recorder
        self._clock = clock
        self._few = asyncio.Semaphore(EVENTS_AT_ONCE)
        self._sending: set[asyncio.Task[None]] = set()

    def announce(self, policy: Policy, notices: Sequence[Notify]) -> None:
        """Begin to send them; returns at once."""
        if notices:
            task = asyncio.ensure_future(self._emit_all(policy, notices))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _emit_all(self, policy: Policy, notices: Sequence[Notify]) -> None:
        sent = [asyncio.ensure_future(self._emit(policy, notice)) for notice in notices]
        try:
            await within(self._clock, EVENTS_SECONDS, asyncio.wait(sent))
        except TimeoutError:
            _LOG.warning("events not recorded within %g s", EVENTS_SECONDS, extra={"policy": policy.name})
        finally:
            for task in sent:
                task.cancel()

    async def _emit(self, policy: Policy, notice: Notify) -> None:
        reference = PolicyRef(policy.namespace, policy.name, policy.uid)
        async with self._few:
            await self._recorder.emit(reference, notice.reason, notice.message, notice.warning)
