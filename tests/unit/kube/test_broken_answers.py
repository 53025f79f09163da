"""What comes back broken, or not at all, has its error."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kubernetes.aio.client import Configuration

from precision_operator.errors import KubeError, TooManyRequests, Unavailable
from precision_operator.kube.client import KubeClient, RequestHook
from precision_operator.kube.port import PODS


@asynccontextmanager
async def _answering(raw: bytes, on_request: RequestHook = lambda *_: None) -> AsyncIterator[KubeClient]:
    """A client of a server that gives every request the same raw answer, or none."""
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if raw:
            writer.write(raw)
            await writer.drain()
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = _client(server.sockets[0].getsockname()[1], on_request)
    yield client
    await client.close()
    server.close()
    for writer in writers:
        writer.close()
        await writer.wait_closed()


def _client(port: int, on_request: RequestHook = lambda *_: None) -> KubeClient:
    host = Configuration(host=f"http://127.0.0.1:{port}")
    return KubeClient(host, timeout_seconds=0.5, on_request=on_request)


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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = _client(port)
    try:
        with pytest.raises(Unavailable):
            await client.get(PODS, "n", "p")
    finally:
        await client.close()


async def test_a_log_that_breaks_off_is_counted_as_every_request_is() -> None:
    counted: list[tuple[str, str, str]] = []
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\n{"
    async with _answering(raw, lambda *request: counted.append(request)) as client:
        with pytest.raises(Unavailable):
            await client.log("n", "p", "trainer", since="2026-01-01T00:00:00Z")
    assert counted == [("get", "pods/log", "Unavailable")]
