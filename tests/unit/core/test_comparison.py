"""The phase of a rollback by canary: when its comparison begins, what ends it, what is done for the canary meanwhile."""

from dataclasses import replace

import pytest

from precision_operator.api.canary import Comparison, Verdict
from precision_operator.api.incident import Incident
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.core.actions import RequestPod
from precision_operator.core.model import Observation
from tests.property.test_awkward_histories import answer, change, until
from tests.property.test_canary import MINUTE, WINDOW_SECONDS, by_canary, canary_of, compared, verdict_of
from tests.property.world import World


def incident(world: World) -> Incident:
    assert world.state.incident is not None
    return world.state.incident


def comparison(world: World) -> Comparison:
    assert world.state.comparison is not None
    return world.state.comparison


def progressing(world: World) -> str:
    return next(c for c in world.state.conditions if c.type == "Progressing").reason


def without_metrics(world: World) -> None:
    """An operator that has just started: nothing has been read yet."""
    observe = world.observe

    def unread() -> Observation:
        return replace(observe(), evaluation=None)

    world.observe = unread  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("shown", "reason"),
    [({"better": 99.0}, "CanaryPromoted"), ({"worse": 99.0}, "CanaryWorse"), ({}, "CanaryInconclusive")],
)
def test_what_was_shown_counts_in_the_pass_in_which_the_limit_is_over(shown: dict[str, float], reason: str) -> None:
    world = compared(by_canary())
    world.state = replace(world.state, comparison=replace(comparison(world), **shown))
    world.down, world.now = True, incident(world).deadline_at - 1.0
    if not shown:
        world.step(1.0)
        assert verdict_of(world) is Verdict.OPEN
    world.now = incident(world).deadline_at
    assert world.step().state.reason == reason


@pytest.mark.parametrize(
    ("shown", "reason"),
    [({"better": 99.0}, "CanaryPromoted"), ({"worse": 99.0}, "CanaryWorse"), ({}, "CanaryNoDifference")],
)
def test_what_was_shown_counts_in_the_look_that_was_planned_as_the_last(shown: dict[str, float], reason: str) -> None:
    world = compared(by_canary())
    world.state = replace(world.state, comparison=replace(comparison(world), looks=1000, **shown))
    assert world.step().state.reason == reason


def test_a_window_shorter_than_that_of_the_metrics_is_one_look() -> None:
    world = compared(by_canary({"window": "60s"}, everywhere=True))
    assert (verdict_of(world), comparison(world).looks) == (Verdict.NO_DIFFERENCE, 1)


def test_the_comparison_begins_with_the_canarys_own_word() -> None:
    world = by_canary()
    world.blind = canary_of(world)
    world.run(5)
    assert (comparison(world).since, progressing(world)) == (None, "AwaitingAcknowledgement")
    world.blind, heard = set(), world.now
    world.step()
    assert (comparison(world).since, progressing(world)) == (heard, "ComparingCanary")


def test_a_canary_without_a_pod_is_down_but_nothing_begins_before_the_metrics_are_read() -> None:
    world = by_canary()
    (name,) = canary_of(world)
    change(world, name, replicas=0, updated_replicas=0, pods=(), template_mode=Mode.FP32)
    observe = world.observe
    without_metrics(world)
    world.step()
    assert comparison(world).since is None
    world.observe = observe  # type: ignore[method-assign]
    began = world.now
    world.step()
    assert comparison(world).since == began


def test_a_pass_without_a_reading_is_no_look_and_ends_nothing() -> None:
    world = compared(by_canary())
    before = comparison(world)
    without_metrics(world)
    world.run(3, WINDOW_SECONDS)
    assert comparison(world) == before
    assert (world.state.phase, progressing(world)) == (Phase.ROLLING_BACK, "ComparingCanary")


def test_a_comparison_of_which_the_record_was_lost_begins_again() -> None:
    world = compared(by_canary())
    world.state = replace(world.state, comparison=None)
    began = world.now
    world.step()
    assert (comparison(world).since, comparison(world).looks) == (began, 0)


def test_a_canary_that_does_not_listen_is_restarted_once_and_nobody_else() -> None:
    world = by_canary()
    (name,) = canary_of(world)
    (pod,) = world.workloads[name].pods
    world.deaf, world.modes[pod.name] = {name}, (Mode.FP16, 1)
    others = {other: count for other, count in world.restarts.items() if other != name}
    timeout = world.policy.spec.rollback.ack_timeout_seconds
    until(world, lambda w: incident(w).escalated, seconds=15.0, passes=60)
    assert world.now - incident(world).decided_at > timeout
    world.run(20)
    assert world.restarts == {**others, name: 1}
    assert comparison(world).since is not None


@pytest.mark.parametrize("verdict", [Verdict.OPEN, Verdict.NO_DIFFERENCE])
def test_a_canary_whose_template_is_written_back_is_settled_again(verdict: Verdict) -> None:
    """New pods of it would train in what the incident was about, while the rest is compared with it or waits."""
    world = compared(by_canary())
    world.state = replace(world.state, comparison=replace(comparison(world), verdict=verdict))
    (name,) = canary_of(world)
    assert world.workloads[name].latch is Mode.FP32
    change(world, name, template_mode=Mode.FP16, template_request=None, latch=None)
    world.run(6)
    assert verdict_of(world) is verdict
    assert (world.workloads[name].template_mode, world.workloads[name].latch) == (Mode.FP32, Mode.FP32)
    assert world.really_in(Mode.FP32) == {name}


def test_while_the_latches_of_a_held_canary_come_off_all_of_it_is_kept_down() -> None:
    """One of the canary is not latched yet: a pod of it that comes back in FP16 is asked all the same."""
    world = compared(by_canary({"share": 0.4}))
    world.run(6)
    world.state = replace(world.state, comparison=replace(comparison(world), verdict=Verdict.NO_DIFFERENCE))
    hot = sorted(name for name in canary_of(world) if world.workloads[name].hot)
    assert len(canary_of(world)) == len(hot) == 2
    change(world, hot[0], template_mode=Mode.FP16, template_request=None, latch=None)
    world._start_pods(hot[0])
    answer(world, "retry")
    decision = world.step(MINUTE)
    assert next(c for c in decision.state.conditions if c.type == "Progressing").reason == "Unlatching"
    asked = {a.workload.name: a.mode for a in decision.actions if isinstance(a, RequestPod)}
    assert asked == {hot[0]: Mode.FP32}


def test_a_retry_of_a_held_canary_takes_every_latch_off_before_another_attempt_begins() -> None:
    """Also of who was rolled back earlier and is no part of the canary: a latch that stays would keep it out for ever."""
    world = compared(by_canary())
    world.add("old")
    change(world, "old", latch=Mode.FP32, has_original=True)
    world.state = replace(world.state, comparison=replace(comparison(world), verdict=Verdict.NO_DIFFERENCE))
    answer(world, "retry")
    until(world, lambda w: w.state.phase is not Phase.ROLLING_BACK, passes=4)
    assert world.state.phase is Phase.PENDING
    assert not [name for name, w in world.workloads.items() if w.latch is not None]
