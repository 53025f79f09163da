"""The rollout canary against the rest: what is compared, what holds, and what overrules it."""

import math
from dataclasses import replace

import pytest

from lab.model.policies import policy
from lab.model.world import World
from precision_operator.api.canary import CanaryVerdict
from precision_operator.api.mitigation import Mitigation, Rung
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import DEFAULT_CRITERIA, Strategy
from precision_operator.api.state import Phase
from precision_operator.api.workload import name_of
from precision_operator.contract import PROMOTE
from precision_operator.core.actions import Notify
from precision_operator.core.derive import derive_facts
from precision_operator.core.promotion.regression import difference, shortfall
from precision_operator.reasons import Reason
from tests.support.fleets import respec, until

pytestmark = pytest.mark.slow

WINDOW_SECONDS = 30.0
CRITERIA = {criterion.signal: criterion for criterion in DEFAULT_CRITERIA}


def rollout(soak: str = "2h", rollback: dict[str, object] | None = None, **comparison: object) -> World:
    """Eight workloads, two in the canary, which have acknowledged."""
    steps = {
        "steps": [
            {"setWeight": 25},
            {"pause": {"duration": soak}},
            {"setWeight": 50},
            {"pause": {}},
            {"setWeight": 100},
        ]
    }
    rules = {"interval": "15s", "window": "30s", "failureLimit": 0, "minSamples": 1}
    strategy = {**steps, "comparison": comparison}
    world = World(policy(annotations={}, strategy=strategy, evaluation=rules, rollback=rollback or {}))
    for index in range(8):
        world.add(f"w-{index}")
    world.run(2)
    assert len(world.state.members) == 2
    return world


def promote(world: World) -> None:
    world.policy = replace(world.policy, annotations={PROMOTE: str(world.state.transition_id)})


def worse(world: World, value: float = 0.04) -> World:
    """The moved ones train worse than FP32, but well enough for every threshold."""
    world.bad = {name: {Signal.DIVERGENCE: value} for name in world.workloads}
    return world


def looked(world: World, looks: int) -> World:
    world.run(round(looks * WINDOW_SECONDS / 15.0) + 2)
    return world


def test_a_canary_that_is_within_every_threshold_and_worse_than_the_rest_is_held_for_a_person() -> None:
    world = looked(worse(rollout()), 20)
    assert (world.state.phase, world.summary.reason) == (Phase.PROGRESSING, Reason.CANARY_REGRESSED)
    assert "To go on all the same: kubectl precision promote fleet -n ns" in world.summary.message
    assert world.state.comparison is not None
    assert world.state.comparison.verdict is CanaryVerdict.WORSE
    assert world.state.comparison.ended_at == world.state.comparison.looked_at
    before = world.commits
    world.run(600)
    assert (world.state.step_index, world.commits) == (0, before), "it stands, and costs no write"


def test_it_stays_held_though_the_difference_goes_away_and_goes_on_once_a_person_promotes() -> None:
    world = looked(worse(rollout()), 20)
    world.bad = {}
    world.run(500)
    assert world.summary.reason == Reason.CANARY_REGRESSED
    world.policy = replace(world.policy, annotations={PROMOTE: str(world.state.transition_id)})
    world.step()
    assert (world.state.step_index, world.state.comparison) == (1, None)


def test_a_promote_that_overrules_a_regression_is_one_transition_and_approves_no_step() -> None:
    world = looked(worse(rollout(soak="5m")), 20)
    world.bad = {}
    promote(world)
    until(world, lambda w: w.state.phase is Phase.PAUSED)
    worse(world)
    until(world, lambda w: w.summary.reason == Reason.CANARY_REGRESSED)
    before = world.state.transition_id
    promote(world)
    world.bad = {}
    world.step()
    assert (world.state.transition_id, world.state.step_index) == (before + 1, 1)
    world.run(40)
    assert (world.state.phase, world.state.step_index) == (Phase.PAUSED, 1)


def test_while_a_step_soaks_a_promote_overrules_the_comparison_and_it_begins_anew() -> None:
    world = looked(worse(rollout()), 20)
    before = world.state.transition_id
    promote(world)
    world.step()
    assert (world.state.transition_id, world.state.step_index) == (before + 1, 0)
    assert world.summary.reason == Reason.SOAKING
    looked(world, 20)
    assert world.summary.reason == Reason.CANARY_REGRESSED, "what is found anew is asked anew"


def test_nothing_to_tell_apart_promotes_by_the_thresholds_alone_after_the_pause() -> None:
    world = looked(rollout(), 200)
    assert world.state.comparison is not None
    assert (world.state.comparison.verdict, world.state.step_index) == (CanaryVerdict.OPEN, 0)
    world.run(100)
    assert world.state.phase is Phase.PAUSED
    world.policy = replace(world.policy, annotations={PROMOTE: str(world.state.transition_id)})
    world.run(20)
    now = world.state
    assert (now.phase, now.comparison) == (Phase.HEALTHY, None)


def test_a_canary_that_does_better_is_not_promoted_for_that() -> None:
    world = rollout()
    for index in range(8):
        world.bad[f"w-{index}"] = {Signal.SPEED: 3.0}
    world.everywhere = {Signal.FAILURES: 0.04}
    world.bad = {name: {**values, Signal.FAILURES: 0.0} for name, values in world.bad.items()}
    looked(world, 60)
    assert (world.state.step_index, world.summary.reason) == (0, "Soaking")


def test_one_look_a_window_and_no_write_between_them() -> None:
    world = rollout()
    world.run(10)
    before, looks = world.commits, world.state.comparison.looks if world.state.comparison else 0
    world.run(20, 3.0)
    assert world.state.comparison is not None
    assert world.state.comparison.looks - looks == world.commits - before == 2


@pytest.mark.parametrize("silent", ["canary", "rest", "all"])
def test_without_data_of_one_side_there_is_no_look_and_no_promotion_for_that(silent: str) -> None:
    world = rollout()
    members = {name_of(key) for key in world.state.members}
    rest = set(world.workloads) - members
    world.unobservable = {"canary": members, "rest": rest, "all": members | rest}[silent]
    worse(world)
    looked(world, 20)
    assert world.state.comparison is None or world.state.comparison.looks == 0
    assert world.state.step_index == 0


def test_time_that_was_not_watched_does_not_count_as_a_look() -> None:
    world = worse(rollout())
    for _ in range(40):
        world.continuous_since = world.now
        world.step()
    assert world.state.comparison is None


def test_a_policy_that_wants_a_rollback_for_it_gets_one_of_the_cohort() -> None:
    world = looked(worse(rollout(onRegression="Rollback")), 20)
    world.run(10)
    assert world.state.incident is not None
    assert (world.state.incident.reason, world.state.incident.severity) == (Reason.CANARY_REGRESSED, "P2")
    assert world.really_in(Mode.FP16) == set()
    assert world.state.phase is Phase.HELD


@pytest.mark.parametrize(
    ("of_p2", "strategy"),
    [("Gradual", Strategy.GRADUAL), ("Emergency", Strategy.EMERGENCY), ("Canary", Strategy.GRADUAL)],
)
def test_such_a_rollback_is_of_the_severitys_strategy_but_compares_no_further_canary(
    of_p2: str, strategy: Strategy
) -> None:
    world = looked(worse(rollout(rollback={"strategies": {"P2": of_p2}}, onRegression="Rollback")), 20)
    assert world.state.incident is not None
    assert world.state.incident.strategy is strategy


def test_a_policy_that_ignores_it_compares_nothing() -> None:
    world = looked(worse(rollout(onRegression="Ignore")), 60)
    assert world.state.comparison is None


def test_a_step_promoted_goes_on_with_the_same_test() -> None:
    world = rollout(soak="5m")
    world.run(20)
    known = world.state.comparison
    assert known is not None
    while world.state.step_index == 0:
        known = world.state.comparison
        world.step()
    assert (world.state.step_index, world.state.comparison) == (1, known)


def test_a_rollout_to_another_target_begins_with_another_comparison() -> None:
    world = looked(rollout(), 4)
    assert world.state.comparison is not None
    respec(world, target=Mode.BF16)
    world.step()
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    assert world.state.comparison is None


def test_a_breach_of_a_threshold_is_rolled_back_while_it_holds() -> None:
    world = looked(worse(rollout()), 20)
    world.bad = {name: {Signal.OVERFLOW: 0.9} for name in world.workloads}
    world.run(1)
    assert world.state.phase is Phase.ROLLING_BACK
    assert world.state.comparison is None


@pytest.mark.parametrize(("value", "expected"), [(0.9, 1.0), (1.0, 0.0), (1.2, 0.0)])
def test_where_as_good_as_fp32_is_what_promotes_less_falls_short_by_all(value: float, expected: float) -> None:
    asked = replace(CRITERIA[Signal.SPEED], promote_below=None, leave=1.0)
    assert shortfall(asked, value) == expected


@pytest.mark.parametrize(
    ("signal", "value", "expected"),
    [
        (Signal.DIVERGENCE, -0.3, 0.0),
        (Signal.DIVERGENCE, 0.01, 0.2),
        (Signal.DIVERGENCE, 0.05, 1.0),
        (Signal.DIVERGENCE, 0.5, 1.0),
        (Signal.DIVERGENCE, math.nan, 1.0),
        (Signal.DIVERGENCE, math.inf, 1.0),
        (Signal.FAILURES, 0.025, 0.5),
        (Signal.SPEED, 2.0, 0.0),
        (Signal.SPEED, 0.95, 0.5),
        (Signal.SPEED, 0.5, 1.0),
        (Signal.NON_FINITE, 0.0, 0.0),
        (Signal.NON_FINITE, 1.0, 1.0),
    ],
)
def test_how_far_a_value_falls_short_of_fp32(signal: Signal, value: float, expected: float) -> None:
    assert shortfall(CRITERIA[signal], value) == pytest.approx(expected)


def test_a_promote_that_was_given_before_the_regression_was_shown_is_void() -> None:
    world = worse(rollout())
    while Reason.CANARY_REGRESSED not in {a.reason for a in world.decide().actions if isinstance(a, Notify)}:
        world.step()
    promote(world)
    world.run(3)
    assert (world.summary.reason, world.state.step_index) == (Reason.CANARY_REGRESSED, 0)


def test_a_regression_says_by_how_much_the_canary_falls_short() -> None:
    message = looked(worse(rollout()), 20).summary.message
    assert "do worse than what trains in fp32: a mean shortfall of +0.80 in 10 looks" in message


def test_a_regression_is_told_of_once_though_the_policy_is_edited_since() -> None:
    world = looked(worse(rollout()), 20)
    world.policy = replace(world.policy, generation=world.policy.generation + 1)
    told = [action.reason for action in world.step().actions if isinstance(action, Notify)]
    assert (world.summary.reason, told) == (Reason.CANARY_REGRESSED, [])


def test_a_regression_is_not_rolled_back_where_its_severity_is_held() -> None:
    world = looked(worse(rollout(rollback={"strategies": {"P2": "Hold"}}, onRegression="Rollback")), 20)
    assert (world.state.phase, world.summary.reason) == (Phase.PROGRESSING, Reason.CANARY_REGRESSED)


def without(world: World, lacks: dict[str, Signal]) -> float | None:
    """The difference in a reading that lacks these signals of these workloads."""
    seen = world.observe()
    assert seen.evaluation is not None
    pods = dict(seen.evaluation.pods)
    for name, signal in lacks.items():
        (one,) = world.workloads[name].pods
        known = pods[one.name]
        pods[one.name] = replace(known, values={s: v for s, v in known.values.items() if s is not signal})
    evaluation = replace(seen.evaluation, pods=pods)
    facts = derive_facts(world.policy, world.state, replace(seen, evaluation=evaluation), world.now)
    return difference(facts, evaluation)


def test_one_of_the_canary_that_bf16_is_tried_for_is_left_out() -> None:
    world = rollout()
    one = world.state.members[0]
    world.bad = {name_of(one): {Signal.DIVERGENCE: 0.04}}
    assert (without(world, {}) or 0.0) < 0
    window = Mitigation(one, Signal.OVERFLOW, since=world.now, until=world.now + 60, rung=Rung.BF16)
    world.state = replace(world.state, mitigations=(window,))
    assert without(world, {}) == pytest.approx(0.0)


def test_a_workload_of_the_rest_of_which_a_compared_signal_is_not_known_is_left_out() -> None:
    world = rollout()
    rest = sorted(set(world.workloads) - {name_of(key) for key in world.state.members})
    world.everywhere = {Signal.FAILURES: 0.0}
    assert without(world, {}) == pytest.approx(0.0)
    assert without(world, dict.fromkeys(rest[:3], Signal.FAILURES)) == pytest.approx(0.0), "half of them are enough"
    halves = {**dict.fromkeys(rest[:3], Signal.FAILURES), **dict.fromkeys(rest[3:], Signal.DIVERGENCE)}
    assert without(world, halves) is None, "of none of them all is known"
