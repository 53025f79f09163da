"""When a breach counts: how many evaluations it takes, what ends it, and what a whole fleet makes of that."""

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import OVERFLOWS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.core.evidence.assessment import Assessment
from precision_operator.core.evidence.confirmation import believed_seconds, update_failing
from precision_operator.core.evidence.readings import Breach, Ok, Reading, Unknown
from precision_operator.reasons import Reason
from tests.support.fleets import held_names, incident_of, phase_of, promoted
from tests.support.mitigations import MILD
from tests.support.views import workload

SPEC = policy(evaluation={"failureLimit": 1}).spec
AT = 1000.0
VIEW = workload()
BREACH = Breach(OVERFLOWS[Signal.OVERFLOW], Severity.P1)


def verdict(value: Reading) -> Assessment:
    return Assessment(VIEW, {Signal.OVERFLOW: value})


def test_a_breach_takes_one_evaluation_more_than_are_tolerated_to_be_believed() -> None:
    assert believed_seconds(replace(SPEC.evaluation, failure_limit=3, interval_seconds=15.0)) == 60.0


def test_a_breach_is_counted_once_an_evaluation_dated_from_its_first_and_ended_by_a_good_one() -> None:
    (first,) = update_failing((), [verdict(BREACH)], SPEC, at=AT)
    assert (first.key, first.signal, first.since, first.count) == (VIEW.key, Signal.OVERFLOW, AT, 1)
    assert update_failing((first,), [verdict(BREACH)], SPEC, at=AT) == (first,)
    (second,) = update_failing((first,), [verdict(BREACH)], SPEC, at=AT + 15)
    assert (second.since, second.count) == (AT, 2)
    (third,) = update_failing((second,), [verdict(BREACH)], SPEC, at=AT + 30)
    assert third.count == 2  # no more than confirms it: a breach that goes on costs no writes
    assert update_failing((second,), [verdict(Unknown(Reason.NO_SAMPLES))], SPEC, at=AT + 30) == (second,)
    assert update_failing((second,), [verdict(Ok(0.0))], SPEC, at=AT + 30) == ()
    assert update_failing((), [verdict(Unknown(Reason.NO_SAMPLES))], SPEC, at=AT) == ()
    assert update_failing((second,), [], SPEC, at=AT + 30) == ()


def test_what_is_not_known_of_one_signal_keeps_no_breach_of_another() -> None:
    (first,) = update_failing((), [verdict(BREACH)], SPEC, at=AT)
    rest = replace(first, key="", measured="")
    seen = Assessment(VIEW, {Signal.OVERFLOW: Ok(0.0), Signal.DIVERGENCE: Unknown(Reason.NO_SAMPLES)})
    assert update_failing((rest,), [seen], SPEC, at=AT + 15) == ()


@pytest.mark.parametrize("ahead_seconds", [600.0, 5.0, -5.0, -600.0])
def test_a_breach_that_another_clock_dated_counts_again_an_interval_after_this_one_began(ahead_seconds: float) -> None:
    (found,) = update_failing((), [verdict(BREACH)], SPEC, at=AT)
    began = AT + 1 + ahead_seconds
    counts = []
    for later in (0, 5, 15):
        (found,) = update_failing((found,), [verdict(BREACH)], SPEC, at=began + later, clock_since=began)
        counts.append(found.count)
    assert counts == [1, 1, 2]
    again = update_failing((found,), [verdict(BREACH)], SPEC, at=began + 3600, clock_since=began + 3600)
    assert again == (found,), "what counts already costs no write"


def test_a_breach_beyond_the_list_gets_its_workloads_name_when_it_is_seen_again_out_of_turn() -> None:
    (first,) = update_failing((), [verdict(BREACH)], SPEC, at=AT)
    rest = replace(first, key="", count=2, measured="")
    (named,) = update_failing((rest,), [verdict(BREACH)], SPEC, at=AT + 1)
    assert (named.key, named.since, named.count) == (VIEW.key, AT, 2)


def test_failures_in_a_row_are_needed_and_a_good_one_between_starts_again() -> None:
    world = promoted(**{**FAST, "evaluation": {"interval": "15s", "failureLimit": 2, "minSamples": 1}})
    bad = dict.fromkeys(world.workloads, OVERFLOWS)
    for fault in (bad, bad, {}, bad, bad):
        world.bad = dict(fault)
        assert world.step().state.phase is Phase.HEALTHY
    assert world.step().state.phase is Phase.ROLLING_BACK


def test_mild_evaluations_do_not_count_towards_a_severe_breach() -> None:
    world = promoted(evaluation={"interval": "15s", "failureLimit": 2, "minSamples": 1})
    world.bad["hot-0"] = MILD
    world.run(5)
    world.bad["hot-0"] = OVERFLOWS
    world.run(2)
    assert phase_of(world) is Phase.HEALTHY
    world.step()
    assert phase_of(world) is Phase.DEGRADED


def test_a_breach_that_was_seen_once_is_confirmed_by_a_value_beyond_its_upper_threshold_only() -> None:
    world = promoted(evaluation={"interval": "15s", "failureLimit": 1, "minSamples": 1})
    for value in (0.31, 0.21, 0.21, 0.21):
        world.bad = {"hot-1": {Signal.OVERFLOW: value}}
        world.step()
    assert (world.state.phase, [f.severity for f in world.state.failing]) == (Phase.HEALTHY, [Severity.P2])
    for value in (0.31, 0.31, 0.21):
        world.bad = {"hot-1": {Signal.OVERFLOW: value}}
        world.step()
    assert (held_names(world), incident_of(world)) == ({"hot-1"}, (Severity.P1, Strategy.EMERGENCY))


def test_a_severe_breach_that_is_confirmed_stays_severe_until_it_falls_below_its_leave_level() -> None:
    rules = {"interval": "15s", "failureLimit": 1, "minSamples": 1}
    world = promoted(evaluation=rules, rollback={"strategies": {"P1": "Hold"}})
    world.bad["hot-0"] = OVERFLOWS
    world.run(2)
    world.bad["hot-0"] = {Signal.OVERFLOW: 0.25}
    world.step()
    assert [f.severity for f in world.state.failing] == [Severity.P1]
    world.bad["hot-0"] = {Signal.OVERFLOW: 0.15}
    world.step()
    assert [f.severity for f in world.state.failing] == [Severity.P2]


def test_a_breach_says_what_was_measured_until_it_was_believed() -> None:
    world = promoted(rollback={"strategies": {"P1": "Hold"}})
    world.bad = {"hot-0": {Signal.OVERFLOW: 0.416}}
    world.run(1)
    world.bad = {"hot-0": {Signal.OVERFLOW: 0.5}}
    world.run(3)
    (failing,) = world.state.failing
    assert failing.measured == "0.416"
