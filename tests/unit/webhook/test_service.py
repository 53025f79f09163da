"""When a replica begins to serve admission, and when it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import replace

import pytest

from precision_operator.settings import Settings
from precision_operator.webhook.service import DRAIN_SECONDS, LOOK_SECONDS, Webhook
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock

SETTINGS = Settings(admission=replace(Settings().admission, port=0))


class Replica:
    """A webhook at work."""

    def __init__(self, kube: FakeKube, *, leading: bool, settings: Settings = SETTINGS) -> None:
        self.clock = ManualClock()
        self.synced = False
        self.webhook = Webhook(
            kube,
            self.clock,
            settings=settings,
            leading=lambda: leading,
            synced=lambda: self.synced,
            count=lambda _: None,
        )
        self.task = asyncio.create_task(self.webhook.run())

    async def serves(self) -> bool:
        """Time passes until it does: a port is taken by a thread, in its own time."""
        async with asyncio.timeout(30):
            while not self.webhook.serving:
                await self.clock.advance(LOOK_SECONDS)
        return True

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.webhook.close()


async def test_a_replica_serves_once_everything_is_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    leader = Replica(FakeKube(), leading=True)
    await leader.clock.advance(5)
    assert not leader.webhook.serving
    leader.synced = True
    assert await leader.serves()
    assert "serving admission" in caplog.text
    await leader.end()
    assert not leader.webhook.serving


async def test_a_replica_serves_once_a_leader_has_made_a_certificate() -> None:
    kube = FakeKube()
    follower = Replica(kube, leading=False)
    follower.synced = True
    await follower.clock.advance(5)
    assert not follower.webhook.serving
    leader = Replica(kube, leading=True)
    await leader.clock.advance(1)
    assert await follower.serves()
    await leader.end()
    await follower.end()


async def test_a_replica_serves_on_for_a_moment_after_it_was_asked_to_stop() -> None:
    leader = Replica(FakeKube(), leading=True)
    leader.synced = True
    assert await leader.serves()
    draining = asyncio.create_task(leader.webhook.drain())
    await leader.clock.advance(DRAIN_SECONDS / 2)
    assert not draining.done()
    await leader.clock.advance(DRAIN_SECONDS)
    assert draining.done()
    await leader.end()


async def test_who_never_served_need_not_wait() -> None:
    follower = Replica(FakeKube(), leading=False)
    await asyncio.wait_for(follower.webhook.drain(), timeout=5)
    await follower.end()


async def test_a_taken_port_ends_the_process() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104, RUF100  as the webhook itself
        taken.listen()
        port = taken.getsockname()[1]
        leader = Replica(
            FakeKube(), leading=True, settings=Settings(admission=replace(Settings().admission, port=port))
        )
        leader.synced = True
        await leader.clock.advance(1)
        with pytest.raises(BaseExceptionGroup) as caught:
            await leader.task
    assert caught.group_contains(OSError)
