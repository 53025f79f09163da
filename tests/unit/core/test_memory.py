"""A workload whose devices have no room for FP32 is restarted: a flip would run out of memory."""

from dataclasses import replace

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.core.actions import DeletePod, Notify, RequestPod
from precision_operator.core.model import RestartBy
from tests.support.fleets import NAN, change, until
from tests.support.views import key

AT_ONCE = {**FAST, "strategy": {"steps": [{"setWeight": 100}]}}


def fleet(**spec: object) -> World:
    """Two hot workloads that were found in FP16; one has no room for FP32."""
    world = World(policy(**{**AT_ONCE, **spec}))
    for name in ("crowded", "roomy"):
        world.add(name, mode=Mode.FP16)
    world.crowded = {"crowded"}
    world.run(3)
    assert (world.state.phase, world.restarts) == (Phase.HEALTHY, {})
    world.bad = dict.fromkeys(world.workloads, NAN)
    return world


def test_what_has_no_room_for_fp32_is_restarted_and_everything_else_flipped() -> None:
    world = fleet()
    actions = world.step().actions
    assert {a.workload.name for a in actions if isinstance(a, RequestPod) and a.mode is Mode.FP32} == {"roomy"}
    assert {a.workload.name for a in actions if isinstance(a, DeletePod)} == {"crowded"}
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert world.really_in(Mode.FP32) == {"crowded", "roomy"}
    assert world.restarts == {"crowded": 1}


def test_an_event_says_once_why_it_is_restarted() -> None:
    world = fleet()
    said = [a for _ in range(6) for a in world.step().actions if isinstance(a, Notify) and a.reason == "MemoryTooSmall"]
    assert ["crowded" in notice.message and "roomy" not in notice.message for notice in said] == [True]


def test_where_memory_is_not_known_or_bf16_is_enough_a_flip_is_tried() -> None:
    world = fleet()
    world.crowded = set()
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert world.restarts == {}
    other = fleet(fallback="bf16")
    until(other, lambda w: w.state.phase is Phase.HELD)
    assert (other.restarts, other.really_in(Mode.BF16)) == ({}, {"crowded", "roomy"})


def test_what_nothing_makes_anew_is_flipped_all_the_same() -> None:
    world = fleet()
    change(world, "crowded", restart_by=RestartBy.NEVER, no_restart="a bare pod")
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert (world.restarts, world.really_in(Mode.FP32)) == ({}, {"crowded", "roomy"})


def test_a_workload_that_was_asked_before_is_not_restarted_for_memory() -> None:
    """Its flip is on its way: what the metrics say is older."""
    world = fleet()
    world.crowded, world.unresponsive = set(), {"crowded"}
    world.step(1.0)
    world.crowded = {"crowded"}
    decision = replace(world.decide(), wake_at=0.0)
    assert not [a for a in decision.actions if isinstance(a, DeletePod)]
    assert key("crowded") not in decision.state.restarts
