"""S1–S5 of the safety invariants, and convergence, over random histories of faults.

A history mixes passes of the operator with crashes between its writes, stale views, breaches, silence and new workloads.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.model.invariants import EDGES
from precision_operator.api.modes import Mode, is_safer
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.actions import RequestPod, Settle, WriteTemplate
from precision_operator.core.cohorts import cohort_size, extend_cohort
from precision_operator.core.decide import Decision, decide, edge_key
from tests.property.policies import FAST, policy
from tests.property.world import World

NAMES = [f"hot-{i}" for i in range(6)] + ["literal-0", "literal-1"]
FORWARD = {Phase.PENDING: 0, Phase.PROGRESSING: 1, Phase.PAUSED: 1, Phase.HEALTHY: 2, Phase.DEGRADED: 2}
BAD = {
    Signal.OVERFLOW: 0.6,
    Signal.DIVERGENCE: float("nan"),
    Signal.FAILURES: 1.0,
    Signal.NON_FINITE: 2.0,
    Signal.SPEED: 0.1,
}
events = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1.0, 15.0, 31.0])),
    st.tuples(st.just("crash"), st.integers(0, 12)),
    st.tuples(st.just("stale"), st.integers(0, 2)),
    st.tuples(st.just("breach"), st.sampled_from(NAMES), st.sampled_from(list(BAD))),
    st.tuples(st.just("recover"), st.sampled_from(NAMES)),
    st.tuples(st.just("blind"), st.sampled_from(NAMES)),
    st.tuples(st.just("see"), st.sampled_from(NAMES)),
    st.tuples(st.just("down"), st.booleans()),
    st.tuples(st.just("add"), st.integers(0, 3)),
    st.tuples(st.just("retry"), st.just(0)),
)


class Checked(World):
    """A world that checks every decision against the invariants as it is made."""

    def decide(self) -> Decision:
        before = self.state
        decision = super().decide()
        self.check_edge(decision)
        self.check_promotion(decision)
        self.check_latch(decision)
        assert decision.state == before or decision.state.writer == "test"
        return decision

    def check_edge(self, decision: Decision) -> None:
        """S3: at most one edge a pass, counted."""
        before, after = self.state, decision.state
        if after.phase is not before.phase:
            assert after.phase in EDGES[before.phase], (before.phase, after.phase)
        edge = edge_key(after) != edge_key(before)
        assert after.transition_id == before.transition_id + edge
        assert abs(after.step_index - before.step_index) <= 1 or after.step_index == 0
        assert after.generation >= before.generation

    def check_promotion(self, decision: Decision) -> None:
        """S2: nothing is promoted while a reading of a member is Unknown."""
        before, after = self.state, decision.state
        promoted = after.step_index > before.step_index or (
            before.phase in (Phase.PROGRESSING, Phase.PAUSED) and after.phase in (Phase.HEALTHY, Phase.DEGRADED)
        )
        if promoted:
            assert not self.down
            assert not {m.name for m in before.members} & self.blind
            assert not [n for n in self.bad if n in {m.name for m in before.members}]

    def check_latch(self, decision: Decision) -> None:
        """S1: with the gate closed no write of ours asks for less than the fallback."""
        if not decision.state.gate_closed:
            return
        for action in decision.actions:
            if isinstance(action, RequestPod | WriteTemplate):
                assert not is_safer(Mode.FP32, action.mode)
            if isinstance(action, Settle) and action.workload.settle is None:
                assert action.mode is Mode.FP32

    def check_radius(self) -> None:
        """S5: during a step, no more of the fleet is told to move than its weight."""
        if self.state.phase is Phase.PROGRESSING:
            told = {w.name for w in self.workloads.values() if any(p.effective_mode is Mode.FP16 for p in w.pods)}
            assert len(told) <= cohort_size(self.policy.spec.stages[self.state.step_index].weight, len(self.workloads))

    def check_originals(self) -> None:
        """S4: whatever we changed in a template carries its original."""
        for workload in self.workloads.values():
            if workload.generation_raw is not None:
                assert workload.has_original


def play(world: Checked, history: list[tuple[object, ...]]) -> None:
    views = [(world.state, world.observe(), world.now)]
    for event, *args in history:
        match event:
            case "pass":
                world.step(float(args[0]))  # type: ignore[arg-type]
            case "crash":
                decision = world.decide()
                world.commit(decision)
                for action in decision.actions[: int(args[0])]:  # type: ignore[call-overload]
                    world.act(action)
                world.train()
                world.now += 5.0
            case "stale":
                state, observation, now = views[max(0, len(views) - 2 - int(args[0]))]  # type: ignore[call-overload]
                if state == world.state:  # a newer state makes the compare-and-swap fail: nothing is acted on
                    for action in decide(world.policy, state, observation, now).actions:
                        world.act(action)
                    world.train()
            case "breach":
                world.bad[str(args[0])] = {args[1]: BAD[args[1]]}  # type: ignore[index, dict-item]
            case "recover":
                world.bad.pop(str(args[0]), None)
            case "blind":
                world.blind.add(str(args[0]))
            case "see":
                world.blind.discard(str(args[0]))
            case "down":
                world.down = bool(args[0])
            case "add":
                name = f"new-{args[0]}"
                if name not in world.workloads:
                    world.add(name)
            case "retry":
                answer = {"precision.genesis.ai/retry": str(world.state.transition_id)}
                world.policy = replace(world.policy, annotations=answer)
        world.check_originals()
        views.append((world.state, world.observe(), world.now))


def new_world() -> Checked:
    world = Checked(policy(**FAST))
    for name in NAMES:
        world.add(name, hot=name.startswith("hot"), pods=2 if name == "hot-0" else 1)
    return world


@settings(max_examples=150, deadline=None)
@given(st.lists(events, max_size=60))
def test_invariants_hold_whatever_happens(history: list[tuple[object, ...]]) -> None:
    play(new_world(), history)


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=40))
def test_converges_once_the_faults_stop(history: list[tuple[object, ...]]) -> None:
    world = new_world()
    play(world, history)
    world.bad, world.blind, world.down = {}, set(), False
    world.run(120)
    assert world.state.phase in (Phase.HEALTHY, Phase.DEGRADED, Phase.HELD), world.state.message
    held = {h.name for h in world.state.held}
    wanted = Mode.FP32 if world.state.phase is Phase.HELD else Mode.FP16
    assert world.really_in(wanted) >= {m.name for m in world.state.members} - held
    assert all(w.settle is None and not w.paused for w in world.workloads.values())
    writes = (world.writes, world.status_writes)
    world.run(10)
    assert (world.writes, world.status_writes) == writes


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=40))
def test_acting_twice_changes_nothing(history: list[tuple[object, ...]]) -> None:
    world = new_world()
    play(world, history)
    decision = world.decide()
    world.commit(decision)
    for action in decision.actions:
        world.act(action)
    once = dict(world.workloads)
    for action in decision.actions:
        world.act(action)
    assert world.workloads == once


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=40))
def test_the_same_input_gives_the_same_decision(history: list[tuple[object, ...]]) -> None:
    world = new_world()
    play(world, history)
    assert world.decide() == world.decide()


@given(st.integers(1, 40), st.lists(st.integers(1, 100), min_size=1, max_size=6), st.text(max_size=5))
def test_canaries_are_nested_and_no_larger_than_their_weight(count: int, weights: list[int], uid: str) -> None:
    world = World(policy())
    for index in range(count):
        world.add(f"w-{index}")
    workloads = list(world.workloads.values())
    members: tuple = ()
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


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_restarts_stay_within_the_cluster_budget(budget: int) -> None:
    world = World(policy(**FAST), restart_slots=budget)
    for index in range(6):
        world.add(f"literal-{index}", hot=False)
    world.run(40)
    world.bad = {name: {Signal.OVERFLOW: 0.9} for name in world.workloads}
    while world.state.phase is not Phase.HELD and world.now < 5000:
        decision = world.step(1.0)
        assert sum(isinstance(a, WriteTemplate) for a in decision.actions) <= budget
