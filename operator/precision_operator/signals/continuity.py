"""Since when each plan is evaluated without a gap, and by a wall clock that was not set meanwhile."""

from dataclasses import dataclass, replace

from precision_operator.runtime.clock import Clock
from precision_operator.signals.plan import EvaluationPlan

GAP_INTERVALS = 3.0
"""A pause longer than this many intervals ends continuity."""

STEP_SECONDS = 1.0
"""What the wall clock may gain or lose between two evaluations: more is a step, and ends continuity too."""

PLAN_LIFE_SECONDS = 3600.0
"""A plan not evaluated for this long is forgotten."""


@dataclass(frozen=True, slots=True)
class Watched:
    """How a plan has been evaluated."""

    since: float
    """Without a gap; by the wall clock."""
    ended: float
    """The last evaluation; by the monotonic clock."""
    ahead_seconds: float
    """Of the wall clock before the monotonic one at that time: what a step changes."""
    clock_since: float
    """As in ``Evaluation``."""


class Continuity:
    """Remembers of each plan how it has been evaluated."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._watched: dict[EvaluationPlan, Watched] = {}
        self.clock_since = 0.0
        """The newest of all plans', as in ``Evaluation``."""

    def begin(self) -> None:
        """A leadership begins: another may have led until now, by another clock."""
        self._watched.clear()
        self.clock_since = self._clock.time()

    def knows(self, plan: EvaluationPlan) -> bool:
        """Whether the plan was evaluated lately."""
        return plan in self._watched

    def evaluated(self, plan: EvaluationPlan, *, at: float, began: float) -> Watched:
        """An evaluation of ``at`` has ended; a gap is measured from the end of the one before to when this one ``began``.

        A wall clock that was set, forward or back, between two evaluations is a gap of unknown length.
        """
        now = self._clock.monotonic()
        ahead_seconds = self._clock.time() - now
        before = self._watched.get(plan, Watched(at, began, ahead_seconds, min(at, self.clock_since)))
        gap = began - before.ended > GAP_INTERVALS * plan.interval_seconds
        stepped = abs(ahead_seconds - before.ahead_seconds) > STEP_SECONDS
        if stepped:
            self.clock_since = now + ahead_seconds
        clock_since = self.clock_since if stepped else before.clock_since
        since = max(at, clock_since) if gap else clock_since if stepped else before.since
        for old in [p for p, watched in self._watched.items() if now - watched.ended > PLAN_LIFE_SECONDS]:
            del self._watched[old]
        found = self._watched[plan] = Watched(since, now, ahead_seconds, clock_since)
        # An answer that was shared may bear a time of before a step back: nothing was watched until that.
        return replace(found, since=max(since, at)) if at > now + ahead_seconds else found
