"""What matches and cannot be moved is named: kinds that are not known, workloads that nothing may restart."""

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.api.text import MESSAGE_CHARACTERS
from precision_operator.core.model import UNSUPPORTED_LIMIT, Observation, RestartBy
from tests.support.fleets import change, condition, fleet, until

RAY = "ray.io/RayCluster/rc"


def with_unsupported(world: World, *keys: str) -> World:
    """From now on the selector matches these too."""
    observe = world.observe

    def observed() -> Observation:
        return replace(observe(), unsupported=keys)

    world.observe = observed  # type: ignore[method-assign]
    return world


def test_an_unsupported_kind_is_named_beside_a_fleet_that_moves() -> None:
    world = with_unsupported(fleet(), RAY)
    world.step()
    found = condition(world, "KindsSupported")
    assert (found.status, found.reason) == ("False", "UnsupportedKind")
    assert f"1 workloads of kinds that are not supported: {RAY}" in found.message
    assert "new pods get the assigned mode, fp32, and running pods are left alone" in found.message
    assert condition(world, "Accepted").status == "True"
    supported = fleet()
    supported.step()
    assert condition(supported, "KindsSupported").status == "True"


def test_an_unsupported_kind_beside_a_fleet_holds_no_rollout() -> None:
    world = with_unsupported(fleet(), RAY)
    until(world, lambda w: w.state.phase is Phase.HEALTHY)


def test_a_selector_that_matches_unsupported_kinds_alone_says_so() -> None:
    world = with_unsupported(World(policy(**FAST)), RAY)
    summary = world.step().summary
    accepted = condition(world, "Accepted")
    assert (accepted.status, accepted.reason, summary.reason) == ("False", "UnsupportedKind", "UnsupportedKind")
    assert RAY in accepted.message
    nothing = World(policy(**FAST))
    assert nothing.step().summary.reason == "NoWorkloads"


def test_however_many_are_unsupported_the_message_is_bounded() -> None:
    keys = [f"example.com/{'K' * 63}/{'n' * 250}{index:02}" for index in range(UNSUPPORTED_LIMIT)]
    world = with_unsupported(World(policy(**FAST)), *keys)
    world.step()
    message = condition(world, "KindsSupported").message
    assert f"{UNSUPPORTED_LIMIT} or more workloads" in message
    assert len(message) < MESSAGE_CHARACTERS
    assert message.endswith("make their pods anew to move them")


@pytest.mark.parametrize("mode", [Mode.FP32, Mode.FP16])
def test_what_cannot_be_restarted_is_named_with_its_reason(mode: Mode) -> None:
    world = fleet()
    world.add("probe", hot=False, mode=mode)
    world.add("queued", hot=False, mode=mode)
    for name, why in (("probe", "a bare pod has no controller that makes another"), ("queued", "Kueue would undo it")):
        change(world, name, restart_by=RestartBy.NEVER, no_restart=why)
    world.run(3)
    accepted = condition(world, "Accepted")
    assert (accepted.status, accepted.reason) == ("True", "Undeliverable")
    assert "queued (Kueue would undo it)" in accepted.message
    assert "probe (a bare pod has no controller that makes another)" in accepted.message
    assert "probe" not in world.restarts
    assert "queued" not in world.restarts


def test_a_fleet_that_nothing_may_restart_waits_with_its_reasons() -> None:
    world = World(policy(**FAST))
    for index in range(4):
        world.add(f"w-{index}", hot=False)
        change(world, f"w-{index}", restart_by=RestartBy.NEVER, no_restart=f"reason {index}")
    summary = world.step().summary
    assert summary.reason == "Undeliverable"
    assert "w-0 (reason 0); w-1 (reason 1); w-2 (reason 2); and 1 more" in summary.message


def test_a_hot_workload_that_nothing_may_restart_is_moved_like_any_other() -> None:
    world = World(policy(**FAST))
    world.add("probe")
    change(world, "probe", restart_by=RestartBy.NEVER, no_restart="a bare pod has no controller that makes another")
    world.run(10)
    assert world.modes["probe-1"][0] is Mode.FP16
    assert condition(world, "Accepted").reason == "Accepted"
