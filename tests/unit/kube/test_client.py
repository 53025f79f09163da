"""What the client makes of an answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kubernetes.aio.client import Configuration

from precision_operator.errors import AnswerTooLarge, DisruptionBudget, Forbidden, TooManyRequests, Unavailable
from precision_operator.kube.answers import MESSAGE_LIMIT, error_of
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import EVENTS_LIMIT, JOBS, PODS, Deletion, JsonObject, Operation
from precision_operator.kube.transport import Transport
from tests.support.nobody import nobody
from tests.support.prometheus_bodies import http, serve


@asynccontextmanager
async def client(url: str) -> AsyncIterator[KubeClient]:
    configuration = Configuration()
    configuration.host = url
    client = KubeClient(Transport(configuration))
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
    assert len(str(error)) < MESSAGE_LIMIT + 400


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


NEEDS = "The disruption budget train needs 2 healthy pods and has 2 currently"


def too_many(*causes: JsonObject) -> JsonObject:
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return {"reason": "TooManyRequests", "message": message, "details": {"causes": list(causes)}}


@pytest.mark.parametrize(
    ("status", "body", "budget"),
    [
        (429, too_many({"reason": "DisruptionBudget", "message": NEEDS}), NEEDS),
        (429, too_many({"reason": "DisruptionBudget"}), ""),
        (429, too_many({"reason": "Other", "message": NEEDS}), None),
        (429, too_many(), None),
        (429, {"message": "too many requests, please try again later"}, None),
        (500, {"message": "This pod has more than one PodDisruptionBudget, which is not supported."}, "more than one"),
        (500, {"message": "etcdserver: request timed out"}, None),
        (429, {"details": {"causes": [{"reason": "DisruptionBudget", "message": 7}]}}, ""),
        (429, {"details": "x"}, None),
    ],
)
def test_a_budget_that_refuses_an_eviction_is_no_server_that_is_busy(
    status: int, body: JsonObject, budget: str | None
) -> None:
    error = error_of("POST /", status, body)
    assert isinstance(error, DisruptionBudget) == (budget is not None)
    if isinstance(error, DisruptionBudget):
        assert (budget or "") in error.budget
        assert error.budget in str(error)
    else:
        assert isinstance(error, TooManyRequests if status == 429 else Unavailable)


async def test_an_eviction_names_the_pod_and_what_must_be_true_of_it() -> None:
    with serve(http(b"{}")) as server:
        async with client(server.url) as kube:
            await kube.evict("ns", "p", Deletion(uid="u"))
            await kube.evict("ns", "p", Deletion(uid="u", dry_run=True))
    assert [head.splitlines()[0] for head in server.heads] == [
        "POST /api/v1/namespaces/ns/pods/p/eviction HTTP/1.1",
        "POST /api/v1/namespaces/ns/pods/p/eviction?dryRun=All HTTP/1.1",
    ]


async def test_every_patch_says_who_manages_what_it_writes() -> None:
    with serve(http(b"{}")) as server:
        async with client(server.url) as kube:
            await kube.json_patch(JOBS, "ns", "j", [Operation("replace", "/spec/suspend", True)])
            await kube.merge_patch(PODS, "ns", "p", {})
            await kube.merge_patch(PODS, "ns", "p", {}, subresource="status")
            await kube.dry_run(PODS, "ns", "p", {})
    assert len(server.heads) == 4
    assert all("fieldManager=precision-operator" in head.splitlines()[0] for head in server.heads)


async def test_events_of_one_object_are_selected_by_the_server_and_bounded() -> None:
    with serve(http(b'{"items": [{"reason": "Promoted"}]}')) as server:
        async with client(server.url) as kube:
            assert await kube.events_of("ns", "uid-1") == [{"reason": "Promoted"}]
    (head,) = server.heads
    assert head.startswith(
        f"GET /api/v1/namespaces/ns/events?fieldSelector=involvedObject.uid%3Duid-1&limit={EVENTS_LIMIT} "
    )


async def test_nobody_listens() -> None:
    with nobody() as port:
        async with client(f"http://127.0.0.1:{port}") as kube:
            with pytest.raises(Unavailable):
                await kube.get(PODS, "ns", "p")
            with pytest.raises(Unavailable):
                await kube.dry_run(PODS, "ns", "p", {})


async def test_of_large_bodies_the_metadata_alone_is_asked_for() -> None:
    with serve(http(b'{"items": [{"metadata": {"name": "p"}}]}')) as server:
        async with client(server.url) as kube:
            assert await kube.list_metadata(PODS, "ns", label_selector="a=b") == [{"metadata": {"name": "p"}}]
    (head,) = server.heads
    assert "/pods?labelSelector=a%3Db " in head
    assert "as=PartialObjectMetadataList" in head


async def test_a_list_that_is_longer_than_was_asked_for_is_not_read() -> None:
    body = b'{"items": [{"spec": {}}]}'
    with serve(http(body)) as server:
        async with client(server.url) as kube:
            assert await kube.list(PODS, "ns", most_bytes=len(body)) == [{"spec": {}}]
            with pytest.raises(AnswerTooLarge):
                await kube.list(PODS, "ns", most_bytes=len(body) - 1)
