"""The safety invariants and convergence over random histories, and what holds whatever the fleet's size."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.state import Phase
from precision_operator.core.actions import DeletePod, EvictPod
from precision_operator.core.cohorts.order import cohort_size, extend_cohort
from precision_operator.core.restart.rounds import PLACELESS_SECONDS, RESTARTING_SECONDS
from tests.support.fleets import answer, gradual, restart_only
from tests.support.histories import History, converged, events, heal, new_world, play

GRADUAL = {
    "gradual": {"sustain": "0s", "inFlight": "0s", "batchShare": 1.0},
    "mitigation": {"speed": {"window": "0s"}},
}


@settings(max_examples=80)
@given(st.lists(events, min_size=20, max_size=80))
def test_invariants_hold_whatever_happens(history: History) -> None:
    play(new_world(), history)


@settings(max_examples=25)
@given(st.lists(events, min_size=10, max_size=60))
def test_converges_once_the_faults_stop(history: History) -> None:
    world = new_world()
    play(world, history)
    heal(world)
    world.run(120)
    converged(world)


@settings(max_examples=40)
@given(st.lists(events, max_size=40))
def test_acting_twice_changes_nothing(history: History) -> None:
    world = new_world()
    play(world, history)
    decision = world.decide()
    world.carry_out(decision)
    once, writes = dict(world.workloads), world.writes
    for action in decision.actions:
        world.act(action)
    assert (world.workloads, world.writes) == (once, writes)


@settings(max_examples=40)
@given(st.lists(events, max_size=40))
def test_the_same_input_gives_the_same_decision(history: History) -> None:
    world = new_world()
    play(world, history)
    assert world.decide() == world.decide()


@given(st.integers(1, 40), st.lists(st.integers(1, 100), min_size=1, max_size=6), st.text(max_size=5))
def test_canaries_are_nested_and_no_larger_than_their_weight(count: int, weights: list[int], uid: str) -> None:
    world = World(policy())
    for index in range(count):
        world.add(f"w-{index}")
    workloads = list(world.workloads.values())
    members: tuple[str, ...] = ()
    for weight in sorted(weights):
        size = cohort_size(weight, count)
        grown = extend_cohort(uid, members, workloads, size=size)
        assert set(members) <= set(grown)
        assert len(grown) == size
        assert size <= max(1, count * weight // 100)
        assert grown == extend_cohort(uid, members, workloads, size=size)
        members = grown


def test_blast_radius_holds_at_every_pass_of_a_rollout() -> None:
    world = new_world()
    for _ in range(40):
        world.step(10.0)
        world.check_radius()
    assert world.state.phase is Phase.HEALTHY


@pytest.mark.parametrize("budget", [1, 3])
def test_a_rollouts_restarts_stay_within_the_clusters_budget(budget: int) -> None:
    world = World(policy(**FAST), restart_slots=budget)
    for index in range(6):
        world.add(f"literal-{index}", hot=False)
    taken = []
    for _ in range(200):
        if world.state.phase is Phase.HEALTHY:
            break
        decision = world.step(5.0)
        taken.append(sum(isinstance(a, DeletePod | EvictPod) for a in decision.actions))
        assert taken[-1] <= budget
        assert len(world.state.restarts) <= budget
    assert world.state.phase is Phase.HEALTHY
    assert sum(taken) == 6


passes = st.tuples(
    st.sets(st.integers(0, 7)),  # whose budget opens, or closes
    st.sets(st.integers(0, 7)),  # who finds a place from now on, or none
    st.sampled_from([5.0, 15.0, 60.0, RESTARTING_SECONDS]),
)


@settings(max_examples=30)
@given(st.integers(1, 3), st.lists(passes, min_size=20, max_size=60))
def test_restarts_stay_within_their_slots_whichever_budgets_open_when(
    slots: int, history: list[tuple[set[int], set[int], float]]
) -> None:
    """What was taken away, and is not back though it may still find a place, is no more than there are slots."""
    world = restart_only(8, rollback={**GRADUAL, "deadlines": {"P2": "1000h"}})
    world.restart_slots, world.budgeted = slots, set(world.workloads)
    gradual(world)
    taken: dict[str, float] = {}
    for opened, placed, seconds in history:
        for index in opened:
            world.budgeted ^= {f"old-{index:02}"}
        for name in (f"old-{index:02}" for index in placed):
            world.room[name] = Room.FREE if world.room.get(name) is Room.NONE else Room.NONE
        before, now = dict(world.restarts), world.now
        asked = {a.workload.name for a in world.step(seconds).actions if isinstance(a, EvictPod)}
        gone = {name for name in world.restarts if world.restarts[name] != before.get(name)}
        assert gone <= asked
        taken = {name: at for name, at in taken.items() if now - at < PLACELESS_SECONDS} | dict.fromkeys(gone, now)
        out = {n for n in taken if any(p.pending or p.terminating for p in world.workloads[n].pods) or n in gone}
        assert len(out) <= slots, (out, now)


def test_an_emergency_takes_all_pods_away_at_once() -> None:
    world = World(policy(**FAST), restart_slots=1)
    for index in range(6):
        world.add(f"literal-{index}", hot=False)
    world.run(60)
    assert world.state.phase is Phase.HEALTHY
    answer(world, "abort")
    assert sum(isinstance(a, DeletePod) for a in world.step().actions) == 6
