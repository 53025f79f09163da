"""How fast pods may be taken away: as many at once as a deadline needs, by the time that restarts took before."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

CHECKPOINT_SECONDS = 30.0
"""How long a pod that is to be taken away is waited for to save a checkpoint, where nothing says otherwise."""

KEPT_RESTARTS = 20
"""Measured restarts that the state keeps."""

LEAST_AT_ONCE = 10
"""An emergency takes at least so many pods away at once: to hold so few back would spare the cluster nothing."""

SPENT_SHARE = 0.5
"""Of the time that is left, restarts are planned for this share: some take longer than all that were measured."""

SLOTS_LIMIT = 500
"""Workloads of one policy that may be restarting at once where nothing is urgent, whatever the cluster's budget."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What bounds the restarts of a pass."""

    slots: int = 0
    """Workloads that may be restarting at once, where nothing is urgent."""
    left_seconds: float | None = None
    """Until the deadline of what is rolled back, which waits for no slot then; None: nothing is urgent."""
    most_pods: int = 500
    """That may be on their way at once where it is urgent, whatever the deadline needs."""
    restart_seconds: tuple[float, ...] = ()
    """How long restarts took."""
    expected_seconds: float = 60.0
    """How long one is taken to last before the first was measured."""
    evicts: bool = True
    """What is rolled back asks the PodDisruptionBudgets too, as everything else does; else its pods are deleted."""
    brings_changes_in: bool = False
    """What is urgent is restarted though its pods come back from a changed template."""
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    """How long a pod of what is rolled back is waited for to save a checkpoint."""
    leaving_seconds: float | None = None
    """How long a terminating pod may take, where that is less than its own grace; None: its grace counts."""
    awaited_seconds: float = math.inf
    """How long a replacement that does not start is waited for: it holds nothing back then, for it has the mode."""

    @property
    def urgent(self) -> bool:
        """What is rolled back waits for no slot."""
        return self.left_seconds is not None

    @property
    def long_seconds(self) -> float:
        """What nine of ten restarts do not exceed."""
        return quantile(self.restart_seconds, 0.9) if self.restart_seconds else self.expected_seconds

    def patience_seconds(self, *, rollback: bool) -> float:
        """How long a pod is waited for to save a checkpoint."""
        return self.checkpoint_seconds if rollback else CHECKPOINT_SECONDS

    def pods_at_once(self, pods: int) -> int:
        """How many of so many pods have to be on their way at once for all to be back in time."""
        rounds = math.floor(SPENT_SHARE * max(self.left_seconds or 0.0, 0.0) / max(self.long_seconds, 1.0))
        needed = math.ceil(pods / rounds) if rounds else pods
        return min(max(needed, LEAST_AT_ONCE), self.most_pods)

    def predicted_seconds(self, sizes: Sequence[int]) -> float:
        """Until nothing trains in the mode before, of workloads with so many pods each: each goes as soon as there is room.

        The last of those that are under way at once takes the longest of them, so far as that is known and waited for.
        """
        seconds = self.restart_seconds or (self.expected_seconds,)
        at_once = self.pods_at_once(sum(sizes))
        together = max(1, min(len(sizes), round(at_once * len(sizes) / sum(sizes))))
        waves = len(sizes) / together
        last = quantile(seconds, together / (together + 1))
        return (waves - 1) * (sum(seconds) / len(seconds)) + min(last, self.awaited_seconds)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered), max(1, math.ceil(share * len(ordered)))) - 1]
