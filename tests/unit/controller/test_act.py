"""What is written when, what holds it back, and that one failure never stops the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase, State
from precision_operator.controller.act import OVERDUE_SECONDS, Acted
from precision_operator.controller.broadcast import EVENTS_AT_ONCE, EVENTS_SECONDS
from precision_operator.controller.echo import PATIENCE_SECONDS as ECHO_SECONDS
from precision_operator.controller.expectations import EXPIRY_SECONDS
from precision_operator.controller.refusals import REFUSED_LIMIT
from precision_operator.core.actions import Action, DeletePod, EvictPod, Notify
from precision_operator.core.model import RefusedWrite, Request
from precision_operator.errors import Conflict, Forbidden, PreconditionFailed, TooManyRequests, Unavailable
from precision_operator.kube.port import EVENTS, JsonObject, Resource
from precision_operator.reasons import Reason
from tests.support.acting import (
    ALONE,
    EMERGENCY,
    GRADUAL,
    HELD_ALONE,
    KEY,
    POLICY,
    SERVER,
    STATE,
    Rig,
    deletion,
    held_deletion,
    request,
)
from tests.support.manual_clock import finished
from tests.support.views import pod, workload


async def test_running_pods_are_asked_before_the_echo_and_others_taken_away_after_it() -> None:
    rig = Rig("a", "b")
    acted = await rig.act(deletion("b"), request("a"))
    assert acted == Acted()
    assert rig.order == ["patch a", "delete b after the echo"]
    assert rig.pods == ["a"]


async def test_a_request_does_not_wait_for_an_echo_that_does_not_come() -> None:
    rig = Rig("a")
    rig.kube.installed = False
    task = asyncio.ensure_future(rig.actor.act(POLICY, EMERGENCY, [request("a")], emergency=True))
    await rig.clock.advance(ECHO_SECONDS / 4)
    assert rig.order == ["patch a"]
    assert not task.done(), "it is waited for all the same: pods that admission missed are looked for after it"
    assert (await finished(rig.clock, task)).failures == ()


@pytest.mark.parametrize("state", [STATE, GRADUAL, EMERGENCY], ids=["rollout", "gradual", "emergency"])
async def test_nothing_is_taken_away_before_the_echo(state: State) -> None:
    rig = Rig("a")
    rig.kube.known = {SERVER: 6}
    for _ in range(3):
        acted = await rig.act(deletion("a"), state=state)
        assert rig.reasons(acted) == ["AdmissionNotConfirmed"]
    assert rig.order == []
    assert rig.actor.refused(KEY) == (RefusedWrite("taking pods away", Reason.ADMISSION_NOT_CONFIRMED),)
    rig.kube.known = {}
    assert (await rig.act(deletion("a"), state=state)).failures == ()
    assert (rig.pods, rig.actor.refused(KEY)) == ([], ())


async def test_an_emergency_goes_on_without_the_echo_after_a_while_and_says_so_once() -> None:
    rig = Rig("a", "b", "c")
    rig.kube.installed = False
    began = rig.clock.now
    while not rig.order:
        assert rig.clock.now - began < OVERDUE_SECONDS + 2 * ECHO_SECONDS
        await rig.act(deletion("a"), deletion("b"), state=EMERGENCY)
        await rig.clock.advance(1)
    assert rig.clock.now - began >= OVERDUE_SECONDS
    assert rig.pods == ["c"]
    await rig.act(deletion("a"), deletion("b"), state=EMERGENCY)  # their watch is late: nothing is left to write
    assert (await rig.act(deletion("c"), state=EMERGENCY)).failures == ()
    assert rig.pods == []
    assert rig.events == [("AdmissionNotConfirmed", 1)]


async def test_what_is_promoted_beside_an_emergency_waits_for_the_echo_as_long_as_it_takes() -> None:
    rig = Rig("promoted", "back")
    rig.kube.installed = False
    for _ in range(3):
        acted = await rig.act(deletion("promoted"), held_deletion("back"), state=ALONE)
        await rig.clock.advance(OVERDUE_SECONDS)
    assert set(rig.order) == {"delete back after the echo"}
    assert (rig.pods, rig.reasons(acted)) == (["promoted"], ["AdmissionNotConfirmed"])


async def test_where_an_emergency_may_evict_nothing_no_event_says_that_it_goes_on() -> None:
    rig = Rig("promoted", "back")
    rig.kube.installed, rig.kube.unruled = False, {"evict-uid"}
    for _ in range(3):
        await rig.act(deletion("promoted"), EvictPod(HELD_ALONE, pod("back"), 7), state=ALONE)
        await rig.clock.advance(OVERDUE_SECONDS)
    assert (rig.order, rig.events) == ([], [])


async def test_an_emergency_waits_for_the_echo_anew_though_a_promotion_has_waited_for_long() -> None:
    rig = Rig("promoted", "back")
    rig.kube.installed = False
    await rig.act(deletion("promoted"), held_deletion("back"), state=ALONE)
    for _ in range(3):
        await rig.clock.advance(OVERDUE_SECONDS)
        await rig.act(deletion("promoted"), state=ALONE)
    acted = await rig.act(deletion("promoted"), held_deletion("back"), state=ALONE)
    assert (rig.order, rig.events, rig.reasons(acted)) == ([], [], ["AdmissionNotConfirmed"])


async def test_what_a_rollout_that_begins_anew_finds_held_is_no_emergency() -> None:
    rig = Rig("back")
    rig.kube.installed = False
    for _ in range(3):
        await rig.act(held_deletion("back"), state=replace(ALONE, phase=Phase.PENDING), emergency=False)
        await rig.clock.advance(OVERDUE_SECONDS)
    assert rig.order == []


async def test_what_is_no_emergency_waits_for_the_echo_as_long_as_it_takes() -> None:
    rig = Rig("a")
    rig.kube.installed = False
    for _ in range(20):
        await rig.act(deletion("a"), state=GRADUAL)
        await rig.clock.advance(OVERDUE_SECONDS)
    assert (rig.order, rig.events) == ([], [])


async def test_the_next_emergency_waits_anew() -> None:
    rig = Rig("a", "b")
    rig.kube.installed = False
    await rig.act(deletion("a"), state=EMERGENCY)
    await rig.act(state=STATE)
    await rig.clock.advance(10 * OVERDUE_SECONDS)
    acted = await rig.act(deletion("b"), state=EMERGENCY)
    assert rig.reasons(acted) == ["AdmissionNotConfirmed"]
    assert rig.pods == ["a", "b"]


async def test_pods_are_taken_away_without_a_policy_once_admission_has_had_its_time() -> None:
    rig = Rig("a")
    del rig.kube.objects["precisionpolicies", "ns", "fleet"]
    gone = replace(POLICY, deleted=True)
    acted = await finished(rig.clock, rig.actor.act(gone, EMERGENCY, [deletion("a")], emergency=True))
    assert (acted.failures, rig.pods, rig.kube.asked) == ((), [], [])


async def test_a_pod_of_the_same_name_is_not_taken_away_in_the_place_of_another() -> None:
    rig = Rig("a")
    acted = await rig.act(DeletePod(workload(), pod("a", uid="its-predecessor"), 7))
    assert rig.reasons(acted) == ["Conflict"]
    assert (rig.pods, rig.actor.refused(KEY)) == (["a"], ())


async def test_a_pod_has_its_own_grace_but_never_none() -> None:
    rig = Rig("a", "b")
    await rig.act(deletion("a"), DeletePod(workload(), pod("b", graceless=True), 7))
    assert rig.kube.graces == {"a": None, "b": 1}


async def test_unfenced_nothing_is_written_and_it_is_seen() -> None:
    rig = Rig("a", "b")
    rig.kube.fenced = False
    acted = await rig.act(request("a"), deletion("b"), Notify(Reason.PROMOTED, "all the same"), state=EMERGENCY)
    assert rig.reasons(acted) == ["Unfenced"]
    assert (rig.order, rig.pods, rig.events) == ([], ["a", "b"], [("Promoted", 1)])
    (refused,) = rig.actor.refused(KEY)
    assert refused.reason == "Unfenced"
    assert "manifests/admission/fence.yaml" in refused.what
    rig.kube.fenced = True
    assert (await rig.act(request("a"), deletion("b"), state=EMERGENCY)).failures == ()
    assert (rig.pods, rig.actor.refused(KEY)) == (["a"], ())


async def test_where_nothing_is_to_be_written_the_fence_is_not_tried() -> None:
    rig = Rig("a")
    rig.kube.fenced = False
    assert (await rig.act(Notify(Reason.PROMOTED, "it"))).failures == ()
    assert [read for read in rig.kube.reads if read[1] == "pods" and read[0] == "dry-run"] == []


async def test_one_failure_stops_no_other() -> None:
    names = [f"p{number}" for number in range(6)]
    rig = Rig(*names)
    rig.refuse = {
        "p1": Forbidden("403"),
        "p3": Unavailable("504"),
        "p4": Conflict("409"),
        "p5": PreconditionFailed("422"),
    }
    acted = await rig.act(*map(request, names))
    assert sorted(rig.reasons(acted)) == ["Conflict", "Forbidden", "PreconditionFailed", "Unavailable"]
    assert len(rig.order) == len(names)
    written = [name for name in names if "precision.genesis.ai/request" in annotations_of(rig, name)]
    assert written == ["p0", "p2"]


def annotations_of(rig: Rig, name: str) -> dict[str, str]:
    body: Any = rig.kube.objects["pods", "ns", name]
    found: dict[str, str] = body["metadata"]["annotations"]
    return found


async def test_only_what_the_api_server_refuses_counts_as_refused() -> None:
    rig = Rig("a", "b", "c", "d")
    rig.refuse = {"a": Forbidden("403"), "b": Conflict("409"), "c": PreconditionFailed("422")}
    rig.refuse["d"] = TooManyRequests("429", retry_after_seconds=1.0)
    await rig.act(*map(request, "abcd"))
    assert rig.actor.refused(KEY) == (RefusedWrite("RequestPod a", Reason.FORBIDDEN),)


async def test_a_refusal_is_forgotten_once_it_is_written_or_not_wanted_any_more() -> None:
    rig = Rig("a", "b", "c")
    rig.refuse = dict.fromkeys("ab", Forbidden("403"))
    await rig.act(*map(request, "ab"))
    assert {write.what for write in rig.actor.refused(KEY)} == {"RequestPod a", "RequestPod b"}
    rig.refuse = {"b": Forbidden("403")}
    await rig.act(*map(request, "ab"))
    assert {write.what for write in rig.actor.refused(KEY)} == {"RequestPod b"}
    await rig.act(request("c"))
    assert rig.actor.refused(KEY) == ()
    assert rig.actor._refusals._known == {}


async def test_so_many_refusals_are_remembered_and_logged_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    names = [f"p{number}" for number in range(3 * REFUSED_LIMIT)]
    rig = Rig(*names)
    rig.refuse = dict.fromkeys(names, Forbidden("403"))
    for _ in range(3):
        await rig.act(*map(request, names))
    assert len(rig.actor.refused(KEY)) == REFUSED_LIMIT
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == REFUSED_LIMIT


async def test_nothing_is_kept_of_a_policy_that_is_gone() -> None:
    rig = Rig("a", "b")
    rig.kube.installed = False
    rig.refuse = {"a": Forbidden("403")}
    await rig.act(request("a"), deletion("b"), state=EMERGENCY)
    rig.actor.forget(KEY)
    assert (rig.actor._refusals._known, rig.actor._waiting) == ({}, {})


async def test_a_server_that_asks_for_less_pauses_this_namespace_and_no_other() -> None:
    names = [f"p{number}" for number in range(300)]
    rig = Rig(*names)
    rig.refuse = dict.fromkeys(names, TooManyRequests("429", retry_after_seconds=5.0))
    task = asyncio.ensure_future(rig.actor.act(POLICY, STATE, list(map(request, names)), emergency=True))
    await rig.clock.advance(4.9)
    assert len(rig.order) <= 100, "those in flight, and none of those that wait"
    assert rig.limiter.paused_seconds("ns") > 0
    assert rig.limiter.paused_seconds("another") == 0
    rig.refuse = {}
    acted = await finished(rig.clock, task)
    written = [name for name in names if "precision.genesis.ai/request" in annotations_of(rig, name)]
    assert len(acted.failures) + len(written) == 300


async def test_a_pod_goes_with_its_own_grace_and_never_with_none() -> None:
    rig = Rig("a", "b")
    await rig.act(deletion("a"), DeletePod(workload(), pod("b", graceless=True), 7))
    assert rig.kube.graces == {"a": None, "b": 1}


async def test_a_pod_that_is_gone_is_no_failure() -> None:
    rig = Rig("there")
    acted = await rig.act(request("there"), request("gone"), deletion("gone too"))
    assert acted.failures == ()


async def test_what_was_written_a_moment_ago_is_not_written_again() -> None:
    rig = Rig("a", "b")
    actions: Sequence[Action] = [request("a"), deletion("b")]
    for _ in range(3):
        await rig.act(*actions)
    assert rig.order == ["patch a", "delete b after the echo"]
    await rig.clock.advance(EXPIRY_SECONDS)
    acted = await rig.act(*actions)
    assert len(rig.order) == 4
    assert rig.reasons(acted) == ["PreconditionFailed"], "the watch has missed the first one; it is gathered again"


async def test_a_later_request_is_not_even_sent() -> None:
    rig = Rig("a")
    acted = await rig.act(request("a", request_raw="x", request=Request(8, Mode.FP16)))
    assert rig.reasons(acted) == ["PreconditionFailed"]
    assert (rig.order, rig.actor.refused(KEY)) == ([], ())


async def test_an_assignment_that_is_not_enforced_is_not_asked_about() -> None:
    rig = Rig("a")
    assert (await rig.act(request("a"), state=replace(STATE, enforce=False))).failures == ()
    assert rig.kube.asked == []


async def test_where_pods_turn_up_that_the_caches_lack_the_next_pass_comes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def found(*_: object, **__: object) -> bool:
        return True

    rig = Rig("a")
    monkeypatch.setattr(rig.enforcement, "confirm", found)
    assert await rig.act(request("a")) == Acted(again=True)


async def test_a_settled_generation_costs_no_question() -> None:
    rig = Rig("a")
    await rig.act()
    asked, reads = len(rig.kube.asked), len(rig.kube.reads)
    for _ in range(5):
        assert await rig.act() == Acted()
    assert (len(rig.kube.asked), len(rig.kube.reads)) == (asked, reads)


async def test_events_come_whatever_else_fails() -> None:
    rig = Rig("a")
    rig.refuse = {"a": Forbidden("403")}
    await rig.act(request("a"), Notify(Reason.ROLLED_BACK, "all of it"), Notify(Reason.PROMOTED, "too"))
    assert sorted(rig.events) == [("Promoted", 1), ("RolledBack", 1)]


async def test_an_event_that_hangs_delays_no_second_pass_and_no_other_event(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("a")
    create, began = rig.kube.create, rig.clock.monotonic()

    async def hang(resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        if resource == EVENTS and body["reason"] == Reason.ROLLED_BACK:
            await asyncio.Event().wait()
        return await create(resource, namespace, body)

    monkeypatch.setattr(rig.kube, "create", hang)
    rig.refuse = {"a": Unavailable("503")}
    acted = await rig.act(request("a"), Notify(Reason.ROLLED_BACK, "all of it"), Notify(Reason.PROMOTED, "too"))
    rig.refuse = {}
    again = await rig.act(request("a"))
    assert (rig.reasons(acted), rig.reasons(again), rig.order) == (
        ["Unavailable"],
        [],
        ["patch a", "patch a after the echo"],
    )
    assert rig.clock.monotonic() - began < 1.0
    assert rig.events == [("Promoted", 1)]
    await rig.clock.advance(EVENTS_SECONDS)
    assert not rig.actor._events._sending


async def test_of_many_events_few_are_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    asked = 0

    async def hang(*_: object) -> None:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.kube, "create", hang)
    await rig.act(*(Notify(Reason.PROMOTED, str(number)) for number in range(20)))
    assert asked == EVENTS_AT_ONCE
    await rig.clock.advance(EVENTS_SECONDS)
    assert asked == EVENTS_AT_ONCE
