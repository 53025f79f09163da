"""A rollout under way: what is made to last while a step waits, and what an edit of the policy leaves of it."""

from dataclasses import replace

from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from tests.property.policies import FAST, policy
from tests.property.test_awkward_histories import NAN
from tests.property.test_story import fleet, promoted


def test_what_a_step_has_moved_is_made_to_last_while_the_step_still_waits() -> None:
    """A pod that is replaced during the pause, which may be days, starts in what its step has reached."""
    steps = {"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 100}]}
    world = fleet(strategy=steps)
    world.run(8)
    assert (world.state.phase, world.state.step_index) == (Phase.PAUSED, 0)
    (name,) = world.really_in(Mode.FP16)
    assert world.workloads[name].template_mode is Mode.FP16


def test_a_rollout_whose_steps_were_shortened_goes_on_from_the_last() -> None:
    world = fleet()
    while world.state.step_index < 2:
        world.step()
    spec = policy(**{**FAST, "strategy": {"steps": [{"setWeight": 50}]}}).spec
    world.policy = replace(world.policy, spec=spec)
    world.run(6)
    assert (world.state.phase, world.state.step_index) == (Phase.HEALTHY, 0)


def test_another_target_is_another_rollout_from_its_first_step_in_which_nobody_is_held() -> None:
    world = promoted()
    world.bad = {"hot-2": NAN}
    world.run(3, 1.0)
    assert [h.name for h in world.state.held] == ["hot-2"]
    world.policy = replace(world.policy, spec=replace(world.policy.spec, target=Mode.BF16))
    state = world.step().state
    assert (state.phase, state.reason) == (Phase.PENDING, "TargetChanged")
    assert (state.members, state.held, state.step_index) == ((), (), 0)
