"""What comes back broken, or not at all, has its error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kubernetes.aio.client import Configuration

from precision_operator.errors import KubeError, TooManyRequests, Unavailable
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import PODS
from precision_operator.kube.transport import RequestHook, Transport
from tests.support.nobody import nobody


@asynccontextmanager
async def _answering(
    *raw: bytes, on_request: RequestHook = lambda *_: None, read_retries: int = 0
) -> AsyncIterator[KubeClient]:
    """A client of a server that gives these raw answers, or none, and the last one to all that ask again."""
    answers = list(raw)
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        said = answers.pop(0) if len(answers) > 1 else answers[0]
        if said:
            writer.write(said)
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host = Configuration(host=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    timeout_seconds = 30.0 if all(raw) else 0.5
    client = KubeClient(
        Transport(host, timeout_seconds=timeout_seconds, on_request=on_request, read_retries=read_retries)
    )
    yield client
    await client.close()
    server.close()
    for writer in writers:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"HTTP/1.1 503 X\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", Unavailable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n<htm", Unavailable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\n{", Unavailable),
        (b"HTTP/1.1 429 X\r\nRetry-After: 7\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", TooManyRequests),
        (b"", Unavailable),
    ],
)
async def test_broken_answers_have_their_error(raw: bytes, error: type[KubeError]) -> None:
    async with _answering(raw) as client:
        with pytest.raises(error) as caught:
            await client.get(PODS, "n", "p")
        if isinstance(caught.value, TooManyRequests):
            assert caught.value.retry_after_seconds == 7


async def test_nobody_there_is_unavailable() -> None:
    with nobody() as port:
        client = KubeClient(Transport(Configuration(host=f"http://127.0.0.1:{port}")))
        try:
            with pytest.raises(Unavailable):
                await client.get(PODS, "n", "p")
        finally:
            await client.close()


async def test_a_log_that_breaks_off_is_counted_as_every_request_is() -> None:
    counted: list[tuple[str, str, str]] = []
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\n{"
    async with _answering(raw, on_request=lambda *request: counted.append(request)) as client:
        with pytest.raises(Unavailable):
            await client.log("n", "p", "trainer", since="2026-01-01T00:00:00Z")
    assert counted == [("get", "pods/log", "Unavailable")]


PUT_OFF = b"HTTP/1.1 429 X\r\nRetry-After: 0\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
FOUND = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@pytest.mark.parametrize("read_retries", [0, 1])
async def test_a_read_that_is_put_off_more_often_than_it_may_be_tried_again_fails(read_retries: int) -> None:
    counted: list[tuple[str, str, str]] = []
    answers = (PUT_OFF, PUT_OFF, FOUND)
    async with _answering(*answers, on_request=lambda *r: counted.append(r), read_retries=read_retries) as client:
        with pytest.raises(TooManyRequests):
            await client.get(PODS, "n", "p")
    assert len(counted) == 1 + read_retries


async def test_a_read_that_is_put_off_is_tried_again_and_each_request_is_counted() -> None:
    counted: list[tuple[str, str, str]] = []
    async with _answering(
        PUT_OFF, FOUND, on_request=lambda *request: counted.append(request), read_retries=2
    ) as client:
        assert await client.get(PODS, "n", "p") == {}
    assert counted == [("get", "pods", "TooManyRequests"), ("get", "pods", "Success")]


@pytest.mark.parametrize(("asked", "pause"), [(b"0", 0.1), (b"1", 1.0), (b"3600", 2.0)])
async def test_a_read_that_is_put_off_waits_as_long_as_it_is_asked_to_within_limits(
    monkeypatch: pytest.MonkeyPatch, asked: bytes, pause: float
) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with _answering(PUT_OFF.replace(b": 0", b": " + asked), FOUND, read_retries=1) as client:
        assert await client.get(PODS, "n", "p") == {}
    assert pauses == [pause]


async def test_a_write_that_is_put_off_is_not_tried_again() -> None:
    counted: list[tuple[str, str, str]] = []
    async with _answering(
        PUT_OFF, FOUND, on_request=lambda *request: counted.append(request), read_retries=2
    ) as client:
        with pytest.raises(TooManyRequests):
            await client.delete(PODS, "n", "p")
    assert counted == [("delete", "pods", "TooManyRequests")]
