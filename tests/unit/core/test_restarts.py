"""Fleets that only a restart moves: who goes when, what takes up a slot, and what holds a rollback back in nothing."""

from dataclasses import replace

import pytest

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.contract import ABORT
from precision_operator.core.actions import DeletePod, EvictPod, RequestPod
from precision_operator.core.decide import decide
from precision_operator.core.progress import live_pods
from precision_operator.core.restart.pace import CHECKPOINT_SECONDS
from precision_operator.core.restart.rounds import RESTARTING_SECONDS
from tests.support.fleets import answer, change, condition, emergency, gradual, promoted, restart_only, until
from tests.support.views import key

GRADUAL = {
    "gradual": {"sustain": "0s", "inFlight": "0s", "batchShare": 1.0},
    "mitigation": {"speed": {"window": "0s"}},
    "deadlines": {"P2": "2h"},
}


def taken_away(world: World) -> int:
    return sum(world.restarts.values())


@pytest.mark.parametrize("slots", [0, 5])
@pytest.mark.parametrize(("expected", "at_once"), [("60s", 10), ("10m", 20)])
def test_an_emergency_takes_as_many_pods_away_as_its_deadline_needs_whatever_the_budget(
    slots: int, expected: str, at_once: int
) -> None:
    world = restart_only(20, rollback={"emergency": {"expectedRestart": expected}})
    world.restart_slots = slots
    decision = emergency(world).decide()
    assert decision.state.phase is Phase.ROLLING_BACK
    assert len({a.workload.key for a in decision.actions if isinstance(a, DeletePod)}) == at_once
    world.run(5, 10.0)
    assert (world.state.phase, taken_away(world), len(world.really_in(Mode.FP32))) == (Phase.HELD, 20, 20)


@pytest.mark.parametrize("room", [Room.FREE, Room.FULL])
def test_an_emergency_ends_on_nodes_without_spare_room_too(room: Room) -> None:
    """The replacement waits for the place of the pod that is taken away."""
    world = restart_only(20)
    world.room = dict.fromkeys(world.workloads, room)
    emergency(world).run(6, 10.0)
    assert (world.state.phase, len(world.really_in(Mode.FP32))) == (Phase.HELD, 20)


def test_a_gradual_rollback_restarts_no_more_at_once_than_there_are_slots() -> None:
    world = gradual(restart_only(20, rollback=GRADUAL))
    world.restart_slots, most = 3, 0
    for _ in range(60):
        world.step()
        most = max(most, len(world.state.restarts))
    assert (most, world.state.phase, taken_away(world)) == (3, Phase.HELD, 20)


def test_slots_that_other_policies_restarts_take_up_are_not_ours_and_those_of_nobody_are() -> None:
    """What somebody else rolls out, in this fleet or another, holds nothing."""
    world = restart_only(20, rollback=GRADUAL)
    for name in list(world.workloads)[:6]:
        world.room[name] = Room.NONE
        world.templates[name] = Mode.FP16
        world.replace_pods(name)  # a rollout of its owner that gets stuck
    world.restart_slots = 2
    gradual(world).step()
    assert len(world.state.restarts) == 2
    stuck = set(list(world.workloads)[:6])
    world.run(120)
    assert world.state.phase is Phase.HELD
    assert {name for name in world.workloads if name not in stuck} <= world.really_in(Mode.FP32)


@pytest.mark.parametrize("room", [Room.NONE, Room.QUOTA])
def test_a_replacement_that_cannot_start_stops_further_batches_for_as_long_as_it_has_no_place(room: Room) -> None:
    """However long ago it was taken away: on a full cluster one workload after the other would be lost else."""
    world = restart_only(4, rollback=GRADUAL)
    world.restart_slots, first = 1, "old-00"
    world.room[first] = room
    began = gradual(world).now
    until(world, lambda w: condition(w, "CapacityLost").status == "True", seconds=15.0, passes=20)
    until(world, lambda w: w.now - began > 4 * RESTARTING_SECONDS, seconds=15.0, passes=200)
    assert (world.restarts, condition(world, "CapacityLost").status) == ({first: 1}, "True")
    assert world.decide().restarting == (), "others have its slot"
    world.room = {}
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=200)
    assert (world.restarts, world.state.restarts) == (dict.fromkeys(world.workloads, 1), {})
    assert condition(world, "CapacityLost").status == "False"


def test_capacity_that_an_emergency_has_lost_is_reported_until_it_is_back() -> None:
    world = restart_only(4)
    world.room["old-02"] = Room.NONE
    until(emergency(world), lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=20)
    world.run(200, 60.0)
    assert "old-02" in condition(world, "CapacityLost").message
    world.room.clear()
    world.run(3)
    assert (condition(world, "CapacityLost").status, world.state.restarts) == ("False", {})


@pytest.mark.parametrize("room", [Room.NONE, Room.QUOTA])
def test_a_replacement_that_cannot_start_does_not_hold_an_emergency_for_ever(room: Room) -> None:
    world = restart_only(4)
    world.room["old-02"] = room
    emergency(world)
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=20)
    assert world.restarts == dict.fromkeys(world.workloads, 1)
    world.room.clear()
    world.run(3)
    assert world.really_in(Mode.FP32) == set(world.workloads)


def test_a_replacement_that_starts_late_is_not_taken_away_for_that_nothing_is_known_of_it_yet() -> None:
    """Its record stands while it is Pending: past the deadline everything unobservable would be restarted else."""
    world = promoted()
    world.unresponsive = {"hot-2", "hot-3"}
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.room["hot-2"] = Room.NONE
    until(world, lambda w: w.restarts.get("hot-2"), passes=30, seconds=15.0)
    world.unobservable = {"hot-3"}
    world.run(14)
    world.unobservable.add("hot-2")
    world.room.clear()
    world.run(4)
    assert world.restarts["hot-2"] == 1


def test_of_ten_pods_one_that_cannot_start_holds_nothing_back_and_the_workload_is_not_restarted() -> None:
    world = promoted()
    world.scale("hot-2", 9)
    world.room["hot-2"] = Room.NONE
    world.scale("hot-2", 10)
    assert sum(pod.pending for pod in world.workloads["hot-2"].pods) == 1
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    restarts = dict(world.restarts)
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=6)
    assert {**world.restarts, "literal": 0} == {**restarts, "literal": 0}
    assert {mode for mode, _ in world.processes("hot-2")} == {Mode.FP32}


def test_a_pod_that_admission_made_again_in_the_fallback_is_done_and_the_fleet_can_be_retried() -> None:
    """Its node was drained after the decision, before the operator came to it: nothing is left to write."""
    world = restart_only(8)
    emergency(world).commit(world.decide())
    for name in world.workloads:
        world.replace_pods(name)
    world.turn()
    world.turn()
    world.run(3)
    assert (world.state.phase, taken_away(world)) == (Phase.HELD, 0)
    world.bad = {}
    world.run(30)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0, passes=60)
    assert world.really_in(Mode.FP16) == set(world.workloads)


def test_all_pods_of_a_process_group_go_at_once() -> None:
    world = restart_only(2, pods=4)
    deleted = [a.workload.name for a in emergency(world).decide().actions if isinstance(a, DeletePod)]
    assert sorted(deleted) == ["old-00"] * 4 + ["old-01"] * 4


def test_pods_that_slipped_past_admission_are_taken_away_once_more_and_then_the_workload_is_stuck() -> None:
    world = restart_only(3)
    world._given = lambda name, index: None  # type: ignore[method-assign]  # acknowledged, and yet admission changes no pod
    emergency(world).run(20)
    assert world.restarts == dict.fromkeys(world.workloads, 2)
    assert (condition(world, "Stuck").status, condition(world, "Stuck").reason) == ("True", "PodsInWrongMode")
    assert "old-00" in condition(world, "Stuck").message
    assert world.state.phase is Phase.ROLLING_BACK


def test_what_slips_past_admission_after_an_emergency_has_ended_asks_its_disruption_budget() -> None:
    world = restart_only(3)
    emergency(world).run(6, 10.0)
    assert world.state.phase is Phase.HELD
    world._given = lambda name, index: None  # type: ignore[method-assign]  # admission changes no pod for a while
    world.replace_pods("old-01")
    removed: list[DeletePod | EvictPod] = []
    for _ in range(6):
        world.turn()
        removed += [a for a in world.decide().actions if isinstance(a, DeletePod | EvictPod)]
        world.step()
    assert {(type(action), action.workload.name) for action in removed} == {(EvictPod, "old-01")}


def hot_by_restart(**spec: object) -> World:
    """Trainers that read requests, of a policy that restarts them all the same."""
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}, "delivery": "Restart", **spec}))
    for index in range(3):
        world.add(f"hot-{index}", mode=Mode.FP16)
    world.run(3)
    assert world.state.phase is Phase.HEALTHY
    return world


def abort(world: World) -> World:
    world.policy = replace(world.policy, annotations={ABORT: str(world.state.transition_id)})
    return world


def test_a_trainer_that_reads_requests_saves_a_checkpoint_before_its_pod_goes() -> None:
    world = abort(hot_by_restart())
    decision = world.step(1.0)
    asked = [a for a in decision.actions if isinstance(a, RequestPod)]
    assert [(a.mode, a.checkpoint, a.generation) for a in asked] == [(Mode.FP16, True, decision.state.generation)] * 3
    assert not [a for a in decision.actions if isinstance(a, DeletePod)]
    world.step(1.0)
    assert taken_away(world) == 3
    world.run(5)
    assert (world.state.phase, world.really_in(Mode.FP32)) == (Phase.HELD, set(world.workloads))


def test_a_checkpoint_that_is_not_acknowledged_is_waited_for_as_long_as_its_time_is() -> None:
    world = hot_by_restart()
    world.unresponsive = {"hot-1"}
    abort(world).step(1.0)
    began = world.now - 1.0
    until(world, lambda w: w.restarts.get("hot-1"), passes=60)
    assert world.now - 1.0 - began == CHECKPOINT_SECONDS
    assert world.restarts == {"hot-0": 1, "hot-1": 1, "hot-2": 1}


def test_the_pods_of_a_workload_go_together_though_the_request_of_one_was_lost() -> None:
    world = hot_by_restart()
    world.scale("hot-0", 2)
    world.run(3)
    decision = abort(world).decide()
    world.commit(decision)
    for action in [a for a in decision.actions if a != decision.actions[1]]:
        world.act(action)
    assert [p.request is not None and p.request.mode for p in world.workloads["hot-0"].pods] == [Mode.FP16] * 2
    world.train()
    for expected in (0, 2):
        world.now += 3.0
        world.step(1.0)
        assert world.restarts.get("hot-0", 0) == expected


def test_a_change_of_the_template_stops_a_restart_that_waits_for_its_checkpoint() -> None:
    world = abort(hot_by_restart())
    world.step(1.0)
    change(world, "hot-1", pending_revision=True)
    world.run(8, 10.0)
    assert world.restarts == {"hot-0": 1, "hot-2": 1}
    assert condition(world, "PendingRevision").status == "True"
    change(world, "hot-1", pending_revision=False)
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert world.restarts == {"hot-0": 1, "hot-1": 1, "hot-2": 1}


def test_in_a_gradual_rollback_a_checkpoint_is_waited_for_up_to_in_flight() -> None:
    world = hot_by_restart(rollback={**GRADUAL, "gradual": {"sustain": "0s", "inFlight": "4m", "batchShare": 1.0}})
    world.unresponsive = {"hot-1"}
    gradual(world)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK)
    incident = world.state.incident
    assert incident is not None
    until(world, lambda w: w.restarts.get("hot-0") and w.restarts.get("hot-2"), passes=10)
    assert "hot-1" not in world.restarts
    until(world, lambda w: w.restarts.get("hot-1"))
    assert world.now - 1.0 - incident.decided_at == 240.0


def test_who_crashes_or_waits_to_start_is_asked_for_no_checkpoint() -> None:
    world = hot_by_restart()
    world.crash("hot-0")
    world.room["hot-1"] = Room.NONE
    world.replace_pods("hot-1")
    world.now += 60.0
    decision = abort(world).decide()
    asked = {a.workload.name for a in decision.actions if isinstance(a, RequestPod)}
    deleted = {a.workload.name for a in decision.actions if isinstance(a, DeletePod)}
    assert (asked, deleted) == ({"hot-2"}, {"hot-0", "hot-1"})


def test_an_unresponsive_trainer_is_restarted_once_and_without_a_checkpoint() -> None:
    world = promoted()
    world.unresponsive = {"hot-2"}
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    actions = [action for _ in range(40) for action in world.step().actions]
    assert world.restarts["hot-2"] == 1
    assert not [a for a in actions if isinstance(a, RequestPod) and a.checkpoint]
    assert world.state.phase is Phase.HELD


def test_a_restart_waits_for_admission_to_know_the_new_mode() -> None:
    world = restart_only(3, rollback=GRADUAL)
    world.lagging = True
    gradual(world).run(3, 5.0)
    assert (taken_away(world), world.state.phase) == (0, Phase.ROLLING_BACK)
    world.catch_up()
    world.run(8)
    assert (world.state.phase, world.really_in(Mode.FP32)) == (Phase.HELD, set(world.workloads))


def test_a_change_of_the_mode_ends_the_restarts_of_the_one_before() -> None:
    """Another attempt takes the workloads up again, though not all had come back from the rollback."""
    world = restart_only(3)
    world.room["old-01"] = Room.NONE
    emergency(world)
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=20)
    assert key("old-01") in world.state.restarts
    world.bad, world.room = {}, {}
    world.run(30)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0, passes=60)
    assert world.restarts == dict.fromkeys(world.workloads, 2)
    assert world.state.restarts == {}


def test_a_workload_that_runs_nothing_is_moved_at_no_cost() -> None:
    world = restart_only(3)
    world.scale("old-01", 0)
    world.run(2)
    emergency(world).run(4)
    assert (world.state.phase, world.restarts.get("old-01", 0)) == (Phase.HELD, 0)
    world.scale("old-01", 1)
    world.turn()
    assert "old-01" in world.really_in(Mode.FP32)


def test_an_older_pod_that_still_terminates_holds_the_rollback_while_it_trains_in_the_target() -> None:
    world = restart_only(2)
    world.unreachable = {"old-00"}
    emergency(world).run(5)
    assert (world.state.phase, world.summary.unacknowledged) == (Phase.ROLLING_BACK, ("old-00",))
    assert {pod.started_mode for pod in live_pods(world.workloads["old-00"])} == {Mode.FP32}
    world.unreachable = set()
    world.run(3)
    assert world.state.phase is Phase.HELD


def test_the_decision_is_the_same_for_a_leader_that_begins_in_the_middle() -> None:
    world = emergency(restart_only(4))
    world.step()
    seen = world.observe()
    late = replace(seen, writer="next", epoch=2)
    one, other = (decide(world.policy, world.state, found, world.now) for found in (seen, late))
    assert one.actions == other.actions


def test_a_restarted_workload_with_poisoned_weights_is_asked_to_rewind_when_it_is_back() -> None:
    world = promoted(delivery="Restart")
    emergency(world)
    until(world, lambda w: w.state.phase is Phase.HELD)
    rewound = {name for name, what in world.log if what.endswith("rewind")}
    assert rewound == {name for name, view in world.workloads.items() if view.hot}
    world.run(3)
    assert condition(world, "WeightsSuspect").status == "True"
    assert "literal" in condition(world, "WeightsSuspect").message
    assert "hot" not in condition(world, "WeightsSuspect").message
    world.run(5)
    assert {name: what.count("rewind") for name, what in world.log if "rewind" in what} == dict.fromkeys(rewound, 1)


def test_a_trainer_that_ignores_the_rewind_does_not_hold_the_rollback_back_and_is_named() -> None:
    world = emergency(promoted())
    world.unresponsive = {"hot-1"}
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert "hot-1" not in condition(world, "WeightsSuspect").message, "it may still answer"
    world.run(20)
    assert "hot-1" in condition(world, "WeightsSuspect").message
    world.metrics_away = True
    world.run(3)
    assert "hot-2" not in condition(world, "WeightsSuspect").message, "what was acknowledged stays so"
    world.metrics_away, world.unresponsive = False, set()
    world.run(3)
    assert "hot" not in condition(world, "WeightsSuspect").message


def test_what_is_started_after_the_rewind_is_not_taken_back_again() -> None:
    world = emergency(promoted())
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.run(5)
    before = len(world.log)
    world.replace_pods("hot-1")
    world.run(5)
    assert [what for name, what in world.log[before:] if "rewind" in what] == []


@pytest.mark.parametrize("spec", [{}, {"delivery": "Restart"}], ids=["hot", "restart"])
def test_trainers_that_ignore_rewinds_do_not_keep_an_emergency_open(spec: dict[str, object]) -> None:
    world = emergency(promoted(**spec))
    world.unresponsive = {"hot-1", "hot-2"}
    world.run(40, 15.0)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP16) == set()


def test_an_abort_does_not_forget_whose_weights_are_poisoned() -> None:
    world = promoted()
    world.bad = {"literal": NAN}
    until(world, lambda w: w.state.phase is Phase.DEGRADED)
    assert world.state.poisoned == (key("literal"),)
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert "literal" in condition(world, "WeightsSuspect").message


def test_a_pod_of_a_held_workload_that_is_not_scraped_yet_is_not_taken_away() -> None:
    world = promoted()
    world.bad = {"hot-1": NAN}
    until(world, lambda w: w.state.phase is Phase.DEGRADED)
    world.run(20)
    pods = world.workloads["hot-1"].pods
    change(world, "hot-1", pods=(*pods, replace(pods[0], name="fresh", uid="fresh")), replicas=2)
    world.run(60)
    assert "hot-1" not in world.restarts
