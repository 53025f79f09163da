"""Histories that reviews of ``decide`` and its exploration found to end badly, each with the end that it must have."""

from dataclasses import replace

import pytest

from lab.model.cluster import Room
from lab.model.world import NAN, OVERFLOWS
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.model import Observation, Request
from tests.support.fleets import (
    ROLLED_BACK,
    answer,
    change,
    condition,
    fleet,
    held_names,
    member_names,
    promoted,
    until,
)

APPROVAL = {"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 100}]}


def test_held_workloads_poisoned_metrics_do_not_excuse_the_rest_of_the_fleet() -> None:
    world = promoted()
    world.bad["hot-2"] = NAN
    world.run(2)
    assert [h.name for h in world.state.held] == ["hot-2"]
    observe = world.observe

    def poisoned() -> Observation:
        seen = observe()
        assert seen.evaluation is not None
        pods = dict(seen.evaluation.pods)
        for pod in world.workloads["hot-2"].pods:
            pods[pod.name] = replace(pods[pod.name], values={**pods[pod.name].values, **NAN})
        return replace(seen, evaluation=replace(seen.evaluation, pods=pods))

    world.observe = poisoned  # type: ignore[method-assign]
    world.run(2)
    world.bad = dict.fromkeys(("hot-0", "hot-1", "hot-3", "hot-4"), NAN)
    world.run(15)
    assert world.state.phase in ROLLED_BACK


def test_a_pod_that_a_later_generation_took_down_is_asked_under_one_that_outranks_it() -> None:
    world = promoted()
    (pod,) = world.workloads["hot-2"].pods
    change(world, "hot-2", pods=(replace(pod, request=Request(50, Mode.FP32)),))
    world.modes[pod.name] = (Mode.FP32, 50)
    world.step()
    assert (world.modes[pod.name], world.state.generation) == ((Mode.FP16, 51), 51)


def test_what_trains_in_the_target_already_is_adopted_and_what_breaches_there_is_not() -> None:
    world = fleet(strategy=APPROVAL)
    for name in ("theirs", "broken"):
        world.add(name, mode=Mode.FP16)
    world.bad["broken"] = NAN
    world.run(10)
    assert (world.state.phase, member_names(world)) == (Phase.PAUSED, {"theirs"})
    assert world.really_in(Mode.FP16) == {"theirs"}
    assert world.restarts == {}


def test_one_crashing_fp32_workload_does_not_excuse_a_crashing_fleet() -> None:
    world = promoted(strategy={"steps": [{"setWeight": 90}]})
    for name in list(world.workloads):
        world.crash(name)
    world.run(5)
    assert world.state.phase in ROLLED_BACK


def test_a_single_held_workload_that_is_unresponsive_is_restarted_too() -> None:
    world = promoted()
    world.unresponsive = {"hot-2"}
    world.bad["hot-2"] = OVERFLOWS
    world.run(50)
    assert "hot-2" not in world.really_in(Mode.FP16)
    assert world.state.incident is not None
    assert world.state.incident.last_ack_at is not None


def test_lost_metrics_restart_no_hot_fleet_before_the_deadline() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.step(1.0)
    world.metrics_away = True
    until(world, lambda w: w.state.incident is not None and w.now > w.state.incident.deadline_at, seconds=15.0)
    assert {name: n for name, n in world.restarts.items() if name.startswith("hot")} == {}
    world.run(3)
    assert {name for name in world.restarts if name.startswith("hot")} == {f"hot-{i}" for i in range(5)}


def test_a_crash_looping_trainer_does_not_keep_the_rollback_open() -> None:
    world = fleet()
    world.run(2, 1.0)
    (canary,) = world.really_in(Mode.FP16)
    world.crash(canary)
    world.run(30)
    assert world.state.phase is Phase.HELD
    assert world.restarts == {}  # its container starts again by itself, in FP32


def test_a_deleted_canary_is_replaced_and_its_evidence_starts_anew() -> None:
    world = fleet()
    world.run(1)
    (gone,) = member_names(world)
    world.drop(gone)
    joined = world.now
    world.step()
    (canary,) = member_names(world)
    assert canary != gone
    until(world, lambda w: w.state.step_index == 1, seconds=5.0)
    assert world.now - joined >= 30.0


def test_a_canary_scaled_to_zero_promotes_nothing() -> None:
    world = fleet()
    world.run(1)
    (canary,) = member_names(world)
    world.scale(canary, 0)
    world.run(6)
    assert (world.state.step_index, world.summary.reason) == (0, "CohortNotRunning")


def test_running_pods_are_rolled_back_though_their_template_lost_the_contract() -> None:
    world = promoted()
    change(world, "hot-0", hot=False, literal=False)
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.run(10)
    assert "hot-0" not in world.really_in(Mode.FP16)


def test_one_breach_and_then_silence_is_not_a_row_of_breaches() -> None:
    world = promoted(evaluation={"interval": "15s", "failureLimit": 3, "minSamples": 1})
    world.bad["hot-2"] = OVERFLOWS
    world.step()
    world.unobservable.add("hot-2")
    world.bad = {}
    world.run(6)
    assert world.state.phase is Phase.HEALTHY


def test_evaluations_out_of_turn_do_not_shorten_the_row_that_a_rollback_needs() -> None:
    world = promoted(evaluation={"interval": "15s", "failureLimit": 1, "minSamples": 1})
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.run(10, 1.0)
    assert world.state.phase is Phase.HEALTHY
    world.run(2, 5.0)
    assert world.state.phase in ROLLED_BACK


def test_a_leader_whose_clock_is_behind_counts_on() -> None:
    world = promoted(evaluation={"interval": "15s", "failureLimit": 1, "minSamples": 1})
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.step()
    world.now -= 600
    world.run(2)
    assert world.state.phase in ROLLED_BACK


def test_a_held_workload_that_is_deleted_and_comes_back_is_held_still() -> None:
    world = promoted()
    world.bad["hot-2"] = OVERFLOWS
    world.run(5)
    assert world.state.phase is Phase.DEGRADED
    world.drop("hot-2")
    world.bad = {}
    world.run(3)
    world.add("hot-2")
    world.run(10)
    assert (world.state.phase, held_names(world)) == (Phase.DEGRADED, {"hot-2"})
    assert world.really_in(Mode.FP32) == {"hot-2"}


def test_another_target_amid_the_rollout_starts_with_its_own_canary() -> None:
    world = fleet()
    until(world, lambda w: w.state.step_index == 1, seconds=15.0)
    world.run(3, 1.0)
    world.policy = replace(world.policy, spec=replace(world.policy.spec, target=Mode.BF16))
    world.run(3, 1.0)
    assert len(world.really_in(Mode.BF16)) == 1


def test_what_the_old_target_moved_is_guarded_until_its_turn_comes() -> None:
    world = promoted()
    world.policy = replace(world.policy, spec=replace(world.policy.spec, target=Mode.BF16))
    world.run(3, 1.0)
    assert len(world.really_in(Mode.FP16)) == 5
    world.bad = dict.fromkeys(world.really_in(Mode.FP16), NAN)
    world.run(10)
    assert world.state.phase in ROLLED_BACK
    assert not world.really_in(Mode.FP16)


@pytest.mark.parametrize("value", [float("-inf"), float("inf"), float("nan")])
def test_a_divergence_that_is_no_number_is_a_breach(value: float) -> None:
    world = fleet()
    world.bad = {key: {Signal.DIVERGENCE: value} for key in world.workloads}
    world.run(5)
    assert world.state.phase in ROLLED_BACK


@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_an_overflow_rate_that_is_no_number_promotes_nothing(value: float) -> None:
    world = fleet()
    world.bad = {key: {Signal.OVERFLOW: value} for key in world.workloads}
    world.run(30)
    assert (world.state.phase, world.state.step_index, world.summary.reason) == (Phase.PROGRESSING, 0, "NotANumber")


def test_who_was_away_past_the_deadline_lets_the_trainer_answer_first() -> None:
    world = promoted()
    world.bad["hot-2"] = OVERFLOWS
    decision = world.decide()
    world.commit(decision)  # and nothing is written: the operator dies
    world.now += 3600.0
    world.continuous_since = world.now
    world.run(3)
    assert world.restarts == {"literal": 1}
    assert "hot-2" not in world.really_in(Mode.FP16)


def test_a_canary_that_lost_the_contract_keeps_its_place() -> None:
    world = fleet()
    world.run(2, 1.0)
    before, (canary,) = world.state.members, member_names(world)
    change(world, canary, hot=False, literal=False)
    world.run(5)
    assert world.state.members == before
    assert world.summary.reason == "Undeliverable"
    assert len(world.really_in(Mode.FP16)) == 1
    world.bad[canary] = NAN
    world.run(3)
    assert not world.really_in(Mode.FP16), "a member without the contract was not judged"


def test_an_approval_holds_while_the_evidence_wavers() -> None:
    world = fleet(strategy={"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 100}]})
    until(world, lambda w: w.state.phase is Phase.PAUSED, seconds=15.0)
    answer(world, "promote")
    world.everywhere = {Signal.DIVERGENCE: 0.1}
    world.run(3)
    assert world.state.phase is Phase.PROGRESSING
    world.everywhere = {}
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)


def test_who_cannot_be_seen_is_not_restarted_before_the_deadline() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.step(1.0)
    world.unobservable.add("hot-0")
    until(world, lambda w: w.state.incident is not None and w.now > w.state.incident.deadline_at, seconds=15.0)
    assert set(world.restarts) == {"literal"}
    world.run(3)
    assert set(world.restarts) == {"literal", "hot-0"}


def test_a_canary_that_never_took_the_request_is_restarted() -> None:
    world = fleet()
    world.run(2, 1.0)
    (canary,) = world.really_in(Mode.FP16)
    world.unresponsive = {canary}
    world.bad[canary] = OVERFLOWS
    world.run(100)
    assert world.state.incident is not None
    assert world.state.incident.escalated
    assert world.restarts == {canary: 1}
    assert world.state.phase is Phase.HELD


def test_a_restart_on_a_full_node_waits_for_the_old_pod_and_acknowledges_then() -> None:
    world = promoted()
    world.room["literal"] = Room.FULL
    answer(world, "abort")
    world.step(1.0)
    (old, new) = world.workloads["literal"].pods
    assert (old.terminating, new.pending) == (True, True)
    assert world.state.phase is Phase.ROLLING_BACK
    until(world, lambda w: w.state.phase is Phase.HELD, passes=5)
    assert world.restarts["literal"] == 2, "one of the rollout, one of the rollback"


@pytest.mark.parametrize("room", [Room.NONE, Room.QUOTA])
def test_a_rollback_is_complete_though_replacements_never_start(room: Room) -> None:
    world = promoted()
    world.room["literal"] = room
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=30)
    assert not world.processes("literal")
    world.room.clear()
    world.run(2)
    assert world.really_in(Mode.FP32) == set(world.workloads)


def test_an_old_pod_that_does_not_go_holds_the_rollback_while_it_reports_another_mode() -> None:
    world = promoted()
    world.unreachable = {"literal"}
    answer(world, "abort")
    world.run(25)
    assert (world.state.phase, world.summary.reason) == (Phase.ROLLING_BACK, "Blocked")
    world.unreachable.clear()
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=5)


def test_a_pod_that_passed_admission_by_is_put_right_at_most_twice_and_then_named() -> None:
    world = promoted()
    world.templates["literal"] = Mode.FP16
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    before, take_away = world.restarts["literal"], world.take_away

    def by_a_new_api_server(name: str, uid: str) -> bool:
        world.bypassed = True
        taken = take_away(name, uid)
        world.bypassed = False
        return taken

    world.take_away = by_a_new_api_server  # type: ignore[method-assign]
    world.bypassed = True
    world.replace_pods("literal")
    world.bypassed = False
    world.run(10)
    assert world.restarts["literal"] == before + 2
    stuck = condition(world, "Stuck")
    assert (stuck.status, "literal" in stuck.message) == ("True", True)
    world.take_away = take_away  # type: ignore[method-assign]
    world.replace_pods("literal")
    world.run(4)
    assert world.really_in(Mode.FP32) == set(world.workloads)
    assert condition(world, "Stuck").status == "False"


def test_after_a_lost_record_and_the_deletion_of_its_policy_everything_stays_held() -> None:
    world = promoted()
    world.bad["hot-2"] = OVERFLOWS
    world.run(3)
    assert held_names(world) == {"hot-2"}
    world.lose_assignment()
    world.run(3)
    assert (world.state.phase, world.state.reason) == (Phase.HELD, "StateLost")
    world.delete_policy()
    world.run(2)
    assert held_names(world) == set(world.workloads)
    assert set(world.state.modes.values()) == {Mode.FP32}


def test_what_came_back_in_the_old_mode_is_taken_away_again_once_admission_is_certain() -> None:
    world = promoted()
    world.lagging = True
    answer(world, "abort")
    until(world, lambda w: w.restarts["literal"] == 2, passes=40)
    assert "literal" not in world.really_in(Mode.FP32)
    world.run(10)
    assert (world.restarts["literal"], world.state.phase) == (2, Phase.ROLLING_BACK)
    world.catch_up()
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=6)
    assert world.really_in(Mode.FP32) == set(world.workloads)
    assert world.restarts["literal"] == 3


def test_a_record_that_is_lost_in_a_rollback_spares_no_trainer_that_takes_no_request() -> None:
    world = promoted()
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    world.unresponsive = set(world.workloads)
    world.run(2)
    assert world.state.phase is Phase.ROLLING_BACK
    world.lose_assignment()
    world.step()
    assert (world.state.phase, world.state.reason) == (Phase.ROLLING_BACK, "StateLost")
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=20)
    assert world.state.reason == "StateLost"
    assert world.really_in(Mode.FP32) == set(world.workloads)
