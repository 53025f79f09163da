"""``enforcement: Observe``: the next decision is reported, and not one pod or mode is changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.model.policies import FAST
from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicyEnforcement, Severity
from precision_operator.api.state import Failing, Phase
from precision_operator.core.actions import Notify
from precision_operator.core.decide import Decision
from precision_operator.core.derive import derive_facts
from precision_operator.core.observed import observed
from precision_operator.core.outcome import Outcome
from precision_operator.reasons import Reason
from tests.support.fleets import answer, condition, fleet, moving, promoted, respec, rolling_back, until
from tests.support.views import key


def events(decision: Decision) -> list[tuple[str, str]]:
    return [(str(a.reason), a.message) for a in decision.actions if isinstance(a, Notify)]


def observing(**spec: object) -> World:
    return fleet(enforcement="Observe", **spec)


def test_a_rollout_is_announced_once_and_not_begun() -> None:
    world = observing()
    first = world.step()
    assert [reason for reason, _ in events(first)] == ["WouldAct"]
    assert events(first)[0][1].startswith("would promote: step 1 of 3: ")
    for _ in range(10):
        assert events(world.step()) == []
    assert (world.state.phase, world.state.enforce, world.state.members) == (Phase.PENDING, False, ())
    assert world.writes == 0
    assert (world.summary.reason, condition(world, "WouldAct").status) == ("WouldAct", "True")
    assert condition(world, "WouldAct").reason == "RolloutStarted"
    assert condition(world, "Progressing").status == "False"


def test_the_next_step_of_a_rollout_under_way_is_announced_once_its_evidence_is_there() -> None:
    world = moving()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.step(1.0)
    assert (world.summary.reason, world.state.phase) == ("Observing", Phase.PROGRESSING)
    assert condition(world, "Progressing").status == "False"
    until(world, lambda w: w.summary.reason == "WouldAct", seconds=15.0)
    assert condition(world, "WouldAct").message.startswith("would promote: step 2 of 3")
    assert (world.state.phase, world.state.step_index) == (Phase.PROGRESSING, 0)


def test_a_rollback_of_nobody_in_particular_is_told_as_one_of_the_fleet() -> None:
    world = promoted(evaluation={**FAST["evaluation"], "onNoData": "Rollback", "noDataLimit": "60s"})
    world.unobservable = set(world.workloads)
    until(world, lambda w: w.state.silent)
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    until(world, lambda w: w.summary.reason == "WouldAct", seconds=15.0)
    assert condition(world, "WouldAct").message.endswith(", for NoData in the fleet")


def test_those_that_were_too_many_to_list_have_no_name_in_what_would_be_done() -> None:
    world = promoted()
    found = derive_facts(world.policy, world.state, world.observe(), world.now)
    failing = tuple(Failing(of, Signal.OVERFLOW, Severity.P1, world.now) for of in (key("hot-0"), ""))
    after = replace(world.state, phase=Phase.ROLLING_BACK, reason=Reason.OVERFLOW_RATE_HIGH)
    would = observed(replace(found, failing=failing), Outcome(after)).would
    assert would is not None
    assert would.message.endswith(", for OverflowRateHigh in hot-0")


def test_of_a_rollback_under_way_only_its_end_is_told() -> None:
    world = rolling_back()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.run(2)
    assert (world.summary.reason, condition(world, "WouldAct").status) == ("Observing", "False")
    world.unresponsive = set()
    until(world, lambda w: w.summary.reason == "WouldAct")
    assert world.summary.message.startswith("would go to Held: ")


def test_what_waits_says_for_what_it_would_wait() -> None:
    world = observing()
    world.metrics_away = True
    world.run(2)
    assert world.summary.reason == "Observing"
    assert "a promotion would wait: Prometheus gives no answer" in world.summary.message
    assert condition(world, "WouldAct").status == "False"


def test_a_breach_is_reported_and_the_fleet_stays_as_it_is() -> None:
    world = promoted()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.run(2)
    assert world.summary.reason == "Observing"
    before, writes = dict(world.modes), world.writes
    world.bad = dict.fromkeys(world.workloads, NAN)
    told = [event for _ in range(5) for event in events(world.step())]
    assert [reason for reason, _ in told] == ["WouldAct"]
    assert told[0][1].startswith("would roll back (Emergency, P0), for LossNotFinite in hot-0, hot-1, ")
    assert (world.modes, world.writes, world.state.phase) == (before, writes, Phase.HEALTHY)
    assert world.state.failing


def test_another_reason_for_which_it_would_act_is_told_of_too() -> None:
    world = promoted()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    told = list[str]()
    for values in (OVERFLOWS, NAN):
        world.bad = dict.fromkeys(world.workloads, values)
        told += [message.rpartition(", for ")[2] for _ in range(5) for _, message in events(world.step())]
    assert [text.partition(" in ")[0] for text in told] == ["OverflowRateHigh", "LossNotFinite"]


def test_a_steady_breach_costs_an_observed_fleet_no_write() -> None:
    world = promoted()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.bad = dict.fromkeys(world.workloads, NAN)
    world.run(5)
    commits, summaries = world.commits, world.summaries
    for value in (4.0, 5.0, 6.0):
        world.bad = {name: {Signal.NON_FINITE: value} for name in world.workloads}
        world.step()
    assert (world.commits, world.summaries) == (commits, summaries)


def test_a_single_workload_that_would_be_rolled_back_is_named() -> None:
    world = promoted()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.bad = {"hot-0": {Signal.OVERFLOW: 0.4}}
    world.run(5)
    assert "would roll back hot-0 alone, for " in world.summary.message
    assert not world.state.held


def test_new_workloads_that_would_be_taken_in_are_named() -> None:
    world = promoted()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.add("new")
    world.run(2)
    assert world.summary.message == "would take in new"
    assert key("new") not in world.state.members


def test_what_was_observed_is_done_once_the_policy_is_enforced() -> None:
    world = observing()
    world.run(5)
    respec(world, enforcement=PolicyEnforcement.ENFORCE)
    world.run(30)
    assert world.state.phase is Phase.HEALTHY
    assert all(c.type != "WouldAct" for c in world.summary.conditions)


def test_a_job_that_was_suspended_for_a_rollback_is_resumed_all_the_same() -> None:
    world = fleet()
    world.add_job("job")
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    world.bad = dict.fromkeys(world.workloads, NAN)
    until(world, lambda w: w.workloads["job"].suspended)
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.run(10)
    assert not world.workloads["job"].suspended


@pytest.mark.parametrize("command", ["retry", "promote", "rollback", "abort"])
def test_a_command_changes_nothing_while_a_policy_observes(command: str) -> None:
    world = promoted()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    answer(world, command)
    before = dict(world.modes)
    world.run(5)
    assert (world.modes, world.state.phase) == (before, Phase.HEALTHY)
    assert Mode.FP16 in {mode for mode, _ in before.values()}


def test_a_lost_record_of_a_policy_that_only_observed_is_no_reason_to_hold_anybody_once_it_is_deleted() -> None:
    world = promoted()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.lose_assignment()
    world.run(3)
    before = world.really_in(Mode.FP16)
    world.delete_policy()
    world.run(3)
    assert (world.gone, world.really_in(Mode.FP16)) == (True, before)
