"""Which workload is assigned what, under which generation; and what an edited selector takes in and leaves."""

from dataclasses import replace

import pytest

from lab.model.cluster import LABELS
from lab.model.world import NAN, World
from precision_operator.api.assignment import assignment_to_wire, parse_assignment
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.state import Phase, State
from precision_operator.contract import ABORT
from precision_operator.core.actions import RequestPod
from precision_operator.core.decide import decide
from precision_operator.core.model import Admission, Request
from precision_operator.reasons import Cause, Reason
from tests.support.fleets import answer, change, condition, fleet, held_names, member_names, promoted, respec, until
from tests.support.views import key, keys

WIDE = Selector((("team", "a"),))
"""Selects the workloads of ``both``, and others beside them."""


def read_by_admission(state: State) -> tuple[object, ...]:
    return state.selector, state.fallback, dict(state.modes), state.enforce


def test_the_generation_grows_exactly_when_admission_must_do_something_else() -> None:
    world = fleet()
    grown = 0
    for index in range(60):
        if index == 30:
            world.bad = {"hot-2": NAN}
        if index == 36:
            world.bad["hot-4"] = NAN
        if index == 45:
            world.bad = {}
            respec(world, fallback=Mode.BF16)
        before = world.state
        world.step()
        differs = read_by_admission(world.state) != read_by_admission(before)
        assert (world.state.generation > before.generation) is differs
        assert world.state.generation >= before.generation
        grown += differs
    assert grown >= 6


def test_a_workload_is_changed_by_the_commit_that_assigns_it_another_mode_and_by_no_other() -> None:
    world = fleet()
    for index in range(50):
        if index == 30:
            world.bad = {"hot-2": NAN}
        before = world.state
        world.step()
        after = world.state
        moved = {w.key for w in world.workloads.values() if before.assigned(w.key) is not after.assigned(w.key)}
        assert {found for found, number in after.changed.items() if before.changed.get(found) != number} == moved
        assert all(after.changed[found] == after.generation for found in moved)
    assert set(world.state.changed) == {w.key for w in world.workloads.values()}


def test_nothing_is_kept_of_when_a_workload_changed_that_is_gone_unless_a_rollback_holds_it() -> None:
    world = promoted()
    world.bad = {"hot-1": NAN}
    until(world, lambda w: w.state.held)
    assert held_names(world) == {"hot-1"}
    world.workloads = {name: w for name, w in world.workloads.items() if name not in ("hot-1", "hot-2")}
    world.step()
    assert key("hot-1") in world.state.changed
    assert key("hot-2") not in world.state.changed


def test_that_holds_too_where_nothing_else_of_the_assignment_changes() -> None:
    world = promoted()
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    before = world.state
    assert key("hot-2") in before.changed
    del world.workloads["hot-2"]
    world.step()
    assert world.state.generation == before.generation
    assert key("hot-2") not in world.state.changed


def test_what_is_in_the_fallback_already_is_not_changed_by_the_commit_that_enforces() -> None:
    world = fleet()
    world.step()
    assert set(world.state.changed) == set(world.state.members)


def test_only_modes_other_than_the_fallback_are_listed_and_only_of_workloads_that_are_there() -> None:
    world = promoted()
    assert world.state.modes == dict.fromkeys(keys(*sorted(world.workloads)), Mode.FP16)
    world.drop("hot-3")
    world.bad = {"hot-2": NAN}
    world.run(2)
    assert set(world.state.modes) == set(keys("hot-0", "hot-1", "hot-4", "literal"))


def test_a_hot_pod_in_the_right_mode_that_carries_an_older_generation_than_the_last_change_is_asked_again() -> None:
    """An older request for another mode may still be on its way to its trainer."""
    world = promoted()
    (pod,) = world.workloads["hot-2"].pods
    world.policy = replace(world.policy, annotations={ABORT: str(world.state.transition_id)})
    world.step()
    stale = replace(pod, request=Request(1, Mode.FP32))
    change(world, "hot-2", pods=(stale,))
    asked = [a.pod.name for a in world.decide().actions if isinstance(a, RequestPod)]
    assert asked == [stale.name]


def test_generations_exceed_every_one_that_a_pod_carries() -> None:
    world = promoted()
    (pod,) = world.workloads["hot-2"].pods
    change(world, "hot-2", pods=(replace(pod, admitted=(("fleet", 70), ("other", 90))),))
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.step()
    assert world.state.phase is Phase.ROLLING_BACK
    assert world.state.generation > 90


def test_who_joins_later_is_changed_when_it_joins() -> None:
    world = promoted()
    world.add("late")
    world.workloads["late"] = replace(world.workloads["late"], uid="uid-late")
    assert world.state.assigned(key("late")) is Mode.FP32
    world.step()
    assert world.state.assigned(key("late")) is Mode.FP16
    assert world.state.changed[key("late")] == world.state.generation


def both() -> World:
    """A promoted fleet, and workloads of another label beside it that no policy selects."""
    world = promoted()
    for name in world.workloads:
        world.labels[name] = {**LABELS, "team": "a"}
    for name, mode in (("new-fp16", Mode.FP16), ("new-fp32", Mode.FP32), ("new-bf16", Mode.BF16)):
        add_unselected(world, name, mode)
    return world


def add_unselected(world: World, name: str, mode: Mode, *, referencing: bool = False) -> None:
    """A workload of the other label: admission knows nothing of it."""
    world.bypassed = True
    if referencing:
        world.add_referencing(name, mode)
    else:
        world.add(name, hot=False, mode=mode)
    world.bypassed = False
    world.labels[name] = {"team": "a"}


def edit(world: World, selector: Selector = WIDE) -> None:
    respec(world, selector=selector)


def test_an_edited_selector_lists_the_newly_selected_in_their_observed_mode_in_the_same_commit() -> None:
    world = both()
    before = world.state
    edit(world)
    decision = world.decide()
    state = decision.state
    assert (state.selector, state.generation > before.generation) == (WIDE, True)
    assert state.assigned(key("new-fp16")) is Mode.FP16
    assert state.assigned(key("new-bf16")) in (Mode.BF16, Mode.FP16)
    assert dict(before.modes).items() <= dict(state.modes).items()
    assert decision.promotes, "admission is asked first"
    world.run(30)
    assert world.state.phase is Phase.HEALTHY
    assert world.really_in(Mode.FP16) == set(world.workloads)
    assert world.restarts.get("new-fp16", 0) == 0


def test_of_the_newly_selected_those_in_the_fallback_are_not_listed_until_they_join() -> None:
    world = both()
    before = dict(world.state.modes)
    world.outside_schedule = Cause(Reason.OUTSIDE_SCHEDULE, "not tonight")
    edit(world)
    listed = {key("new-fp16"): Mode.FP16, key("new-bf16"): Mode.BF16}
    assert world.decide().state.modes == {**before, **listed}


def test_what_was_selected_before_is_assigned_as_before_whatever_it_is_found_in() -> None:
    world = promoted()
    first = next(iter(world.workloads))
    world.outside_schedule = Cause(Reason.OUTSIDE_SCHEDULE, "not tonight")
    add_unselected(world, "late", Mode.FP16)
    world.labels["late"] = {**LABELS, "team": "a"}
    world.labels[first] = {**LABELS, "team": "a"}
    world.step()
    assert world.state.assigned(key("late")) is Mode.FP32
    edit(world)
    assert world.decide().state.assigned(key("late")) is Mode.FP32


def test_newly_selected_workloads_are_guarded_from_that_pass_on() -> None:
    world = both()
    edit(world)
    world.bad = dict.fromkeys(("new-fp16", "hot-1", "hot-3"), NAN)
    world.run(3)
    assert world.state.phase is Phase.ROLLING_BACK or world.state.phase is Phase.HELD
    world.run(6)
    assert world.really_in(Mode.FP32) == set(world.workloads)


def test_an_edit_waits_until_it_is_known_what_the_newly_selected_train_in() -> None:
    world = both()
    add_unselected(world, "unknown", Mode.FP16, referencing=True)
    world.unobservable = {"unknown"}
    edit(world)
    world.run(5)
    assert world.state.selector != WIDE
    assert condition(world, "Accepted").reason == "SelectorPending"
    assert world.restarts.get("unknown", 0) == 0
    assert world.state.phase is Phase.HEALTHY
    world.unobservable = set()
    world.step()
    assert (world.state.selector, world.state.assigned(key("unknown"))) == (WIDE, Mode.FP16)
    assert condition(world, "Accepted").reason == "Accepted"


def test_an_edit_waits_until_admission_is_enforced_so_that_no_rollback_waits_for_that() -> None:
    world = both()
    edit(world)
    world.bypassed = True
    world.bad = {"hot-2": NAN}
    decision = world.decide()
    assert (decision.state.phase, decision.promotes) == (Phase.DEGRADED, False)
    assert decision.state.selector != WIDE


@pytest.mark.parametrize("whole_fleet", [False, True])
def test_while_something_is_held_the_selector_before_the_edit_stays_in_force(whole_fleet: bool) -> None:
    world = both()
    world.bad = dict.fromkeys(("hot-1", "hot-3") if whole_fleet else ("hot-2",), NAN)
    world.run(8)
    world.bad = {}
    before = (world.state.phase, world.state.selector, held_names(world))
    edit(world)
    world.run(8)
    assert (world.state.phase, world.state.selector, held_names(world)) == before
    assert (condition(world, "Accepted").status, condition(world, "Accepted").reason) == ("True", "SelectorPending")
    world.run(30)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.HEALTHY and w.state.selector == WIDE, seconds=15.0, passes=80)
    world.run(20)
    assert world.really_in(Mode.FP16) == set(world.workloads)


def test_who_is_not_selected_any_more_leaves_the_assignment_and_is_left_as_it_is() -> None:
    world = promoted()
    for name in world.workloads:
        world.labels[name] = {**LABELS, "team": "a"}
    world.labels["hot-2"] = LABELS
    edit(world)
    world.run(3)
    assert key("hot-2") not in world.state.modes
    assert "hot-2" not in member_names(world)
    assert "hot-2" in world.really_in(Mode.FP16)
    assert key("hot-2") not in world.state.changed
    writes = world.writes
    world.bad = dict.fromkeys(world.workloads, NAN)
    world.run(6)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP16) == {"hot-2"}
    assert world.writes == writes + 5


def test_before_anything_is_enforced_an_edit_takes_effect_at_once() -> None:
    world = fleet()
    world.metrics_away = True
    world.run(2)
    for name in ("hot-0", "hot-1"):
        world.labels[name] = {"team": "a"}
    add_unselected(world, "new-fp16", Mode.FP16)
    edit(world)
    world.bypassed = True
    world.step()
    found = world.state
    assert (found.selector, dict(found.modes), dict(found.changed)) == (WIDE, {}, {}), "nothing is assigned yet"
    world.drop("new-fp16")
    world.metrics_away = world.bypassed = False
    world.run(2)
    assert (world.state.selector, member_names(world) <= {"hot-0", "hot-1"}) == (WIDE, True)


def test_with_admission_away_a_fleet_that_nothing_is_assigned_yet_has_the_fallback_of_its_policy() -> None:
    world = fleet(fallback="bf16")
    world.bypassed = True
    world.run(2)
    answer(world, "abort")
    world.step()
    assert (world.state.phase, world.state.fallback) == (Phase.ROLLING_BACK, Mode.BF16)


@pytest.mark.parametrize("raised", ["a member came back", "a less safe fallback"])
def test_with_admission_away_a_breach_is_answered_though_something_else_would_be_raised(raised: str) -> None:
    world = promoted()
    if raised == "a member came back":
        gone = world.workloads.pop("hot-3")
        world.run(2)
        world.workloads["hot-3"] = gone
    else:
        respec(world, fallback=Mode.BF16)
    world.bad = {"hot-1": NAN}
    seen = replace(
        world.observe(), admission=Admission(False, Reason.ADMISSION_BEHIND, "an API server does not answer")
    )
    decision = decide(world.policy, world.state, seen, world.now)
    assert (decision.state.phase, decision.promotes) == (Phase.DEGRADED, False)
    fallback = world.policy.spec.fallback
    assert decision.state.assigned(key("hot-1")) is fallback
    assert decision.state.fallback is Mode.FP32
    asked = {a.workload.name: a.mode for a in decision.actions if isinstance(a, RequestPod)}
    assert asked["hot-1"] is fallback
    assert asked.get("hot-3", Mode.FP32) is Mode.FP32


def test_what_an_older_policy_selects_too_is_assigned_nothing_not_even_the_fallback() -> None:
    world = promoted()
    del world.workloads["hot-4"]
    contested = replace(world.observe(), contested=((key("hot-4"), "elder"),))
    decision = decide(world.policy, world.state, contested, world.now)
    assert decision.state.assigned(key("hot-4")) is None
    assert decision.state.generation > world.state.generation, "admission must do something else"
    stored = parse_assignment(assignment_to_wire(decision.state))
    assert stored.assigned(key("hot-4")) is None
    again = decide(world.policy, decision.state, world.observe(), world.now)
    assert again.state.assigned(key("hot-4")) is Mode.FP32, "the older policy has let it go"


def test_what_a_recreated_policy_selects_again_stays_in_the_mode_that_it_is_found_in() -> None:
    world = promoted()
    for name in world.workloads:
        if name != "literal":
            world.labels[name] = {**LABELS, "team": "a"}
    original = world.policy
    edit(world)
    world.run(2)
    assert "literal" in world.really_in(Mode.FP16)
    before = world.restarts["literal"]
    world.recreate_policy(replace(original, uid="another"))
    world.step()
    assert world.state.assigned(key("literal")) is Mode.FP16
    assert world.restarts["literal"] == before
