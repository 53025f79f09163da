"""How many workloads are being promoted, policy by policy: the cap on them is the whole cluster's."""

from collections.abc import Collection

from precision_operator.api.policy import PolicyKey
from precision_operator.core.model import PromotionSlots
from precision_operator.runtime.clock import Clock

PROMOTING_SECONDS = 600.0
"""So long a workload that does not acknowledge takes up a slot: one tenant's pods that never start must not stop all."""


class Promotions:
    """Counts what the decisions name. A new leader knows each policy's after its first pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[PolicyKey, dict[str, float]] = {}

    def note(self, key: PolicyKey, promoting: Collection[str]) -> None:
        """The workloads of a policy that were assigned the target, and do not report it yet."""
        known, now = self._since.get(key, {}), self._clock.monotonic()
        if promoting:
            self._since[key] = {name: known.get(name, now) for name in promoting}
        else:
            self.forget(key)

    def slots(self, key: PolicyKey, cap: int) -> PromotionSlots | None:
        """What is left to a policy of ``cap``; None where that is 0: no cap."""
        if not cap:
            return None
        now = self._clock.monotonic()
        taken = sum(
            now - since < PROMOTING_SECONDS
            for other, all_of in self._since.items()
            if other != key
            for since in all_of.values()
        )
        own = self._since.get(key, {})
        overdue = frozenset(name for name, since in own.items() if now - since >= PROMOTING_SECONDS)
        return PromotionSlots(max(0, cap - taken), overdue)

    def forget(self, key: PolicyKey) -> None:
        """Nothing of the policy is being promoted, or it is gone."""
        self._since.pop(key, None)
