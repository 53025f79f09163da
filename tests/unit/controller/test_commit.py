"""How the record and the summary are written: conditionally, and only where something changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from precision_operator.api.assignment import parse_assignment
from precision_operator.api.conditions import Condition
from precision_operator.api.gain import Gain, Measured
from precision_operator.api.modes import Mode
from precision_operator.api.policy import PolicyKey
from precision_operator.api.selector import Selector
from precision_operator.api.state import Phase, State
from precision_operator.api.summary import Summary, parse_summary
from precision_operator.controller.commit import commit, remove
from precision_operator.controller.summaries import write_summary
from precision_operator.errors import Conflict
from precision_operator.kube.port import ASSIGNMENTS, POLICIES, JsonObject, JsonValue, Resource
from tests.support.fake_kube import FakeKube
from tests.support.views import key, keys

KEY = PolicyKey("ns", "fleet")
STATE = State(
    selector=Selector((("app", "train"),)),
    generation=3,
    modes={key("a"): Mode.FP16, key("b"): Mode.FP16},
    changed={key("a"): 3, key("b"): 2},
    members=keys("a", "b"),
    enforce=True,
    phase=Phase.HEALTHY,
    precision=Mode.FP16,
)


async def stored(kube: FakeKube) -> JsonObject:
    return await kube.get(ASSIGNMENTS, "ns", "fleet")


async def committed(state: State = STATE) -> tuple[FakeKube, JsonObject]:
    kube = FakeKube()
    assert await commit(kube, KEY, None, State(), state)
    kube.writes.clear()
    return kube, await stored(kube)


async def test_the_first_commit_creates_the_assignment_with_nothing_that_could_hold_it() -> None:
    kube = FakeKube()
    assert await commit(kube, KEY, None, State(), STATE)
    assert kube.writes == [("create", "precisionassignments", "fleet")]
    body: Any = await stored(kube)
    assert parse_assignment(body) == STATE
    assert (body["apiVersion"], body["kind"]) == ("precision.genesis.ai/v1alpha1", "PrecisionAssignment")
    assert set(body["metadata"]) == {"name", "namespace", "uid", "resourceVersion"}


async def test_a_first_commit_that_changes_nothing_creates_it_too() -> None:
    kube = FakeKube()
    assert await commit(kube, KEY, None, STATE, STATE)
    assert parse_assignment(await stored(kube)) == STATE


async def test_an_assignment_that_came_meanwhile_is_not_overwritten() -> None:
    kube, _ = await committed()
    with pytest.raises(Conflict):
        await commit(kube, KEY, None, State(), replace(STATE, generation=9))
    assert parse_assignment(await stored(kube)) == STATE


async def test_a_change_is_written_whole() -> None:
    kube, body = await committed()
    after = replace(STATE, generation=4, modes={}, members=keys("b"), phase=Phase.ROLLING_BACK)
    assert await commit(kube, KEY, body, STATE, after)
    assert kube.writes == [("update", "precisionassignments", "fleet")]
    assert parse_assignment(await stored(kube)) == after


async def test_only_what_was_read_is_replaced() -> None:
    kube, body = await committed()
    other = replace(STATE, generation=4)
    assert await commit(kube, KEY, body, STATE, other)
    with pytest.raises(Conflict):
        await commit(kube, KEY, body, STATE, replace(STATE, generation=5))
    assert parse_assignment(await stored(kube)) == other


async def test_an_assignment_that_was_deleted_meanwhile_is_not_made_again() -> None:
    kube, body = await committed()
    kube.objects.clear()
    with pytest.raises(Conflict):
        await commit(kube, KEY, body, STATE, replace(STATE, generation=4))
    assert kube.objects == {}


async def test_what_is_equal_is_not_written() -> None:
    kube, body = await committed()
    assert not await commit(kube, KEY, body, STATE, STATE)
    # Read otherwise, and meant the same.
    assert not await commit(kube, KEY, body, replace(STATE, generation=2), STATE)
    assert kube.writes == []


async def test_labels_and_annotations_of_others_stay() -> None:
    kube, body = await committed()
    theirs: Any = {"labels": {"backup": "yes"}, "annotations": {"note": "mine"}}
    assert isinstance(body["metadata"], dict)
    kube.put(ASSIGNMENTS, {**body, "metadata": {**body["metadata"], **theirs}})
    await commit(kube, KEY, await stored(kube), STATE, replace(STATE, generation=4))
    after: Any = await stored(kube)
    assert after["metadata"] | theirs == after["metadata"]
    assert after["generation"] == 4


async def test_only_the_assignment_that_was_read_is_deleted() -> None:
    kube, body = await committed()
    await commit(kube, KEY, body, STATE, replace(STATE, generation=4))
    with pytest.raises(Conflict):
        await remove(kube, KEY, body)
    await remove(kube, KEY, await stored(kube))
    assert kube.objects == {}
    await remove(kube, KEY, body)
    kube.put(ASSIGNMENTS, {"metadata": {"namespace": "ns", "name": "fleet", "uid": "its-successor"}})
    with pytest.raises(Conflict):
        await remove(kube, KEY, body)


SUMMARY = Summary(
    observed_generation=1,
    phase=Phase.HEALTHY,
    reason="Promoted",
    message="as it should be",
    total=2,
    moved=2,
    unacknowledged=("a",),
    conditions=(Condition("Healthy", "True", "Healthy", "", 1, 1_700_000_000.0),),
    assignment="fleet",
)


class Patches(FakeKube):
    """Keeps what is patched."""

    def __init__(self) -> None:
        super().__init__()
        self.patches: list[JsonObject] = []
        self.put(POLICIES, {"metadata": {"namespace": "ns", "name": "fleet"}, "spec": {"suspend": False}})

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, subresource: str = ""
    ) -> JsonObject:
        self.patches.append(dict(body))
        return await super().merge_patch(resource, namespace, name, body, subresource=subresource)

    async def summarize(self, summary: Summary) -> bool:
        return await write_summary(self, KEY, await self.get(POLICIES, "ns", "fleet"), summary)


async def test_a_summary_is_written_where_it_changed_and_nothing_else_of_the_policy() -> None:
    kube = Patches()
    assert await kube.summarize(SUMMARY)
    assert not await kube.summarize(SUMMARY)
    assert await kube.summarize(replace(SUMMARY, message="another"))
    assert kube.patches[1:] == [{"status": {"message": "another"}}]
    body: Any = await kube.get(POLICIES, "ns", "fleet")
    assert parse_summary(body["status"]) == replace(SUMMARY, message="another")
    assert body["spec"] == {"suspend": False}


async def test_what_a_summary_does_not_say_any_more_is_taken_away() -> None:
    kube = Patches()
    await kube.summarize(SUMMARY)
    await kube.summarize(replace(SUMMARY, unacknowledged=(), moved=1))
    assert kube.patches[-1] == {"status": {"moved": 1, "progress": "1/2", "unacknowledged": None}}


async def test_a_forged_status_is_put_right() -> None:
    kube = Patches()
    await kube.summarize(SUMMARY)
    forged: JsonObject = {"status": {"phase": "Held", "somebody": "was here"}}
    await kube.merge_patch(POLICIES, "ns", "fleet", forged, subresource="status")
    assert await kube.summarize(SUMMARY)
    assert kube.patches[-1] == {"status": {"phase": "Healthy", "somebody": None}}


async def test_a_status_that_is_none_is_written_whole() -> None:
    kube = Patches()
    kube.put(POLICIES, {"metadata": {"namespace": "ns", "name": "fleet"}, "status": "forged"})
    assert await write_summary(kube, KEY, await kube.get(POLICIES, "ns", "fleet"), SUMMARY)


GAIN = Gain(measured_at=1000.0, workloads=2, compared=2, speed=Measured(1.4, 2))


async def test_what_precision_brings_is_written_with_what_else_has_changed_and_not_for_itself() -> None:
    kube = Patches()
    await kube.summarize(replace(SUMMARY, gain=GAIN))
    now = replace(GAIN, measured_at=2000.0, speed=Measured(1.5, 1), compared=1)
    for gain in (now, replace(now, speed=None), None):
        assert not await kube.summarize(replace(SUMMARY, gain=gain))
    assert await kube.summarize(replace(SUMMARY, gain=now, moved=1))
    body: Any = await kube.get(POLICIES, "ns", "fleet")
    assert parse_summary(body["status"]).gain == now


async def test_a_figure_that_is_not_shown_yet_is_written_once() -> None:
    kube = Patches()
    await kube.summarize(SUMMARY)
    assert await kube.summarize(replace(SUMMARY, gain=GAIN))
    further = replace(GAIN, measured_at=2000.0, memory=Measured(0.6, 1))
    assert await kube.summarize(replace(SUMMARY, gain=further))
    for gain in (GAIN, further):
        assert not await kube.summarize(replace(SUMMARY, gain=gain))
