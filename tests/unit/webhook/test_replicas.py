"""Every ready replica of the webhook is asked, over TLS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from precision_operator.admission.known import KnownAssignments
from precision_operator.errors import Forbidden
from precision_operator.kube.port import ENDPOINT_SLICES, JsonObject, JsonValue, Resource
from precision_operator.webhook import replicas
from precision_operator.webhook.keeper import CertificateKeeper
from precision_operator.webhook.replicas import OF_SERVICE, PATIENCE_SECONDS, Replicas
from precision_operator.webhook.server import WebhookServer
from tests.support.bodies import assignment
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock
from tests.support.nobody import nobody
from tests.support.tls import NAMESPACE, SERVICE, kept


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is awaited in vain here: two handshakes may take their time."""
    monkeypatch.setattr(replicas, "ANSWER_SECONDS", 60.0)


def knowing(generation: int) -> KnownAssignments:
    known = KnownAssignments()
    learn(known, generation)
    return known


def learn(known: KnownAssignments, generation: int) -> None:
    metadata = {"name": "fleet", "namespace": "training", "uid": "u"}
    known.observe({**assignment(generation=generation), "metadata": metadata}, deleted=False)


@asynccontextmanager
async def running(keeper: CertificateKeeper, known: KnownAssignments) -> AsyncIterator[int]:
    server = WebhookServer(known, count=lambda _: None)
    yield await server.start(0, keeper.context, host="127.0.0.1")
    await server.stop()


def endpoint(kube: FakeKube, port: int, *, ready: bool | None = True) -> None:
    conditions: JsonObject = {} if ready is None else {"ready": ready}
    endpoints: list[JsonValue] = [{"addresses": ["127.0.0.1"], "conditions": conditions}]
    metadata: JsonObject = {"name": f"s-{port}", "namespace": NAMESPACE, "labels": {OF_SERVICE: SERVICE}}
    kube.put(ENDPOINT_SLICES, {"metadata": metadata, "ports": [{"port": port}], "endpoints": endpoints})


class Learning(ManualClock):
    """Time passes as soon as somebody waits; a replica learns meanwhile."""

    def __init__(self, known: KnownAssignments | None = None) -> None:
        super().__init__()
        self._known = known

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._known is not None:
            learn(self._known, 8)


def asking(kube: FakeKube, keeper: CertificateKeeper, clock: ManualClock | None = None) -> Replicas:
    return Replicas(kube, clock or Learning(), namespace=NAMESPACE, service=SERVICE, trusted=lambda: keeper.trusted)


async def test_nothing_stands_against_it_once_every_replica_knows_the_generation() -> None:
    kube = FakeKube()
    keeper = await kept(kube)
    late = knowing(7)
    async with running(keeper, knowing(8)) as one, running(keeper, late) as two:
        endpoint(kube, one)
        endpoint(kube, two, ready=None)
        assert await asking(kube, keeper, Learning(late)).ask("training", "fleet", generation=8) is None


async def test_a_replica_that_stays_behind_is_named() -> None:
    kube, clock = FakeKube(), Learning()
    keeper = await kept(kube)
    async with running(keeper, knowing(8)) as one, running(keeper, knowing(7)) as two:
        endpoint(kube, one)
        endpoint(kube, two)
        found = await asking(kube, keeper, clock).ask("training", "fleet", generation=8)
        assert found is not None
        assert (found.enforced, found.reason) == (False, "AdmissionBehind")
        assert f"https://127.0.0.1:{two} knows generation 7" in found.message
        assert clock.now - 1_000.0 >= PATIENCE_SECONDS
        began = clock.now
        assert await asking(kube, keeper, clock).ask("training", "fleet", generation=8, awaited=False) is not None
        assert clock.now == began, "asked once, where nothing new is waited for"


async def test_an_assignment_that_a_replica_does_not_know_is_behind() -> None:
    kube = FakeKube()
    keeper = await kept(kube)
    async with running(keeper, KnownAssignments()) as port:
        endpoint(kube, port)
        found = await asking(kube, keeper).ask("training", "fleet", generation=0)
        assert found is not None
        assert found.reason == "AdmissionBehind"


async def test_a_replica_that_is_not_ready_is_not_asked() -> None:
    kube = FakeKube()
    keeper = await kept(kube)
    async with running(keeper, knowing(8)) as one, running(keeper, knowing(1)) as two:
        endpoint(kube, one)
        endpoint(kube, two, ready=False)
        assert await asking(kube, keeper).ask("training", "fleet", generation=8) is None


async def test_a_replica_that_cannot_be_reached_makes_it_unknown_and_says_where_to_look() -> None:
    kube = FakeKube()
    keeper = await kept(kube)
    with nobody() as one:
        endpoint(kube, one)
        found = await asking(kube, keeper).ask("training", "fleet", generation=8)
    assert found is not None
    assert (found.enforced, found.reason) == (None, "WebhookUnreachable")
    assert f"https://127.0.0.1:{one} does not answer" in found.message
    assert f"kubectl get endpointslices -n {NAMESPACE} -l {OF_SERVICE}={SERVICE}" in found.message


async def test_a_server_of_another_authority_is_not_believed() -> None:
    kube, stranger = FakeKube(), await kept(FakeKube())
    keeper = await kept(kube)
    async with running(stranger, knowing(8)) as port:
        endpoint(kube, port)
        found = await asking(kube, keeper).ask("training", "fleet", generation=8)
    assert found is not None
    assert (found.enforced, found.reason) == (None, "WebhookUnreachable")


async def test_before_the_authority_is_known_no_other_is_trusted_in_its_place() -> None:
    kube = FakeKube()
    endpoint(kube, 1)
    unknowing = Replicas(kube, Learning(), namespace=NAMESPACE, service=SERVICE, trusted=lambda: b"")
    found = await unknowing.ask("training", "fleet", generation=8)
    assert found is not None
    assert (found.enforced, "not known yet" in found.message) == (None, True)


async def test_without_a_ready_replica_it_is_unknown() -> None:
    kube = FakeKube()
    found = await asking(kube, await kept(kube)).ask("training", "fleet", generation=8)
    assert found is not None
    assert "no replica is ready" in found.message


async def test_replicas_that_cannot_be_listed_are_unknown() -> None:
    class Refusing(FakeKube):
        async def list(
            self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
        ) -> list[JsonObject]:
            raise Forbidden("no", status=403)

    kube = Refusing()
    found = await asking(kube, await kept(kube)).ask("training", "fleet", generation=8)
    assert found is not None
    assert (found.enforced, found.reason) == (None, "Forbidden")
