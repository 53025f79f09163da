"""A rollback by canary: who goes first, what ends the comparison, and what takes it over."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.canary import CanaryVerdict
from precision_operator.api.commands import Prerequisite
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.core.actions import DeletePod, RequestPod
from tests.support.fleets import answer, condition, incident_of, promoted, until
from tests.support.rollbacks import MILD, MINUTE, QUICK, annotate, by_canary, canary_of, compared, verdict_of

WINDOW_SECONDS = 300.0


def key(name: str) -> str:
    return f"apps/Deployment/{name}"


def pinned(world: World, values: Callable[[World], dict[Signal, float]]) -> None:
    """The canary's metrics alone are others, in the precision that it is in now."""
    observe = world.observe

    def changed() -> object:
        seen = observe()
        assert seen.evaluation is not None
        mine = {p.name for w in seen.workloads if w.name in canary_of(world) for p in w.pods}
        pods = {
            name: replace(found, values={**found.values, **values(world)}) if name in mine else found
            for name, found in seen.evaluation.pods.items()
        }
        return replace(seen, evaluation=replace(seen.evaluation, pods=pods))

    world.observe = changed  # type: ignore[method-assign, assignment]


def test_one_breached_workload_goes_first() -> None:
    world = by_canary()
    assert incident_of(world) == (Severity.P2, Strategy.CANARY)
    compared(world)
    assert world.really_in(Mode.FP32) == canary_of(world)
    assert len(canary_of(world)) == 1


def test_a_canary_that_fares_better_takes_the_rest_with_it_in_batches() -> None:
    world = by_canary()
    begun = world.now
    left = [len(world.really_in(Mode.FP16))]
    while world.state.phase is not Phase.HELD:
        world.step(MINUTE / 4)
        left.append(len(world.really_in(Mode.FP16)))
        assert left[-2] - left[-1] <= 2, "more than a batch at once"
        assert len(left) < 1000, world.state.message
    assert verdict_of(world) is CanaryVerdict.BETTER
    assert incident_of(world) == (Severity.P2, Strategy.GRADUAL)
    assert left[-1] == 0
    incident, comparison = world.state.incident, world.state.comparison
    assert incident is not None
    assert comparison is not None
    assert comparison.ended_at is not None
    assert incident.last_ack_at is not None
    assert comparison.ended_at < incident.last_ack_at <= incident.deadline_at == comparison.ended_at + 1800.0
    # Eight looks at the greatest difference; the canary's first window does not count before it is over.
    assert 8 * WINDOW_SECONDS <= comparison.ended_at - begun <= 10 * WINDOW_SECONDS


def test_no_difference_is_held_once_the_window_is_over_and_a_person_is_told_how_to_go_on() -> None:
    world = by_canary(everywhere=True)
    begun = world.now
    until(world, lambda w: verdict_of(w) is not CanaryVerdict.OPEN, seconds=MINUTE, passes=400)
    assert verdict_of(world) is CanaryVerdict.NO_DIFFERENCE
    assert world.now - begun >= 7200.0
    assert world.state.comparison is not None
    assert world.state.comparison.ended_at == world.now - MINUTE
    assert {name for name in world.workloads if world.state.assigned(key(name)) is Mode.FP32} == canary_of(world)
    world.run(600, MINUTE)
    assert world.state.phase is Phase.ROLLING_BACK
    assert world.state.reason == "CanaryNoDifference"
    assert world.really_in(Mode.FP32) == canary_of(world)
    progressing = condition(world, "Progressing")
    assert (progressing.status, progressing.reason) == ("False", "CanaryNoDifference")
    assert "kubectl precision promote fleet -n ns" in progressing.message


def test_no_difference_goes_on_to_the_rest_where_the_policy_says_so() -> None:
    world = by_canary({"onNoDifference": "Promote", "window": "30m"}, everywhere=True)
    until(world, lambda w: w.state.reason == "CanaryPromoted", seconds=MINUTE)
    assert "neither better nor worse than the rest, and Promote is set" in world.state.message
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=MINUTE)
    assert verdict_of(world) is CanaryVerdict.NO_DIFFERENCE


def test_a_canary_that_fares_worse_is_held_and_moves_nobody_else() -> None:
    world = by_canary()
    compared(world)
    world.bad = {}
    pinned(world, lambda w: {Signal.FAILURES: 0.6})
    until(world, lambda w: verdict_of(w) is not CanaryVerdict.OPEN, seconds=MINUTE, passes=400)
    assert verdict_of(world) is CanaryVerdict.WORSE
    assert world.really_in(Mode.FP32) == canary_of(world)


def test_that_fp32_is_slower_than_fp16_is_no_trouble_of_the_canary() -> None:
    world = by_canary()
    compared(world)
    world.bad = {name: {Signal.SPEED: 2.5} for name in world.workloads}  # the canary itself is at 1.0 of its baseline
    before = world.state.comparison
    assert before is not None
    until(world, lambda w: verdict_of(w) is not CanaryVerdict.OPEN, seconds=MINUTE, passes=400)
    after = world.state.comparison
    assert after is not None
    assert (after.verdict, after.total) == (CanaryVerdict.NO_DIFFERENCE, before.total)


@pytest.mark.parametrize("worse", [OVERFLOWS, NAN])
def test_a_severe_breach_takes_over_a_canary_at_once_and_its_trainers_have_time_to_answer(
    worse: dict[Signal, float],
) -> None:
    world = compared(by_canary())
    world.run(10, MINUTE)
    world.bad = dict.fromkeys(world.workloads, worse)
    restarts = dict(world.restarts)
    train = world.train
    world.train = lambda name=None: None  # type: ignore[method-assign]
    world.run(4, 15.0)
    severity, strategy = incident_of(world)
    assert severity < Severity.P2
    assert strategy is Strategy.EMERGENCY
    hot = [w for w in world.workloads.values() if w.hot]
    assert all(pod.effective_mode is Mode.FP32 for w in hot for pod in w.pods)
    assert {name: count for name, count in world.restarts.items() if name != "literal"} == {
        name: count for name, count in restarts.items() if name != "literal"
    }, "restarted before ackTimeout was over"
    world.train = train  # type: ignore[method-assign]
    world.bad = {}
    world.run(3)
    assert incident_of(world) == (severity, strategy)


def test_the_rest_is_judged_in_what_it_trains_in_where_the_fallback_is_reduced_precision_too() -> None:
    world = compared(by_canary(fallback="bf16"))
    assert (world.really_in(Mode.BF16), len(world.really_in(Mode.FP16))) == (canary_of(world), 5)
    world.bad = dict.fromkeys(sorted(world.really_in(Mode.FP16))[:2], NAN)
    world.step()
    assert incident_of(world) == (Severity.P0, Strategy.EMERGENCY)


@pytest.mark.parametrize(("command", "strategy"), [("abort", Strategy.EMERGENCY), ("rollback", Strategy.GRADUAL)])
@pytest.mark.parametrize("waits", [False, True])
def test_a_person_can_end_the_comparison_at_any_time(command: str, strategy: Strategy, waits: bool) -> None:
    world = compared(by_canary(everywhere=waits))
    if waits:
        until(world, lambda w: verdict_of(w) is not CanaryVerdict.OPEN, seconds=MINUTE, passes=400)
    answer(world, command)
    world.step(1.0)
    assert incident_of(world)[1] is strategy
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0)


@pytest.mark.parametrize("waits", [False, True])
def test_a_person_can_promote_the_canary_before_and_after_the_verdict(waits: bool) -> None:
    world = compared(by_canary(everywhere=True))
    if waits:
        until(world, lambda w: verdict_of(w) is not CanaryVerdict.OPEN, seconds=MINUTE, passes=400)
    answer(world, "promote")
    world.step(1.0)
    assert (incident_of(world)[1], world.state.reason) == (Strategy.GRADUAL, "CanaryPromoted")
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0)


def test_a_retry_ends_a_held_canary_and_begins_again_with_the_prerequisites_of_any_other() -> None:
    world = by_canary(everywhere=True, reenable={"prerequisites": ["rootCause"], "backoff": "0s", "dwell": "0s"})
    until(world, lambda w: verdict_of(w) is not CanaryVerdict.OPEN, seconds=MINUTE, passes=400)
    answer(world, "retry")
    world.run(5)
    assert world.state.phase is Phase.ROLLING_BACK
    assert condition(world, "Progressing").reason == "AwaitingPrerequisites"
    world.everywhere = {}
    annotate(world, Prerequisite.ROOT_CAUSE)
    until(world, lambda w: w.state.phase is Phase.PENDING, seconds=15.0)
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    assert len(world.really_in(Mode.FP16)) == 6


def test_a_retry_is_not_followed_while_the_comparison_runs() -> None:
    world = compared(by_canary())
    answer(world, "retry")
    world.run(3)
    assert world.state.phase is Phase.ROLLING_BACK


def test_suspended_nothing_is_looked_at() -> None:
    world = compared(by_canary())
    world.policy = replace(world.policy, spec=replace(world.policy.spec, suspend=True))
    before = world.state.comparison
    world.run(30, MINUTE)
    assert world.state.comparison == before


def test_readings_of_overlapping_windows_are_one_look() -> None:
    world = compared(by_canary())
    first = world.state.comparison
    assert first is not None
    assert first.looked_at is not None
    assert first.since is not None
    assert first.looked_at - first.since >= WINDOW_SECONDS
    until(world, lambda w: w.state.comparison != first, seconds=15.0)
    second = world.state.comparison
    assert second is not None
    assert second.looked_at is not None
    assert (second.looks, second.looked_at - first.looked_at) == (2, WINDOW_SECONDS)


def test_a_canary_that_crashes_in_fp32_is_worse_not_silent() -> None:
    world = by_canary(everywhere=False)
    for name in canary_of(world):
        world.crash(name)
    world.bad = {}
    until(world, lambda w: verdict_of(w) is not CanaryVerdict.OPEN, seconds=MINUTE, passes=400)
    assert verdict_of(world) is CanaryVerdict.WORSE


def test_a_canary_that_cannot_be_seen_is_held_at_the_limit_and_not_before() -> None:
    world = by_canary({"limit": "6h"})
    begun = world.now
    world.run(2)
    world.unobservable |= canary_of(world)
    world.run(300, MINUTE)
    assert verdict_of(world) is CanaryVerdict.OPEN
    until(world, lambda w: verdict_of(w) is not CanaryVerdict.OPEN, seconds=MINUTE, passes=400)
    assert verdict_of(world) is CanaryVerdict.INCONCLUSIVE
    assert 6 * 3600.0 - 15.0 <= world.now - begun <= 6 * 3600.0 + 2 * MINUTE
    world.run(100, MINUTE)
    assert world.really_in(Mode.FP16) == set(world.workloads) - canary_of(world)


def test_one_breached_workload_has_nobody_to_be_compared_with_and_goes_gradually() -> None:
    rollback = {**QUICK, "strategies": {"P2": "Canary"}, "fleetMinimum": 1, "fleetShare": 0.1}
    world = promoted(rollback=rollback)
    world.bad = {"hot-0": MILD}
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0)
    assert (incident_of(world)[1], world.state.canary) == (Strategy.GRADUAL, ())


def test_labelled_nodes_choose_the_canary_where_breached_workloads_run_on_them() -> None:
    rollback = {**QUICK, "strategies": {"P2": "Canary"}, "canary": {"by": "NodeLabel"}}
    world = promoted(rollback=rollback)
    for name, workload in world.workloads.items():
        pods = tuple(replace(p, node="first" if name in ("hot-1", "hot-2") else "other") for p in workload.pods)
        world.workloads[name] = replace(workload, pods=pods)
    observe = world.observe
    world.observe = lambda: replace(observe(), canary_nodes=("first",))  # type: ignore[method-assign]
    world.bad = dict.fromkeys(("hot-0", "hot-1", "hot-3"), MILD)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0)
    assert canary_of(world) == {"hot-1"}


def test_a_comparison_costs_a_commit_a_look_and_no_other() -> None:
    world = compared(by_canary(everywhere=True))
    world.run(2)
    before, looks = (world.writes, world.commits), world.state.comparison
    world.run(100, MINUTE)
    assert looks is not None
    assert world.state.comparison is not None
    assert world.writes == before[0]
    assert world.commits - before[1] == world.state.comparison.looks - looks.looks


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["canary", "rest", "prometheus", "all", "none"]), st.integers(1, 12)), max_size=12
    )
)
def test_unknown_neither_promotes_nor_holds_and_nobody_else_is_moved_before_the_verdict(
    silences: list[tuple[str, int]],
) -> None:
    world = by_canary(everywhere=True)
    canary = canary_of(world)
    for who, passes in silences:
        rest = set(world.workloads) - canary
        world.unobservable = {"canary": canary, "rest": rest, "all": canary | rest}.get(who, set())
        world.metrics_away = who == "prometheus"
        for _ in range(passes):
            before = world.state.comparison
            moved = {a.workload.name for a in world.decide().actions if isinstance(a, RequestPod | DeletePod)}
            world.step(150.0)
            after = world.state.comparison
            assert before is not None
            assert after is not None
            if who in ("canary", "prometheus", "all"):
                assert (after.looks, after.verdict) == (before.looks, before.verdict)
            if after.verdict is CanaryVerdict.OPEN:
                assert moved <= canary
    assert world.really_in(Mode.FP32) <= canary
    assert verdict_of(world) in (CanaryVerdict.OPEN, CanaryVerdict.NO_DIFFERENCE)


def test_a_breach_of_the_canary_that_has_ended_is_forgotten_while_the_rest_is_compared() -> None:
    world = by_canary()
    compared(world)
    world.step(MINUTE)
    assert canary_of(world) & {failing.name for failing in world.state.failing} == set()
