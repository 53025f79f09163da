"""What the decisions of one leadership name, policy by policy, where a limit on it is the whole cluster's.

A new leader does not know what an earlier one has under way, until it has decided on all that it took over.
"""

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from precision_operator.api.policy import PolicyKey
from precision_operator.runtime.clock import Clock

T = TypeVar("T")


class Counted(Generic[T]):
    """A count that begins anew with each epoch: others may have acted since the leadership before this one.

    Before all policies that were taken over were decided on, nobody has a slot. A newer policy has nothing of an earlier
    leadership, and nobody waits for it.
    """

    def __init__(self, clock: Clock, known: Callable[[], Collection[PolicyKey]], *, patience_seconds: float) -> None:
        """Of no leadership yet.

        Args:
            known: all policies there are, and the assignments whose policy is gone.
            patience_seconds: how long one whose passes fail is waited for.
        """
        self._clock = clock
        self._known = known
        self._patience_seconds = patience_seconds
        self._counted: dict[PolicyKey, T] = {}
        self._awaited: set[PolicyKey] = set()
        self._awaited_until = 0.0
        self._epoch = -1

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._counted.pop(key, None)

    def _enter(self, epoch: int) -> bool:
        """Whether this leadership goes on, or begins: what is decided under an earlier one will not be committed."""
        if epoch > self._epoch:
            self._epoch, self._awaited = epoch, set(self._known())
            self._awaited_until = self._clock.monotonic() + self._patience_seconds
            self._counted.clear()
        return epoch == self._epoch

    def _decided(self, key: PolicyKey) -> bool:
        """A policy was decided on; whether that was awaited."""
        awaited = key in self._awaited
        self._awaited.discard(key)
        return awaited

    def _over(self, key: PolicyKey) -> bool:
        """Whether it is known what all others have under way."""
        if self._clock.monotonic() >= self._awaited_until:
            self._awaited.clear()
        if self._awaited - {key}:
            self._awaited.intersection_update(self._known())
        return not self._awaited - {key}
