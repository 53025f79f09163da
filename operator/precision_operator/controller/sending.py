"""Sending: the writes of one pass, each under its conditions, all at once within the time that the pass has."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.controller.expectations import Expectations
from precision_operator.controller.halt import Halt
from precision_operator.controller.refusals import Refusals
from precision_operator.controller.writes import Write, named, send
from precision_operator.core.actions import ResumeJob
from precision_operator.errors import (
    Conflict,
    DisruptionBudget,
    Halted,
    LeaseLost,
    NotFound,
    OperatorError,
    PreconditionFailed,
    TooManyRequests,
)
from precision_operator.kube.port import KubeApi
from precision_operator.runtime.clock import Clock, within
from precision_operator.runtime.ratelimit import RateLimiter

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class WritingPass:
    """One pass that writes: what its writes rest on, and how they went."""

    policy: Policy
    urgent: frozenset[str]
    """Keys of the workloads that an emergency rolls back: what is written to them gives way to nothing."""
    holds: Callable[[], bool]
    """Whether the Lease of the decision is still held."""
    current: Callable[[Write], bool]
    """Whether what a write was decided on still stands."""
    until: float
    """When all else gives way, by the monotonic clock."""
    batches: int = 0
    """Still to be sent: what hangs in one leaves time for the next."""
    again: bool = False
    """Look again at once: not all writes were sent, or pods were found that the caches did not know."""
    failures: list[OperatorError] = field(default_factory=list)

    @property
    def key(self) -> PolicyKey:
        """The policy's."""
        return PolicyKey(self.policy.namespace, self.policy.name)

    def leaves_out(self, write: Write) -> bool:
        """Whether what it was decided on does not stand any more: the next pass decides on the newest policy."""
        # What we suspended is resumed all the same, as with the switch.
        outdated = not isinstance(write, ResumeJob) and not self.current(write)
        self.again = self.again or outdated
        return outdated


class Sender:
    """Sends writes, within the rate that the API server is given, and remembers what it refused."""

    def __init__(
        self,
        api: KubeApi,
        *,
        limiter: RateLimiter,
        expectations: Expectations,
        refusals: Refusals,
        halt: Halt,
        clock: Clock,
    ) -> None:
        self._api = api
        self._limiter = limiter
        self._expectations = expectations
        self._refusals = refusals
        self._halt = halt
        self._clock = clock

    async def send_all(self, writing: WritingPass, writes: Sequence[Write]) -> None:
        """One batch, within its share of the time that is left; what is of an emergency to its end."""
        tasks = [asyncio.ensure_future(self._send(writing, write)) for write in writes]
        if not tasks:
            return
        urgent = [task for task, write in zip(tasks, writes, strict=True) if write.workload.key in writing.urgent]
        try:
            if urgent:
                await asyncio.wait(urgent)
            if left := [task for task in tasks if not task.done()]:
                share = (writing.until - self._clock.monotonic()) / max(writing.batches, 1)
                await within(self._clock, share, asyncio.wait(left))
        except TimeoutError:
            writing.again = True
        finally:
            writing.batches -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writing.failures += [e for task in tasks if not task.cancelled() and (e := task.result()) is not None]

    async def _send(self, writing: WritingPass, write: Write) -> OperatorError | None:
        key, what = writing.key, named(write)
        try:
            if writing.leaves_out(write):
                return None
            urgent = write.workload.key in writing.urgent or isinstance(write, ResumeJob)
            async with self._limiter.slot(urgent, key.namespace) as slot:
                self._may(writing, write, what)
                if writing.leaves_out(write):  # it has waited for a slot
                    slot.give_back()
                    return None
                await send(self._api, write)
            self._expectations.wrote(write)
        except NotFound:
            pass  # gone: the watch will say so
        except TooManyRequests as error:
            self._limiter.pause(error.retry_after_seconds, key.namespace)
            return error
        except OperatorError as error:
            stale = isinstance(error, PreconditionFailed | Conflict)
            budget = error.budget if isinstance(error, DisruptionBudget) else ""
            # Of a thousand that are refused alike, the log says those that the condition counts, once.
            is_news = not stale and self._refusals.remember(key, what, error.reason, detail=budget)
            level = logging.WARNING if is_news else logging.INFO
            _LOG.log(level, "%s: %s; looking again", what, error, extra={"reason": error.reason, "policy": key.name})
            return error
        self._refusals.accepted(key, what)
        return None

    def _may(self, writing: WritingPass, write: Write, what: str) -> None:
        if not writing.holds():
            raise LeaseLost(f"{what}: another replica may lead; nothing is written")
        # What we suspended is resumed all the same: a training run is not stopped by a switch that stops us.
        if (cause := self._halt.cause) is not None and not isinstance(write, ResumeJob):
            raise Halted(f"{what}: {cause.message}")
