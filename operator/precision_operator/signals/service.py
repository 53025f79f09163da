"""The evaluation service: reads metrics apart from the workers, each policy at its own time.

A pass takes the newest finished answer and waits for none; the end of an evaluation enqueues the policy. Asking is what
keeps a policy evaluated: the pass that takes an answer has the next one read when it is due. So a replica that does not lead
asks nobody.
"""

import asyncio
import logging
import math
import zlib
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from precision_operator.core.model import Evaluation
from precision_operator.reasons import Cause, Reason
from precision_operator.runtime.clock import Clock
from precision_operator.signals.continuity import STEP_SECONDS
from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.queries import ACK

_LOG = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

WAKE_SECONDS = 0.5
"""However many alerts come in: no policy is read more often than this for them."""
DEADLINE_SECONDS = 6.0
"""Of one evaluation, waiting for slots included."""
STALE_INTERVALS = 2.0
"""An answer older than so many intervals, and the deadline of one evaluation, is Unknown."""

Finished = Callable[[K, bool], None]
"""Told of each evaluation's end: the policy, and whether it is urgent."""


SPREAD_SECONDS = 3600.0
"""Over which namespaces spread: longer than intervals are."""
TOGETHER_SECONDS = 0.5
"""An answer that was asked for so long before a reading is due is one of the same turn."""


def phase(plan: EvaluationPlan) -> float:
    """One of the moments at which a plan is read, in seconds by the monotonic clock; the others lie intervals from it.

    Policies that may share answers are read together, whenever they were made, and also where the interval of one is a
    multiple of the other's. Namespaces spread over the interval.
    """
    return SPREAD_SECONDS * zlib.crc32(f"{plan.endpoint}/{plan.namespace}".encode()) / 2**32


@dataclass(slots=True, eq=False)
class _Watch:
    """One policy's readings."""

    plan: EvaluationPlan
    urgent: bool = False
    evaluation: Evaluation | None = None
    began: float = 0.0
    """When the reading was asked for, perhaps by another policy; by the monotonic clock."""
    ahead_seconds: float = 0.0
    """Of the wall clock before the monotonic one when the answer came: what a step changes."""
    woken: bool = False
    due: float = 0.0
    """When the task below reads."""
    task: asyncio.Task[None] | None = field(default=None)
    reading: bool = False
    """The task is past its wait."""


class EvaluationService(Generic[K]):
    """Evaluates policies when they are due. Belongs to one event loop."""

    def __init__(
        self,
        evaluator: Evaluator,
        clock: Clock,
        *,
        finished: Finished[K],
        deadline_seconds: float = DEADLINE_SECONDS,
        phase: Callable[[EvaluationPlan], float] = phase,
    ) -> None:
        self._evaluator = evaluator
        self._clock = clock
        self._finished = finished
        self._deadline_seconds = deadline_seconds
        self._phase = phase
        self._watches: dict[K, _Watch] = {}

    def latest(self, key: K, plan: EvaluationPlan, *, every_seconds: float, urgent: bool = False) -> Evaluation | None:
        """The newest finished answer, or None while the first is under way; the next one is read when it is due.

        An answer that is too old says Unknown of everything, and one from before the wall clock was set is none: what it
        is dated by means another time now. ``urgent``: its queries go before others.
        """
        watch = self._watches.get(key)
        if watch is None or watch.plan != plan:
            self.forget(key)
            watch = self._watches[key] = _Watch(plan)
        watch.plan = plan
        if abs(self._ahead_seconds() - watch.ahead_seconds) > STEP_SECONDS:
            watch.evaluation = None
        watch.urgent = urgent
        self._schedule(key, watch, every_seconds)
        found, now = watch.evaluation, self._clock.monotonic()
        if found is None or now - watch.began <= STALE_INTERVALS * every_seconds + self._deadline_seconds:
            return found
        text = "the last evaluation is too old; see whether the operator lacks CPU"
        return self._unknown(Cause(Reason.EVALUATION_LATE, text))

    def wait_seconds(self, key: K) -> float:
        """In how many seconds the next answer is overdue; 0 where none is awaited."""
        watch = self._watches.get(key)
        if watch is None or watch.task is None:
            return 0.0
        return max(0.0, watch.due - self._clock.monotonic()) + self._deadline_seconds + 1.0

    def wake(self, key: K) -> None:
        """Read anew, though the interval has not passed."""
        watch = self._watches.get(key)
        if watch is not None:
            watch.woken = True
            self._schedule(key, watch, WAKE_SECONDS)

    def forget(self, key: K) -> None:
        """The policy is gone, or is not read any more."""
        watch = self._watches.pop(key, None)
        if watch is not None and watch.task is not None:
            watch.task.cancel()

    def forget_all(self) -> None:
        """A leadership begins: what was read in an earlier one is not what this one decides on."""
        for key in list(self._watches):
            self.forget(key)
        self._evaluator.begin()

    async def close(self) -> None:
        """Cancel what is under way; for shutdown."""
        tasks = [watch.task for watch in self._watches.values() if watch.task is not None]
        self.forget_all()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._evaluator.close()

    def _schedule(self, key: K, watch: _Watch, every_seconds: float) -> None:
        now = self._clock.monotonic()
        if watch.evaluation is None:
            due = now
        elif watch.woken:
            due = watch.began + WAKE_SECONDS
        else:
            due = self._next_turn(watch, every_seconds)
        if watch.task is not None:
            if watch.reading or due >= watch.due:
                return
            watch.task.cancel()
        watch.due, watch.reading = due, False
        watch.task = asyncio.get_running_loop().create_task(
            self._read(key, watch, due - now, every_seconds), name="evaluation"
        )

    def _next_turn(self, watch: _Watch, every_seconds: float) -> float:
        """The turn after the last answer's; at most an interval after it. In a hurry there are no turns."""
        interval = watch.plan.interval_seconds
        if every_seconds < interval:
            return watch.began + every_seconds
        offset = self._phase(watch.plan)
        passed = math.floor((watch.began + _together_seconds(interval) - offset) / interval)
        return offset + (passed + 1) * interval

    async def _read(self, key: K, watch: _Watch, wait_seconds: float, every_seconds: float) -> None:
        if wait_seconds > 0:
            await self._clock.sleep(wait_seconds)
        watch.reading = True
        first, woken, watch.woken = watch.evaluation is None, watch.woken, False
        began = self._clock.monotonic()
        shared = WAKE_SECONDS if woken else every_seconds / 2
        if not first and not woken:
            # A neighbour's answer is taken only where it is of the same turn: an older one would make the next one late.
            shared = min(shared, began - watch.due + _together_seconds(every_seconds))
        try:
            evaluation = await self._evaluator.evaluate(
                watch.plan,
                no_older_seconds=shared,
                urgent=watch.urgent,
                deadline_seconds=self._deadline_seconds,
            )
        except Exception as error:  # noqa: BLE001  a defect must cost one reading, not all that would follow it
            _LOG.exception("an evaluation failed unexpectedly", extra={"reason": Reason.INTERNAL_ERROR})
            evaluation = self._unknown(Cause(Reason.INTERNAL_ERROR, f"{type(error).__name__}; see the operator's log"))
        age = self._clock.time() - evaluation.at - (self._clock.monotonic() - began)
        watch.evaluation, watch.began = evaluation, began - min(max(age, 0.0), shared)
        watch.ahead_seconds = self._ahead_seconds()
        watch.task, watch.reading = None, False
        self._finished(key, watch.urgent)

    def _ahead_seconds(self) -> float:
        return self._clock.time() - self._clock.monotonic()

    def _unknown(self, why: Cause) -> Evaluation:
        now = self._clock.time()
        return Evaluation(at=now, continuous_since=now, errors={ACK: why}, clock_since=self._evaluator.clock_since)


def _together_seconds(interval_seconds: float) -> float:
    """Short intervals have short turns: an answer of the one before must not count as one of this."""
    return min(TOGETHER_SECONDS, interval_seconds / 8)
