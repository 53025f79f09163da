"""Which policies a new leader has yet to decide on: until then it does not know what an earlier one has under way."""

from collections.abc import Callable, Collection

from precision_operator.api.policy import PolicyKey
from precision_operator.runtime.clock import Clock


class Takeover:
    """The policies that an earlier leadership left to this one. A newer one has nothing of it, and nobody waits for it."""

    def __init__(self, clock: Clock, known: Callable[[], Collection[PolicyKey]], *, patience_seconds: float) -> None:
        """Of no leadership yet.

        Args:
            known: all policies there are, and the assignments whose policy is gone.
            patience_seconds: how long one whose passes fail is waited for.
        """
        self._clock = clock
        self._known = known
        self._patience_seconds = patience_seconds
        self._awaited: set[PolicyKey] = set()
        self._until = 0.0
        self.epoch = -1

    def enter(self, epoch: int) -> bool:
        """Whether another leadership begins: what was counted in the one before is over."""
        if epoch <= self.epoch:
            return False
        self.epoch, self._awaited = epoch, set(self._known())
        self._until = self._clock.monotonic() + self._patience_seconds
        return True

    def decided(self, key: PolicyKey) -> bool:
        """A policy was decided on; whether that was awaited."""
        awaited = key in self._awaited
        self._awaited.discard(key)
        return awaited

    def over(self, key: PolicyKey) -> bool:
        """Whether it is known what all others have under way."""
        if self._clock.monotonic() >= self._until:
            self._awaited.clear()
        if self._awaited - {key}:
            self._awaited.intersection_update(self._known())
        return not self._awaited - {key}
