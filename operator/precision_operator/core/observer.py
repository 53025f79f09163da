"""What a finished pass shows to those that follow it: the reports on rollbacks and on mitigations."""

from dataclasses import dataclass
from typing import Protocol

from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.state import State
from precision_operator.core.decide import Decision
from precision_operator.core.model import Observation


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """One decision with everything that went into it, after the deletion of its policy too."""

    policy: Policy
    before: State
    observation: Observation
    decision: Decision
    now: float
    """Seconds since the epoch, as given to ``decide``."""

    @property
    def key(self) -> PolicyKey:
        """Whose pass it was."""
        return PolicyKey(self.policy.namespace, self.policy.name)


class Observer(Protocol):
    """Follows passes, and is never in their way: each call returns at once and raises nothing."""

    def observe(self, seen: RecordedPass) -> None:
        """A pass has been carried out."""
        ...

    def gone(self, key: PolicyKey) -> None:
        """Neither the policy nor its assignment is there any more."""
        ...
