"""What an edit of the policy does in each phase, and what a policy that moves new pods only does at all."""

from collections.abc import Callable

import pytest

from lab.model.world import NAN, World
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase
from tests.support.fleets import answer, condition, fleet, held_names, phase_of, promoted, respec, until
from tests.support.rollbacks import by_canary, compared

EVERYBODY = {*(f"hot-{index}" for index in range(5)), "literal"}


def pending() -> World:
    world = fleet()
    world.metrics_away = True
    world.run(2)
    world.metrics_away = False
    return world


def progressing() -> World:
    world = fleet()
    until(world, lambda w: len(w.really_in(Mode.FP16)) == 3, seconds=15.0)
    return world


def degraded() -> World:
    world = promoted()
    world.bad = {"hot-2": NAN}
    world.run(4)
    world.bad = {}
    return world


def rolling_back() -> World:
    world = promoted()
    world.bad, world.unresponsive = dict.fromkeys(("hot-1", "hot-3"), NAN), set(EVERYBODY)
    world.run(2, 1.0)
    assert world.state.phase is Phase.ROLLING_BACK
    return world


def canary() -> World:
    return compared(by_canary())


def held() -> World:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.bad = {}
    return world


HISTORIES = [pending, progressing, promoted, degraded, rolling_back, canary, held]


@pytest.mark.parametrize("history", HISTORIES)
def test_the_settings_that_finish_a_rollback_are_kept_as_they_were_edited_last(history: Callable[[], World]) -> None:
    world = history()
    phase = world.state.phase
    respec(world, hold_on_delete=False)
    world.step(1.0)
    assert not world.state.hold_on_delete
    assert world.state.observed_generation == world.policy.generation
    assert world.state.phase is phase or phase is Phase.PENDING


@pytest.mark.parametrize(
    ("history", "phase"),
    [
        (pending, Phase.PROGRESSING),
        (progressing, Phase.PENDING),
        (promoted, Phase.PENDING),
        (degraded, Phase.PENDING),
        (rolling_back, Phase.ROLLING_BACK),
        (canary, Phase.ROLLING_BACK),
        (held, Phase.HELD),
    ],
)
def test_another_target_begins_another_rollout_but_ends_no_rollback(history: Callable[[], World], phase: Phase) -> None:
    world = history()
    fp16, holds = world.really_in(Mode.FP16), held_names(world)
    respec(world, target=Mode.BF16)
    world.step(1.0)
    assert (world.state.phase, held_names(world)) == (phase, holds)
    if phase is Phase.PENDING:
        assert world.really_in(Mode.FP16) == fp16, "what was moved stays as it is until its turn"
        world.run(60)
        assert world.really_in(Mode.BF16) == EVERYBODY - holds


@pytest.mark.parametrize("history", HISTORIES)
def test_another_fallback_is_what_new_pods_start_in_from_the_next_commit_on(history: Callable[[], World]) -> None:
    world = history()
    before = world.state.generation
    respec(world, fallback=Mode.BF16)
    world.run(3, 1.0)
    assert world.state.fallback is Mode.BF16
    assert world.state.generation > before
    world.add("late", mode=Mode.FP16)
    assert "late" in world.really_in(Mode.BF16) or not world.state.enforce


def test_an_edit_to_a_less_safe_fallback_waits_until_admission_was_asked() -> None:
    world = promoted()
    respec(world, fallback=Mode.BF16)
    assert world.decide().promotes


@pytest.mark.parametrize("history", HISTORIES)
def test_a_suspended_policy_writes_to_no_pod_in_any_phase(history: Callable[[], World]) -> None:
    world = history()
    respec(world, suspend=True)
    writes, generation = world.writes, world.state.generation
    world.run(20)
    assert (world.writes, world.state.generation) == (writes, generation)
    assert world.summary.reason == "Suspended"


def test_a_held_fleet_is_not_brought_to_a_less_safe_fallback_by_an_edit() -> None:
    """What trains in FP32 is as safe as any fallback: only its new pods start in the new one."""
    world = held()
    respec(world, fallback=Mode.BF16)
    world.run(5)
    assert (world.state.fallback, world.really_in(Mode.FP32)) == (Mode.BF16, EVERYBODY)


def new_only() -> World:
    world = fleet(delivery="NewOnly")
    world.run(2)
    assert world.state.phase is Phase.PROGRESSING
    return world


def test_a_policy_for_new_pods_only_asks_no_running_pod_and_promotes_on_those_that_are_new() -> None:
    world = new_only()
    (member,) = (found.rpartition("/")[2] for found in world.state.members)
    world.run(5)
    assert (world.writes, world.really_in(Mode.FP16), world.state.step_index) == (0, set(), 0)
    assert condition(world, "Progressing").reason == "AwaitingEvaluation"
    world.replace_pods(member)
    world.run(8)
    assert (member in world.really_in(Mode.FP16), world.state.step_index > 0) == (True, True)


def test_a_rollback_of_new_pods_only_leaves_running_pods_to_their_owners_and_is_over_when_those_have_replaced_them() -> (
    None
):
    world = new_only()
    for name in world.workloads:
        world.replace_pods(name)
    world.run(3)
    answer(world, "abort")
    world.run(4)
    assert (world.state.phase, world.state.modes, world.writes) == (Phase.ROLLING_BACK, {}, 0)
    running = world.really_in(Mode.FP16)
    assert running
    for name in running:
        world.replace_pods(name)
    world.run(3)
    assert (phase_of(world), world.really_in(Mode.FP32)) == (Phase.HELD, EVERYBODY)


def test_a_delivery_that_is_edited_counts_from_the_next_pass_on() -> None:
    world = new_only()
    respec(world, delivery=Delivery.AUTO)
    world.run(30)
    assert (world.state.phase, world.really_in(Mode.FP16)) == (Phase.HEALTHY, EVERYBODY)
