"""``unit: Pod``, whatever happens to pods: who has moved stays moved, and free places alone are taken."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.core.actions import EvictPod
from precision_operator.core.cohorts.order import cohort_size
from precision_operator.core.model import PodView
from precision_operator.core.progress import live_pods

STEPS = {"steps": [{"setWeight": 30}, {"pause": {}}, {"setWeight": 100}]}
UP = (Phase.PROGRESSING, Phase.PAUSED)

happenings = st.lists(
    st.one_of(
        st.tuples(st.just("lose"), st.integers(0, 11)),
        st.tuples(st.just("scale"), st.integers(1, 12)),
        st.tuples(st.sampled_from(["away", "back", "hide", "show", "restart the operator", "wait"]), st.just(0)),
    ),
    min_size=3,
    max_size=25,
)


def given_by_index(world: World, pod: PodView) -> Mode | None:
    """What the committed assignment gives a pod of this index."""
    below = pod.index < world.state.indexes.get(world.workloads["a"].key, 0)
    return world.state.index_mode if below else Mode.FP32


def asked(world: World) -> set[str]:
    return {p.uid for p in live_pods(world.workloads["a"]) if p.effective_mode is Mode.FP16}


def happen(world: World, what: str, number: int) -> None:
    view = world.workloads["a"]
    match what:
        case "lose" if view.pods:
            lost = view.pods[number % len(view.pods)].uid
            world.workloads["a"] = replace(view, pods=tuple(pod for pod in view.pods if pod.uid != lost))
        case "scale" if view.indexes:
            world.scale("a", number)
        case "scale":
            world.workloads["a"] = replace(view, replicas=number, pods=view.pods[:number])
        case "away" | "back":
            world.metrics_away = what == "away"
        case "hide":
            world.unobservable |= {pod.name for pod in view.pods[::2]}
        case "show":
            world.unobservable.clear()
        case "restart the operator":
            world.continuous_since = world.now


@settings(max_examples=60)
@given(st.integers(1, 10), happenings)
def test_nobody_moves_back_and_no_more_join_than_the_step_has_places(count: int, story: list[tuple[str, int]]) -> None:
    world = World(policy(**{**FAST, "strategy": STEPS, "unit": "Pod"}))
    world.add("a", pods=count)
    world.world_sizes["a"] = 1
    world.run(4)
    for what, number in story:
        happen(world, what, number)
        world.turn()
        before, alive = asked(world), {pod.uid for pod in live_pods(world.workloads["a"])}
        phase, again = world.state.phase, world.decide()
        assert again == world.decide(), "the same input gives the same pods"
        running = sum(not pod.pending for pod in live_pods(world.workloads["a"]))
        world.carry_out(again)
        after = asked(world)
        if phase in UP and world.state.phase in UP and world.state.step_index == 0:
            assert before & alive <= after
            assert len(after - before) <= max(0, cohort_size(30, max(1, running)) - len(before))
        world.train()
        world.now += 15.0


@settings(max_examples=30)
@given(st.integers(2, 10), st.sampled_from([False, True]), happenings)
def test_no_index_moves_back_no_more_join_and_no_pod_goes_that_is_right(
    count: int, job: bool, story: list[tuple[str, int]]
) -> None:
    world = World(policy(**{**FAST, "strategy": STEPS, "unit": "Pod"}))
    (world.add_job if job else world.add)("a", hot=False, pods=count)
    world.number("a")
    world.in_order = set() if job else {"a"}
    world.world_sizes["a"] = 1
    key = world.workloads["a"].key
    world.run(4)
    for what, number in story:
        happen(world, what, 1 if job and what == "scale" else number)
        world.turn()
        phase, before, total = world.state.phase, world.state.indexes.get(key, 0), world.workloads["a"].indexes
        decision = world.decide()
        world.carry_out(decision)
        after = world.state.indexes.get(key, 0)
        if phase in UP and world.state.phase in UP and world.state.step_index == 0 and total > 1:
            assert min(before, total) <= after <= max(before, cohort_size(30, total))
        for action in decision.actions:
            assert not (job and isinstance(action, EvictPod))
            if isinstance(action, EvictPod) and world.state.phase in UP and key in world.state.shares:
                assert action.pod.effective_mode is not given_by_index(world, action.pod)
        world.train()
        world.now += 15.0
