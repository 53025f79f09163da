"""Which messages are owed of what calls for a person: a function of the state, of what was told, and of the time.

Level-triggered as everything else here: a message is owed where something stands that nobody was told of. An edge that was
not seen, because the operator was away, is told of by the next one as long as it stands.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import Final

from precision_operator.api.messages import MessageKind, Notified, Tone
from precision_operator.api.state import State
from precision_operator.core.calling import ONCE_A_STEP, Call, calls, transition

ESCALATE_SECONDS: Final = (900.0, 1800.0)
"""When the next role is told too, after the first message; of an incident, after the decision."""
QUIET_SECONDS: Final = 600.0
"""Between two messages of one topic: a state that comes and goes is told of once in this time."""
HOUR_SECONDS: Final = 3600.0
MOST_AN_HOUR: Final = 12
"""Messages about one policy in any hour, and as many of failures beside them, which wait behind nothing else; others wait,
and are not sent where they are over by then."""
KEPT: Final = 32
"""Entries of the memory. The oldest go first."""


@dataclass(frozen=True, slots=True)
class Owed:
    """A message that is to be sent."""

    call: Call
    level: int
    """0: the first one; more: it is escalated."""
    due_at: float
    """From when on it may be sent; seconds since the epoch."""

    def notified(self, at: float) -> Notified:
        """The memory of it."""
        return Notified(self.call.topic, self.call.occasion, at, self.level)


def owed(state: State, notified: Iterable[Notified], now: float) -> tuple[Owed, ...]:
    """What stands and was not told of, or is to be escalated, with when each may be sent.

    Args:
        state: as it is now.
        notified: what people got already, of this state's memory and since.
        now: seconds since the epoch.
    """
    known = {(entry.topic, entry.occasion): entry for entry in notified}
    told_at = {
        urgent: sorted(e.at for e in known.values() if _is_urgent(e.topic) is urgent) for urgent in (True, False)
    }
    newest: dict[str, float] = {}
    for topic, _ in known:
        newest[topic] = max(e.at for e in known.values() if e.topic == topic)
    found: list[Owed] = []
    taken = {urgent: count(len(times)) for urgent, times in told_at.items()}
    for call in calls(state, now):
        entry = known.get((call.topic, call.occasion))
        if entry is None:
            # Bounded, for the clock may have been set back since.
            quiet_until = min(newest.get(call.topic, now - QUIET_SECONDS), now) + QUIET_SECONDS
            urgent = _is_urgent(call.topic)
            found.append(Owed(call, 0, max(now, quiet_until, _room_at(told_at[urgent], next(taken[urgent]), now))))
        elif call.kind.escalates and entry.level < len(ESCALATE_SECONDS):
            found.append(Owed(call, entry.level + 1, max(now, entry.at + ESCALATE_SECONDS[entry.level])))
    return tuple(found)


def _is_urgent(topic: str) -> bool:
    kind = MessageKind.known(topic.partition("/")[0])
    return kind is not None and kind.tone is Tone.FAILURE


def _room_at(told_at: list[float], taken: int, now: float) -> float:
    """When there is room in the hour for one more, where so many are taken; it may have been there before now."""
    if taken < MOST_AN_HOUR:
        return now
    waits_for = taken - MOST_AN_HOUR
    return min(told_at[waits_for], now) + HOUR_SECONDS if waits_for < len(told_at) else now + HOUR_SECONDS


def remembered(state: State, sent: Iterable[Notified], now: float) -> tuple[Notified, ...]:
    """The memory after ``sent``: what stands, or comes and goes in a step, and what was told of within the hour."""
    known = {(entry.topic, entry.occasion): entry for entry in (*state.notified, *sent)}
    standing = {(call.topic, call.occasion) for call in calls(state, now)}
    standing |= {key for key in known if key[0] in ONCE_A_STEP and f"{key[1]}-".startswith(f"{transition(state)}-")}
    kept = [e for key, e in known.items() if key in standing or now - HOUR_SECONDS < e.at <= now + HOUR_SECONDS]
    return tuple(sorted(kept, key=lambda e: (e.at, e.topic, e.occasion))[-KEPT:])


def has_news(state: State, sent: Iterable[Notified]) -> bool:
    """Whether something was sent that the state does not know of."""
    return not frozenset(sent) <= frozenset(state.notified)
