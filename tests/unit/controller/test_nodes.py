"""Which nodes a person labelled: read when asked for, seldom, and never at the cost of a pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from precision_operator.controller.nodes import (
    ASKED_LIMIT,
    ASKED_SECONDS,
    AT_ONCE,
    AWAY_FRESH_SECONDS,
    FRESH_SECONDS,
    Nodes,
)
from precision_operator.errors import Forbidden, KubeError
from precision_operator.kube.port import NODES, JsonObject, Resource
from precision_operator.kube.transport import READ_CONNECTIONS
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock, finished

LABEL = "fp16=disabled"


class Refusing(FakeKube):
    """Without the right to list nodes."""

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        await super().list(resource, namespace, label_selector=label_selector, most_bytes=most_bytes)
        raise Forbidden("nodes is forbidden", status=403)

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        self.reads.append(("get", resource.plural, name))
        raise Forbidden("nodes is forbidden", status=403)


class Slow(FakeKube):
    """Each answer takes a second, or as long as is said of that node."""

    def __init__(self, clock: ManualClock, **seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds
        self.most = self.now = 0

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self._clock.sleep(self._seconds.get(name, 1.0))
        finally:
            self.now -= 1
        return await super().get(resource, namespace, name)


def node(fake: FakeKube, name: str, **labels: str) -> None:
    fake.put(NODES, {"metadata": {"name": name, "namespace": "", "labels": dict(labels)}})


async def test_labelled_nodes_are_read_once_a_minute_at_most() -> None:
    fake, clock = FakeKube(), ManualClock()
    node(fake, "b", fp16="disabled")
    node(fake, "a", fp16="disabled")
    node(fake, "c", fp16="enabled")
    nodes = Nodes(fake, clock)
    assert [await nodes.names(LABEL) for _ in range(3)] == [("a", "b")] * 3
    assert fake.reads == [("list", "nodes", LABEL)]
    node(fake, "c", fp16="disabled")
    await clock.advance(FRESH_SECONDS)
    assert await nodes.names(LABEL) == ("a", "b", "c")
    for number in range(100):
        await nodes.names(f"label-{number}=x")
    await clock.advance(FRESH_SECONDS)
    await nodes.names(LABEL)
    assert len(nodes._known) == 1, "labels that no policy asks for any more are forgotten"


async def test_where_they_may_not_be_read_there_are_none_and_the_log_says_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake, clock = Refusing(), ManualClock()
    nodes = Nodes(fake, clock)
    assert [await nodes.names(LABEL) for _ in range(3)] == [()] * 3
    (said,) = (record for record in caplog.records if "rbac.nodes" in record.getMessage())
    assert said.__dict__["reason"] == "Forbidden"
    assert len(fake.reads) == 1


def kubelet(fake: FakeKube, name: str, *, ready: str) -> None:
    status: JsonObject = {
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    }
    fake.put(NODES, {"metadata": {"name": name, "namespace": "", "labels": {}}, "status": status})


async def test_nodes_whose_kubelets_do_not_report_are_away() -> None:
    fake, clock = FakeKube(), ManualClock()
    for name, ready in (("a", "True"), ("b", "Unknown"), ("c", "False"), ("d", "Unknown")):
        kubelet(fake, name, ready=ready)
    nodes = Nodes(fake, clock)
    assert await nodes.away([]) == frozenset()
    assert fake.reads == [], "nobody is late"
    assert [await nodes.away(["a", "b", "c"]) for _ in range(3)] == [frozenset("bc")] * 3
    assert len(fake.reads) == 3
    assert await nodes.away(["d"]) == frozenset("d"), "another node is asked for at once"
    kubelet(fake, "d", ready="True")
    await clock.advance(AWAY_FRESH_SECONDS)
    assert await nodes.away(["d"]) == frozenset()


@pytest.mark.parametrize("other", ["n" * 100, "gone"])
async def test_a_name_that_is_no_nodes_hides_no_lost_node_beside_it(other: str) -> None:
    fake = FakeKube()
    kubelet(fake, "lost", ready="Unknown")
    assert await Nodes(fake, ManualClock()).away([other, "lost"]) == frozenset(["lost"])


async def test_a_node_whose_answer_fails_hides_no_lost_node_beside_it() -> None:
    class Failing(FakeKube):
        async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
            if name == "a":
                raise KubeError("400", status=400)
            return await super().get(resource, namespace, name)

    fake = Failing()
    kubelet(fake, "lost", ready="Unknown")
    assert await Nodes(fake, ManualClock()).away(["a", "lost"]) == frozenset(["lost"])


async def test_few_nodes_are_asked_for_at_once_and_what_is_left_by_the_next_pass() -> None:
    clock = ManualClock()
    fake, names = Slow(clock), [f"node-{number:03}" for number in range(2 * ASKED_LIMIT)]
    for name in names:
        kubelet(fake, name, ready="Unknown")
    nodes, began = Nodes(fake, clock), clock.now
    known = [len(await finished(clock, nodes.away(names))) for _ in range(2)]
    assert clock.now - began == pytest.approx(2 * ASKED_SECONDS, abs=0.2)
    assert 0 < known[0] < known[1]
    assert 1 < fake.most <= AT_ONCE < READ_CONNECTIONS
    assert {name for _, _, name in fake.reads} < set(names[:ASKED_LIMIT])


async def test_one_answer_that_does_not_come_costs_no_other() -> None:
    clock = ManualClock()
    fake = Slow(clock, hangs=1e9)
    for name in ("hangs", "lost"):
        kubelet(fake, name, ready="Unknown")
    assert await finished(clock, Nodes(fake, clock).away(["hangs", "lost"])) == frozenset(["lost"])


async def test_where_nodes_may_not_be_read_none_is_known_to_be_away_and_few_are_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake = Refusing()
    assert await Nodes(fake, ManualClock()).away([f"node-{number}" for number in range(20)]) == frozenset()
    assert len(fake.reads) <= AT_ONCE
    assert [record.__dict__["reason"] for record in caplog.records] == ["Forbidden"]
