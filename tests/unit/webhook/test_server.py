"""The webhook's server over TLS: whatever comes, the request is allowed."""

from __future__ import annotations

import io
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
import pytest_asyncio

from precision_operator.admission.known import KnownAssignments
from precision_operator.admission.pod import admit
from precision_operator.webhook.server import MAX_BODY_BYTES, WebhookServer
from tests.support.bodies import Json, assignment, container, literal, pod
from tests.support.fake_kube import FakeKube
from tests.support.reviews import applied, patch_of, question, request, review
from tests.support.tls import NAME, kept, trusting

FLEET = assignment("fleet", generation=412, default="fp32")


@dataclass
class Served:
    """A server, and who asks it."""

    session: aiohttp.ClientSession
    url: str
    known: KnownAssignments
    counted: Counter[str]

    async def post(self, body: object) -> Json:
        """The answer to a review; ``bytes`` are sent as they are."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(f"{self.url}/admit", data=io.BytesIO(raw), server_hostname=NAME) as answer:
            assert answer.status == 200
            found: Json = await answer.json()
            return found


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    known, counted = KnownAssignments(), Counter[str]()
    metadata = {"name": "fleet", "namespace": "training", "uid": "u"}
    known.observe({**FLEET, "metadata": metadata}, deleted=False)
    keeper = await kept(FakeKube())
    server = WebhookServer(known, count=lambda result: counted.update([result]))
    port = await server.start(0, keeper.context, host="127.0.0.1")
    connector = aiohttp.TCPConnector(ssl=trusting(keeper))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Served(session, f"https://127.0.0.1:{port}", known, counted)
    await server.stop()
    await server.stop()


async def test_a_new_pod_is_answered_with_a_patch(served: Served) -> None:
    body = pod(container(env=literal("true")))
    answer = await served.post(review(request(body)))
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert answer["response"]["uid"] == "r"
    assert answer["response"]["patchType"] == "JSONPatch"
    assert applied(body, patch_of(answer)) == admit(body, [FLEET])
    assert served.counted == {"Patched": 1}


async def test_a_pod_of_nobody_is_allowed_without_a_patch(served: Served) -> None:
    answer = await served.post(review(request(pod(labels={}))))
    assert answer["response"] == {"uid": "r", "allowed": True}
    assert served.counted == {"Unchanged": 1}


async def test_a_dry_run_is_told_which_generation_is_known(served: Served) -> None:
    (change,) = patch_of(await served.post(review(question("fleet", "5f0c"))))
    assert change["value"] == "5f0c/fleet/412"


DEEP = b'{"request":' + b"[" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(DEEP, id="too deep"),
        pytest.param(b"[" * (MAX_BODY_BYTES + 1), id="too long"),
        pytest.param(b"null", id="null"),
        pytest.param([1], id="a list"),
        pytest.param({"request": "x"}, id="no request"),
        pytest.param(review(request({})), id="no pod"),
        pytest.param(review({**request({}), "object": None}), id="no object"),
        pytest.param(review({**request({}), "uid": 7}), id="a uid that is a number"),
        pytest.param(review(request({"metadata": [], "spec": {"containers": "x"}})), id="fields of other types"),
    ],
)
async def test_whatever_comes_is_allowed_unchanged(served: Served, body: object) -> None:
    answer = await served.post(body)
    assert answer["response"]["allowed"] is True
    assert "patch" not in answer["response"]


async def test_a_fault_of_our_own_is_counted_and_its_text_is_bounded(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(namespace: str) -> None:
        raise RuntimeError("x" * 10_000)

    monkeypatch.setattr(served.known, "of", fail)
    with caplog.at_level(logging.WARNING):
        answer = await served.post(review(request(pod())))
    assert answer["response"] == {"uid": "r", "allowed": True}
    assert served.counted == {"Failed": 1}
    assert "RuntimeError" in caplog.text
    assert len(caplog.text) < 2_000


async def test_a_replica_tells_which_generation_it_knows(served: Served) -> None:
    async def known(path: str) -> tuple[int, Json]:
        async with served.session.get(f"{served.url}/known/{path}", server_hostname=NAME) as answer:
            return answer.status, await answer.json()

    assert await known("training/fleet") == (200, {"generation": 412})
    assert await known("training/other") == (404, {"generation": None})


async def test_a_taken_port_is_an_error(served: Served) -> None:
    keeper = await kept(FakeKube())
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        await WebhookServer(served.known, count=lambda _: None).start(port, keeper.context, host="127.0.0.1")
