"""The workers: they take keys from the queue while we lead, and choose each key's next pass by how this one ended."""

import logging

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.halt import Halt
from precision_operator.controller.reconcile import Reconciler
from precision_operator.errors import Conflict, KubeError, NewerVersion, OperatorError, TooManyRequests
from precision_operator.inventory.caches import Inventory
from precision_operator.observability.metrics import Metrics
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock
from precision_operator.runtime.lease import LeaseElector
from precision_operator.runtime.queue import Priority, WorkQueue
from precision_operator.runtime.ratelimit import RateLimiter

_LOG = logging.getLogger(__name__)

SUCCESS = "success"
"""The result of a pass without a failure, as the metric counts it."""
LASTING_SECONDS = 5.0
"""A conflict that is met again after so long a back-off is no race of two writers: a person should read of it."""

LAPSE_SECONDS = 1.0
"""When a key is taken up again that was due while leadership had run out. A renewal in flight may still keep it."""


class Worker:
    """Runs passes, one key at a time; several may share everything."""

    def __init__(
        self,
        reconciler: Reconciler,
        *,
        queue: WorkQueue[PolicyKey],
        elector: LeaseElector,
        inventory: Inventory,
        halt: Halt,
        limiter: RateLimiter,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._reconciler = reconciler
        self._queue = queue
        self._elector = elector
        self._inventory = inventory
        self._halt = halt
        self._limiter = limiter
        self._metrics = metrics
        self._clock = clock

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._elector.leading.wait()
            key = await self._queue.get()
            try:
                if not self._elector.is_leader:
                    # Whoever leads next starts with all policies; but nobody is told of a lapse that a renewal ends.
                    self._queue.add_after(key, LAPSE_SECONDS)
                elif self._inventory.ready and self._halt.known:
                    await self.work(key)
                # Else: the inventory and the switch start with all policies once they are known.
            finally:
                self._queue.done(key)

    async def work(self, key: PolicyKey) -> None:
        """One pass over ``key``, unless the API server asked us to wait: then once that is over."""
        paused_seconds = self._limiter.paused_seconds(key.namespace)
        if paused_seconds > 0:
            self._queue.add_after(key, paused_seconds)
            return
        began = self._clock.monotonic()
        result = SUCCESS
        try:
            result = await self._pass(key)
        except (KubeError, NewerVersion) as error:
            result = error.reason
            delay_seconds = self._after_failure(key, error)
            fleeting = isinstance(error, Conflict) and delay_seconds < LASTING_SECONDS
            level = logging.DEBUG if fleeting else logging.WARNING
            name = f"{key.namespace}/{key.name}"
            _LOG.log(level, "%s: %s; again in %.1f s", name, error, delay_seconds, extra={"reason": error.reason})
        except Exception:  # noqa: BLE001 - the last barrier of a pass, see below
            # A bug must not stop the guard of the other policies; it is counted, logged and tried again.
            result = Reason.INTERNAL_ERROR
            self._queue.backoff(key)
            _LOG.exception("%s/%s: pass failed", key.namespace, key.name, extra={"reason": result})
        finally:
            self._metrics.reconciled(result, self._clock.monotonic() - began)

    async def _pass(self, key: PolicyKey) -> str:
        """The pass itself; returns ``success``, or the reason of the first write that failed."""
        ended = await self._reconciler.reconcile(key)
        if ended is None:
            self._queue.drop(key)
            return SUCCESS
        lane = Priority.EMERGENCY if ended.urgent else Priority.NORMAL
        if ended.failures:
            # Sooner than planned, for the rest of the fleet must not wait; ever later, for some failures stay.
            self._after_failure(key, *ended.failures)
        else:
            self._queue.forget(key)
        self._queue.add_after(key, ended.next_seconds, priority=lane)
        return ended.failures[0].reason if ended.failures else SUCCESS

    def _after_failure(self, key: PolicyKey, *failures: OperatorError) -> float:
        """Back off; a 429 pauses the writes of a namespace, and with them its passes. Returns the delay in seconds."""
        for failure in failures:
            if isinstance(failure, TooManyRequests):
                self._limiter.pause(failure.retry_after_seconds, key.namespace)
        return max(self._queue.backoff(key), self._limiter.paused_seconds(key.namespace))
