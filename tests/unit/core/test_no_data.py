"""Metrics that stay away where the policy rolls back for that: each workload for its own silence, while it is watched."""

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, World
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.core.derive import derive_facts
from precision_operator.core.facts import SILENCES_LIMIT
from tests.support.fleets import answer, fleet, held_names, incident_of, member_names, phase_of, promoted, until

RULES = {"interval": "15s", "failureLimit": 0, "minSamples": 1, "noDataLimit": "60s", "onNoData": "Rollback"}
HALF = {"strategy": {"steps": [{"setWeight": 50}, {"pause": {"duration": "10m"}}, {"setWeight": 100}]}}


def test_one_blind_workload_is_rolled_back_by_itself() -> None:
    world = promoted(evaluation=RULES)
    world.unobservable = {"hot-1"}
    world.run(4)
    assert world.state.phase is Phase.HEALTHY
    world.step()
    assert (world.state.phase, held_names(world), world.state.reason) == (Phase.DEGRADED, {"hot-1"}, "NoData")
    assert incident_of(world) == (Severity.P1, Strategy.EMERGENCY)
    assert "no believable metrics of hot-1 for 60 s" in world.state.message
    world.run(3)
    assert world.really_in(Mode.FP16) == set(world.workloads) - {"hot-1"}


def test_a_fleet_of_which_nobody_is_seen_is_rolled_back() -> None:
    world = promoted(evaluation=RULES)
    world.metrics_away = True
    world.run(5)
    assert phase_of(world) is Phase.ROLLING_BACK
    assert world.state.incident is not None
    assert world.state.incident.scope is Scope.FLEET


def test_a_workload_without_pods_does_not_stand_for_the_fleet() -> None:
    world = promoted(evaluation=RULES)
    world.scale("hot-4", 0)
    world.run(2)
    world.metrics_away = True
    world.run(5)
    assert phase_of(world) is Phase.ROLLING_BACK


def test_gaps_of_different_workloads_in_turn_are_nobodys_silence() -> None:
    world = promoted(evaluation=RULES)
    for turn in range(20):
        world.unobservable = {f"hot-{turn % 5}"}
        world.run(2)
    assert (world.state.phase, world.state.held) == (Phase.HEALTHY, ())


@pytest.mark.parametrize("away", [True, False], ids=["nobody was seen before", "all were seen before"])
def test_an_outage_of_the_operator_is_no_silence_of_the_trainers(away: bool) -> None:
    world = promoted(evaluation=RULES)
    world.metrics_away = away
    world.run(2)
    world.now += 3600.0
    world.continuous_since, world.metrics_away = world.now, True
    world.run(4)
    assert world.state.phase is Phase.HEALTHY
    world.step()
    assert phase_of(world) is Phase.ROLLING_BACK


def test_a_clock_that_is_set_back_begins_a_silence_anew_and_does_not_lengthen_it() -> None:
    world = promoted(evaluation=RULES)
    world.unobservable = {"hot-1"}
    world.run(3)
    world.now -= 3600.0
    world.continuous_since = world.now
    world.run(4)
    assert world.state.held == ()
    world.step()
    assert held_names(world) == {"hot-1"}


def test_a_blind_workload_in_a_rollout_goes_back_alone_and_the_rollout_goes_on_with_the_others() -> None:
    world = fleet(evaluation=RULES, **HALF)
    until(world, lambda w: len(w.state.members) == 3 and w.state.evidence_since is not None)
    first = min(member_names(world))
    world.unobservable = {first}
    world.run(5)
    assert (world.state.phase, held_names(world)) == (Phase.PROGRESSING, {first})
    world.run(3)
    assert world.really_in(Mode.FP32) >= {first}
    until(world, lambda w: w.state.phase is Phase.DEGRADED, seconds=15.0)
    assert world.really_in(Mode.FP16) == set(world.workloads) - {first}


def test_a_workload_that_a_rollout_held_joins_it_again_when_a_person_retries() -> None:
    world = fleet(evaluation={**RULES, "window": "30s"}, **HALF)
    until(world, lambda w: len(w.state.members) == 3)
    first = min(member_names(world))
    world.unobservable = {first}
    until(world, lambda w: w.state.held, seconds=15.0)
    world.unobservable = set()
    world.run(4)
    answer(world, "retry")
    world.run(3)
    assert (world.state.phase, world.state.held) == (Phase.PROGRESSING, ())
    assert first in world.really_in(Mode.FP16)


def test_a_severe_breach_takes_a_rollout_back_that_holds_a_workload_already() -> None:
    world = fleet(evaluation=RULES, **HALF)
    until(world, lambda w: len(w.state.members) == 3)
    first, second, _ = sorted(member_names(world))
    world.unobservable = {first}
    until(world, lambda w: w.state.held, seconds=15.0)
    world.bad = {second: NAN}
    world.step()
    assert phase_of(world) is Phase.ROLLING_BACK


def test_silence_is_remembered_only_where_the_policy_acts_on_it() -> None:
    world = promoted()
    world.unobservable = {"hot-1"}
    world.run(3)
    assert world.state.silent == {}
    assert world.state.no_data_since is not None


@pytest.mark.parametrize(("times", "since"), [(SILENCES_LIMIT, 1450.0), (SILENCES_LIMIT + 1, 1500.0)])
def test_beyond_so_many_times_of_silences_the_next_one_lies_on_a_grid_and_is_not_early(
    times: int, since: float
) -> None:
    world = promoted(evaluation={**RULES, "noDataLimit": "50m"})
    world.state = replace(world.state, silent={f"apps/Deployment/{n}": 1000.0 + n for n in range(times)})
    world.unobservable = {"hot-1"}
    assert world.now == 1450.0
    assert world.step().state.silent == {"apps/Deployment/hot-1": since}


def test_a_silence_is_remembered_to_the_millisecond_as_its_record_keeps_it() -> None:
    world = promoted(evaluation=RULES)
    world.now, world.unobservable = world.now + 0.0004, {"hot-1"}
    assert world.step().state.silent == {"apps/Deployment/hot-1": 1450.0}


@pytest.mark.parametrize(("phase", "counted"), [(Phase.HEALTHY, True), (Phase.ROLLING_BACK, False)])
def test_a_silence_counts_only_while_the_fleet_does_not_go_back_anyway(phase: Phase, counted: bool) -> None:
    world = promoted(evaluation=RULES)
    world.state, world.unobservable = replace(world.state, phase=phase), {"hot-1"}
    found = derive_facts(world.policy, world.state, world.observe(), world.now)
    assert bool(found.silent) is counted


def test_who_is_no_member_is_not_taken_back_for_its_silence() -> None:
    world = promoted(evaluation=RULES)
    world.state, world.unobservable = replace(world.state, members=()), {"hot-1"}
    assert world.step().state.silent == {}


@pytest.mark.slow
def test_a_fleet_that_falls_silent_one_by_one_needs_few_times_and_nobody_is_taken_back_early() -> None:
    rules = {**RULES, "noDataLimit": "30m", "interval": "1s", "window": "30s"}
    world = World(policy(**{**FAST, "evaluation": rules, "strategy": {"steps": [{"setWeight": 100}]}}))
    for number in range(200):
        world.add(f"trainer-{number:03}", mode=Mode.FP16)
    world.run(2)
    fell: dict[str, float] = {}
    for number in range(200):
        world.unobservable.add(f"trainer-{number:03}")
        fell[f"trainer-{number:03}"] = world.now
        world.step(5.0)
    assert len(set(world.state.silent.values())) <= 2 * SILENCES_LIMIT
    assert all(since >= fell[key.rpartition("/")[2]] for key, since in world.state.silent.items())


def test_a_persons_rollback_is_not_lost_where_a_workload_falls_silent_in_that_very_pass() -> None:
    world = promoted(evaluation=RULES)
    world.unobservable = {"hot-1"}
    world.run(4)
    assert world.decide().state.held, "it falls silent in the next pass"
    answer(world, "rollback")
    world.step()
    assert world.state.incident is not None
    assert (world.state.phase, world.state.incident.scope) == (Phase.ROLLING_BACK, Scope.FLEET)
