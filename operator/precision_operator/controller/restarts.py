"""How many workloads are restarting, policy by policy: the budget of gradual restarts is the whole cluster's."""

from precision_operator.api.policy import PolicyKey
from precision_operator.api.state import State
from precision_operator.core.restart.rounds import RESTARTING_SECONDS
from precision_operator.runtime.clock import Clock


class Restarts:
    """Counts what the assignments record. A new leader knows each policy's after its first pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[PolicyKey, tuple[float, ...]] = {}

    def note(self, key: PolicyKey, state: State) -> None:
        """What a policy's assignment records."""
        self._since[key] = tuple(restart.since for restart in state.restarts.values())

    def others(self, key: PolicyKey) -> int:
        """Workloads of all other policies that were restarted a short while ago, and are not back."""
        now = self._clock.time()
        return sum(
            now - since < RESTARTING_SECONDS
            for other, all_of in self._since.items()
            if other != key
            for since in all_of
        )

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._since.pop(key, None)
