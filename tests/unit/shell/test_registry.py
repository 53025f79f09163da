"""The seam with kopf: what we rely on of its insides, its settings, and when a list counts as taken in."""

from __future__ import annotations

import asyncio
import inspect

import kopf
import pytest
from kopf._cogs.clients import watching
from kopf._core.reactor import queueing

from precision_operator.kube.port import JsonObject
from precision_operator.settings import Settings
from precision_operator.shell import streams
from precision_operator.shell.inventory import Kind
from precision_operator.shell.registry import build_registry, configure


class Notes:
    def __init__(self) -> None:
        self.said: list[object] = []

    def event(self, kind: Kind, body: JsonObject, *, deleted: bool) -> None:
        self.said.append((kind.value, deleted))

    def relisted(self, kind: Kind, namespace: str | None, uids: frozenset[str]) -> None:
        self.said.append((kind.value, namespace, sorted(uids)))

    def alive(self, kind: Kind) -> None:
        self.said.append(kind.value)


def body(uid: str) -> JsonObject:
    return {"metadata": {"uid": uid, "name": uid, "namespace": "n"}}


async def test_kopf_still_has_what_we_wrap() -> None:
    """If this fails, a new kopf has moved ``infinite_watch``: see shell/streams.py."""
    assert inspect.isasyncgenfunction(watching.infinite_watch)
    assert list(inspect.signature(streams._original).parameters) == [
        "settings",
        "resource",
        "namespace",
        "operator_paused",
        "_iterations",
    ]
    assert "watching.infinite_watch(" in inspect.getsource(queueing.watcher)
    assert watching.Bookmark.LISTED


async def test_the_registry_only_listens() -> None:
    registry = build_registry(Notes(), Settings())
    assert len(registry._watching.get_all_handlers()) == len(Kind)
    for nothing in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(nothing.get_all_handlers()) == []
    settings = kopf.OperatorSettings()
    configure(settings, Settings())
    assert settings.peering.standalone
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.queueing.worker_limit is None


async def test_kopf_makes_no_copy_of_a_body() -> None:
    settings = kopf.OperatorSettings()
    configure(settings, Settings())
    storage = settings.persistence.diffbase_storage
    body = kopf.Body({"metadata": {"name": "a"}, "spec": {"replicas": 1}})
    assert storage.build(body=body) == {}
    assert storage.fetch(body=body) is None
    patch = kopf.Patch()
    storage.store(body=body, patch=patch, essence=storage.build(body=body))
    assert not patch


async def test_a_list_counts_once_all_of_it_was_handled() -> None:
    notes = Notes()
    registry = build_registry(notes, Settings())
    registry.listing("pods", None, "a")
    registry.listing("pods", None, "b")
    registry.handled(Kind.PODS, body("a"), deleted=False)
    registry.listed("pods", None)
    registry.handled(Kind.PODS, body("new"), deleted=False)
    await asyncio.sleep(0)
    assert notes.said == [("pods", False), ("pods", False)]
    registry.handled(Kind.PODS, body("b"), deleted=False)
    registry.handled(Kind.PODS, body("c"), deleted=False)
    await asyncio.sleep(0)
    assert notes.said[2:] == [("pods", False), ("pods", None, ["a", "b", "new"]), ("pods", False)]


async def test_an_empty_list_counts_at_once_and_other_kinds_do_not_count() -> None:
    notes = Notes()
    registry = build_registry(notes, Settings())
    registry.listed("pods", "n")
    registry.listed("namespaces", None)
    registry.alive("namespaces")
    registry.alive("deployments")
    await asyncio.sleep(0)
    assert notes.said == [("pods", "n", []), "deployments"]


async def test_a_sink_that_fails_is_logged_and_the_next_news_arrive(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Notes):
        def event(self, kind: Kind, body: JsonObject, *, deleted: bool) -> None:
            raise ValueError("boom")

    notes = Failing()
    registry = build_registry(notes, Settings())
    registry.handled(Kind.PODS, body("a"), deleted=False)
    registry.alive("pods")
    await asyncio.sleep(0)
    assert notes.said == ["pods"]
    assert "boom" in caplog.text
