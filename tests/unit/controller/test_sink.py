"""Where watch news go."""

from __future__ import annotations

from precision_operator.admission.known import KnownAssignments
from precision_operator.controller.sink import InventorySink
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.port import ASSIGNMENTS, PODS, POLICIES
from tests.support import objects as b
from tests.support.bodies import Json, assignment


def sink(known: KnownAssignments | None) -> InventorySink:
    return InventorySink(Inventory(), enqueue=lambda key: None, heartbeat=lambda name: None, known=known)


def stored(name: str, uid: str) -> Json:
    return {**assignment(name), "metadata": {"name": name, "namespace": "default", "uid": uid}}


def test_admission_by_webhook_learns_of_assignments_and_of_nothing_else() -> None:
    known = KnownAssignments()
    news = sink(known)
    for name, uid in (("a", "1"), ("b", "2"), ("c", "3")):
        news.event(ASSIGNMENTS, stored(name, uid), deleted=False)
    news.event(POLICIES, b.policy(), deleted=False)
    news.event(ASSIGNMENTS, stored("a", "1"), deleted=True)
    assert [slim["metadata"] for slim in known.of("default")] == [{"name": "b"}, {"name": "c"}]
    news.relisted(PODS, None, frozenset())
    news.relisted(ASSIGNMENTS, None, frozenset({"3"}))
    assert [slim["metadata"] for slim in known.of("default")] == [{"name": "c"}]


def test_without_a_webhook_no_assignment_is_kept_for_it() -> None:
    sink(None).event(ASSIGNMENTS, stored("a", "1"), deleted=False)
