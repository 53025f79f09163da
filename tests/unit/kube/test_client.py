"""What the client makes of an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kubernetes.aio.client import Configuration

from precision_operator.errors import Forbidden, TooManyRequests, Unavailable
from precision_operator.kube.answers import error_of
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import PODS
from tests.unit.signals.bodies import http, serve


@asynccontextmanager
async def client(url: str) -> AsyncIterator[KubeClient]:
    configuration = Configuration()
    configuration.host = url
    client = KubeClient(configuration)
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("5", 5.0),
        (None, 1.0),
        ("0", 0.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0),
        ("3600", 60.0),
        ("inf", 60.0),
        ("-1", 0.0),
    ],
)
def test_retry_after_is_obeyed_within_reason(header: str | None, seconds: float) -> None:
    error = error_of("GET /", 429, None, retry_after=header)
    assert isinstance(error, TooManyRequests)
    assert error.retry_after_seconds == seconds


def test_who_denied_a_request_stands_in_the_error_however_long_the_names_are() -> None:
    name = "p" * 253
    said = f"pods \"{name}\" is forbidden: ValidatingAdmissionPolicy 'precision-fence' denied request: " + "x" * 10_000
    error = error_of(f"PATCH https://10.0.0.1/api/v1/namespaces/n/pods/{name}", 403, {"message": said})
    assert isinstance(error, Forbidden)
    assert "'precision-fence'" in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{", b"[" * 100_000, b'{"a":' * 100_000, b"\xff"])
async def test_an_answer_that_is_no_object_is_one_that_did_not_come(body: bytes) -> None:
    with serve(http(body)) as server:
        async with client(server.url) as kube:
            with pytest.raises(Unavailable):
                await kube.get(PODS, "ns", "p")
            with pytest.raises(Unavailable):
                await kube.dry_run(PODS, "ns", "p", {})


async def test_a_dry_run_asks_the_server_that_it_is_sent_to_over_a_connection_of_its_own() -> None:
    with serve(http(b"{}")) as balancer, serve(http(b"{}")) as server:
        async with client(balancer.url) as kube:
            await kube.get(PODS, "ns", "p")
            for _ in range(2):
                await kube.dry_run(PODS, "ns", "p", {}, server=server.url)
            assert (balancer.accepted, server.accepted) == (1, 2)
            for _ in range(2):
                await kube.dry_run(PODS, "ns", "p", {})
            assert (balancer.accepted, server.accepted) == (3, 2)
    assert all("?dryRun=All" in head.splitlines()[0] for head in server.heads)


async def test_nobody_listens() -> None:
    with serve() as server:
        url = server.url
    async with client(url) as kube:
        with pytest.raises(Unavailable):
            await kube.get(PODS, "ns", "p")
        with pytest.raises(Unavailable):
            await kube.dry_run(PODS, "ns", "p", {})
