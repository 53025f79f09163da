"""The receiver in the operator process: it starts with its token file, and follows its files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from precision_operator.receiver.server import PATH
from precision_operator.receiver.service import LOOK_SECONDS, Receiver
from precision_operator.settings import ReceiverSettings
from precision_operator.webhook.certificates import new_authority, new_leaf
from tests.support.manual_clock import ManualClock
from tests.support.tls import NAME, WallClock

TOKEN = "t" * 32


def receiver(clock: ManualClock, settings: ReceiverSettings) -> Receiver:
    async def receive(_: object) -> int:
        return 0

    return Receiver(settings, clock, leading=lambda: True, receive=receive, count=lambda _: None)


@asynccontextmanager
async def running(part: Receiver) -> AsyncIterator[None]:
    task = asyncio.create_task(part.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await part.close()


async def asked(part: Receiver) -> int:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session,
        session.post(f"http://127.0.0.1:{part.port}{PATH}", json={}) as answer,
    ):
        return answer.status


async def test_without_a_token_file_it_does_not_start_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    part = receiver(ManualClock(), ReceiverSettings(port=0))
    with caplog.at_level(logging.INFO):
        await part.run()
    assert part.port is None
    assert [record.message for record in caplog.records] == ["no alerts are received: receiver.tokenFile is not set"]


async def test_it_starts_when_the_token_comes_and_refuses_all_when_it_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, file = ManualClock(), tmp_path / "token"
    part = receiver(clock, ReceiverSettings(port=0, token_file=str(file)))
    async with running(part):
        await clock.advance(10 * LOOK_SECONDS)
        assert part.port is None
        assert len(caplog.records) == 1, "said once"
        file.write_text(TOKEN)
        await clock.advance(LOOK_SECONDS)
        assert await asked(part) == 200
        file.unlink()
        await clock.advance(LOOK_SECONDS)
        assert await asked(part) == 401


def test_a_certificate_is_read_again_and_a_bad_one_leaves_the_last_in_place(tmp_path: Path) -> None:
    authority = new_authority(WallClock().time(), 86400)
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    (tmp_path / "token").write_text(TOKEN)
    part = receiver(
        ManualClock(),
        ReceiverSettings(
            token_file=str(tmp_path / "token"), certificate_file=str(files[0]), key_file=str(files[1]), port=0
        ),
    )
    assert not part.look(), "no certificate yet: never plain instead"
    for content, good in ((None, True), (b"nonsense", False), (None, True)):
        leaf = new_leaf(authority, [NAME], now=WallClock().time(), seconds=3600)
        files[0].write_bytes(content or leaf.certificate)
        files[1].write_bytes(leaf.key)
        assert part.look() is good
