"""How rollbacks are carried out, and how a fleet starts again after one."""

from dataclasses import replace

import pytest

from lab.model.policies import FAST
from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.commands import Prerequisite
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.core.actions import DeletePod, RequestPod
from tests.support.fleets import ROLLED_BACK, answer, condition, fleet, incident_of, promoted, until
from tests.support.rollbacks import MILD, QUICK, annotate, gradually


def test_mild_overflow_is_rolled_back_gradually_once_it_has_lasted() -> None:
    world = promoted(rollback=QUICK)
    world.bad = dict.fromkeys(world.workloads, MILD)
    begun = world.now
    world.step()
    assert world.state.phase is Phase.HEALTHY
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0)
    assert world.now - begun > 30.0
    assert incident_of(world) == (Severity.P2, Strategy.GRADUAL)


def test_a_gradual_rollback_moves_in_batches_each_after_the_last_acknowledged() -> None:
    world = gradually()
    left = [len(world.really_in(Mode.FP16))]
    while world.state.phase is not Phase.HELD:
        before = world.writes
        writes = [a for a in world.decide().actions if isinstance(a, RequestPod | DeletePod)]
        assert len(writes) <= 2
        world.step()
        left.append(len(world.really_in(Mode.FP16)))
        assert left[-2] - left[-1] <= 2
        assert len(left) < 20, (before, world.state.message)
    assert left[-1] == 0
    assert len(set(left)) >= 3


def test_a_restart_waits_for_what_is_in_flight_but_not_for_ever() -> None:
    world = gradually()
    assert world.state.incident is not None
    decided = world.state.incident.decided_at
    until(world, lambda w: w.restarts.get("literal", 0) == 2, seconds=5.0)
    assert 60.0 <= world.now - decided <= 70.0
    until(world, lambda w: w.state.phase is Phase.HELD)


@pytest.mark.parametrize("worse", [OVERFLOWS, NAN])
def test_a_severe_breach_takes_over_a_gradual_rollback_at_once(worse: dict[Signal, float]) -> None:
    world = gradually()
    assert len(world.really_in(Mode.FP16)) >= 4
    world.bad = dict.fromkeys(world.workloads, worse)
    world.run(2, 1.0)
    severity, strategy = incident_of(world)
    assert severity < Severity.P2
    assert strategy is Strategy.EMERGENCY
    assert not {n for n in world.really_in(Mode.FP16) if n.startswith("hot")}
    world.bad = {}
    world.run(3)
    assert incident_of(world)[0] is severity, "severity fell within an incident"


def test_an_unresponsive_workload_does_not_make_a_gradual_rollback_miss_its_deadline() -> None:
    world = gradually(deadlines={"P2": "10m"}, ackTimeout="30s")
    world.unresponsive = {"hot-0", "hot-1"}
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0, passes=300)
    assert world.state.incident is not None
    assert world.state.incident.last_ack_at is not None
    assert world.state.incident.last_ack_at <= world.state.incident.deadline_at


def test_hold_neither_promotes_nor_rolls_back() -> None:
    world = fleet(rollback={"strategies": {"P1": "Hold", "P2": "Hold"}})
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    world.run(60)
    assert (world.state.phase, world.state.step_index) == (Phase.PROGRESSING, 0)


def test_a_person_can_roll_back_gradually_and_then_at_once() -> None:
    world = promoted(rollback=QUICK)
    answer(world, "rollback")
    world.step(1.0)
    assert incident_of(world) == (Severity.P2, Strategy.GRADUAL)
    assert len(world.really_in(Mode.FP16)) >= 4
    answer(world, "abort")
    world.step(1.0)
    assert incident_of(world) == (Severity.P0, Strategy.EMERGENCY)
    assert not {n for n in world.really_in(Mode.FP16) if n.startswith("hot")}


def held(**reenable: object) -> World:
    world = promoted(reenable=reenable)
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.bad = {}
    return world


def test_a_retry_waits_until_every_prerequisite_is_acknowledged() -> None:
    world = held()
    annotate(world, *list(Prerequisite)[:-1])
    world.run(60)
    assert world.state.phase is Phase.HELD
    waiting = condition(world, "Progressing")
    assert (waiting.reason, "rollbackReady" in waiting.message) == ("AwaitingPrerequisites", True)
    annotate(world, *Prerequisite)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=15.0)


def test_acknowledgements_of_an_earlier_rollback_do_not_count() -> None:
    world = held(prerequisites=["fix"])
    annotate(world, Prerequisite.FIX)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=15.0)
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    until(world, lambda w: w.state.phase is Phase.HELD)
    stale = dict(world.policy.annotations)
    stale["precision.genesis.ai/retry"] = str(world.state.transition_id)
    world.policy = replace(world.policy, annotations=stale)
    world.bad = {}
    world.run(100)
    assert world.state.phase is Phase.HELD


def test_another_attempt_tolerates_no_breached_evaluation() -> None:
    world = held(prerequisites=[])
    tolerant = replace(world.policy.spec.evaluation, failure_limit=5)
    world.policy = replace(world.policy, spec=replace(world.policy.spec, evaluation=tolerant))
    annotate(world)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=15.0)
    world.run(2, 1.0)
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    world.step()
    assert world.state.phase in ROLLED_BACK


def test_back_off_grows_with_each_failed_attempt_and_the_first_retry_is_free() -> None:
    world = held(prerequisites=[], backoff="1h", backoffLimit="3h")
    waits = []
    for _ in range(5):
        assert world.state.incident is not None
        decided = world.state.incident.decided_at
        annotate(world)
        until(world, lambda w: w.state.phase is not Phase.HELD, seconds=60.0, passes=2000)
        waits.append(world.now - decided)
        until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=60.0)
        world.run(2, 1.0)
        world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
        until(world, lambda w: w.state.phase is Phase.HELD)
        world.bad = {}
    assert [round(wait / 3600) for wait in waits] == [0, 1, 2, 3, 3]


def test_a_fleet_that_proved_itself_begins_its_count_of_attempts_anew() -> None:
    world = held(prerequisites=[], stable="1h", dwell="0s")
    assert world.state.attempts == 1
    annotate(world)
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    world.now += 3600.0
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert world.state.attempts == 1


def test_another_attempt_dwells_three_days_in_its_canary() -> None:
    world = held(prerequisites=[])
    annotate(world)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=15.0)
    until(world, lambda w: w.summary.reason == "Soaking", seconds=15.0)
    until(world, lambda w: w.state.step_index == 1, seconds=3600.0)
    assert world.now - began_of(world) >= 72 * 3600
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)


def test_another_attempt_is_promoted_only_where_98_percent_of_the_runs_end_well() -> None:
    world = held(prerequisites=[], dwell="0s")
    world.everywhere = {Signal.FAILURES: 0.03}
    annotate(world)
    until(world, lambda w: w.summary.reason == "EvidenceInsufficient", seconds=15.0)
    assert "failures is not below its promotion level" in world.summary.message
    world.everywhere = {Signal.FAILURES: 0.01}
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)


def began_of(world: World) -> float:
    """When the last rollback was decided."""
    assert world.state.incident is not None
    return world.state.incident.decided_at


def test_another_attempt_goes_by_its_own_steps() -> None:
    steps = [{"setWeight": 20}, {"pause": {}}, {"setWeight": 100}]
    world = held(prerequisites=[], steps=steps)
    assert len(world.policy.spec.stages) == 3
    annotate(world)
    until(world, lambda w: w.state.phase is Phase.PAUSED, seconds=15.0)
    assert world.summary.step == "1/2 20%"
    assert FAST["strategy"] != steps


@pytest.mark.parametrize(
    ("values", "rewound"),
    [(NAN, {"hot-1", "hot-3"}), ({Signal.DIVERGENCE: 0.5}, {"hot-1", "hot-3"}), (OVERFLOWS, set())],
)
def test_poisoned_weights_are_taken_back_and_skipped_steps_are_not(
    values: dict[Signal, float], rewound: set[str]
) -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), values)
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert {name for name, what in world.log if what.endswith("rewind")} == rewound
    assert {name for name, what in world.log if what.startswith("request fp32")} == {f"hot-{i}" for i in range(5)}


def test_a_single_poisoned_workload_is_taken_back_by_itself() -> None:
    world = promoted()
    world.bad["hot-2"] = NAN
    world.run(3)
    assert [name for name, what in world.log if what.endswith("rewind")] == ["hot-2"]


def test_a_slow_fleet_that_falls_silent_is_not_rolled_back_by_the_silence() -> None:
    world = promoted(rollback=QUICK)
    world.bad = {key: {Signal.SPEED: 0.5} for key in world.workloads}
    world.run(2)
    world.metrics_away = True
    world.run(20)
    assert world.state.phase is Phase.HEALTHY
    world.metrics_away = False
    world.run(2)
    assert world.state.phase in ROLLED_BACK


@pytest.mark.parametrize(
    ("rules", "values"),
    [
        ({"strategies": {"P0": "Gradual"}}, NAN),
        ({"strategies": {"P1": "Gradual"}, "gradual": {"sustain": "15m"}}, OVERFLOWS),
        ({"gradual": {"sustain": "40m"}}, {Signal.SPEED: 0.5}),
    ],
    ids=["P0", "P1", "P2"],
)
def test_a_gradual_rollback_of_any_severity_begins_with_one_batch(
    rules: dict[str, object], values: dict[Signal, float]
) -> None:
    world = promoted(rollback={"mitigation": {"speed": {"window": "0s"}}, **rules})
    world.bad = dict.fromkeys(world.workloads, values)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0)
    assert incident_of(world)[1] is Strategy.GRADUAL
    assert len(world.really_in(Mode.FP16)) == len(world.workloads) - 1
    assert world.state.incident is not None
    assert world.now < world.state.incident.deadline_at
