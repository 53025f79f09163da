"""A rehearsed rollback: who goes to the fallback, what is measured, what ends it, and that it changes nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.drill import DrillOrder, DrillResult, drill_order, drill_value
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicyEnforcement, Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.contract import DRILL, PREFIX
from precision_operator.core.actions import Notify
from precision_operator.core.decide import HURRY_SECONDS
from precision_operator.core.model import PromotionSlots
from precision_operator.reasons import Cause, Reason
from tests.support import fleets
from tests.support.drills import QUICK, drill, in_a_drill, nothing_runs, of, over, promoted, without_metrics
from tests.support.fleets import answer, change, fleet, held_names, respec, until
from tests.support.views import key

HOT = {f"hot-{index}" for index in range(5)}
ALL = {*HOT, "literal"}


def said(world: World) -> list[Reason]:
    return [action.reason for action in world.step(1.0).actions if isinstance(action, Notify)]


def test_a_workload_goes_to_its_fallback_is_timed_and_goes_back_by_itself() -> None:
    world = promoted()
    drill(world, f"{key('hot-1')}: before the release")
    world.step(1.0)
    assert (world.state.phase, set(world.state.drilled)) == (Phase.HEALTHY, {key("hot-1")})
    assert world.state.assigned(key("hot-1")) is Mode.FP32
    until(world, over)
    found = of(world)
    assert (found.result, found.workloads, found.restarted, found.by, found.why) == (
        DrillResult.PASSED,
        1,
        0,
        "ada",
        "before the release",
    )
    assert found.ended_at is not None
    assert found.began_at < found.ended_at <= found.deadline_at
    world.run(5, 5.0)
    assert world.really_in(Mode.FP16) == ALL


def test_a_drill_is_looked_after_as_often_as_a_rollback() -> None:
    world = promoted()
    world.unresponsive = {"hot-1"}
    drill(world, key("hot-1"))
    world.step(1.0)
    assert world.decide().wake_at == world.now + HURRY_SECONDS


def test_the_others_are_not_touched_by_the_drill_of_one() -> None:
    world = promoted()
    drill(world, key("hot-1"))
    world.log.clear()
    until(world, over)
    world.run(5, 5.0)
    assert {name for name, _ in world.log} == {"hot-1"}


def test_a_fleet_goes_to_its_fallback_at_once_and_back() -> None:
    world = promoted()
    drill(world)
    world.step(1.0)
    assert world.state.drilled == {key(name) for name in ALL}
    until(world, over)
    assert (of(world).result, of(world).workloads, of(world).restarted) == (DrillResult.PASSED, 6, 1)
    until(world, lambda w: w.really_in(Mode.FP16) == ALL)
    assert of(world).half_at is not None


def test_a_drill_is_no_attempt_no_incident_and_asks_for_no_acknowledgement() -> None:
    world = promoted()
    before = world.state
    drill(world)
    until(world, over)
    world.run(10, 5.0)
    after = world.state
    assert (after.attempts, after.incident, after.held, after.phase) == (before.attempts, None, (), Phase.HEALTHY)
    assert after.members == before.members


def test_what_answers_no_request_fails_the_drill_and_the_rest_goes_back() -> None:
    world = promoted()
    world.unresponsive = {"hot-2"}
    drill(world, "fleet allow-restarts")
    until(world, over)
    found = of(world)
    assert (found.result, world.state.reason) == (DrillResult.FAILED, Reason.DRILL_FAILED)
    assert "hot-2" in found.message
    assert found.passed_at is None
    world.run(20, 5.0)
    assert world.really_in(Mode.FP16) >= ALL - {"hot-2"}
    assert (world.state.phase, world.restarts.get("hot-2")) == (Phase.HEALTHY, None)


def test_what_cannot_be_read_until_the_deadline_has_not_passed() -> None:
    world = promoted()
    drill(world, key("hot-1"))
    world.step(1.0)
    world.metrics_away = True
    until(world, over)
    assert of(world).result is DrillResult.FAILED


def test_a_failed_drill_is_said_as_a_warning() -> None:
    world = promoted()
    world.unresponsive = {"hot-2"}
    drill(world, key("hot-2"))
    heard: list[Reason] = []
    while not over(world):
        heard += said(world)
    assert heard == [Reason.DRILLING, Reason.DRILL_FAILED]
    assert Reason.DRILL_FAILED.warns


def test_the_time_of_the_last_that_passed_outlives_one_that_failed() -> None:
    world = promoted()
    drill(world, key("hot-2"))
    until(world, over)
    passed_at = of(world).passed_at
    world.run(5, 5.0)
    world.unresponsive = {"hot-2"}
    drill(world, key("hot-2"))
    world.step(1.0)
    until(world, over)
    assert (of(world).result, of(world).passed_at) == (DrillResult.FAILED, passed_at)
    assert passed_at is not None


@pytest.mark.parametrize("what", ["fleet allow-restarts", key("hot-3")])
def test_a_breach_of_one_ends_the_drill_and_is_rolled_back(what: str) -> None:
    world = promoted()
    world.unresponsive = {"hot-3", "hot-0"}
    drill(world, what)
    world.step(1.0)
    world.bad = {"hot-0": NAN}
    until(world, lambda w: not w.state.drilled)
    assert of(world).result is DrillResult.PREEMPTED
    assert (world.state.phase, held_names(world)) == (Phase.DEGRADED, {"hot-0"})
    assert world.state.incident is not None
    assert world.state.incident.severity is Severity.P0


def test_a_breach_of_the_fleet_ends_the_drill_and_is_rolled_back() -> None:
    world = promoted()
    world.unresponsive = set(HOT)
    drill(world)
    world.step(1.0)
    world.bad = dict.fromkeys(HOT, OVERFLOWS)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK)
    assert of(world).result is DrillResult.PREEMPTED
    world.unresponsive = set()
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0)
    assert world.really_in(Mode.FP16) == set()


def test_a_persons_rollback_ends_the_drill() -> None:
    world = promoted()
    drill(world)
    world.step(1.0)
    answer(world, "abort")
    world.step(1.0)
    assert (world.state.phase, of(world).result) == (Phase.ROLLING_BACK, DrillResult.PREEMPTED)


def test_a_change_of_the_target_ends_the_drill() -> None:
    world = promoted()
    drill(world)
    world.step(1.0)
    respec(world, target=Mode.BF16)
    world.step(1.0)
    assert (of(world).result, world.state.drilled) == (DrillResult.PREEMPTED, frozenset())


def test_a_drill_goes_on_under_another_leader() -> None:
    world = promoted()
    drill(world)
    world.step(1.0)
    world.continuous_since = world.now  # the process before it was killed
    until(world, lambda w: over(w) and w.really_in(Mode.FP16) == ALL, seconds=5.0)
    assert of(world).result is DrillResult.PASSED


def test_restarts_must_be_allowed() -> None:
    world = promoted()
    drill(world, "fleet")
    assert said(world) == [Reason.DRILL_REFUSED]
    assert (world.state.last_drill, world.restarts) == (None, promoted().restarts)


def halfway() -> World:
    world = fleet()
    world.run(3)
    return world


def without_admission() -> World:
    world = promoted()
    world.bypassed = True
    return world


def one_back() -> World:
    world = promoted()
    world.bad = {"hot-2": NAN}
    world.run(2)
    return world


def breached_once() -> World:
    world = fleets.promoted(evaluation={"interval": "15s", "failureLimit": 5, "minSamples": 1, "window": "60s"})
    world.bad = {"hot-2": OVERFLOWS}
    world.step()
    return world


@pytest.mark.parametrize("stands", [without_admission, without_metrics, one_back, breached_once])
def test_a_drill_is_refused_where_it_would_be_in_the_way(stands: Callable[[], World]) -> None:
    world = stands()
    drill(world)
    assert Reason.DRILL_REFUSED in said(world)
    assert world.state.last_drill is None


def test_a_drill_of_the_fleet_counts_and_awaits_only_what_runs() -> None:
    world = nothing_runs()
    drill(world)
    until(world, over)
    assert (of(world).result, of(world).workloads) == (DrillResult.PASSED, 5)


def test_a_drill_fails_at_once_when_nothing_of_it_runs_any_more() -> None:
    world = in_a_drill()
    change(world, "hot-1", pods=())
    world.step(1.0)
    assert (of(world).result, of(world).message) == (DrillResult.FAILED, "nothing of it runs any more")


def test_not_all_were_asked_while_one_waits_for_its_restart() -> None:
    world = promoted()
    world.restart_slots, world.unresponsive = 0, {"hot-1"}
    drill(world)
    until(world, lambda w: w.state.last_drill is not None and of(w).half_at is not None)
    assert of(world).requested_at is None


@pytest.mark.parametrize(
    ("values", "result"),
    [({Signal.DIVERGENCE: 0.1}, DrillResult.FAILED), ({Signal.OVERFLOW: 0.2}, DrillResult.PREEMPTED)],
    ids=["only a warning", "mitigated first"],
)
def test_a_mild_breach_ends_a_drill_though_it_is_mitigated_first_and_a_mere_warning_does_not(
    values: dict[Signal, float], result: DrillResult
) -> None:
    world = fleets.promoted(rollback={**QUICK, "gradual": {"sustain": "5s"}})
    world.unresponsive = {"hot-1"}
    drill(world, key("hot-1"))
    world.step(1.0)
    world.bad = {"hot-2": values}
    until(world, over)
    assert (of(world).result, world.state.phase) == (result, Phase.HEALTHY)


def test_a_policy_that_is_made_anew_begins_at_its_first_step_and_ends_the_drill_of_the_one_before() -> None:
    world = in_a_drill()
    world.recreate_policy(replace(world.policy, uid="another", annotations={}))
    ended = world.now
    world.step(1.0)
    assert (of(world).result, of(world).ended_at) == (DrillResult.PREEMPTED, ended)


@pytest.mark.parametrize("what", ["", "nobody", "fleet now", "fleet allow-restarts please", "apps/Deployment/nobody"])
def test_what_names_no_moved_workload_is_refused(what: str) -> None:
    world = promoted()
    drill(world, what)
    assert said(world) == [Reason.DRILL_REFUSED]
    assert world.state.last_drill is None


@pytest.mark.parametrize("stands", [halfway, in_a_drill])
def test_a_command_given_at_another_time_begins_no_drill(stands: Callable[[], World]) -> None:
    world = stands()
    before = world.state.last_drill
    drill(world)
    world.step(1.0)
    after = world.state.last_drill
    assert (after.id if after else None) == (before.id if before else None)


def test_a_refused_drill_does_not_come_later() -> None:
    world = without_admission()
    drill(world)
    world.step(1.0)
    world.catch_up()
    world.run(5, 5.0)
    assert world.state.last_drill is None


@pytest.mark.parametrize("fields", [{"suspend": True}, {"enforcement": PolicyEnforcement.OBSERVE}])
def test_a_policy_that_does_not_act_begins_no_drill(fields: dict[str, object]) -> None:
    world = promoted()
    respec(world, **fields)
    drill(world)
    world.run(3)
    assert world.state.last_drill is None


def test_a_halted_operator_begins_no_drill() -> None:
    world = promoted()
    world.halted = Cause(Reason.HALTED, "somebody halted it")
    drill(world)
    world.run(3)
    assert world.state.last_drill is None


@pytest.mark.parametrize(
    "order",
    [
        DrillOrder("", False, ""),
        DrillOrder("", True, "release 12: rehearsed"),
        DrillOrder("apps/Deployment/vit", True, ""),
        DrillOrder("label/vit", False, "because"),
    ],
)
def test_an_order_is_read_as_it_was_written(order: DrillOrder) -> None:
    assert drill_order({DRILL: f"7: {drill_value(order)}"}, why_characters=200) == order


@pytest.mark.parametrize(("command", "strategy"), [("abort", Strategy.EMERGENCY), ("rollback", Strategy.GRADUAL)])
def test_a_rollback_that_is_asked_for_with_a_drill_comes_first(command: str, strategy: Strategy) -> None:
    world = promoted()
    number = world.state.transition_id
    annotations = {f"{PREFIX}/{command}": str(number), DRILL: f"{number}: fleet allow-restarts"}
    world.policy = replace(world.policy, annotations=annotations)
    assert Reason.DRILL_REFUSED in said(world)
    assert world.state.incident is not None
    assert (world.state.phase, world.state.incident.strategy) == (Phase.ROLLING_BACK, strategy)


def test_when_all_were_asked_and_half_had_answered_is_kept_until_the_last_one_has() -> None:
    world = promoted()
    world.unresponsive = {"hot-1"}
    drill(world)
    until(world, lambda w: w.state.last_drill is not None and of(w).half_at is not None)
    before = of(world)
    world.run(2, 1.0)
    world.unresponsive = set()
    until(world, over)
    found = of(world)
    assert found.result is DrillResult.PASSED
    assert (found.requested_at, found.half_at) == (before.requested_at, before.half_at)
    assert found.requested_at is not None
    assert found.half_at is not None
    assert found.ended_at is not None
    assert found.half_at < found.ended_at


def test_what_a_drill_has_in_its_fallback_takes_up_no_slot_of_the_cap_on_promotions() -> None:
    world = promoted()
    world.promotion_slots = PromotionSlots(5)
    drill(world, f"{key('hot-1')}: before the release")
    begun = world.step(1.0)
    assert (set(begun.state.drilled), begun.promoting) == ({key("hot-1")}, frozenset())
