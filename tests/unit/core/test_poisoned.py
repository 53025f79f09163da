"""Weights that a loss shows to be poisoned: recognised by one look, whenever that comes, and rewound once."""

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.api.workload import name_of
from precision_operator.core.decide import decide
from precision_operator.core.derive import derive_facts
from precision_operator.core.rollback.alone import hold
from precision_operator.core.rollback.triggers import Trigger
from precision_operator.reasons import Reason
from tests.support.fleets import answer, condition, fleet, held_names, promoted, promoted_new_only, respec, until
from tests.support.rollbacks import MILD, QUICK
from tests.support.views import key, keys

TWICE = {"evaluation": {"interval": "15s", "failureLimit": 1, "minSamples": 1, "window": "60s"}}


def rewinds(world: World) -> dict[str, int]:
    names = [name for name, what in world.log if what.endswith("rewind")]
    return {name: names.count(name) for name in names}


@pytest.mark.parametrize("values", [NAN, {Signal.DIVERGENCE: 0.5}, {Signal.DIVERGENCE: float("nan")}])
@pytest.mark.parametrize("command", ["abort", "rollback"])
def test_a_loss_that_is_seen_for_the_first_time_as_a_person_rolls_back_is_taken_back(
    values: dict[Signal, float], command: str
) -> None:
    world = promoted(**TWICE)
    world.bad = {"hot-1": values}
    answer(world, command)
    world.step(5.0)
    assert (world.state.phase, world.state.poisoned) == (Phase.ROLLING_BACK, (key("hot-1"),))
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0)
    assert rewinds(world) == {"hot-1": 1}


def test_a_loss_that_shows_after_the_workload_was_asked_for_its_fallback_is_taken_back_in_the_same_rollback() -> None:
    world = promoted(**TWICE)
    answer(world, "abort")
    world.step(5.0)
    assert "hot-1" in {name for name, what in world.log if what.startswith("request fp32")}
    world.poisoned = {"hot-1"}
    world.step(5.0)
    assert rewinds(world) == {"hot-1": 1}


def test_a_loss_that_shows_once_all_are_back_in_their_fallback_is_taken_back_too() -> None:
    world = promoted(**TWICE)
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0)
    world.poisoned = {"hot-1"}
    world.run(20, 5.0)
    assert (world.state.phase, rewinds(world)) == (Phase.HELD, {"hot-1": 1})


def test_a_workload_that_is_rolled_back_by_itself_for_something_else_is_taken_back_too() -> None:
    world = promoted(**TWICE)
    world.bad = {"hot-1": OVERFLOWS}
    world.step()
    world.bad = {"hot-1": {**OVERFLOWS, **NAN}}
    until(world, lambda w: w.state.held)
    assert (held_names(world), world.state.poisoned) == ({"hot-1"}, (key("hot-1"),))
    world.run(20, 5.0)
    assert rewinds(world) == {"hot-1": 1}


def test_who_has_gone_back_to_a_healthy_checkpoint_stays_so_when_one_of_its_pods_falls_silent() -> None:
    world = fleet(**TWICE)
    world.add("two", pods=2)
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    world.poisoned = {"two"}
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD and rewinds(w) and not w.state.poisoned, seconds=5.0)
    world.unobservable = {world.workloads["two"].pods[0].name}
    assert world.step(5.0).state.poisoned == ()


def test_a_loss_that_goes_wrong_in_fp32_long_after_the_rollback_is_nobodys_to_take_back() -> None:
    world = promoted(**TWICE)
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0)
    world.run(15, 5.0)
    world.poisoned = {"hot-1"}
    world.run(10, 5.0)
    assert (rewinds(world), world.state.poisoned) == ({}, ())


def test_a_loss_that_only_calls_for_an_alert_is_not_taken_back() -> None:
    world = promoted(**TWICE)
    world.bad = {"hot-1": {Signal.DIVERGENCE: 0.1}}
    answer(world, "abort")
    world.run(10, 5.0)
    assert rewinds(world) == {}


def test_a_workload_that_was_never_moved_is_not_taken_back_for_its_loss() -> None:
    world = fleet(strategy={"steps": [{"setWeight": 50}, {"pause": {"duration": "1h"}}, {"setWeight": 100}]})
    until(world, lambda w: len(w.state.members) == 3)
    outside = sorted(set(world.workloads) - {member.rpartition("/")[2] for member in world.state.members})
    world.poisoned = {outside[0]}
    answer(world, "abort")
    world.run(10, 5.0)
    assert rewinds(world) == {}


def test_whose_weights_are_poisoned_stays_known_when_another_is_rolled_back_by_itself() -> None:
    """Also where their losses are not to be seen any more; who is not held is not taken back for what was known of it."""
    world = promoted(**TWICE)
    world.bad = {"hot-1": NAN}
    until(world, lambda w: w.state.held)
    world.bad = {}
    state = replace(world.state, poisoned=keys("hot-1", "hot-2"))
    another = Trigger(
        Severity.P0,
        Scope.WORKLOAD,
        Reason.LOSS_NOT_FINITE,
        "NaN",
        keys("hot-3"),
        world.now,
        Strategy.EMERGENCY,
        poisoned=keys("hot-3"),
    )
    after = hold(derive_facts(world.policy, state, world.observe(), world.now), another)
    assert after.poisoned == keys("hot-1", "hot-3")


def test_a_trainer_that_ignores_its_rewind_stays_named_when_another_rollout_begins() -> None:
    world = promoted()
    world.bad, world.unresponsive = {"hot-1": NAN}, {"hot-1"}
    until(world, lambda w: condition(w, "WeightsSuspect").status == "True", seconds=15.0)
    world.bad = {}
    respec(world, target=Mode.BF16)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=15.0)
    assert held_names(world) == {"hot-1"}
    assert condition(world, "WeightsSuspect").message.startswith("hot-1: a loss was not finite")


def test_weights_that_no_rewind_reaches_are_suspect_at_once() -> None:
    world = promoted_new_only()
    world.bad = {"hot-1": NAN}
    until(world, lambda w: w.state.held)
    assert condition(world, "WeightsSuspect").message.startswith("hot-1: ")


def test_poisoned_weights_are_not_forgotten_while_the_metrics_cannot_be_read() -> None:
    world = promoted(**TWICE)
    world.bad = {"hot-1": NAN}
    answer(world, "abort")
    world.step(5.0)
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0)
    world.state = replace(world.state, poisoned=keys("hot-1"))
    unread = replace(world.observe(), evaluation=None)
    assert decide(world.policy, world.state, unread, world.now).state.poisoned == keys("hot-1")


@pytest.mark.parametrize(("names", "phase"), [(("hot-1",), Phase.HEALTHY), (("hot-1", "hot-2"), Phase.PENDING)])
def test_a_retry_forgets_whose_weights_were_poisoned(names: tuple[str, ...], phase: Phase) -> None:
    world = promoted(**TWICE)
    world.bad = dict.fromkeys(names, OVERFLOWS)
    until(world, lambda w: w.state.held or w.state.phase is Phase.HELD)
    world.bad = {}
    world.run(10)
    world.state = replace(world.state, poisoned=keys("hot-1"))
    answer(world, "retry")
    world.step()
    assert (world.state.phase, world.state.held, world.state.poisoned) == (phase, (), ())


def test_a_loss_that_goes_wrong_before_its_workloads_turn_is_taken_back_though_a_canary_is_compared() -> None:
    steps = {"steps": [{"setWeight": 60}, {"pause": {}}, {"setWeight": 100}]}
    rules = {**QUICK, "strategies": {"P2": "Canary"}}
    world = World(policy(**{**FAST, **TWICE, "strategy": steps, "rollback": rules}))
    for index in range(6):
        world.add(f"hot-{index}", mode=Mode.BF16)
    until(world, lambda w: w.state.phase is Phase.PAUSED, seconds=15.0)
    waits = [key for key, mode in world.state.modes.items() if mode is Mode.BF16]
    world.bad = dict.fromkeys(map(name_of, world.state.members), MILD)
    until(world, lambda w: w.state.by_canary, seconds=15.0)
    world.bad[name_of(waits[0])] = NAN
    world.run(2)
    assert (world.state.by_canary, world.state.poisoned) == (False, (waits[0],))
