"""How many workloads are being promoted, policy by policy: the cap on them is the whole cluster's."""

from collections.abc import Callable, Collection

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.takeover import Takeover
from precision_operator.core.model import PromotionSlots
from precision_operator.runtime.clock import Clock

PROMOTING_SECONDS = 600.0
"""So long a workload that does not acknowledge takes up a slot: one tenant's pods that never start must not stop all."""


class Promotions:
    """Counts what the decisions of one leadership name. Before all that it took over were decided on, nobody has a slot."""

    def __init__(self, clock: Clock, *, known: Callable[[], Collection[PolicyKey]] = tuple) -> None:
        """A count that begins anew with each epoch.

        Args:
            known: all policies there are, and the assignments whose policy is gone.
        """
        self._clock = clock
        self._takeover = Takeover(clock, known, patience_seconds=PROMOTING_SECONDS)
        self._since: dict[PolicyKey, dict[str, float]] = {}

    def note(self, key: PolicyKey, promoting: Collection[str], *, epoch: int) -> None:
        """The workloads of a policy that were assigned the target, and do not report it yet."""
        self._enter(epoch)
        if epoch == self._takeover.epoch:
            self._takeover.decided(key)
            known, now = self._since.get(key, {}), self._clock.monotonic()
            self._since[key] = {name: known.get(name, now) for name in promoting}

    def slots(self, key: PolicyKey, cap: int, *, epoch: int) -> PromotionSlots | None:
        """What is left to a policy of ``cap``; None where that is 0: no cap."""
        if not cap:
            return None
        self._enter(epoch)
        now = self._clock.monotonic()
        taken = sum(
            now - since < PROMOTING_SECONDS
            for other, all_of in self._since.items()
            if other != key
            for since in all_of.values()
        )
        own = self._since.get(key, {})
        overdue = frozenset(name for name, since in own.items() if now - since >= PROMOTING_SECONDS)
        return PromotionSlots(max(0, cap - taken) if self._takeover.over(key) else 0, overdue)

    def forget(self, key: PolicyKey) -> None:
        """The policy is gone."""
        self._since.pop(key, None)

    def _enter(self, epoch: int) -> None:
        """Others may have promoted since the leadership before this one."""
        if self._takeover.enter(epoch):
            self._since.clear()
