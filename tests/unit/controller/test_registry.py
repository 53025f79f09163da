"""The seam with kopf: what we rely on of its insides, its settings, and when a list counts as taken in."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import kopf
import pytest
from kopf._cogs.clients import errors, watching
from kopf._cogs.structs import bodies, references
from kopf._core.reactor import queueing

import precision_operator
from precision_operator.controller import streams
from precision_operator.controller.registry import build_registry, configure
from precision_operator.controller.sink import AT_ONCE
from precision_operator.inventory.caches import WATCHED
from precision_operator.kube.port import JsonObject, Resource
from precision_operator.settings import Settings


class Notes:
    def __init__(self) -> None:
        self.said: list[object] = []

    def event(self, resource: Resource, body: JsonObject, *, deleted: bool) -> None:
        self.said.append((resource.plural, deleted))

    def relisted(self, resource: Resource, namespace: str | None, uids: frozenset[str]) -> None:
        self.said.append((resource.plural, namespace, sorted(uids)))

    def alive(self, resource: Resource) -> None:
        self.said.append(resource.plural)


def body(uid: str) -> JsonObject:
    return {"metadata": {"uid": uid, "name": uid, "namespace": "n"}}


async def test_kopf_still_has_what_we_wrap() -> None:
    """If this fails, a new kopf has moved ``infinite_watch``: see controller/streams.py."""
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


def test_one_module_uses_what_kopf_does_not_publish() -> None:
    package = Path(precision_operator.__file__).parent
    assert [str(path.relative_to(package)) for path in package.rglob("*.py") if "kopf._" in path.read_text()] == [
        "controller/streams.py"
    ]


async def test_the_registry_only_listens() -> None:
    registry = build_registry(Notes())
    assert len(registry._watching.get_all_handlers()) == len(WATCHED)
    for nothing in (registry._changing, registry._spawning, registry._indexing, registry._webhooks):
        assert list(nothing.get_all_handlers()) == []
    settings = kopf.OperatorSettings()
    configure(settings, Settings())
    assert settings.peering.standalone
    assert not settings.posting.enabled
    assert settings.scanning.disabled
    assert settings.queueing.worker_limit is None


def stream(*items: streams.StreamItem | Exception) -> Callable[..., AsyncIterator[streams.StreamItem]]:
    """kopf's, without an API server: ends with its first error, or for good."""
    left = list(items)

    async def watch(**_: object) -> AsyncIterator[streams.StreamItem]:
        while left:
            item = left.pop(0)
            if isinstance(item, Exception):
                raise item
            yield item

    return watch


async def watched(
    plural: str, monkeypatch: pytest.MonkeyPatch, *items: streams.StreamItem | Exception
) -> tuple[list[object], list[streams.StreamItem]]:
    """(what the sink was told, what was left to kopf)."""
    notes, settings = Notes(), kopf.OperatorSettings()
    settings.watching.reconnect_backoff = 0
    monkeypatch.setattr(watching, "infinite_watch", watching.infinite_watch)
    monkeypatch.setattr(streams, "_original", stream(*items))
    end = streams.listen(settings, build_registry(notes))
    resource = references.Resource(group="", version="v1", plural=plural, namespaced=True)
    left = [item async for item in watching.infinite_watch(settings=settings, resource=resource, namespace=None)]
    end()
    await asyncio.sleep(0)
    return notes.said, left


def news(kind: str | None, uid: str) -> bodies.RawEvent:
    return cast(bodies.RawEvent, {"type": kind, "object": body(uid)})


LISTED = watching.Bookmark.LISTED


async def test_a_list_is_told_after_its_objects_and_only_bookmarks_are_left_to_kopf(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items: list[streams.StreamItem] = [
        news(None, "a"),
        news(None, "b"),
        LISTED,
        news("MODIFIED", "a"),
        news("BOOKMARK", ""),
        news("DELETED", "b"),
    ]
    said, left = await watched("pods", monkeypatch, *items, LISTED)
    assert said == [
        ("pods", False),
        ("pods", False),
        ("pods", None, ["a", "b"]),
        ("pods", False),
        "pods",
        ("pods", True),
        ("pods", None, []),
    ]
    assert left == [LISTED, LISTED]


async def test_a_list_that_broke_off_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = watching.WatchingError("gone")
    said, _ = await watched("pods", monkeypatch, news(None, "a"), broken, news(None, "b"), LISTED)
    assert said == [("pods", False), ("pods", False), ("pods", None, ["b"])]


@pytest.mark.parametrize(
    "trouble",
    [
        errors.APIServerError(None, status=503, headers={}),
        errors.APITooManyRequestsError(None, status=429, headers={}),
        errors.APIForbiddenError(None, status=403, headers={}),  # an API server that has not read its roles yet
    ],
)
async def test_a_server_that_was_just_started_is_asked_again(
    trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, left = await watched("pods", monkeypatch, LISTED, trouble, trouble, news(None, "b"), LISTED)
    assert (said, left) == ([("pods", None, []), ("pods", False), ("pods", None, ["b"])], [LISTED, LISTED])


@pytest.mark.parametrize(
    "error",
    [errors.APIForbiddenError(None, status=403, headers={}), errors.APINotFoundError(None, status=404, headers={})],
)
async def test_a_refusal_that_lasts_ends_the_watch(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "REFUSED_SECONDS", 0.0)
    with pytest.raises(type(error)):
        await watched("pods", monkeypatch, LISTED, error, news(None, "b"), LISTED)


async def test_what_kopf_watches_for_itself_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    items: list[streams.StreamItem] = [news(None, "a"), LISTED, news("MODIFIED", "a")]
    said, left = await watched("namespaces", monkeypatch, *items)
    assert said == []
    assert left == items


async def test_a_sink_that_fails_is_logged_and_the_next_news_arrive(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Notes):
        def event(self, resource: Resource, body: JsonObject, *, deleted: bool) -> None:
            raise ValueError("boom")

    notes = Failing()
    registry = build_registry(notes)
    registry.event("pods", body("a"), deleted=False)
    registry.alive("pods")
    await asyncio.sleep(0)
    assert notes.said == ["pods"]
    assert "boom" in caplog.text


async def test_news_of_another_thread_arrives_whole_and_in_order_without_stopping_the_loop() -> None:
    class Uids(Notes):
        def event(self, resource: Resource, body: JsonObject, *, deleted: bool) -> None:
            self.said.append(body["uid"])

    notes = Uids()
    registry = build_registry(notes)

    def send() -> None:
        for number in range(3000):
            registry.event("pods", {"uid": number}, deleted=False)

    sender = threading.Thread(target=send)
    sender.start()
    sender.join()
    await asyncio.sleep(0)
    turns = 1
    while len(notes.said) < 3000:
        await asyncio.sleep(0)
        turns += 1
    assert notes.said == list(range(3000))
    assert turns == 3000 / AT_ONCE
