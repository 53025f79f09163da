"""How long what is no emergency is written, what an emergency takes for itself, and what is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase, State
from precision_operator.controller.act import PATIENCE_SECONDS, Acted
from precision_operator.controller.broadcast import EVENTS_SECONDS
from precision_operator.core.actions import Action, EvictPod, Notify, RequestPod
from precision_operator.kube.port import EVENTS, Operation, Resource
from precision_operator.reasons import Reason
from tests.support.acting import (
    ALONE,
    EMERGENCY,
    HELD_ALONE,
    POLICY,
    SERVER,
    STATE,
    Rig,
    deletion,
    held_deletion,
    request,
    resumption,
)
from tests.support.manual_clock import finished, late
from tests.support.views import pod, workload


@pytest.mark.parametrize("state", [STATE, replace(EMERGENCY, phase=Phase.HELD)], ids=["promotion", "held"])
async def test_writes_of_no_emergency_give_way_after_a_second_though_the_server_hangs(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig("a")
    never = asyncio.Event()

    async def hang(*_: object) -> None:
        await never.wait()

    monkeypatch.setattr(rig.kube, "json_patch", hang)
    began = rig.clock.monotonic()
    acted = await rig.act(request("a"), state=state, emergency=False)
    assert acted == Acted(again=True)
    assert rig.clock.monotonic() - began == pytest.approx(PATIENCE_SECONDS, abs=0.2)
    assert rig.limiter._held.total() == 0


@pytest.mark.parametrize("behind", [False, True], ids=["echoed", "not echoed yet"])
async def test_all_batches_of_a_promotion_and_what_they_wait_for_give_way_after_one_second(
    behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig("a", "b")
    if behind:
        rig.kube.known = {SERVER: 6}

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.kube, "json_patch", hang)
    monkeypatch.setattr(rig.kube, "delete", hang)
    began = rig.clock.monotonic()
    acted = await rig.act(request("a"), deletion("b"), Notify(Reason.PROMOTED, "on"), emergency=False)
    assert acted == Acted(again=True)
    assert rig.clock.monotonic() - began == pytest.approx(PATIENCE_SECONDS, abs=0.2)
    assert rig.limiter._held.total() == 0
    assert rig.events == [("Promoted", 1)]


async def test_a_batch_that_hangs_leaves_time_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what hangs for ever would keep the rest from being sent for ever."""
    rig = Rig("a", "b")

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.kube, "json_patch", hang)
    assert await rig.act(request("a"), deletion("b"), emergency=False) == Acted(again=True)
    assert rig.pods == ["a"]


@pytest.mark.parametrize("first", [[], [request("a")]], ids=["two batches", "three batches"])
async def test_a_resumption_that_hangs_leaves_time_to_take_pods_away(
    first: list[Action], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig("a", "b")
    rig.put_job("back", suspend=True)
    slow_patches(rig, monkeypatch, a=0.0, back=60.0)
    assert await rig.act(*first, resumption("back"), deletion("b"), emergency=False) == Acted(again=True)
    assert rig.pods == ["a"]


async def test_suspended_jobs_are_resumed_beyond_the_rate() -> None:
    rig = Rig(per_second=1)
    names = ["one", "two", "three"]
    for name in names:
        rig.put_job(name, suspend=True)
    acting = asyncio.ensure_future(rig.act(*map(resumption, names), state=replace(STATE, enforce=False)))
    await rig.clock.advance(0.0)
    assert not any(map(rig.suspended, names))
    await acting


async def test_an_echo_that_takes_longer_than_a_promotions_turn_is_found_by_the_next_one() -> None:
    rig = Rig("a")
    rig.kube.known = {SERVER: 6}
    assert await rig.act(deletion("a"), emergency=False) == Acted(again=True)
    task = asyncio.ensure_future(rig.actor.act(POLICY, STATE, [deletion("a")], emergency=False))
    await rig.clock.advance(PATIENCE_SECONDS / 4)
    asked = len(rig.kube.asked)
    rig.kube.known = {}
    assert await finished(rig.clock, task) == Acted()
    assert (rig.pods, len(rig.kube.asked)) == ([], asked + 1)


async def test_an_echo_that_comes_between_two_turns_counts_for_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a slow API server would be asked again and again, and nothing would ever be taken away."""
    rig = Rig("a", "b")
    await rig.act(deletion("b"))
    monkeypatch.setattr(rig.kube, "dry_run", late(rig.clock, 1.2 * PATIENCE_SECONDS, rig.kube.dry_run))
    assert await rig.act(deletion("a"), emergency=False) == Acted(again=True)
    await rig.clock.advance(PATIENCE_SECONDS)
    assert await rig.act(deletion("a"), emergency=False) == Acted()
    assert rig.pods == []


async def test_a_turn_is_counted_from_when_the_pass_began_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("a")

    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.kube, "json_patch", hang)
    now = rig.clock.monotonic()
    acting = rig.actor.act(POLICY, STATE, [request("a")], emergency=False, began=now - PATIENCE_SECONDS / 2)
    assert await finished(rig.clock, acting) == Acted(again=True)
    assert rig.clock.monotonic() - now == pytest.approx(PATIENCE_SECONDS / 2, abs=0.1)


async def test_nothing_is_written_once_the_lease_is_lost_in_mid_pass() -> None:
    rig = Rig("a", "b", "c")
    held = [True, False, False, False]
    actions: list[Action] = [*map(request, "abc"), Notify(Reason.ROLLED_BACK, "told by the next leader")]
    acted = await finished(rig.clock, rig.actor.act(POLICY, STATE, actions, emergency=True, holds=lambda: held.pop(0)))
    await rig.clock.advance(EVENTS_SECONDS)
    assert rig.order == ["patch a"]
    assert rig.reasons(acted) == ["LeaseLost", "LeaseLost"]
    assert [body for (plural, *_), body in rig.kube.objects.items() if plural == EVENTS.plural] == []


def held_request(name: str) -> RequestPod:
    return RequestPod(HELD_ALONE, pod(name), Mode.FP32, 7)


def slow_patches(rig: Rig, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """How long a write to each pod takes."""
    patch = rig.kube.json_patch

    async def slow(resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> None:
        await rig.clock.sleep(seconds[name])
        await patch(resource, namespace, name, operations)

    monkeypatch.setattr(rig.kube, "json_patch", slow)


async def test_beside_a_rollback_that_goes_on_to_its_end_a_promotion_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig("promoted", "back")
    slow_patches(rig, monkeypatch, promoted=3 * PATIENCE_SECONDS, back=2 * PATIENCE_SECONDS)
    began = rig.clock.monotonic()
    assert await rig.act(request("promoted"), held_request("back"), state=ALONE) == Acted(again=True)
    assert rig.order == ["patch back"]
    assert rig.clock.monotonic() - began == pytest.approx(2 * PATIENCE_SECONDS, abs=0.2)


async def test_a_promotion_that_hangs_keeps_no_pod_of_a_rollback_longer_than_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig("promoted", "back")
    slow_patches(rig, monkeypatch, promoted=60.0)
    began = rig.clock.monotonic()
    assert await rig.act(request("promoted"), held_deletion("back"), state=ALONE) == Acted(again=True)
    assert rig.order == ["delete back after the echo"]
    assert rig.clock.monotonic() - began == pytest.approx(PATIENCE_SECONDS / 2, abs=0.1)


async def test_beside_a_rollback_a_promotion_has_its_second_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("promoted", "back")
    slow_patches(rig, monkeypatch, promoted=PATIENCE_SECONDS / 2, back=0.0)
    assert await rig.act(request("promoted"), held_request("back"), state=ALONE) == Acted()
    assert rig.order == ["patch back", "patch promoted"]


async def test_a_promotion_beside_a_rollback_waits_for_the_rate_that_the_rollback_may_exceed() -> None:
    rig = Rig("p1", "p2", "back", per_second=1)
    acted = asyncio.ensure_future(
        rig.actor.act(POLICY, ALONE, [request("p1"), request("p2"), held_request("back")], emergency=True)
    )
    await rig.clock.advance(0.0)
    assert rig.order == ["patch p1", "patch back"]
    assert await finished(rig.clock, acted) == Acted(again=True)


async def test_what_is_left_out_after_it_has_waited_for_its_turn_spends_no_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig("a", "b", "c", per_second=2, at_once=1)
    slow_patches(rig, monkeypatch, a=0.01, b=0.0)
    actions = [request("a"), *map(request, "bc" * 5)]
    acting = rig.actor.act(POLICY, STATE, actions, emergency=False, current=lambda write: not rig.order)
    assert await finished(rig.clock, acting) == Acted(again=True)
    assert rig.order == ["patch a"]
    next_pass = asyncio.ensure_future(rig.actor.act(POLICY, STATE, [request("b")], emergency=False))
    await rig.clock.advance(0.0)
    assert len(rig.order) == 2
    await next_pass


async def test_what_is_left_out_waits_for_no_slot() -> None:
    rig = Rig("a", at_once=1)
    async with rig.limiter.slot():
        acting = rig.actor.act(POLICY, STATE, [request("a")], emergency=False, current=lambda write: False)
        began = rig.clock.monotonic()
        assert await finished(rig.clock, acting) == Acted(again=True)
    assert rig.clock.monotonic() - began < PATIENCE_SECONDS / 2


async def test_the_last_batch_of_a_promotion_has_all_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("a", "b", "c")
    await rig.act(EvictPod(workload(), pod("a"), 7))  # so that neither the fence nor admission is asked once more
    monkeypatch.setattr(rig.kube, "evict", late(rig.clock, 0.6 * PATIENCE_SECONDS, rig.kube.evict))
    acted = await rig.act(deletion("b"), EvictPod(workload(), pod("c"), 7), emergency=False)
    assert (acted, rig.pods) == (Acted(), [])


async def test_what_strays_in_a_fleet_that_is_held_does_not_exceed_the_rate() -> None:
    rig = Rig("a", "b", per_second=1)
    held = replace(EMERGENCY, phase=Phase.HELD)
    acting = asyncio.ensure_future(rig.actor.act(POLICY, held, [request("a"), request("b")], emergency=False))
    await rig.clock.advance(0.0)
    assert rig.order == ["patch a"]
    await finished(rig.clock, acting)
