"""What becomes of an assignment when its policy is deleted, created again, or finds it lost."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.spec import PolicyEnforcement
from precision_operator.api.state import Phase, Restart
from precision_operator.core.actions import DeleteAssignment, DeletePod, RequestPod
from precision_operator.core.lifecycle import lost
from tests.support.fleets import (
    answer,
    condition,
    fleet,
    held_names,
    member_names,
    promoted,
    respec,
    rolling_back,
    until,
)
from tests.support.rollbacks import by_canary, canary_of, compared
from tests.support.standing_calls import WINDOW
from tests.support.views import key, keys

EVERYBODY: AbstractSet[str] = frozenset({*(f"hot-{index}" for index in range(5)), "literal"})


def pending() -> World:
    world = fleet()
    world.unobservable = set(world.workloads)
    world.run(2)
    assert world.state.phase is Phase.PENDING
    return world


def progressing() -> World:
    world = fleet()
    until(world, lambda w: len(w.really_in(Mode.FP16)) == 3, seconds=15.0)
    assert world.state.phase is Phase.PROGRESSING
    return world


def paused() -> World:
    world = fleet(strategy={"steps": [{"setWeight": 40}, {"pause": {}}, {"setWeight": 100}]})
    until(world, lambda w: w.state.phase is Phase.PAUSED, seconds=15.0)
    return world


def degraded() -> World:
    world = promoted()
    world.bad = {"hot-2": NAN}
    world.run(4)
    world.bad = {}
    assert (world.state.phase, held_names(world)) == (Phase.DEGRADED, {"hot-2"})
    return world


def held() -> World:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.run(10)
    world.bad = {}
    return world


def canary() -> World:
    return compared(by_canary())


PHASES: dict[Callable[[], World], AbstractSet[str]] = {
    pending: frozenset(),
    progressing: frozenset(),
    paused: frozenset(),
    promoted: frozenset(),
    degraded: frozenset({"hot-2"}),
    rolling_back: EVERYBODY,
    held: EVERYBODY,
}
"""What a rollback holds in each phase."""


def name(value: object) -> str:
    return getattr(value, "__name__", "")


def deleted(history: Callable[[], World], *, hold: bool = True) -> World:
    world = history()
    respec(world, hold_on_delete=hold)
    world.policy = replace(world.policy, settings=settings(world.policy, hold=hold))
    world.step(1.0)
    world.delete_policy()
    return world


def settings(given: Policy, *, hold: bool) -> str:
    return given.settings.replace("{", '{"deletionPolicy":"%s",' % ("Hold" if hold else "Release"), 1)


@pytest.mark.parametrize(("history", "holds"), PHASES.items(), ids=name)
def test_a_deleted_policy_leaves_behind_what_a_rollback_holds_and_nothing_else(
    history: Callable[[], World], holds: AbstractSet[str]
) -> None:
    world = deleted(history)
    before = world.really_in(Mode.FP16) - holds
    world.run(30)
    assert held_names(world) == holds
    assert (world.assignment is None) is (holds == frozenset())
    assert world.really_in(Mode.FP16) == before, "no other running pod is changed"
    assert world.really_in(Mode.FP32) >= holds
    if holds:
        state = world.state
        assert (state.fallback, state.modes) == (None, dict.fromkeys(keys(*sorted(holds)), Mode.FP32))
        assert (state.deletable, state.enforce, state.reason) == (True, True, "PolicyDeleted")
        assert f"kubectl precision release {world.policy.name}" in state.message


@pytest.mark.parametrize(("history", "holds"), PHASES.items(), ids=name)
def test_released_nothing_is_left_behind_once_a_rollback_in_flight_is_finished(
    history: Callable[[], World], holds: AbstractSet[str]
) -> None:
    world = deleted(history, hold=False)
    if world.state.phase is Phase.ROLLING_BACK:
        assert not [a for a in world.decide().actions if isinstance(a, DeleteAssignment)]
    world.run(30)
    assert (world.assignment, world.gone) == (None, True)
    if history is rolling_back:
        assert world.really_in(Mode.FP32) == EVERYBODY


def test_a_rollback_in_flight_is_finished_without_its_policy_also_by_restarts() -> None:
    world = deleted(rolling_back)
    world.run(30)
    assert world.really_in(Mode.FP32) == EVERYBODY
    assert (world.restarts["hot-4"], world.state.phase) == (1, Phase.HELD)


def test_a_rollback_in_flight_goes_on_in_a_process_that_begins_after_the_deletion() -> None:
    world = rolling_back()
    world.step(1.0)
    world.delete_policy()
    world.continuous_since = world.now
    world.run(30)
    assert world.really_in(Mode.FP32) == EVERYBODY


def test_one_that_was_rolled_back_alone_and_has_not_acknowledged_is_followed_without_its_policy() -> None:
    world = promoted()
    world.bad, world.unresponsive = {"hot-2": NAN}, {"hot-2"}
    world.step(1.0)
    world.delete_policy()
    world.run(30)
    assert (world.really_in(Mode.FP32), world.restarts.get("hot-2")) == ({"hot-2"}, 1)
    assert world.state.incident is not None
    assert world.state.incident.last_ack_at is not None
    assert world.restarts == {"literal": 1, "hot-2": 1}


def test_of_a_rollout_that_was_taken_back_only_what_had_moved_is_held() -> None:
    world = progressing()
    moved = world.really_in(Mode.FP16)
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.delete_policy()
    world.run(3)
    assert held_names(world) == moved


def test_of_a_rollback_by_canary_only_the_canary_is_held() -> None:
    world = canary()
    first = canary_of(world)
    world.state = replace(world.state, reason="CanaryNoDifference")
    world.delete_policy()
    world.run(10)
    assert (held_names(world), world.really_in(Mode.FP32)) == (first, first)
    assert {h.reason for h in world.state.held} == {"OverflowRateHigh"}, "not what the canary has shown"
    assert (world.state.phase, world.state.canary, world.state.comparison) == (Phase.HELD, (), None)


def test_nothing_is_promoted_and_no_command_is_followed_without_the_policy() -> None:
    world = held()
    answer(world, "retry")
    annotations = world.policy.annotations
    world.delete_policy()
    world.policy = replace(world.policy, annotations=annotations)
    world.run(10)
    assert (world.state.phase, held_names(world)) == (Phase.HELD, EVERYBODY)


def test_after_the_deletion_new_pods_of_what_is_held_start_in_the_fallback_and_all_others_as_their_templates_have_them() -> (
    None
):
    world = degraded()
    world.delete_policy()
    world.run(3)
    for found in world.workloads:
        world.templates[found] = Mode.BF16
        world.replace_pods(found)
    world.run(3)
    assert world.really_in(Mode.FP32) == {"hot-2"}
    assert world.really_in(Mode.BF16) == EVERYBODY - {"hot-2"}


def test_a_workload_that_is_held_and_created_again_after_the_deletion_starts_in_the_fallback() -> None:
    world = held()
    world.delete_policy()
    world.run(3)
    world.drop("hot-1")
    world.run(3)
    world.add("hot-1", mode=Mode.FP16)
    assert "hot-1" in world.really_in(Mode.FP32)
    assert held_names(world) == EVERYBODY


def test_a_rollback_whose_incident_was_lost_is_no_reason_to_release_what_it_holds() -> None:
    world = rolling_back()
    world.state = replace(world.state, incident=None)
    world.delete_policy()
    world.run(3)
    assert held_names(world) == EVERYBODY


def test_once_it_is_reduced_a_deleted_policy_costs_nothing_more() -> None:
    world = deleted(held)
    world.run(5)
    before = (world.commits, world.writes, world.state.generation)
    world.run(10)
    assert (world.commits, world.writes, world.state.generation) == before


def again(world: World, **spec: object) -> World:
    """The policy is created again, with another uid."""
    world.recreate_policy(policy(uid="another", **{**FAST, **spec}))
    return world


def test_a_policy_created_again_over_a_held_fleet_keeps_it_held_under_the_same_transition() -> None:
    world = held()
    before = world.state
    again(world).run(5)
    state = world.state
    assert (state.phase, state.policy_uid, state.enforce) == (Phase.HELD, "another", True)
    assert (state.transition_id, state.generation) == (before.transition_id, before.generation)
    assert world.really_in(Mode.FP32) == EVERYBODY
    world.run(30)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    assert world.really_in(Mode.FP16) == EVERYBODY


def test_a_policy_created_again_in_the_middle_of_a_rollback_finishes_it() -> None:
    world = again(rolling_back())
    world.run(30)
    assert (world.state.phase, world.really_in(Mode.FP32)) == (Phase.HELD, EVERYBODY)


@pytest.mark.parametrize("reduced", [False, True], ids=["before its assignment was reduced", "after"])
def test_a_policy_created_again_keeps_what_was_rolled_back_alone_and_begins_at_its_first_step(reduced: bool) -> None:
    world = degraded()
    before, writes = world.state, world.writes
    if reduced:
        world.delete_policy()
        world.run(3)
        assert world.state.fallback is None
    again(world).step()
    state = world.state
    assert (held_names(world), state.step_index, state.enforce) == ({"hot-2"}, 0, True)
    assert state.transition_id >= before.transition_id
    assert state.generation >= before.generation
    assert not state.deletable
    world.run(40)
    assert world.really_in(Mode.FP16) == EVERYBODY - {"hot-2"}
    assert world.really_in(Mode.FP32) == held_names(world) == {"hot-2"}
    assert world.writes == writes, "who trained in the target all the while was left in it"


def test_a_policy_created_again_in_mid_rollout_begins_at_its_first_step_and_moves_nobody_back() -> None:
    world = progressing()
    moved, generation = world.really_in(Mode.FP16), world.state.generation
    again(world).step()
    assert (world.state.step_index, world.state.enforce) == (0, True)
    assert world.state.generation >= generation
    assert world.really_in(Mode.FP16) == moved
    world.run(40)
    assert (world.state.phase, world.really_in(Mode.FP16)) == (Phase.HEALTHY, EVERYBODY)


def test_a_fleet_that_was_held_when_its_policy_went_waits_for_a_retry_under_the_next() -> None:
    world = held()
    world.delete_policy()
    world.run(3)
    again(world).run(10)
    assert (world.state.phase, held_names(world)) == (Phase.PENDING, EVERYBODY)
    assert world.summary.reason == "AwaitingRetry"
    assert world.really_in(Mode.FP32) == EVERYBODY
    world.run(30)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    assert (world.really_in(Mode.FP16), held_names(world)) == (EVERYBODY, set())


def test_what_somebody_trains_in_the_target_between_two_policies_is_adopted_beside_what_is_held() -> None:
    world = degraded()
    world.delete_policy()
    world.run(3)
    world.add("own", mode=Mode.FP16)
    world.add_referencing("unknown", Mode.FP16)
    world.unobservable = {"unknown"}
    world.now += 600.0
    again(world).run(3)
    assert (world.state.phase, world.summary.reason, world.state.fallback) == (Phase.PENDING, "NoSamples", None)
    assert "own" in world.really_in(Mode.FP16)
    world.unobservable = set()
    world.run(3)
    assert {"own", "unknown"} <= member_names(world)
    world.run(20)
    assert world.really_in(Mode.FP16) == {*EVERYBODY, "own", "unknown"} - {"hot-2"}


def test_a_policy_that_goes_again_before_it_began_leaves_the_same_behind() -> None:
    world = degraded()
    world.delete_policy()
    world.run(3)
    world.metrics_away = True
    again(world).run(3)
    assert not world.state.deletable
    world.delete_policy()
    world.run(3)
    assert (held_names(world), world.state.deletable, world.state.fallback) == ({"hot-2"}, True, None)
    assert world.state.phase is Phase.HELD


@pytest.mark.parametrize(
    ("idle", "resumed"),
    [({"suspend": True}, {"suspend": False}), ({"enforcement": "Observe"}, {"enforcement": PolicyEnforcement.ENFORCE})],
    ids=["suspended", "observing"],
)
def test_a_policy_that_does_nothing_takes_over_nothing_before_it_is_resumed(
    idle: dict[str, object], resumed: dict[str, object]
) -> None:
    world = progressing()
    before = world.state
    again(world, **idle).run(3)
    assert (world.state.phase, world.state.policy_uid) == (before.phase, before.policy_uid)
    assert (world.state.generation, world.state.modes) == (before.generation, before.modes)
    respec(world, **resumed)
    world.step()
    assert (world.state.policy_uid, world.state.step_index) == ("another", 0)


def test_a_lost_assignment_is_made_anew_with_every_workload_in_the_fallback() -> None:
    world = promoted()
    transition = world.state.transition_id
    world.lose_assignment()
    for found in world.workloads:
        world.templates[found] = Mode.FP16
    decision = world.decide()
    assert decision.state.transition_id > transition
    assert (decision.state.enforce, decision.state.modes, decision.state.fallback) == (True, {}, Mode.FP32)
    kinds = {a.workload.name: type(a) for a in decision.actions if isinstance(a, RequestPod | DeletePod)}
    assert kinds == {**{f"hot-{index}": RequestPod for index in range(5)}, "literal": DeletePod}
    world.step()
    until(world, lambda w: w.state.phase is Phase.HELD, passes=60)
    assert world.really_in(Mode.FP32) == EVERYBODY
    assert (world.state.reason, condition(world, "RolledBack").status) == ("StateLost", "True")
    world.run(30)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)


def test_a_retry_of_an_earlier_transition_does_not_end_what_was_held_for_a_lost_record() -> None:
    world = promoted()
    answer(world, "retry")
    world.step()
    world.lose_assignment()
    world.run(30)
    assert (world.state.phase, world.really_in(Mode.FP32)) == (Phase.HELD, EVERYBODY)


def test_after_a_lost_record_everything_is_held_past_the_deletion_of_the_policy() -> None:
    """Nobody knows any more whom a rollback had moved."""
    world = promoted()
    world.lose_assignment()
    world.run(20)
    world.delete_policy()
    world.run(3)
    assert held_names(world) == EVERYBODY


def test_what_replaces_a_lost_record_belongs_to_the_policy_and_outranks_the_transition_that_was_seen() -> None:
    given = policy(fallback="bf16")
    state = lost(given, transition_id=7)
    assert (state.policy_uid, state.selector, state.transition_id) == (given.uid, given.spec.selector, 8)
    assert (state.phase, state.fallback, state.reason) == (Phase.HELD, Mode.BF16, "StateLost")


@pytest.mark.parametrize("history", [promoted, degraded, held, progressing], ids=name)
def test_a_policy_that_was_never_applied_here_leaves_no_trace_when_nothing_is_held(
    history: Callable[[], World],
) -> None:
    world = history()
    holds = world.state.holds
    world.bad = {}
    world.delete_policy()
    world.run(5)
    assert world.gone is not holds
    if world.gone:
        assert world.decide().state.modes == {}
    assert key("hot-0") in {w.key for w in world.observe().workloads}


def test_overflow_of_what_is_held_after_the_deletion_is_nobodys_business() -> None:
    """Nothing is judged for a rollback without a policy: its settings say what to finish, not what to begin."""
    world = degraded()
    world.delete_policy()
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    world.run(10)
    assert (held_names(world), world.really_in(Mode.FP32)) == ({"hot-2"}, {"hot-2"})


def test_what_is_left_behind_is_only_of_what_is_held() -> None:
    """Admission reads it: nothing of it may be about a workload that nobody governs any more."""
    world = degraded()
    (one, other) = keys("hot-2", "hot-3")
    begun = Restart(1, world.now, newest=world.now, pods=1)
    world.state = replace(
        world.state,
        contested=frozenset({other}),
        indexes={other: 2},
        index_mode=Mode.FP16,
        mitigations=(replace(WINDOW, key=other),),
        restarts={one: begun, other: begun},
    )
    world.delete_policy()
    state = world.decide().state
    assert (held_names(world), state.reason) == ({"hot-2"}, "PolicyDeleted")
    assert (state.contested, dict(state.indexes), state.index_mode) == (frozenset(), {}, None)
    assert (other in state.restarts, state.mitigations) == (False, ())
