"""A workload whose devices have no room for FP32 is restarted: a flip would run out of memory."""

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery, OnMemoryShortage, RollbackSpec
from precision_operator.api.state import HeldWorkload, Phase, Restart, State
from precision_operator.core.actions import DeletePod, Notify, RequestPod
from precision_operator.core.memory import BF16_BYTES, fallback_in_bf16, shortage_events
from precision_operator.core.model import PodSignals, RestartBy
from precision_operator.reasons import Reason
from tests.support.fleets import answer, change, promoted, respec, until
from tests.support.rollbacks import MILD, QUICK, by_canary, canary_of, compared
from tests.support.views import key, literal, pod, reported, workload

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


def test_what_only_a_restart_moves_is_not_said_to_be_restarted_for_its_memory() -> None:
    both = (workload("hot"), literal("old"))
    begun = State(restarts={w.key: Restart(1, 0.0) for w in both})
    (said,) = shortage_events(both, reported(p=PodSignals(fp32_shortage_bytes=1e9)), State(), begun)
    assert said.message.startswith("FP32 needs more device memory than hot have left: restarted")


def test_of_what_nothing_makes_anew_only_what_lacks_memory_is_said_to_run_out_of_it() -> None:
    both = tuple(workload(name, pods=(pod(name),), restart_by=RestartBy.NEVER) for name in ("crowded", "roomy"))
    in_fp16 = State(modes=dict.fromkeys((w.key for w in both), Mode.FP16))
    (said,) = shortage_events(both, reported(crowded=PodSignals(fp32_shortage_bytes=1e9)), in_fp16, State())
    assert said.message.startswith("FP32 needs more device memory than crowded have left: nothing restarts them")


ALLOWED = {"rollback": {"onMemoryShortage": "BF16"}}


def in_bf16() -> World:
    """After a rollback that went to BF16 where FP32 does not fit."""
    world = fleet(**ALLOWED)
    until(world, lambda w: w.state.phase is Phase.HELD)
    return world


def test_where_the_policy_allows_it_bf16_takes_the_place_of_a_restart() -> None:
    world = fleet(**ALLOWED)
    actions = world.step().actions
    modes = {a.workload.name: a.mode for a in actions if isinstance(a, RequestPod)}
    assert modes == {"crowded": Mode.BF16, "roomy": Mode.FP32}
    said = [a.message for a in actions if isinstance(a, Notify) and a.reason == "MemoryTooSmall"]
    assert ["crowded" in text and "BF16" in text for text in said] == [True]
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert (world.restarts, world.really_in(Mode.BF16)) == ({}, {"crowded"})


def test_where_bf16_is_the_fallback_nobody_is_listed_for_want_of_memory() -> None:
    world = fleet(fallback="bf16", **ALLOWED)
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert (world.state.modes, world.really_in(Mode.BF16)) == ({}, {"crowded", "roomy"})


def test_a_rollback_waits_for_the_acknowledgement_of_bf16() -> None:
    world = fleet(**ALLOWED)
    world.unresponsive = {"crowded"}
    for _ in range(3):
        world.step(1.0)
    assert world.state.phase is Phase.ROLLING_BACK
    world.unresponsive = set()
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert world.really_in(Mode.BF16) == {"crowded"}


def test_what_is_held_in_bf16_stays_there_whatever_its_memory_is_then() -> None:
    world = in_bf16()
    writes, commits = world.writes, world.commits
    world.crowded = set()
    world.run(5)
    assert (world.writes, world.commits) == (writes, commits)
    assert world.state.modes == {key("crowded"): Mode.BF16}


def test_who_is_in_fp32_is_never_raised_to_bf16() -> None:
    world = in_bf16()
    world.crowded = {"crowded", "roomy"}
    world.run(5)
    assert world.really_in(Mode.FP32) == {"roomy"}


def test_what_nothing_makes_anew_goes_to_bf16_where_that_is_allowed() -> None:
    world = fleet(**ALLOWED)
    change(world, "crowded", restart_by=RestartBy.NEVER, no_restart="a bare pod")
    (said,) = (a.message for a in world.step().actions if isinstance(a, Notify) and a.reason == "MemoryTooSmall")
    assert "go to BF16" in said
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert (world.restarts, world.really_in(Mode.BF16)) == ({}, {"crowded"})


def test_an_event_says_that_what_nothing_makes_anew_may_run_out_of_memory() -> None:
    world = fleet()
    change(world, "crowded", restart_by=RestartBy.NEVER, no_restart="a bare pod")
    said = [a.message for _ in range(4) for a in world.step().actions if isinstance(a, Notify)]
    assert sum("crowded" in text and "may run out of memory" in text for text in said) == 1


def test_who_follows_a_canary_goes_to_bf16_where_it_lacks_memory_and_the_canary_to_the_fallback() -> None:
    world = by_canary()
    respec(world, rollback=replace(world.policy.spec.rollback, on_memory_shortage=OnMemoryShortage.BF16))
    world.crowded = {name for name, view in world.workloads.items() if view.hot}
    canary = canary_of(compared(world))
    answer(world, "promote")
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0)
    assert world.really_in(Mode.BF16) == world.crowded - canary
    assert canary


@pytest.mark.parametrize(
    ("mode", "delivery", "is_held", "chosen"),
    [
        (Mode.FP16, Delivery.HOT, False, True),
        (Mode.BF16, Delivery.HOT, False, False),
        (Mode.FP32, Delivery.HOT, False, False),
        (Mode.FP16, Delivery.RESTART, False, False),
        (Mode.BF16, Delivery.HOT, True, True),
        (Mode.FP32, Delivery.HOT, True, False),
    ],
)
def test_of_what_lacks_memory_bf16_is_for_what_would_flip_from_fp16_and_for_what_is_held_in_it(
    mode: Mode, delivery: Delivery, is_held: bool, chosen: bool
) -> None:
    one, crowded = workload(), reported(p=PodSignals(fp32_shortage_bytes=1e9))
    held = (HeldWorkload(one.key, "LossDiverged", 0.0),) if is_held else ()
    state, rules = State(modes={one.key: mode}, held=held), RollbackSpec(on_memory_shortage=OnMemoryShortage.BF16)
    assert bool(fallback_in_bf16(rules, Mode.FP32, state, crowded, ((one, delivery),))) is chosen


def test_as_many_go_to_bf16_as_the_assignment_has_room_to_remember() -> None:
    many = [workload(f"w-{number:03}", pods=(pod(f"p-{number}"),)) for number in range(600)]
    says = reported(**{f"p-{number}": PodSignals(fp32_shortage_bytes=1e9) for number in range(600)})
    rules = RollbackSpec(on_memory_shortage=OnMemoryShortage.BF16)
    state = State(modes=dict.fromkeys((w.key for w in many), Mode.FP16))
    movable = tuple((w, Delivery.HOT) for w in many)
    found = fallback_in_bf16(rules, Mode.FP32, state, says, movable)
    assert len(found) == BF16_BYTES // (len(many[0].key) + len(':"bf16","",')) < len(many)
    assert found == {w.key for w in many[: len(found)]}


def test_a_retry_promotes_from_bf16_as_from_anything_else() -> None:
    world = in_bf16()
    world.bad, world.crowded = {}, set()
    answer(world, "retry")
    until(world, lambda w: w.really_in(Mode.FP16) == {"crowded", "roomy"}, passes=600)


def test_a_deleted_policy_keeps_what_is_held_in_bf16() -> None:
    world = in_bf16()
    world.delete_policy()
    world.run(4)
    assert world.state.modes == {key("crowded"): Mode.BF16, key("roomy"): Mode.FP32}
    assert world.really_in(Mode.BF16) == {"crowded"}


def test_what_lacks_memory_and_has_a_change_of_its_template_pending_is_flipped_and_named() -> None:
    """A restart would bring the change in: the emergency would wait for a person else, while it trains in FP16."""
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}}))
    for name in ("crowded", "roomy"):
        world.add(name, mode=Mode.FP16)
    world.crowded = {"crowded"}
    world.run(3)
    world.revise("crowded")
    world.run(2)
    world.bad = dict.fromkeys(world.workloads, NAN)
    notices = [action for action in world.step().actions if isinstance(action, Notify)]
    assert [n.reason for n in notices if "crowded" in n.message and "change of their template" in n.message] == [
        Reason.MEMORY_TOO_SMALL
    ]
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert (world.really_in(Mode.FP32), world.restarts) == ({"crowded", "roomy"}, {})


@pytest.mark.parametrize(
    ("missing", "lacks"), [(None, False), (0.0, False), (-1e9, False), (float("nan"), False), (1e9, True)]
)
def test_memory_is_lacking_where_some_is_known_to_be_missing(missing: float | None, lacks: bool) -> None:
    assert PodSignals(fp32_shortage_bytes=missing).lacks_memory is lacks


def test_a_rollback_canary_that_has_no_room_for_fp32_is_restarted_in_it_though_others_would_go_to_bf16() -> None:
    """In BF16 it would show nothing of the policy's fallback, and a flip would fail."""
    world = promoted(rollback={**QUICK, "strategies": {"P2": "Canary"}, "onMemoryShortage": "BF16"})
    world.crowded, world.bad = set(world.workloads), dict.fromkeys(world.workloads, MILD)
    until(world, lambda w: w.state.by_canary)
    assert not [who for who, what in world.log if what.startswith(("request bf16", "request fp32"))]
    until(world, lambda w: w.really_in(Mode.FP32) >= canary_of(w))


def test_what_is_held_in_bf16_is_no_member_of_a_rollout_to_bf16() -> None:
    world = fleet(**ALLOWED)
    for number in range(4):
        world.add(f"more-{number}", mode=Mode.FP16)
    world.bad = {"crowded": NAN}
    until(world, lambda w: w.state.alone and w.really_in(Mode.BF16))
    world.bad = {}
    respec(world, target=Mode.BF16)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING and w.state.precision is Mode.BF16, seconds=15.0)
    assert key("crowded") not in world.state.members
