"""What is kept of the assignments that the watch reports."""

from __future__ import annotations

from precision_operator.admission.known import KnownAssignments
from tests.support.bodies import Json, assignment


def stored(name: str, *, namespace: str = "training", uid: str = "u", **fields: object) -> Json:
    body = {**assignment(name), **fields}
    return {**body, "metadata": {"name": name, "namespace": namespace, "uid": uid}, "state": {"phase": "Held"}}


def names(known: KnownAssignments, namespace: str = "training") -> list[object]:
    return [slim["metadata"] for slim in known.of(namespace)]


def test_of_an_assignment_only_what_admission_reads_is_kept() -> None:
    known = KnownAssignments()
    indexes = {"apps/StatefulSet/vit": 3}
    known.observe(stored("fleet", generation=7, default="fp32", indexes=indexes, indexMode="fp16"), deleted=False)
    (slim,) = known.of("training")
    assert set(slim) == {"metadata", "selector", "generation", "default", "indexes", "indexMode", "enforce"}
    assert slim["metadata"] == {"name": "fleet"}
    assert known.generation("training", "fleet") == 7
    assert known.of("elsewhere") == ()


def test_an_edit_replaces_it_and_a_deletion_removes_it() -> None:
    known = KnownAssignments()
    known.observe(stored("fleet", generation=7), deleted=False)
    known.observe(stored("fleet", generation=8), deleted=False)
    assert known.generation("training", "fleet") == 8
    known.observe(stored("fleet"), deleted=True)
    assert known.generation("training", "fleet") is None
    assert known.of("training") == ()


def test_a_late_deletion_of_an_earlier_one_leaves_the_one_of_its_name() -> None:
    known = KnownAssignments()
    known.observe(stored("fleet", uid="new"), deleted=False)
    known.observe(stored("fleet", uid="old"), deleted=True)
    assert names(known) == [{"name": "fleet"}]


def test_what_a_list_lacks_is_gone() -> None:
    known = KnownAssignments()
    for name, namespace, uid in (("a", "training", "1"), ("b", "training", "2"), ("c", "other", "3")):
        known.observe(stored(name, namespace=namespace, uid=uid), deleted=False)
    known.relisted("training", {"2"})
    assert names(known) == [{"name": "b"}]
    assert names(known, "other") == [{"name": "c"}], "another namespace's list says nothing of it"
    known.relisted(None, {"3"})
    assert (known.of("training"), names(known, "other")) == ((), [{"name": "c"}])
