"""A rollout under way: what its new pods start in, and what an edit of the policy leaves of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.core.decide import decide
from tests.support.fleets import fleet, held_names, member_names, moving, promoted, respec, until
from tests.support.views import key

STEPS = {"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 100}]}


def test_a_pod_that_is_replaced_while_a_step_waits_starts_in_what_its_step_has_reached() -> None:
    """The pause may last for days."""
    world = fleet(strategy=STEPS)
    world.run(8)
    assert (world.state.phase, world.state.step_index) == (Phase.PAUSED, 0)
    (name,) = world.really_in(Mode.FP16)
    other = next(iter(world.workloads.keys() - {name}))
    world.replace_pods(name)
    world.replace_pods(other)
    world.run(3)
    assert world.really_in(Mode.FP16) == {name}
    assert other in world.really_in(Mode.FP32)


def test_who_was_found_in_another_reduced_precision_does_not_go_before_its_turn() -> None:
    first = member_names(moving())
    world = World(policy(**FAST))
    for name in moving().workloads:
        world.add(name, mode=Mode.FP32 if name in first else Mode.BF16)
    world.run(2)
    assert member_names(world) == first


def test_a_rollout_whose_steps_were_shortened_goes_on_from_the_last() -> None:
    world = fleet()
    while world.state.step_index < 2:
        world.step()
    spec = policy(**{**FAST, "strategy": {"steps": [{"setWeight": 50}]}}).spec
    world.policy = replace(world.policy, spec=spec)
    world.run(6)
    assert (world.state.phase, world.state.step_index) == (Phase.HEALTHY, 0)


def test_another_target_is_another_rollout_from_its_first_step_and_what_is_held_stays_held() -> None:
    world = promoted()
    world.bad = {"hot-2": NAN}
    world.run(3, 1.0)
    assert held_names(world) == {"hot-2"}
    respec(world, target=Mode.BF16)
    state = world.step().state
    assert (state.phase, state.reason) == (Phase.PENDING, "TargetChanged")
    assert (state.members, held_names(world), state.step_index) == ((), {"hot-2"}, 0)
    world.bad = {}
    world.run(40)
    assert world.really_in(Mode.BF16) == set(world.workloads) - {"hot-2"}
    assert world.really_in(Mode.FP32) == held_names(world) == {"hot-2"}


def test_what_was_moved_for_one_target_stays_in_it_guarded_until_its_turn_for_another_comes() -> None:
    world = promoted()
    respec(world, target=Mode.BF16)
    world.step()
    assert (world.state.phase, set(world.state.modes.values())) == (Phase.PENDING, {Mode.FP16})
    world.run(2)
    assert len(world.really_in(Mode.BF16)) == 1
    world.bad = {next(iter(world.really_in(Mode.FP16))): NAN}
    world.run(2)
    assert world.state.phase is Phase.ROLLING_BACK


def test_no_template_is_ever_needed_what_somebody_writes_into_one_changes_nothing() -> None:
    """GitOps applies the manifests again: new pods get the assigned mode, whatever the template says."""
    world = promoted()
    commits, generation = world.commits, world.state.generation
    for name in world.workloads:
        world.templates[name] = Mode.FP32
    world.run(3)
    assert (world.commits, world.state.generation) == (commits, generation)
    world.replace_pods("literal")
    world.run(3)
    assert world.really_in(Mode.FP16) == set(world.workloads)
    assert world.state.assigned(key("literal")) is Mode.FP16


def in_its_first_step() -> World:
    world = fleet()
    world.run(2)
    return world


def of_pods() -> World:
    world = World(policy(**{**FAST, "unit": "Pod", "strategy": STEPS}))
    world.add("replicas", pods=10)
    world.world_sizes["replicas"] = 1
    until(world, lambda w: w.state.shares and w.state.phase is Phase.PAUSED)
    return world


def scaled_to_zero() -> World:
    world = in_its_first_step()
    for name in member_names(world):
        world.scale(name, 0)
    return world


@pytest.mark.parametrize(
    ("begun", "reason"),
    [
        (in_its_first_step, "AwaitingAcknowledgement"),
        (of_pods, "AwaitingAcknowledgement"),
        (scaled_to_zero, "AwaitingEvaluation"),
    ],
)
def test_a_new_leader_that_has_not_read_the_metrics_yet_moves_nothing_and_takes_nothing_back(
    begun: Callable[[], World], reason: str
) -> None:
    world = begun()
    unread = replace(world.observe(), evaluation=None)
    decision = decide(world.policy, world.state, unread, world.now)
    assert (decision.state.members, decision.state.shares) == (world.state.members, world.state.shares)
    assert (decision.state.evidence_since, decision.actions) == (world.state.evidence_since, ())
    assert next(c.reason for c in decision.summary.conditions if c.type == "Progressing") == reason
