"""What a pass knows before it decides: who can still be asked, who may join, what the window still reaches."""

from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase
from precision_operator.core.decide import decide
from precision_operator.core.facts import Facts, look
from precision_operator.core.model import PodView
from precision_operator.core.progress import progress_of
from tests.property.test_awkward_histories import answer, change, crash
from tests.property.test_story import fleet, promoted
from tests.property.world import World


def facts(world: World) -> Facts:
    return look(world.policy, world.state, world.observe(), world.now)


def undeclared(world: World, name: str, *hot: bool) -> None:
    """A workload whose template has lost the contract, its pods as they were."""
    pods = tuple(PodView(f"{name}-{n}", f"{name}-{n}", hot=one, started_mode=Mode.FP16) for n, one in enumerate(hot))
    world.modes.update({pod.name: (Mode.FP16, 0) for pod in pods})
    change(world, name, hot=False, literal=False, pods=pods, replicas=len(pods), updated_replicas=len(pods))


def test_of_workloads_without_the_contract_those_with_a_pod_that_listens_can_be_rescued() -> None:
    world = fleet()
    undeclared(world, "hot-0", False)
    undeclared(world, "hot-1", True, False)
    found = facts(world)
    assert found.stuck == ("hot-0", "hot-1")
    assert [w.name for w, _ in found.rescuable] == ["hot-1"]


def test_what_cannot_be_moved_joins_no_cohort_and_keeps_the_place_it_has() -> None:
    world = fleet()
    undeclared(world, "hot-0", False)
    assert "hot-0" not in {m.name for m in facts(world).in_cohort(len(facts(world).stages) - 1, ())}
    world = promoted()
    members = world.state.members
    undeclared(world, "hot-0", False)
    assert "hot-0" in {m.name for m in facts(world).in_cohort(len(facts(world).stages) - 1, members)}


def test_a_workload_whose_pods_have_not_come_yet_has_acknowledged_nothing() -> None:
    view = replace(fleet().workloads["hot-0"], pods=(), updated_replicas=0)
    coming = progress_of(view, frozenset({Mode.FP32}), None, Delivery.HOT)
    assert (coming.told, coming.acknowledged, coming.settled) == (False, False, True)
    assert progress_of(replace(view, replicas=0), frozenset({Mode.FP32}), None, Delivery.HOT).acknowledged


def test_the_window_is_clear_once_it_holds_nothing_from_before_the_last_answer() -> None:
    world = promoted()
    world.bad = {"hot-2": {Signal.NON_FINITE: 3.0}}
    world.run(4)
    incident, window = world.state.incident, world.policy.spec.evaluation.window_seconds
    assert incident is not None
    for ago, clear in ((window - 1.0, False), (window, True)):
        last = replace(incident, decided_at=world.now - 2 * window, last_ack_at=world.now - ago)
        world.state = replace(world.state, incident=last)
        assert facts(world).window_clear is clear


def test_what_the_window_still_reaches_is_not_known_before_the_metrics_have_been_read() -> None:
    world = promoted()
    assert look(world.policy, world.state, replace(world.observe(), evaluation=None), world.now).window_clear
    world.bad = {"hot-2": {Signal.NON_FINITE: 3.0}}
    world.run(4)
    world.bad, world.now = {}, world.now + 3600.0
    answer(world, "retry")
    unread = replace(world.observe(), evaluation=None)
    assert [h.name for h in decide(world.policy, world.state, unread, world.now).state.held] == ["hot-2"]
    assert world.decide().state.held == ()


def test_who_crashes_while_it_is_moved_has_failed_though_its_last_samples_still_show_the_old_precision() -> None:
    world = fleet()
    world.deaf = set(world.workloads)
    world.run(2, 1.0)
    (member,) = world.state.members
    assert world.state.phase is Phase.PROGRESSING
    assert world.step(1.0).state.failing == (), "told, and merely slow to answer"
    crash(world, member.name)
    assert (world.step(1.0).state.phase, world.state.reason) == (Phase.ROLLING_BACK, "TrainingFailing")


@pytest.mark.parametrize(
    ("attempts", "level", "expected"), [(0, 0.4, 0.4), (1, 0.4, 0.1), (1, 0.02, 0.02), (1, None, None)]
)
def test_another_attempt_asks_for_its_own_share_of_good_runs_where_runs_are_asked_for_at_all(
    attempts: int, level: float | None, expected: float | None
) -> None:
    """``promoteBelow: null``: not breached is enough."""
    world = fleet(criteria={"failures": {"promoteBelow": level}}, reenable={"success": 0.9})
    world.state = replace(world.state, attempts=attempts)
    assert facts(world).promotion[Signal.FAILURES].promote_below == pytest.approx(expected)


@pytest.mark.parametrize("up", [0, 1, 2])
def test_a_workload_of_which_one_pod_is_still_up_is_guarded_and_its_template_follows_once_both_are_down(
    up: int,
) -> None:
    """Of a fleet whose target has changed: nobody is a member, and what was moved is looked after all the same."""
    world = promoted()
    world.state = replace(world.state, members=())
    pods = tuple(
        PodView(f"hot-0-{n}", f"pod-{n}", hot=True, started_mode=Mode.FP16 if n < up else Mode.FP32) for n in range(2)
    )
    change(world, "hot-0", pods=pods, replicas=2, updated_replicas=2)
    world.modes.update({pod.name: (pod.started_mode or Mode.FP32, 0) for pod in pods})
    found = facts(world)
    assert ("hot-0" in {w.name for w, _ in found.residual}) == (up > 0)
    assert found.lags(world.workloads["hot-0"]) == (up == 0)
