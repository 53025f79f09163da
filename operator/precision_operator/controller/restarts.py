"""How many workloads are restarting, policy by policy: the budget of gradual restarts is the whole cluster's."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from precision_operator.api.policy import PolicyKey
from precision_operator.core.restart.rounds import RESTARTING_SECONDS
from precision_operator.errors import Unavailable
from precision_operator.runtime.clock import Clock

Until = tuple[float, ...]
"""Until when at most each workload of a policy takes up a slot, in seconds since the epoch."""


class Restarts:
    """Counts what the decisions of one leadership name. Before every policy had its first pass, nobody has a slot."""

    def __init__(self, clock: Clock, *, known: Callable[[], Collection[PolicyKey]] = tuple) -> None:
        """A count that begins anew with each epoch.

        Args:
            known: all policies there are, and the assignments whose policy is gone.
        """
        self._clock = clock
        self._known = known
        self._until: dict[PolicyKey, Until] = {}
        self._epoch, self._began = 0, clock.monotonic()
        self._complete = False

    @contextmanager
    def noted(self, key: PolicyKey, until: Until, *, epoch: int) -> Iterator[None]:
        """What a policy's decision takes up, from now on: others decide while it is confirmed and committed.

        It is given back where the block fails, unless it may have been committed all the same.
        """
        self._enter(epoch)
        if epoch != self._epoch:
            yield  # decided under an earlier leadership: it will not be committed
            return
        before = {key: self._until[key]} if key in self._until else {}
        self._until[key] = until
        try:
            yield
        except Unavailable:
            raise
        except BaseException:
            self.forget(key)
            self._until |= before
            raise

    def slots(self, key: PolicyKey, budget: int, *, epoch: int) -> int:
        """What the others leave to a policy of ``budget``."""
        self._enter(epoch)
        now = self._clock.time()
        taken = sum(now < until for other, all_of in self._until.items() if other != key for until in all_of)
        return max(0, budget - taken) if self._counted(key) else 0

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._until.pop(key, None)

    def _enter(self, epoch: int) -> None:
        """Others may have restarted workloads since the leadership before this one."""
        if epoch > self._epoch:
            self._until.clear()
            self._epoch, self._began, self._complete = epoch, self._clock.monotonic(), False

    def _counted(self, key: PolicyKey) -> bool:
        """Whether it is known what all others restart. One whose passes fail is waited for no longer than a workload."""
        if not self._complete:
            late = self._clock.monotonic() - self._began >= RESTARTING_SECONDS
            self._complete = late or not set(self._known()) - self._until.keys() - {key}
        return self._complete
