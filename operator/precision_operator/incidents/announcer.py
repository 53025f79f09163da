"""The announcer: sends what calls for a person, beside the passes and never in their way.

What is owed follows from the state of the newest pass and from what was sent (``core/notifying.py``). What every channel
has taken goes into the assignment with the next pass, so that no leader sends it again. Until then it is known here only: a
new leader sends it twice rather than not at all.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from precision_operator.api.messages import Notified
from precision_operator.api.policy import PolicyKey
from precision_operator.core.calling import calls
from precision_operator.core.notifying import HOUR_SECONDS, Owed, owed
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.calls import facts_of, told_of
from precision_operator.incidents.notifier import Notifier, Post, roles_of
from precision_operator.incidents.wording import Wording, links
from precision_operator.observability.metrics import Metrics
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock, wait_event

_LOG = logging.getLogger(__name__)

IDLE_SECONDS = 3600.0

Topic = tuple[str, str]
"""(topic, occasion)."""


@dataclass(frozen=True, slots=True)
class _Letter:
    """A message under way."""

    entry: Notified
    post: Post

    @property
    def reached(self) -> bool:
        """Some channel has taken it."""
        return any(message.delivered for message in self.post.messages)


@dataclass(slots=True)
class _Track:
    """One policy."""

    seen: RecordedPass
    letters: dict[Topic, _Letter] = field(default_factory=dict)
    sent: dict[Topic, Notified] = field(default_factory=dict)
    """Taken by every channel, and not in the state yet."""
    due_at: float | None = None


class Announcer:
    """Watches the passes of all policies. Belongs to one event loop."""

    def __init__(
        self,
        notifier: Notifier,
        *,
        wording: Wording,
        metrics: Metrics,
        clock: Clock,
        leading: Callable[[], bool],
        changed: Callable[[PolicyKey], None],
    ) -> None:
        """``changed``: called when a policy's next pass has something to remember."""
        self._notifier = notifier
        self._wording = wording
        self._metrics = metrics
        self._clock = clock
        self._leading = leading
        self._changed = changed
        self._tracks: dict[PolicyKey, _Track] = {}
        self._wake = asyncio.Event()
        notifier.listen(self._wake.set)

    def observe(self, seen: RecordedPass) -> None:
        """See Observer."""
        if self._notifier.idle:
            return
        track = self._tracks.get(seen.key)
        if track is None:
            self._tracks[seen.key] = track = _Track(seen)
        track.seen, track.due_at = seen, 0.0
        self._wake.set()

    def gone(self, key: PolicyKey) -> None:
        """See Observer."""
        track = self._tracks.pop(key, None)
        if track is not None:
            self._drop(track, track.letters)

    def notified(self, key: PolicyKey) -> tuple[Notified, ...]:
        """What was sent about a policy and is not in its state yet."""
        track = self._tracks.get(key)
        return tuple(track.sent.values()) if track is not None else ()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await wait_event(self._clock, self._wake, self._pause_seconds())
            self._wake.clear()
            await self.turn()

    async def turn(self) -> None:
        """Do all that is due now."""
        for key, track in list(self._tracks.items()):
            if not self._leading():
                self._retire()
                return
            # What is under way is looked at in any case: its delivery wakes us.
            if not track.letters and (track.due_at is None or track.due_at > self._clock.time()):
                continue
            try:
                self._work(key, track)
            except Exception:  # noqa: BLE001 - the last barrier: a message is no reason to end the operator
                track.due_at = None
                self._metrics.report_error(Reason.INTERNAL_ERROR)
                _LOG.exception("messages of %s/%s", key.namespace, key.name, extra={"reason": Reason.INTERNAL_ERROR})
            await asyncio.sleep(0)  # a thousand policies are no reason to keep a pass waiting

    def _retire(self) -> None:
        """Another one leads: what is under way is its own matter, and would be old news once this one leads again."""
        for track in self._tracks.values():
            self._drop(track, track.letters)
        self._tracks.clear()

    def _drop(self, track: _Track, topics: Iterable[Topic]) -> None:
        for topic in list(topics):
            self._notifier.drop(track.letters.pop(topic).post.whose)

    def _pause_seconds(self) -> float:
        now = self._clock.time()
        moments = [now + IDLE_SECONDS, *(t.due_at for t in self._tracks.values() if t.due_at is not None)]
        return max(0.05, min(moments) - now)

    def _work(self, key: PolicyKey, track: _Track) -> None:
        now, state = round(self._clock.time(), 3), track.seen.decision.state
        standing = {(call.topic, call.occasion) for call in calls(state, now)}
        track.sent = {
            topic: entry
            for topic, entry in track.sent.items()
            if entry not in state.notified and (topic in standing or now - entry.at < HOUR_SECONDS)
        }
        over = track.letters.keys() - standing
        # Whom one of them has reached is told of the same no sooner than of any other.
        reached = [letter for topic, letter in track.letters.items() if topic in over and letter.reached]
        track.sent |= {(letter.entry.topic, letter.entry.occasion): letter.entry for letter in reached}
        self._drop(track, over)
        moments: list[float] = []
        under_way = (letter.entry for letter in track.letters.values())
        for found in owed(state, (*state.notified, *track.sent.values(), *under_way), now):
            if found.due_at > now:
                moments.append(found.due_at)
            else:
                self._write(key, track, found, now)
        for topic, letter in list(track.letters.items()):
            messages = self._notifier.hand_over(letter.post)
            post = Post(letter.post.whose, messages, letter.post.roles, letter.post.facts)
            track.letters[topic] = _Letter(letter.entry, post)
            next_at = self._notifier.next_at(post)
            if next_at is not None:
                moments.append(next_at)
                continue
            del track.letters[topic]
            track.sent[topic] = letter.entry
            self._notifier.drop(post.whose)
            self._changed(key)
        track.due_at = min(moments, default=None)

    def _write(self, key: PolicyKey, track: _Track, found: Owed, now: float) -> None:
        """Also in the place of a letter that is still under way: one that is escalated reaches more people."""
        under_way = [letter.entry for letter in track.letters.values()]
        known = {
            (e.topic, e.occasion): e for e in (*track.seen.decision.state.notified, *track.sent.values(), *under_way)
        }
        topic = (found.call.topic, found.call.occasion)
        self._drop(track, track.letters.keys() & {topic})
        # Its time stays that of the first message: what is escalated is counted from there.
        first = known.get(topic)
        entry = found.notified(first.at if first is not None else now)
        message = told_of(found, track.seen, self._wording, now=now)
        facts = facts_of(found, track.seen)
        facts |= links(found.call.kind, facts, self._wording)
        track.letters[topic] = _Letter(
            entry,
            # The topic is a part of its name: several of one kind may be written at the same time.
            Post(
                f"{key.namespace}/{key.name}/{found.call.topic}",
                (message,),
                roles=lambda _: roles_of(found.level),
                facts=lambda _: facts,
            ),
        )
