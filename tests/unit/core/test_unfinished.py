"""What is brought to its end on workloads that nobody wants anything of now."""

from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.core.actions import RequestPod
from precision_operator.core.facts import Facts, look
from precision_operator.core.model import SettleIntent
from precision_operator.core.outcome import Outcome
from precision_operator.core.plan import Budget, Desired, plan
from precision_operator.core.unfinished import unfinished
from tests.property.test_awkward_histories import change
from tests.property.test_story import promoted
from tests.property.world import World


def lagging(**spec: object) -> World:
    """A promoted fleet; hot-0's pods were rolled back to FP32, and its template was not."""
    world = promoted(**spec)
    pods = tuple(replace(pod, started_mode=Mode.FP32, request=None) for pod in world.workloads["hot-0"].pods)
    change(world, "hot-0", pods=pods)
    world.modes.update({pod.name: (Mode.FP32, 0) for pod in pods})
    return world


def left(world: World, *, gate_closed: bool = False) -> tuple[Facts, list[Desired]]:
    """What is left to be done where the phase itself wants nothing."""
    facts = look(world.policy, world.state, world.observe(), world.now)
    return facts, list(unfinished(facts, Outcome(replace(world.state, gate_closed=gate_closed))))


@pytest.mark.parametrize("fallback", [Mode.FP32, Mode.BF16])
def test_a_template_that_lags_follows_its_pods_and_moves_none_of_them(fallback: Mode) -> None:
    facts, (found,) = left(lagging(fallback=fallback.value))
    assert (found.workload.name, found.mode, found.delivery) == ("hot-0", fallback, Delivery.HOT)
    writes = plan([found], facts.evaluation, generation=99, budget=Budget(5, 5), settle=True)
    assert not [action for action in writes if isinstance(action, RequestPod)], "FP32 is as safe as any fallback"


@pytest.mark.parametrize(("suspend", "delivery"), [(True, Delivery.AUTO), (False, Delivery.NEW_ONLY)])
def test_a_template_that_lags_is_left_where_nothing_is_written_or_running_pods_are_not_ours(
    suspend: bool, delivery: Delivery
) -> None:
    world = lagging()
    world.policy = replace(world.policy, spec=replace(world.policy.spec, suspend=suspend, delivery=delivery))
    assert left(world)[1] == []


@pytest.mark.parametrize(
    ("mode", "gate_closed", "latch", "rollback"),
    [
        (Mode.FP32, True, None, True),
        (Mode.FP32, False, Mode.FP32, True),
        (Mode.FP32, False, None, False),
        (Mode.FP16, True, None, False),
    ],
)
@pytest.mark.parametrize("suspend", [False, True])
def test_a_settle_ends_in_the_mode_in_which_it_began_and_leaves_a_latch_only_where_a_rollback_stands(
    mode: Mode, gate_closed: bool, latch: Mode | None, rollback: bool, suspend: bool
) -> None:
    world = promoted()
    change(world, "hot-0", settle=SettleIntent(7, mode, was_paused=False), paused=True, latch=latch)
    world.policy = replace(world.policy, spec=replace(world.policy.spec, suspend=suspend))
    (found,) = left(world, gate_closed=gate_closed)[1]
    assert (found.mode, found.delivery, found.rollback) == (mode, Delivery.NEW_ONLY, rollback)
