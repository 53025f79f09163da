"""The main job on values: rolled out by steps, guarded, rolled back, retried."""

from dataclasses import replace

from lab.model.policies import FAST, policy
from lab.model.world import NAN, OVERFLOWS
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.actions import DeletePod, RequestPod
from tests.support.fleets import answer, condition, fleet, held_names, phase_of, promoted


def test_rolls_out_by_steps_until_healthy() -> None:
    world = fleet()
    seen = set()
    for _ in range(30):
        world.step()
        seen.add(len(world.really_in(Mode.FP16)))
    assert world.state.phase is Phase.HEALTHY
    assert {1, 3, 6} <= seen
    assert world.restarts == {"literal": 1}
    assert world.summary.moved == 6


def test_hot_workloads_are_moved_without_a_restart() -> None:
    world = promoted()
    assert {name: len(w.pods) for name, w in world.workloads.items()} == dict.fromkeys(world.workloads, 1)
    assert set(world.restarts) == {"literal"}


def test_what_a_workload_is_assigned_reaches_its_new_pods_too() -> None:
    world = promoted()
    for name in world.workloads:
        world.replace_pods(name)
    before = world.writes
    world.run(3)
    assert world.really_in(Mode.FP16) == set(world.workloads)
    assert world.writes == before


def test_a_steady_fleet_costs_no_write() -> None:
    world = promoted()
    before = (world.writes, world.commits, world.summaries)
    world.run(50)
    assert (world.writes, world.commits, world.summaries) == before


def test_share_of_breached_workloads_makes_a_fleet_emergency() -> None:
    world = promoted()
    for name in ("hot-1", "hot-3"):
        world.bad[name] = OVERFLOWS
    decision = world.step(1.0)
    assert decision.state.phase is Phase.ROLLING_BACK
    assert decision.state.incident is not None
    assert decision.state.incident.scope is Scope.FLEET
    world.run(10, 1.0)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP32) == set(world.workloads)
    assert (world.state.enforce, world.state.modes) == (True, {})
    assert world.restarts == {"literal": 2}


def test_one_breached_workload_is_rolled_back_by_itself() -> None:
    world = promoted()
    world.bad["hot-2"] = OVERFLOWS
    world.run(10)
    assert world.state.phase is Phase.DEGRADED
    assert held_names(world) == {"hot-2"}
    assert world.really_in(Mode.FP32) == {"hot-2"}


def test_breach_in_a_step_rolls_back_its_cohort() -> None:
    world = fleet()
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    world.run(10)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP32) == set(world.workloads)


def test_held_leaves_only_by_retry_of_this_transition() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.run(10)
    world.bad = {}
    stale = str(world.state.transition_id - 1)
    world.policy = replace(world.policy, annotations={"precision.genesis.ai/retry": stale})
    world.run(20)
    assert phase_of(world) is Phase.HELD
    answer(world, "retry")
    world.run(40)
    assert phase_of(world) is Phase.HEALTHY
    assert world.really_in(Mode.FP16) == set(world.workloads)


def test_retry_waits_until_the_window_no_longer_shows_the_old_breach() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.run(10, 1.0)
    assert phase_of(world) is Phase.HELD
    answer(world, "retry")
    world.run(10, 1.0)
    assert (world.state.phase, world.summary.reason) == (Phase.PENDING, "WindowNotClear")
    world.bad = {}
    world.run(40, 30.0)
    assert phase_of(world) is Phase.HEALTHY


def test_monitoring_lost_holds_and_recovers() -> None:
    world = fleet()
    world.run(3)
    world.metrics_away = True
    moved = world.really_in(Mode.FP16)
    world.run(100)
    assert phase_of(world) is Phase.PROGRESSING
    assert world.really_in(Mode.FP16) == moved
    world.metrics_away = False
    world.run(40)
    assert phase_of(world) is Phase.HEALTHY


def test_same_breach_on_fp32_is_not_blamed_on_the_precision() -> None:
    world = fleet()
    world.everywhere = {Signal.NON_FINITE: 2.0}
    world.run(8)
    assert (world.state.phase, world.summary.reason) == (Phase.PROGRESSING, "CauseNotPrecision")


def test_hot_workload_that_does_not_acknowledge_is_restarted() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.unresponsive = {"hot-4"}
    world.run(20, 10.0)
    assert world.state.phase is Phase.HELD
    assert world.restarts["hot-4"] == 1
    assert world.state.incident is not None
    assert world.state.incident.escalated


def test_abort_rolls_back_whatever_the_metrics_report() -> None:
    world = promoted()
    answer(world, "abort")
    world.run(10)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP32) == set(world.workloads)


def test_a_policy_created_again_over_a_rollback_stays_held_and_outranks_it() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.run(10)
    generation = world.state.generation
    world.recreate_policy(policy(uid="another", **FAST))
    world.run(5)
    assert world.state.phase is Phase.HELD
    assert (world.state.policy_uid, world.state.generation) == ("another", generation)


def test_approval_step_waits_for_a_person() -> None:
    steps = {"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]}
    world = fleet(strategy=steps)
    world.run(20)
    assert phase_of(world) is Phase.PAUSED
    answer(world, "promote")
    world.run(20)
    assert phase_of(world) is Phase.HEALTHY


def test_suspended_policy_decides_nothing() -> None:
    world = fleet(suspend=True)
    world.run(10)
    assert world.writes == 0
    assert world.summary.reason == "Suspended"


def test_crash_looping_canary_is_a_breach_not_silence() -> None:
    world = fleet()
    world.run(2, 1.0)
    (moved,) = world.really_in(Mode.FP16)
    world.crash(moved)
    world.step()
    assert (world.state.phase, world.state.reason) == (Phase.ROLLING_BACK, "TrainingFailing")


def test_a_rollout_waits_while_it_is_not_certain_that_admission_enforces() -> None:
    world = fleet()
    world.run(1)
    world.lagging = True
    world.known = None
    world.run(20)
    assert (world.state.step_index, world.summary.reason) == (0, "AdmissionBehind")
    assert condition(world, "AdmissionEnforced").status == "Unknown"
    world.catch_up()
    world.run(20)
    assert world.state.phase is Phase.HEALTHY


def test_pods_are_taken_away_only_once_admission_knows_the_generation_and_annotated_before() -> None:
    world = promoted()
    world.lagging = True
    answer(world, "abort")
    decision = world.step(1.0)
    assert {type(action) for action in decision.actions} >= {RequestPod, DeletePod}
    world.run(10, 1.0)
    assert world.really_in(Mode.FP32) == {f"hot-{index}" for index in range(5)}
    assert world.restarts["literal"] == 1, "only that of the rollout"
    world.catch_up()
    world.run(4, 1.0)
    assert world.really_in(Mode.FP32) == set(world.workloads)
    assert world.state.phase is Phase.HELD
