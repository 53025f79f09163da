"""What a fleet's operator shows and does, pass by pass, while things happen to the fleet: one history as a table.

A pass in which nothing changes has no line. The last column is a fingerprint of everything else that was decided: all of the
state, every field of every action, and when the operator looks again. A change of any of it changes the page.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from lab.model.world import World
from precision_operator.api.state import Phase
from precision_operator.core.actions import (
    Action,
    DeleteAssignment,
    DeletePod,
    EvictPod,
    Notify,
    RequestPod,
    ResumeJob,
    SuspendJob,
)
from precision_operator.core.decide import Decision
from precision_operator.replay.recording import describe

_LIMIT = 160
"""Characters of a message; the fingerprint has the rest."""


W = TypeVar("W", bound=World)


class Timeline(Generic[W]):
    """A world that is being watched."""

    def __init__(self, world: W) -> None:
        self.world = world
        self._began = world.now
        self._lines: list[_Line] = []

    @property
    def lines(self) -> list[str]:
        """The table. Passes that go on with the same words, and do nothing, are one line."""
        return ["| after | phase | why | done | |", "|---|---|---|---|---|", *map(str, self._lines)]

    def happens(self, what: str) -> None:
        """Something that is no pass, in words; the caller does it to the world."""
        self._lines.append(_Line(self._after(), "", f"*{what}*"))

    def passes(self, count: int, seconds: float = 15.0) -> None:
        """So many passes, so far apart."""
        for _ in range(count):
            self._pass(seconds)

    def until(self, found: Callable[[W], object], seconds: float = 15.0, *, limit: int = 400) -> None:
        """Passes until the world is so.

        Raises:
            AssertionError: it never is.
        """
        for _ in range(limit):
            if found(self.world):
                return
            self._pass(seconds)
        raise AssertionError(f"not within {limit} passes; now {self.world.state.phase}: {self.world.summary.message}")

    def _pass(self, seconds: float) -> None:
        if self.world.gone:
            return
        after, before, shown = self._after(), self.world.state, self.world.summary
        now, taken = self.world.now, sum(self.world.restarts.values())
        decision = self.world.step(seconds)
        if (decision.state, self.world.summary) == (before, shown) and not decision.actions:
            return
        held_back = sum(self.world.restarts.values()) == taken
        words = Counter(_done(action, held_back=held_back) for action in decision.actions)
        done = ", ".join(f"{what} {count}" if count > 1 else what for what, count in words.items())
        phase, why, whole = decision.state.phase, self._why(decision)[:_LIMIT], _whole(decision, now)
        last = self._lines[-1] if self._lines else _Line("", "", "")
        if done == last.done and (not done or held_back) and (last.phase, last.why) == (phase, why):
            self._lines[-1] = replace(last, until=after, whole=last.whole + whole)
        else:
            self._lines.append(_Line(after, phase, why, done, whole))

    def _why(self, decision: Decision) -> str:
        """What the status shows: in a rollback, what is waited for. Without a policy, what its assignment records."""
        state, summary = decision.state, decision.summary
        if self.world.policy.deleted:
            return f"{state.reason}: {state.message}"
        progressing = next(c for c in summary.conditions if c.type == "Progressing")
        waits = state.phase is Phase.ROLLING_BACK and progressing.reason != state.reason
        return f"{progressing.reason}: {progressing.message}" if waits else f"{summary.reason}: {summary.message}"

    def _after(self) -> str:
        seconds = self.world.now - self._began
        return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds:g} s"


@dataclass(frozen=True)
class _Line:
    after: str
    phase: str
    why: str
    done: str = ""
    whole: str = ""
    """Everything else that was decided, as JSON."""
    until: str = ""

    def __str__(self) -> str:
        fingerprint = hashlib.sha256(self.whole.encode()).hexdigest()[:6] if self.whole else ""
        after = f"{self.after} - {self.until}" if self.until else self.after
        return "| " + " | ".join((after, self.phase, self.why, self.done, fingerprint)) + " |"


def _done(action: Action, *, held_back: bool) -> str:
    """An action's kind, in words; those of several workloads are counted together."""
    match action:
        case RequestPod():
            tuned = f" ({action.tuning.loss_scale_factor or action.tuning.growth_interval:g})" if action.tuning else ""
            what = "checkpoint in" if action.checkpoint else "request"
            return f"{what} {action.mode}{' and rewind' if action.rewind else ''}{tuned}"
        case DeletePod():
            how = "" if action.grace_seconds is None else f" with a grace of {action.grace_seconds} s"
            return f"delete pod{how} (held back)" if held_back else f"delete pod{how}"
        case EvictPod():
            return "evict pod (held back)" if held_back else "evict pod"
        case SuspendJob():
            return "suspend (held back)" if held_back else "suspend"
        case ResumeJob():
            return "resume (held back)" if held_back else "resume"
        case DeleteAssignment():
            return "delete assignment"
        case Notify():
            return f"Event {action.reason}"


def _whole(decision: Decision, now: float) -> str:
    return json.dumps(describe(replace(decision, wake_at=round(decision.wake_at - now, 3))), sort_keys=True)
