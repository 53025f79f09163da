"""Delivers messages to the channels of their roles: at least once, with back-off, for as long as they matter.

The reporter only hands over and collects: each channel has a bounded queue, and a channel that hangs keeps only itself
waiting. No decision and no write of the operator waits for a message.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from precision_operator.api.messages import MessageKind
from precision_operator.api.wire import parse_time
from precision_operator.core.notifying import ESCALATE_SECONDS
from precision_operator.incidents.channels import NotDelivered, Outgoing, send
from precision_operator.incidents.document import name_for
from precision_operator.incidents.report import Message, Report
from precision_operator.incidents.wording import Wording, links
from precision_operator.observability.metrics import Metrics
from precision_operator.reasons import Reason
from precision_operator.runtime.backoff import Backoff
from precision_operator.runtime.clock import Clock
from precision_operator.settings import NotificationChannel

_LOG = logging.getLogger(__name__)

ON_CALL, ML_LEAD, EXECUTIVE = "on-call", "ml-lead", "executive"
_LADDER = (ON_CALL, ML_LEAD, EXECUTIVE)

PROMPT_TRIES = 8
"""With the back-off that is after about four minutes. What fails from then on counts as undelivered, and is tried on."""
RETRY = Backoff(2.0, 300.0)
QUEUE = 64
"""Messages that wait for one channel; more are handed over again later."""
BATCH = 5
"""Messages of one process."""
AT_ONCE = 2
"""Processes at once: each takes about 50 MiB."""
LOOK_AGAIN_SECONDS = 60.0
"""When to look again at what is in a queue; the delivery itself wakes the reporter."""

Send = Callable[[NotificationChannel, Sequence[Outgoing]], Awaitable[int]]
Key = tuple[str, str, str]
"""(what it is about, kind and time of the message, channel)."""


class MessageResult(StrEnum):
    """What became of a message on a channel, as the metric counts it."""

    DELIVERED = "Delivered"
    FAILED = "Failed"
    """It is tried again."""
    DEFERRED = "Deferred"
    """Too many wait for the channel."""
    UNDELIVERED = "Undelivered"
    """It has failed for long and is tried on, or failed for the last time: what it was about is over."""


@dataclass(frozen=True, slots=True)
class Post:
    """Messages about one thing, as they are handed over."""

    whose: str
    """What they are about: an incident's name, or a policy's, with the namespace."""
    messages: tuple[Message, ...]
    roles: Callable[[Message], tuple[str, ...]]
    facts: Callable[[Message], Mapping[str, str]]


@dataclass(slots=True)
class _Lane:
    """One channel, and what waits for it."""

    name: str
    channel: NotificationChannel
    waiting: deque[tuple[Key, Outgoing]] = field(default_factory=deque)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    """In a row."""
    rests_until: float = 0.0
    """What was tried before is not tried earlier: a channel that is gone costs the same however much waits for it."""


class Notifier:
    """Delivers messages, and notes on them to whom they went. Belongs to one event loop."""

    def __init__(
        self,
        channels: Mapping[str, NotificationChannel],
        *,
        metrics: Metrics,
        clock: Clock,
        send: Send = send,
        wording: Wording | None = None,
    ) -> None:
        """``wording``: whose links go along where a channel carries fields."""
        self._wording = wording or Wording()
        self._listeners: list[Callable[[], None]] = []
        self._lanes = {name: _Lane(name, channel) for name, channel in sorted(channels.items())}
        self._metrics = metrics
        self._clock = clock
        self._send = send
        self._at_once = asyncio.Semaphore(AT_ONCE)
        self._queued: set[Key] = set()
        self._taken: set[Key] = set()
        """Delivered, and not yet noted on the report."""
        self._tries: dict[Key, tuple[int, float]] = {}
        """Tries so far, and when the next is due."""

    def due_at(self, report: Report, namespace: str) -> float | None:
        """When there is something to do for a report; None: nothing is owed."""
        return self.next_at(self._post(report, namespace))

    def deliver(self, report: Report, namespace: str) -> Report:
        """Hand over all that is due; the report with what was delivered meanwhile. Returns at once, and never raises."""
        messages = self.hand_over(self._post(report, namespace))
        return report if messages is report.messages else replace(report, messages=messages)

    def forget(self, report: Report, namespace: str) -> None:
        """The incident is over: what waits already is tried once more, and nothing is noted of it."""
        self.drop(f"{namespace}/{name_for(report)}")

    def listen(self, tried: Callable[[], None]) -> None:
        """``tried`` is called too when something was tried."""
        self._listeners.append(tried)

    @property
    def idle(self) -> bool:
        """There is no channel: nothing is ever owed."""
        return not self._lanes

    def next_at(self, post: Post) -> float | None:
        """When there is something to do; None: every channel has taken every message."""
        now, moments = self._clock.time(), []
        for key, _, lane in self._owed(post):
            waits = key in self._queued or key in self._taken
            moments.append(now + LOOK_AGAIN_SECONDS if waits else self._due_at(key, lane))
        return min(moments, default=None)

    def hand_over(self, post: Post) -> tuple[Message, ...]:
        """Hand over all that is due; the messages with who took them meanwhile. Returns at once, and never raises."""
        now, messages = self._clock.time(), post.messages
        for key, message, lane in self._owed(post):
            if key in self._taken:
                self._taken.discard(key)
                messages = tuple(_noted(m, lane.name) if _id(m) == _id(message) else m for m in messages)
                continue
            if self._due_at(key, lane) > now or key in self._queued:
                continue
            if len(lane.waiting) >= QUEUE:
                self._tries[key] = (self._tries.get(key, (0, 0.0))[0], now + LOOK_AGAIN_SECONDS)
                self._metrics.notification(lane.name, MessageResult.DEFERRED)
                continue
            self._queued.add(key)
            lane.waiting.append((key, Outgoing(message, post.facts(message))))
            lane.wake.set()
        return messages

    def drop(self, whose: str) -> None:
        """Nothing more is noted of what waits already; it is tried once more."""
        self._tries = {key: value for key, value in self._tries.items() if key[0] != whose}
        self._taken = {key for key in self._taken if key[0] != whose}
        self._queued = {key for key in self._queued if key[0] != whose}

    async def run(self, changed: Callable[[], None]) -> None:
        """Deliver until cancelled; ``changed`` is called when something was tried."""
        async with asyncio.TaskGroup() as group:
            for lane in self._lanes.values():
                group.create_task(self._work(lane, changed))

    async def turn(self) -> int:
        """Try what waits, once; how many messages were tried."""
        return sum([await self._batch(lane) for lane in self._lanes.values()])

    async def _work(self, lane: _Lane, changed: Callable[[], None]) -> None:
        while True:
            await lane.wake.wait()
            lane.wake.clear()
            while lane.waiting:
                await self._batch(lane)
                for tried in (changed, *self._listeners):
                    tried()

    async def _batch(self, lane: _Lane) -> int:
        batch = [lane.waiting.popleft() for _ in range(min(BATCH, len(lane.waiting)))]
        if not batch:
            return 0
        delivered, why = 0, ""
        try:
            async with self._at_once:
                delivered = await self._send(lane.channel, [outgoing for _, outgoing in batch])
        except NotDelivered as error:
            why = str(error)
        except Exception:  # noqa: BLE001 - the last barrier: a message is no reason to end the operator
            why = Reason.INTERNAL_ERROR
            _LOG.exception("channel %s", lane.name, extra={"reason": why})
        if delivered:
            lane.failures, lane.rests_until = 0, 0.0
        wanted = self._queued.intersection(key for key, _ in batch)
        self._queued -= wanted
        for key, _ in batch[:delivered]:
            self._metrics.notification(lane.name, MessageResult.DELIVERED)
            self._tries.pop(key, None)
        self._taken |= {key for key, _ in batch[:delivered] if key in wanted}
        if why:  # the rest was not tried, and is handed over again
            lane.rests_until = self._clock.time() + RETRY.seconds(lane.failures)
            lane.failures += 1
            self._failed(*batch[0], why=why, again=batch[0][0] in wanted, failures=lane.failures)
        return len(batch)

    def _due_at(self, key: Key, lane: _Lane) -> float:
        tries, due_at = self._tries.get(key, (0, 0.0))
        return max(due_at, lane.rests_until) if tries else due_at

    def _failed(self, key: Key, outgoing: Outgoing, *, why: str, again: bool, failures: int) -> None:
        tries = self._tries.get(key, (0, 0.0))[0]
        late = max(tries + 1, failures) >= PROMPT_TRIES or not again
        if again:
            self._tries[key] = (tries + 1, self._clock.time() + RETRY.seconds(tries))
        self._metrics.report_error(NotDelivered.reason)
        self._metrics.notification(key[2], MessageResult.UNDELIVERED if late else MessageResult.FAILED)
        _LOG.log(
            logging.ERROR if late else logging.WARNING,
            "channel %s, %s of %s: %s; %s",
            *(
                key[2],
                outgoing.message.kind,
                key[0],
                why,
                "again later" if again else "it is over, and not tried again",
            ),
            extra={"reason": NotDelivered.reason, "channel": key[2]},
        )

    def _post(self, report: Report, namespace: str) -> Post:
        facts = _facts(report, namespace)
        return Post(
            f"{namespace}/{name_for(report)}",
            report.messages,
            roles=lambda message: _roles(report, message),
            facts=lambda message: {
                **facts,
                **links(
                    MessageKind.known(message.kind) or MessageKind.NOTICE,
                    {**facts, "incident": report.id},
                    self._wording,
                ),
            },
        )

    def _owed(self, post: Post) -> list[tuple[Key, Message, _Lane]]:
        owed = []
        for message in post.messages:
            roles = post.roles(message)
            for name, lane in self._lanes.items():
                key = (post.whose, _id(message), name)
                if lane.channel.role in roles and name not in message.delivered:
                    owed.append((key, message, lane))
        return owed


def _id(message: Message) -> str:
    return f"{message.kind} {message.at}"


def _noted(message: Message, channel: str) -> Message:
    return replace(message, delivered=(*message.delivered, channel))


def _roles(report: Report, message: Message) -> tuple[str, ...]:
    """The first message goes to who is on call; each escalation reaches one rung higher; the all-clear whoever got one.

    A verification that failed goes to them, to the ML lead in any case, and as high as an escalation that long after the
    breach would: the fallback was acknowledged, and nothing is resolved.
    """
    escalations = [m.at for m in report.messages if m.kind == MessageKind.ESCALATION]
    if message.kind == MessageKind.ALL_CLEAR:
        reached = len(escalations)
    elif message.kind == MessageKind.VERIFICATION_FAILED:
        began = parse_time(report.stages.detected_at) or report.decided_at
        lasted = (parse_time(message.at) or began) - began
        reached = max(1, len(escalations), sum(lasted >= seconds for seconds in ESCALATE_SECONDS))
    else:
        reached = sum(at <= message.at for at in escalations)
    return roles_of(reached)


def roles_of(level: int) -> tuple[str, ...]:
    """Who gets a message that was escalated so often."""
    return _LADDER[: 1 + min(level, len(_LADDER) - 1)]


def _facts(report: Report, namespace: str) -> dict[str, str]:
    return {
        "incident": name_for(report),
        "namespace": namespace,
        "policy": report.policy,
        "severity": str(report.severity),
        "scope": str(report.scope),
        "reason": report.reason,
        "phase": str(report.phase),
    }
