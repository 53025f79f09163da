"""How many workloads are restarting, policy by policy: the budget of gradual restarts is the whole cluster's."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.takeover import Counted
from precision_operator.core.restart.rounds import RESTARTING_SECONDS
from precision_operator.errors import Unavailable
from precision_operator.runtime.clock import Clock

Until = tuple[float, ...]
"""Until when at most each workload of a policy takes up a slot, in seconds since the epoch."""


class Restarts(Counted[Until]):
    """Until when the workloads of a policy take up slots."""

    def __init__(self, clock: Clock, *, known: Callable[[], Collection[PolicyKey]] = tuple) -> None:
        super().__init__(clock, known, patience_seconds=RESTARTING_SECONDS)

    @contextmanager
    def noted(self, key: PolicyKey, until: Until, *, epoch: int) -> Iterator[None]:
        """What a policy's decision takes up, from now on: others decide while it is confirmed and committed.

        It is given back where the block fails, unless it may have been committed all the same. Of a policy that was taken
        over it stands: what an earlier leader restarted is part of it.
        """
        if not self._enter(epoch):
            yield  # decided under an earlier leadership: it will not be committed
            return
        before = until if self._decided(key) else self._counted.get(key, ())
        self._counted[key] = until
        try:
            yield
        except Unavailable:
            raise
        except BaseException:
            self._counted[key] = before
            raise

    def slots(self, key: PolicyKey, budget: int, *, epoch: int) -> int:
        """What the others leave to a policy of ``budget``."""
        self._enter(epoch)
        now = self._clock.time()
        taken = sum(now < until for other, all_of in self._counted.items() if other != key for until in all_of)
        return max(0, budget - taken) if self._over(key) else 0
