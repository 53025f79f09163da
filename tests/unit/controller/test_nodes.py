"""Which nodes a person labelled: read when asked for, seldom, and never at the cost of a pass."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from precision_operator.controller.nodes import AWAY_FRESH_SECONDS, FRESH_SECONDS, Nodes
from precision_operator.errors import Forbidden
from precision_operator.kube.port import NODES, JsonObject, Resource
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock

LABEL = "fp16=disabled"


class Refusing(FakeKube):
    """Without the right to list nodes."""

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        await super().list(resource, namespace, label_selector=label_selector, most_bytes=most_bytes)
        raise Forbidden("nodes is forbidden", status=403)


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


HOSTNAME = "kubernetes.io/hostname"


def kubelet(fake: FakeKube, name: str, *, ready: str) -> None:
    status: JsonObject = {
        "conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]
    }
    fake.put(NODES, {"metadata": {"name": name, "namespace": "", "labels": {HOSTNAME: name}}, "status": status})


async def test_nodes_whose_kubelets_do_not_report_are_away() -> None:
    fake, clock = FakeKube(), ManualClock()
    for name, ready in (("a", "True"), ("b", "Unknown"), ("c", "False"), ("d", "Unknown")):
        kubelet(fake, name, ready=ready)
    nodes = Nodes(fake, clock)
    assert await nodes.away([]) == frozenset()
    assert fake.reads == [], "nobody is late"
    assert [await nodes.away(["a", "b", "c"]) for _ in range(3)] == [frozenset("bc")] * 3
    assert len(fake.reads) == 1
    assert await nodes.away(["d"]) == frozenset("d"), "another node is asked for at once"
    kubelet(fake, "d", ready="True")
    await clock.advance(AWAY_FRESH_SECONDS)
    assert await nodes.away(["d"]) == frozenset()


async def test_where_nodes_may_not_be_read_none_is_known_to_be_away() -> None:
    assert await Nodes(Refusing(), ManualClock()).away(["a"]) == frozenset()
