"""What a pass leaves in the operator's metrics, for alerts to compare with now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from precision_operator.api.canary import CanaryVerdict
from precision_operator.api.state import Phase
from precision_operator.contract import DRILL
from precision_operator.controller.reconcile import REST_SECONDS
from precision_operator.controller.reports import policy_times
from precision_operator.kube.port import POLICIES
from tests.support.fleets import answer, until
from tests.support.reconciling import NAMES, OVERFLOW, Rig, promoted
from tests.support.rollbacks import by_canary

BAD = {f"{name}-abc-1": OVERFLOW for name in NAMES}


def measured(rig: Rig, name: str, by: str) -> dict[str, float]:
    families = text_string_to_metric_families(rig.metrics.exposition().decode())
    return {s.labels[by]: s.value for family in families for s in family.samples if s.name == name}


def times(rig: Rig) -> dict[str, float]:
    return measured(rig, "precision_policy_timestamp_seconds", "of")


async def read_whole() -> Rig:
    rig = await promoted()
    rig.trainers.say_nothing_more = True  # else what they do not report is an error
    await rig.manual.advance(120.0)
    await rig.go()
    await rig.go()
    return rig


async def test_a_deadline_is_there_until_all_train_in_the_fallback() -> None:
    rig = await read_whole()
    assert set(times(rig)) == {"phase", "evaluation", "created"}
    rig.trainers.bad = BAD
    await rig.until(lambda: rig.state.phase is Phase.ROLLING_BACK)
    incident = rig.state.incident
    assert incident is not None
    assert times(rig)["deadline"] == incident.deadline_at
    await rig.until(lambda: rig.state.phase is Phase.HELD)
    assert set(times(rig)) == {"phase", "evaluation", "created", "rollback"}
    assert times(rig)["rollback"] == incident.decided_at
    assert times(rig)["phase"] == rig.state.phase_since


def test_a_held_rollback_canary_that_was_retried_has_no_deadline_any_more() -> None:
    world = by_canary()
    until(world, lambda w: w.state.comparison is not None and w.state.comparison.looks > 0, seconds=60.0)
    assert world.state.comparison is not None
    assert policy_times(world.state, None)["deadline"] is not None
    world.state = replace(world.state, comparison=replace(world.state.comparison, verdict=CanaryVerdict.NO_DIFFERENCE))
    answer(world, "retry")
    world.bad = {}
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=60.0)
    assert world.state.incident is not None
    assert world.state.incident.last_ack_at is None
    assert (policy_times(world.state, None)["deadline"], policy_times(world.state, None)["predicted"]) == (None, None)


async def test_how_long_a_rollback_by_restarts_was_predicted_to_take_is_there_as_a_time() -> None:
    rig = await promoted()
    for name in NAMES:
        rig.replace(name, hot=False)
    rig.trainers.bad = BAD
    await rig.until(lambda: rig.state.incident is not None)
    incident = rig.state.incident
    assert incident is not None
    assert incident.predicted_seconds is not None
    assert times(rig)["predicted"] == incident.decided_at + incident.predicted_seconds


async def test_a_policy_that_a_person_paused_is_measured_as_paused() -> None:
    rig = await read_whole()
    assert measured(rig, "precision_policy_suspended", "policy") == {"fleet": 0.0}
    body: Any = await rig.kube.get(POLICIES, "default", "fleet")
    rig.kube.put(POLICIES, {**body, "spec": {**body["spec"], "suspend": True}})
    await rig.go()
    assert measured(rig, "precision_policy_suspended", "policy") == {"fleet": 1.0}


async def test_a_reading_with_an_error_is_no_reading() -> None:
    rig = await read_whole()
    before = times(rig)["evaluation"]
    rig.trainers.say_nothing_more = False
    await rig.manual.advance(120.0)
    await rig.go()
    await rig.go()
    assert measured(rig, "precision_policy_condition", "type")["MetricsAvailable"] == 0.0
    assert times(rig)["evaluation"] == before


async def test_a_policy_that_was_deleted_is_measured_for_as_long_as_it_holds_something() -> None:
    rig = await promoted()
    rig.trainers.bad = BAD
    await rig.until(lambda: rig.state.phase is Phase.ROLLING_BACK)
    rig.kube.objects.pop((POLICIES.plural, "default", "fleet"))
    await rig.go()
    await rig.until(lambda: rig.state.phase is Phase.HELD)
    assert "deadline" not in times(rig)
    assert set(measured(rig, "precision_policy_info", "phase")) == {"Held"}


def gains(rig: Rig) -> dict[str, float]:
    return measured(rig, "precision_policy_gain", "of")


async def test_what_precision_brings_follows_the_readings_of_a_steady_fleet_without_a_write() -> None:
    rig = await read_whole()
    assert gains(rig) == {"speed": 1.25, "memory": 0.6, "loss": -0.1}
    shown = rig.summary.gain
    assert shown is not None
    rig.kube.writes.clear()
    for step in range(1, int(REST_SECONDS / 15.0) + 2):
        rig.trainers.bad = {f"{name}-abc-1": {"speed": 1.25 + step / 100} for name in NAMES}
        await rig.manual.advance(15.0)
        await rig.go()
    assert gains(rig)["speed"] > 1.25
    assert (rig.kube.writes, rig.summary.gain) == ([], shown)


async def test_what_is_not_measured_any_more_has_no_series() -> None:
    rig = await read_whole()
    rig.trainers.silent = {f"{name}-abc-1" for name in NAMES}
    await rig.manual.advance(120.0)
    await rig.go()
    await rig.go()
    assert gains(rig) == {}


async def test_a_drill_that_passed_is_there_as_a_time() -> None:
    rig = await promoted()
    assert "drill" not in times(rig)
    rig.policy["metadata"]["annotations"] = {DRILL: f"{rig.state.transition_id}: fleet"}
    await rig.until(lambda: rig.state.last_drill is not None and not rig.state.last_drill.running)
    assert rig.state.last_drill is not None
    assert times(rig)["drill"] == rig.state.last_drill.passed_at
