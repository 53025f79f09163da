"""The status is written as the difference to what stands; a write that hangs holds nothing up, and a later pass makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from precision_operator.api.state import Phase
from precision_operator.controller.act import PATIENCE_SECONDS
from precision_operator.controller.committer import LEAST_SECONDS
from precision_operator.controller.reconcile import Pass
from precision_operator.controller.summaries import difference
from precision_operator.errors import Unavailable
from precision_operator.kube.port import JsonObject
from tests.support.controller import KEY
from tests.support.manual_clock import finished, late
from tests.support.reconciling import FAST, NAMES, OVERFLOW, Rig, promoted

HANGS_SECONDS = 10.0


def hang(rig: Rig, monkeypatch: pytest.MonkeyPatch, seconds: float = HANGS_SECONDS) -> None:
    monkeypatch.setattr(rig.kube, "merge_patch", late(rig.manual, seconds, rig.kube.merge_patch))


async def taken(rig: Rig) -> tuple[float, Pass]:
    began = rig.manual.monotonic()
    ended = await rig.go()
    assert ended is not None
    return rig.manual.monotonic() - began, ended


def cut_off(ended: Pass) -> bool:
    return [type(failure) for failure in ended.failures] == [Unavailable]


async def test_a_status_that_hangs_gives_way_and_is_written_by_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.fleet(*NAMES, **FAST)
    await rig.until(lambda: rig.assigned)
    with monkeypatch.context() as hung:
        hang(rig, hung)
        for _ in range(20):
            seconds, ended = await taken(rig)
            assert seconds <= PATIENCE_SECONDS + LEAST_SECONDS
            if rig.pod_writes:
                break
            await rig.manual.advance(1.0)
        assert cut_off(ended), "which brings the next pass soon"
        assert rig.summary.phase.value == "Pending"
    await rig.go()
    assert rig.summary.phase is Phase.PROGRESSING


async def test_a_status_that_hangs_holds_the_rounds_of_a_rollback_up_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = await promoted()
    hang(rig, monkeypatch)
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    for _ in range(20):
        await rig.manual.advance(5.0)
        seconds, ended = await taken(rig)
        if rig.state.phase is Phase.ROLLING_BACK:
            break
    assert seconds == pytest.approx(PATIENCE_SECONDS, abs=0.2)
    assert cut_off(ended)
    assert ended.urgent


async def test_a_first_status_that_hangs_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.fleet("a")
    rig.watch()
    hang(rig, monkeypatch)
    began = rig.manual.monotonic()
    ended = await finished(rig.manual, rig.reconciler.reconcile(KEY))
    assert rig.manual.monotonic() - began == pytest.approx(PATIENCE_SECONDS, abs=0.1)
    assert ended is not None
    assert cut_off(ended)


async def test_a_status_that_arrives_after_the_next_one_is_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.fleet("a", **FAST)
    merge_patch, arriving = rig.kube.merge_patch, list[Callable[[], Awaitable[object]]]()

    async def answers_never(*given: object, **options: object) -> None:
        arriving.append(lambda: merge_patch(*given, **options))  # type: ignore[arg-type]
        await asyncio.Event().wait()

    with monkeypatch.context() as hung:
        hung.setattr(rig.kube, "merge_patch", answers_never)
        await rig.go()
    await rig.until(lambda: rig.assigned and rig.state.phase is Phase.HEALTHY)
    await rig.go()
    await arriving[0]()
    assert rig.summary.phase.value == "Pending"
    await rig.go()
    assert rig.summary.phase is Phase.HEALTHY


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, {"a": {"c": 3}}),
        ({"a": {"b": 1}}, {"a": {}}, {"a": {"b": None}}),
        ({"a": [1, 2]}, {"a": [1]}, {"a": [1]}),
        ({"a": 1}, {}, {"a": None}),
        ({}, {"a": {"b": 1}}, {"a": {"b": 1}}),
    ],
)
def test_a_merge_patch_holds_what_changed(old: JsonObject, new: JsonObject, patch: JsonObject) -> None:
    assert difference(old, new) == patch
