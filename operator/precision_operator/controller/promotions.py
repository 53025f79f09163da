"""How many workloads are being promoted, policy by policy: the cap on them is the whole cluster's."""

from collections.abc import Callable, Collection, Mapping

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.takeover import Counted
from precision_operator.core.model import PromotionSlots
from precision_operator.runtime.clock import Clock

PROMOTING_SECONDS = 600.0
"""So long a workload that does not acknowledge takes up a slot: one tenant's pods that never start must not stop all."""


class Promotions(Counted[Mapping[str, float]]):
    """Since when each workload of a policy is promoted, by the monotonic clock."""

    def __init__(self, clock: Clock, *, known: Callable[[], Collection[PolicyKey]] = tuple) -> None:
        super().__init__(clock, known, patience_seconds=PROMOTING_SECONDS)

    def note(self, key: PolicyKey, promoting: Collection[str], *, epoch: int) -> None:
        """The workloads of a policy that were assigned the target, and do not report it yet."""
        if self._enter(epoch):
            self._decided(key)
            known, now = self._counted.get(key, {}), self._clock.monotonic()
            self._counted[key] = {name: known.get(name, now) for name in promoting}

    def slots(self, key: PolicyKey, cap: int, *, epoch: int) -> PromotionSlots | None:
        """What is left to a policy of ``cap``; None where that is 0: no cap."""
        if not cap:
            return None
        self._enter(epoch)
        now = self._clock.monotonic()
        taken = sum(
            now - since < PROMOTING_SECONDS
            for other, all_of in self._counted.items()
            if other != key
            for since in all_of.values()
        )
        own = self._counted.get(key, {})
        overdue = frozenset(name for name, since in own.items() if now - since >= PROMOTING_SECONDS)
        return PromotionSlots(max(0, cap - taken) if self._over(key) else 0, overdue)
