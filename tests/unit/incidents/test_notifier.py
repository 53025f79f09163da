"""The notifier: bounded queues, a channel that hangs keeps nobody else waiting, and failures that are seen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from precision_operator.incidents.channels import NotDelivered, Outgoing
from precision_operator.incidents.notifier import AT_ONCE, BATCH, LOOK_AGAIN_SECONDS, PROMPT_TRIES, QUEUE, Notifier
from precision_operator.incidents.report import Message, Report
from precision_operator.observability.metrics import Metrics
from precision_operator.settings import NotificationChannel
from tests.support.reported import WorldClock, rolled_back

FAST, HUNG = NotificationChannel("slack://a/b/c"), NotificationChannel("slack://d/e/f")


@dataclass
class Wire:
    """Channels below the port: one that hangs until it is let go, one that refuses, one that takes all."""

    refuses: bool = False
    taken: list[list[str]] = field(default_factory=list)
    hanging: int = 0
    tries: int = 0
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, channel: NotificationChannel, batch: Sequence[Outgoing]) -> int:
        self.tries += 1
        if channel is HUNG:
            self.hanging += 1
            await self.let_go.wait()
            raise NotDelivered("no answer")
        if self.refuses:
            raise NotDelivered("refused")
        self.taken.append([outgoing.message.subject for outgoing in batch])
        return len(batch)


def messages(count: int) -> tuple[Message, ...]:
    return tuple(
        Message("Notice", f"2026-01-01T00:00:{number:02d}.000Z", f"subject {number}", "body") for number in range(count)
    )


async def a_report(count: int) -> Report:
    return replace((await rolled_back()).report, messages=messages(count))


async def notifier(wire: Wire, channels: dict[str, NotificationChannel]) -> tuple[Notifier, WorldClock, Metrics]:
    clock, metrics = WorldClock((await rolled_back()).world), Metrics()
    return Notifier(channels, metrics=metrics, clock=clock, send=wire.send), clock, metrics


async def test_a_channel_that_hangs_delays_neither_the_reporter_nor_another_channel() -> None:
    wire = Wire()
    found, clock, _ = await notifier(wire, {"a-hung": HUNG, "b-fast": FAST})
    report = found.deliver(await a_report(2 * BATCH), "team")
    changed = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(found.run(changed.set))
        while len(wire.taken) < 2:
            await changed.wait()
            changed.clear()
        assert wire.hanging == 1, "it holds one of the processes, and no more"
        assert wire.hanging < AT_ONCE
        report = found.deliver(report, "team")
        assert {message.delivered for message in report.messages} == {("b-fast",)}
        due = found.due_at(report, "team")
        assert due == clock.time() + LOOK_AGAIN_SECONDS, "what hangs is waited for, not asked for"
        running.cancel()


async def test_messages_of_one_channel_go_in_order_and_few_at_a_time() -> None:
    wire = Wire()
    found, _, _ = await notifier(wire, {"it": FAST})
    report = found.deliver(await a_report(BATCH + 1), "team")
    assert found.deliver(report, "team") is report, "what waits is not handed over twice"
    while await found.turn():
        pass
    assert [len(batch) for batch in wire.taken] == [BATCH, 1]
    assert [subject for batch in wire.taken for subject in batch] == [
        message.subject for message in messages(BATCH + 1)
    ]
    report = found.deliver(report, "team")
    assert found.due_at(report, "team") is None


async def test_a_full_queue_takes_the_rest_later_and_says_so() -> None:
    wire = Wire()
    found, clock, metrics = await notifier(wire, {"it": FAST})
    report = found.deliver(await a_report(QUEUE + 3), "team")
    assert b'precision_notifications_total{channel="it",result="Deferred"} 3.0' in metrics.exposition()
    while await found.turn():
        pass
    report = found.deliver(report, "team")
    clock.world.now += LOOK_AGAIN_SECONDS
    report = found.deliver(report, "team")
    await found.turn()
    report = found.deliver(report, "team")
    assert all(message.delivered == ("it",) for message in report.messages)


async def test_what_fails_is_counted_and_tried_once_in_five_minutes_until_it_is_delivered() -> None:
    wire = Wire(refuses=True)
    found, clock, metrics = await notifier(wire, {"it": FAST})
    report = await a_report(1)
    for _ in range(3 * PROMPT_TRIES):
        report = found.deliver(report, "team")
        await found.turn()
        clock.world.now += 300.0
        await found.turn()
    said = metrics.exposition()
    prompt, late = PROMPT_TRIES - 1, 2 * PROMPT_TRIES + 1
    assert f'precision_notifications_total{{channel="it",result="Failed"}} {prompt}.0'.encode() in said
    assert f'precision_notifications_total{{channel="it",result="Undelivered"}} {late}.0'.encode() in said
    wire.refuses = False
    report = found.deliver(report, "team")
    await found.turn()
    assert found.due_at(found.deliver(report, "team"), "team") is None


async def test_a_channel_that_is_gone_costs_few_tries_however_many_messages_wait_for_it() -> None:
    wire = Wire(refuses=True)
    found, clock, metrics = await notifier(wire, {"it": FAST})
    report = await a_report(QUEUE)

    async def an_hour() -> int:
        before = wire.tries
        for _ in range(360):
            report_now = found.deliver(report, "team")
            while await found.turn():
                report_now = found.deliver(report_now, "team")
            clock.world.now += 10.0
        return wire.tries - before

    await an_hour()
    assert await an_hour() <= 12 * (QUEUE / BATCH + 1), "one round of the queue in five minutes"
    assert b'result="Undelivered"' in metrics.exposition()
    new = replace(report, messages=(replace(report.messages[0], at="2026-01-01T01:00:00.000Z", subject="new"),))
    wire.refuses = False
    found.deliver(new, "other")
    await found.turn()
    assert wire.taken == [["new"]], "what is new waits for no rest of the channel"


async def test_of_an_incident_that_is_over_nothing_stays() -> None:
    for wire in (Wire(), Wire(refuses=True)):
        found, _, _ = await notifier(wire, {"it": FAST})
        report = found.deliver(await a_report(2), "team")
        found.forget(report, "team")
        await found.turn()
        assert (found._queued, found._taken, found._tries) == (set(), set(), {})
