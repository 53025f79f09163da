"""Alerts wake the evaluation of the policies that they concern; polling goes on without them."""

import asyncio
from collections.abc import Callable, Sequence

from precision_operator.api.policy import PolicyKey
from precision_operator.inventory.caches import Inventory, Keys
from precision_operator.receiver.alertmanager import Alert
from precision_operator.runtime.ratelimit import RateLimiter

AT_ONCE = 50
"""Alerts that are looked up at one turn of the loop."""


class Alerts:
    """Turns alerts into policies to look at now: so many a second, the namespaces in turn.

    What exceeds the rate waits, once for each policy. Its own interval brings it its turn in any case.
    """

    def __init__(
        self,
        inventory: Inventory,
        *,
        leading: Callable[[], bool],
        wake: Callable[[PolicyKey], None],
        limiter: RateLimiter,
    ) -> None:
        """``wake``: evaluate this policy anew, soon. ``limiter``: of these wakes."""
        self._inventory = inventory
        self._leading = leading
        self._wake = wake
        self._limiter = limiter
        self._waiting: dict[str, dict[PolicyKey, None]] = {}
        """By namespace; the one whose turn it is comes first."""
        self._some = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Policies that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    async def receive(self, alerts: Sequence[Alert]) -> int:
        """Have those woken whom the alerts concern; how many policies that are."""
        concerned: set[PolicyKey] = set()
        for start in range(0, len(alerts), AT_ONCE):
            for alert in alerts[start : start + AT_ONCE]:
                concerned |= self.concerned(alert)
            await asyncio.sleep(0)
        for key in sorted(concerned):
            self._waiting.setdefault(key.namespace, {})[key] = None
        self._some.set()
        return len(concerned)

    async def run(self) -> None:
        """Wake those who wait, at the rate of the limiter."""
        while True:
            while not self._waiting:
                self._some.clear()
                await self._some.wait()
            async with self._limiter.slot():
                if not self._leading():
                    self._waiting.clear()  # the new leader looks at every policy anyway
                else:
                    self._wake(self._next())

    def _next(self) -> PolicyKey:
        namespace = next(iter(self._waiting))
        keys = self._waiting.pop(namespace)
        key = next(iter(keys))
        del keys[key]
        if keys:
            self._waiting[namespace] = keys
        return key

    def concerned(self, alert: Alert) -> Keys:
        """The named policy; else those of the named workload or pod; else all of the namespace."""
        if alert.policy:
            return self._inventory.policy_named(alert.namespace, alert.policy)
        if alert.workload:
            return self._inventory.named(alert.namespace, alert.workload)
        if alert.pod:
            return self._inventory.concerned_by_pod(alert.namespace, alert.pod)
        return self._inventory.policy_keys_in(alert.namespace)
