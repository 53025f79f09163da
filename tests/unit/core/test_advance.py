"""When metrics are good and a rollout waits all the same: for its schedule, and for the cluster's cap on promotions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicyEnforcement
from precision_operator.api.state import Phase
from precision_operator.core.model import PromotionSlots
from precision_operator.reasons import Cause, Reason
from tests.support.fleets import ROLLED_BACK, answer, fleet, promoted, respec, until
from tests.support.views import key

CLOSED = Cause(Reason.OUTSIDE_SCHEDULE, "the next window of spec.schedule opens at 2026-11-25T09:00:00Z")


def members(world: World) -> set[str]:
    return set(world.state.members)


def test_a_rollout_begins_and_goes_on_inside_of_its_windows_alone() -> None:
    world = fleet()
    world.outside_schedule = CLOSED
    world.run(5)
    assert (world.state.phase, world.summary.reason, world.summary.message) == (
        Phase.PENDING,
        "OutsideSchedule",
        CLOSED.message,
    )
    world.outside_schedule = None
    until(world, lambda w: w.state.step_index == 0 and w.state.members and w.summary.reason == "Soaking")
    world.outside_schedule = CLOSED
    before = members(world)
    world.run(10)
    assert (members(world), world.state.step_index) == (before, 0)
    assert world.summary.reason == "OutsideSchedule"
    world.outside_schedule = None
    world.run(30)
    assert world.state.phase is Phase.HEALTHY


def test_the_last_step_ends_outside_of_the_windows_too_for_nothing_more_is_moved() -> None:
    world = fleet()
    until(world, lambda w: w.state.step_index == 2)
    world.outside_schedule = CLOSED
    world.run(10)
    assert world.state.phase is Phase.HEALTHY


@pytest.mark.parametrize("phase", [Phase.PROGRESSING, Phase.HEALTHY])
def test_a_rollback_does_not_wait_for_a_window(phase: Phase) -> None:
    world = fleet()
    until(world, lambda w: w.state.phase is phase and w.state.members and not w.summary.unacknowledged)
    world.outside_schedule = CLOSED
    world.bad = dict.fromkeys(world.workloads, NAN)
    world.run(10)
    assert world.state.phase in ROLLED_BACK
    assert all(mode is Mode.FP32 for mode, _ in world.modes.values())


def test_a_guarded_fleet_takes_new_workloads_in_once_a_window_opens() -> None:
    world = promoted()
    world.outside_schedule = CLOSED
    world.add("new")
    world.run(3)
    assert key("new") not in members(world)
    world.outside_schedule = None
    world.run(3)
    assert key("new") in members(world)


def test_the_way_to_fp32_is_always_open() -> None:
    world = promoted()
    world.outside_schedule = CLOSED
    world.promotion_slots = PromotionSlots(0)
    respec(world, target=Mode.FP32)
    world.run(30)
    assert all(mode is Mode.FP32 for mode, _ in world.modes.values())


def test_a_retry_of_a_single_workload_waits_for_a_window_and_is_not_forgotten() -> None:
    world = promoted()
    world.bad = {"hot-0": {Signal.OVERFLOW: 0.4}}
    until(world, lambda w: w.state.held and not w.summary.unacknowledged)
    world.bad = {}
    until(world, lambda w: w.state.incident is not None and w.state.incident.last_ack_at is not None)
    world.run(30)
    world.outside_schedule = CLOSED
    answer(world, "retry")
    world.run(5)
    assert world.state.held
    world.outside_schedule = None
    world.run(3)
    assert not world.state.held


def test_a_cap_has_a_step_taken_in_parts_each_acknowledged_before_the_next() -> None:
    world = fleet()
    world.promotion_slots = PromotionSlots(1)
    most, before, seen = 0, 0, set[str]()
    for _ in range(60):
        decision = world.step()
        most = max(most, len(members(world)) - before)
        before = len(members(world))
        seen.add(world.summary.reason)
        assert len(decision.promoting) <= 1
    assert (world.state.phase, most) == (Phase.HEALTHY, 1)
    assert len(world.state.members) == len(world.workloads)


def test_a_step_whose_places_are_not_all_taken_is_not_promoted() -> None:
    world = fleet()
    world.promotion_slots = PromotionSlots(1)
    until(world, lambda w: w.state.step_index == 1)
    world.promotion_slots = PromotionSlots(0)
    short = members(world)
    world.run(20)
    assert (world.state.step_index, members(world)) == (1, short)
    assert world.summary.reason == "PromotionCap"


def test_what_trains_in_the_target_already_takes_its_place_when_there_is_a_slot_and_not_before() -> None:
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}}))
    for index in range(4):
        world.add(f"hot-{index}", mode=Mode.FP16)
    world.unobservable = {"hot-2", "hot-3"}
    world.step()
    world.unobservable, world.promotion_slots = set(), PromotionSlots(1)
    world.step()
    assert (len(members(world)), world.state.phase) == (3, Phase.PROGRESSING)
    assert "1 places of this step are not taken yet" in world.summary.message
    world.step()
    assert (len(members(world)), world.state.phase) == (4, Phase.HEALTHY)


def test_no_slot_is_left_for_the_first_step_either() -> None:
    world = fleet()
    world.promotion_slots = PromotionSlots(0)
    world.run(3)
    assert (world.state.phase, world.summary.reason) == (Phase.PENDING, "PromotionCap")


def test_a_member_that_never_acknowledges_takes_up_its_slot_until_it_is_overdue() -> None:
    world = promoted()
    world.promotion_slots = PromotionSlots(1)
    world.add("lost")
    world.unresponsive = {"lost"}
    world.run(3)
    assert key("lost") in members(world)
    world.add("new")
    world.run(5)
    assert key("new") not in members(world)
    world.promotion_slots = PromotionSlots(1, frozenset({key("lost")}))
    world.run(3)
    assert key("new") in members(world)


def test_a_cap_does_not_hold_back_a_rollback() -> None:
    world = promoted()
    world.promotion_slots = PromotionSlots(0)
    world.bad = dict.fromkeys(world.workloads, NAN)
    world.run(10)
    assert world.state.phase in ROLLED_BACK


def test_a_fleet_that_was_rolled_back_takes_no_slot_from_others() -> None:
    world = promoted()
    world.promotion_slots = PromotionSlots(1)
    world.bad = dict.fromkeys(world.workloads, NAN)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK)
    taken = {workload for _ in range(10) for workload in world.step().promoting}
    assert (world.state.phase, taken) == (Phase.HELD, set())


def test_pods_take_slots_one_each() -> None:
    world = fleet(unit="Pod")
    world.add("many", pods=8)
    world.world_sizes = dict.fromkeys(world.workloads, 1)
    world.promotion_slots = PromotionSlots(1)
    before = 0
    for _ in range(40):
        world.step()
        moved = sum(world.state.shares.get(k, 1) for k in world.state.members)
        if world.state.step_index < 2:
            assert moved - before <= 1
        before = moved
    assert world.state.phase is Phase.HEALTHY


def test_without_a_cap_nobody_is_counted() -> None:
    assert replace(fleet().decide()).promoting == frozenset()


@pytest.mark.parametrize("closed", [None, CLOSED], ids=["no slot is left", "outside of the windows"])
def test_a_last_step_whose_places_are_not_all_taken_is_not_the_end_and_says_what_it_waits_for(
    closed: Cause | None,
) -> None:
    world = fleet()
    world.promotion_slots = PromotionSlots(1)
    until(world, lambda w: w.state.step_index == 2)
    world.promotion_slots, world.outside_schedule = PromotionSlots(0), closed
    world.run(10)
    assert (world.state.phase, len(members(world)) < len(world.workloads)) == (Phase.PROGRESSING, True)
    reason, text = (closed.reason, closed.message) if closed else ("PromotionCap", "config.maxPromotingWorkloads")
    assert world.summary.reason == reason
    assert text in world.summary.message


@pytest.mark.parametrize("fields", [{"suspend": True}, {"enforcement": PolicyEnforcement.OBSERVE}])
def test_a_policy_that_does_not_act_takes_up_no_slot(fields: dict[str, object]) -> None:
    world = fleet()
    world.promotion_slots = PromotionSlots(5)
    world.unresponsive = set(world.workloads)
    world.run(2)
    assert world.decide().promoting
    respec(world, **fields)
    assert not world.decide().promoting
