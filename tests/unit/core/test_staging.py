"""Who goes first in a rollout, and what a retry's promotion asks for: labelled nodes, a dwell in each, more speed."""

from dataclasses import replace

import pytest

from lab.model.policies import policy, written
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.model import Observation
from tests.support.fleets import condition

STEPS = [{"setWeight": 10}, {"pause": {"duration": "30s"}}, {"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]
RULES = {"interval": "15s", "window": "30s", "failureLimit": 0, "minSamples": 1}


def staged(*nodes: str, attempts: int = 0, **reenable: object) -> World:
    """Ten workloads, each on a node of its own; these nodes carry the label."""
    strategy = {"steps": STEPS, "canary": {"by": "NodeLabel"}}
    world = World(policy(annotations={}, strategy=strategy, evaluation=RULES, reenable=reenable))
    for index in range(10):
        world.add(f"w-{index}")
        view = world.workloads[f"w-{index}"]
        pods = tuple(replace(pod, node=f"node-{index}") for pod in view.pods)
        world.workloads[f"w-{index}"] = replace(view, pods=pods)
    world.state = replace(world.state, attempts=attempts)
    observe = world.observe

    def labelled() -> Observation:
        return replace(observe(), staging_nodes=nodes)

    world.observe = labelled  # type: ignore[method-assign]
    return world


def test_the_first_step_is_the_workloads_on_labelled_nodes_and_nobody_else() -> None:
    world = staged("node-3", "node-4", "node-7")
    world.run(2)
    assert world.really_in(Mode.FP16) == {"w-3", "w-4", "w-7"}
    world.run(5)
    assert (world.state.step_index, len(world.state.members)) == (1, 5), "they count towards the weights that follow"
    assert {"w-3", "w-4", "w-7"} <= world.really_in(Mode.FP16)


def test_without_a_workload_on_labelled_nodes_nothing_begins() -> None:
    world = staged()
    world.run(3)
    found = condition(world, "Progressing")
    assert (world.state.phase, found.reason) == (Phase.PENDING, "NoStagingNodes")
    assert "with fp16=enabled alone: label some of `kubectl get nodes --show-labels`" in found.message


def test_a_workload_with_a_pod_elsewhere_is_not_of_the_labelled_ones() -> None:
    world = staged("node-3", "node-4")
    view = world.workloads["w-4"]
    world.workloads["w-4"] = replace(view, pods=(*view.pods, replace(view.pods[0], name="x", uid="x", node="node-9")))
    world.modes["x"] = (Mode.FP32, 0)
    world.run(2)
    assert world.really_in(Mode.FP16) == {"w-3"}


def test_a_retry_dwells_on_the_labelled_nodes_and_then_in_the_canary_by_share() -> None:
    world = staged("node-3", attempts=1, dwell="1h")
    world.run(2)
    assert world.really_in(Mode.FP16) == {"w-3"}
    world.run(230)
    assert (world.state.step_index, len(world.state.members)) == (0, 1)
    world.run(20)
    assert (world.state.step_index, len(world.state.members)) == (1, 1)
    world.run(230)
    assert world.state.step_index == 1
    world.run(20)
    assert (world.state.step_index, len(world.state.members)) == (2, 5)


def moved(attempts: int, *, speed: float, criteria: dict[str, object] | None = None, asked: float = 1.0) -> int:
    """The step that a rollout has come to, of workloads that train so fast."""
    steps = {"steps": [{"setWeight": 50}, {"pause": {"duration": "30s"}}, {"setWeight": 100}]}
    given = {
        "strategy": steps,
        "evaluation": RULES,
        "criteria": criteria or {},
        "reenable": {"dwell": "0s", "speed": asked},
    }
    world = World(written(given, uid="policy-uid"))
    for index in range(2):
        world.add(f"w-{index}")
    world.state = replace(world.state, attempts=attempts)
    world.bad = {name: {Signal.SPEED: speed} for name in world.workloads}
    world.run(10)
    if world.state.step_index == 0:
        assert "speed is not above its promotion level" in world.summary.message
    return world.state.step_index


@pytest.mark.parametrize(("speed", "step"), [(1.01, 1), (1.0, 0), (0.95, 0)])
def test_a_retry_is_promoted_only_when_it_is_faster_than_fp32(speed: float, step: int) -> None:
    assert moved(1, speed=speed) == step
    assert moved(0, speed=speed) == 1, "a first rollout asks for no gain unless the policy does"


def test_how_much_faster_is_a_setting_of_the_retry_and_of_the_criterion() -> None:
    assert [moved(1, speed=speed, asked=2.0) for speed in (1.9, 2.1)] == [0, 1]
    assert moved(1, speed=0.95, asked=0.0) == 1, "0 asks for nothing"
    twice: dict[str, object] = {"speed": {"promoteAbove": 2.0}}
    assert [moved(0, speed=speed, criteria=twice) for speed in (1.9, 2.1)] == [0, 1]
    assert [moved(1, speed=speed, criteria=twice) for speed in (1.9, 2.1)] == [0, 1], "the higher of the two"
    assert moved(1, speed=0.5, criteria={"speed": {"enabled": False}}) == 1
