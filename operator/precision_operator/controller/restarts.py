"""How many workloads are restarting, policy by policy: the budget of gradual restarts is the whole cluster's."""

from precision_operator.api.policy import PolicyKey
from precision_operator.runtime.clock import Clock


class Restarts:
    """Counts what the decisions name. A new leader knows each policy's after its first pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[PolicyKey, tuple[float, ...]] = {}

    def note(self, key: PolicyKey, until: tuple[float, ...]) -> None:
        """Until when at most each workload of a policy takes up a slot, in seconds since the epoch."""
        self._until[key] = until

    def others(self, key: PolicyKey) -> int:
        """Workloads of all other policies that take up a slot: what finds no place has freed its own."""
        now = self._clock.time()
        return sum(now < until for other, all_of in self._until.items() if other != key for until in all_of)

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._until.pop(key, None)
