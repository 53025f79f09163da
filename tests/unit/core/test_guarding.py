"""A fleet that is guarded: who joins it and when, and what becomes of those that were rolled back by themselves."""

import math
from dataclasses import replace

import pytest

from lab.model.world import NAN, SLOW, World
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase
from precision_operator.core.calling import calls
from precision_operator.core.decide import decide
from tests.support.fleets import answer, condition, fleet, held_names, member_names, promoted, until
from tests.support.mitigations import breached
from tests.support.views import key

MEMORY_ALERT = {Signal.MEMORY: 0.9}


def held(*, silent: bool = False, **spec: object) -> World:
    """A guarded fleet of which one workload is rolled back by itself; ``silent``: unobservable from then on."""
    world = promoted(**spec)
    world.bad = {"hot-2": NAN}
    world.step(1.0)
    assert held_names(world) == {"hot-2"}
    if silent:
        world.unobservable = {"hot-2"}
    return world


def waits_for(world: World) -> str:
    return condition(world, "Progressing").reason


def test_a_new_workload_joins_when_the_window_of_another_is_over() -> None:
    world = breached()
    world.add("late")
    world.run(2)
    assert ("late" in member_names(world), waits_for(world)) == (False, "Mitigating")
    world.bad = {}
    world.run(10)
    assert "late" in member_names(world)


@pytest.mark.parametrize("values", [{}, MEMORY_ALERT])
def test_a_new_workload_joins_at_once_unless_people_were_told_of_the_fleet(values: dict[Signal, float]) -> None:
    world = promoted()
    world.bad = dict.fromkeys(world.workloads, values)
    world.run(80)
    world.add("late")
    world.step()
    assert ("late" in member_names(world)) == (values == {})


@pytest.mark.parametrize("unseen", ["no samples of it", "Prometheus is away", "no pod", "admission is not known"])
def test_a_new_workload_does_not_join_before_it_can_be_watched(unseen: str) -> None:
    world = promoted()
    world.add("late", pods=2)
    last = world.workloads["late"].pods[-1].name
    if unseen == "no samples of it":
        world.unobservable = {last}
    elif unseen == "Prometheus is away":
        world.metrics_away = True
    elif unseen == "no pod":
        world.scale("late", 0)
        world.workloads["late"] = replace(world.workloads["late"], pods=())
    else:
        world.bypassed = True
    world.run(4)
    assert "late" not in member_names(world)
    assert (world.state.phase, world.state.assigned(key("late"))) == (Phase.HEALTHY, Mode.FP32)
    world.unobservable, world.metrics_away, world.bypassed = set(), False, False
    world.scale("late", 2)
    world.run(4)
    assert "late" in world.really_in(Mode.FP16)


def test_a_retry_ends_the_windows_and_takes_in_all_whom_a_rollback_holds_in_one_pass() -> None:
    """The answer is good for one transition: who does not join in this pass would be left out of it for ever."""
    world = breached()
    world.bad["hot-3"] = NAN
    world.run(3)
    assert held_names(world) == {"hot-3"}
    world.bad = {"hot-0": world.bad["hot-0"]}
    world.run(6)
    assert waits_for(world) == "AwaitingRetry"
    before = world.state.generation
    answer(world, "retry")
    world.step()
    assert (world.state.phase, world.state.held, world.state.mitigations) == (Phase.HEALTHY, (), ())
    assert (world.state.reason, waits_for(world)) == ("Retried", "Retried")
    assert world.state.generation > before
    assert "hot-3" in member_names(world)


def test_a_retry_that_was_carried_out_in_a_healthy_fleet_ends_no_later_window() -> None:
    """It is one transition: its answer is not good for what comes after, though nothing was rolled back in between."""
    world = breached()
    answer(world, "retry")
    transition = world.state.transition_id
    until(world, lambda w: w.state.mitigations == (), passes=40)
    until(world, lambda w: w.state.mitigations, seconds=15.0, passes=10)
    assert world.state.transition_id == transition + 1
    began = world.state.mitigations[0].since
    world.run(3)
    assert [m.since for m in world.state.mitigations] == [began]
    until(world, lambda w: w.state.held, seconds=15.0, passes=120)


def test_workloads_that_are_held_stay_so_though_the_record_of_their_incident_was_lost() -> None:
    world = held()
    world.run(3, 1.0)
    world.bad = {}
    world.state = replace(world.state, incident=None)
    world.replace_pods("hot-2")
    world.run(4)
    assert (world.state.phase, held_names(world)) == (Phase.DEGRADED, {"hot-2"})
    assert len(world.really_in(Mode.FP16)) == 5
    assert "hot-2" in world.really_in(Mode.FP32)


def test_a_held_workload_that_is_deleted_and_created_again_is_still_held() -> None:
    world = held()
    world.run(3)
    world.bad = {}
    world.drop("hot-2")
    world.run(3)
    world.add("hot-2", mode=Mode.FP16)
    world.run(6)
    assert held_names(world) == {"hot-2"}
    assert world.really_in(Mode.FP32) == {"hot-2"}


@pytest.mark.parametrize("answers", [True, False])
def test_past_the_deadline_only_who_never_acknowledged_is_restarted_unobserved(answers: bool) -> None:
    """Who has acknowledged once is unobservable later, not unresponsive: a restart would cost steps for nothing."""
    world = held(silent=not answers)
    world.run(12, 1.0)
    found = world.state.incident
    assert found is not None
    assert (found.last_ack_at is not None) is answers
    world.unobservable = {"hot-2"}
    world.now = found.deadline_at + 1.0
    world.run(10)
    assert world.restarts.get("hot-2", 0) == (0 if answers else 1)


def test_a_held_workload_that_cannot_be_seen_is_restarted_past_the_deadline_only() -> None:
    world = promoted()
    world.bad, world.unobservable = {"hot-2": NAN}, set()
    until(world, lambda w: w.state.phase is Phase.DEGRADED)
    world.unobservable = {"hot-2"}
    incident = world.state.incident
    assert incident is not None
    while world.now < incident.deadline_at - 15.0:
        world.step(15.0)
    assert "hot-2" not in world.restarts
    world.run(4)
    assert world.restarts["hot-2"] == 1


def test_an_unresponsive_workload_that_is_held_is_restarted_where_it_can_be_seen() -> None:
    world = promoted()
    world.unresponsive, world.bad = {"hot-2"}, {"hot-2": NAN}
    world.run(20)
    assert world.restarts.get("hot-2") == 1
    assert "hot-2" in world.really_in(Mode.FP32)


def test_a_held_workload_that_only_a_restart_moves_waits_for_no_slot_in_an_emergency() -> None:
    world = promoted()
    world.restart_slots, world.bad = 0, {"literal": NAN}
    world.run(6)
    assert (held_names(world), world.really_in(Mode.FP32)) == ({"literal"}, {"literal"})


def test_while_an_emergency_is_answered_new_workloads_that_restart_still_wait_for_a_slot() -> None:
    world = promoted()
    world.restart_slots, world.bad = 0, {"hot-2": NAN}
    world.run(3)
    world.add("late", hot=False)
    world.run(6)
    assert (world.state.phase, world.restarts.get("late", 0)) == (Phase.DEGRADED, 0)
    assert "late" in member_names(world)
    world.restart_slots = 1
    world.run(6)
    assert (world.restarts["late"], "late" in world.really_in(Mode.FP16)) == (1, True)


def test_weights_that_were_poisoned_are_rewound_though_another_workload_is_rolled_back_meanwhile() -> None:
    world = promoted(
        rollback={"gradual": {"sustain": "0s"}, "mitigation": {"speed": {"window": "0s"}}, "fleetShare": 0.9}
    )
    world.unresponsive, world.bad = {"hot-2"}, {"hot-2": NAN}
    world.step(1.0)
    world.bad["hot-4"] = SLOW
    until(world, lambda w: "hot-4" in held_names(w), passes=30)
    assert world.state.poisoned == (key("hot-2"),)


@pytest.mark.parametrize(
    ("fleet_size", "broken", "phase", "scope"),
    [
        (1, 1, Phase.ROLLING_BACK, Scope.FLEET),
        (2, 1, Phase.DEGRADED, Scope.WORKLOAD),
        (2, 2, Phase.ROLLING_BACK, Scope.FLEET),
    ],
)
def test_a_fleet_of_one_is_a_fleet(fleet_size: int, broken: int, phase: Phase, scope: Scope) -> None:
    world = small(fleet_size)
    world.bad = {f"hot-{index}": NAN for index in range(broken)}
    world.step(1.0)
    assert world.state.incident is not None
    assert (world.state.phase, world.state.incident.scope) == (phase, scope)
    world.run(8)
    assert world.state.phase is (Phase.HELD if phase is Phase.ROLLING_BACK else Phase.DEGRADED)


def small(size: int, **spec: object) -> World:
    world = fleet(**spec)
    for name in list(world.workloads)[size:]:
        world.drop(name)
    world.run(30)
    assert world.state.phase is Phase.HEALTHY
    return world


def test_a_retry_of_what_was_rolled_back_alone_needs_acknowledgements_and_the_back_off() -> None:
    rules = {"prerequisites": ["rootCause"], "backoff": "1h", "dwell": "0s"}
    world = small(2, reenable=rules)
    world.bad = {"hot-0": NAN}
    world.step()
    world.bad, world.state = {}, replace(world.state, attempts=2)
    world.run(30)
    answer(world, "retry")
    world.run(3)
    assert (world.state.phase, waits_for(world)) == (Phase.DEGRADED, "AwaitingPrerequisites")
    number = str(world.state.transition_id)
    both = {f"precision.genesis.ai/{name}": number for name in ("retry", "ack-rootCause")}
    world.policy = replace(world.policy, annotations=both)
    world.run(3)
    assert (world.state.phase, waits_for(world), held_names(world)) == (Phase.DEGRADED, "BackingOff", {"hot-0"})
    assert world.state.incident is not None
    world.now = world.state.incident.decided_at + 3600.0
    world.step()
    assert held_names(world) == set()
    world.run(3)
    assert (world.state.phase, world.really_in(Mode.FP16)) == (Phase.HEALTHY, {"hot-0", "hot-1"})


def test_a_workload_that_breaches_again_after_its_retry_is_rolled_back_again() -> None:
    world = held()
    world.run(3)
    world.bad = {}
    world.run(30)
    answer(world, "retry")
    until(world, lambda w: "hot-2" in w.really_in(Mode.FP16), passes=20)
    world.bad = {"hot-2": NAN}
    until(world, lambda w: held_names(w) == {"hot-2"}, passes=20)
    assert world.state.incident is not None
    assert world.state.incident.severity is Severity.P0


def test_a_pass_that_only_rolls_back_promotes_nothing_and_one_that_takes_somebody_in_does() -> None:
    """What promotes waits until admission is certain: no rollback may be found among it."""
    world = promoted()
    world.bad = {"hot-2": NAN}
    decision = world.decide()
    assert (decision.state.phase, decision.promotes) == (Phase.DEGRADED, False)
    world = promoted()
    world.add("late")
    assert world.decide().promotes
    world = promoted()
    world.bad = dict.fromkeys(world.workloads, NAN)
    lower = replace(world.policy, spec=replace(world.policy.spec, fallback=Mode.BF16))
    decision = decide(lower, world.state, world.observe(), world.now)
    assert (decision.state.phase, decision.promotes) == (Phase.ROLLING_BACK, False)


@pytest.mark.parametrize(("share", "held"), [(math.nan, set()), (1.0, {"hot-2"})], ids=["none has ended", "one failed"])
def test_a_pod_whose_runs_have_not_ended_is_not_rolled_back(share: float, held: set[str]) -> None:
    world = promoted()
    world.bad = {
        "hot-2": {Signal.FAILURES: share}
    }  # as a new pod reports after one that was preempted, and after a crash
    world.run(20)
    assert held_names(world) == held


def test_a_guarded_breach_that_fp32_workloads_have_too_is_shown_and_told_of_and_nothing_is_rolled_back() -> None:
    world = promoted(strategy={"steps": [{"setWeight": 40}]})
    world.poisoned = set(world.workloads)
    world.run(3)
    assert (world.state.phase, waits_for(world)) == (Phase.HEALTHY, "CauseNotPrecision")
    assert "nonFinite is in breach on FP32 workloads too" in condition(world, "Progressing").message
    assert [call.kind for call in calls(world.state, world.now)] == ["CauseNotPrecision"]
    assert world.state.incident is None
    writes = world.commits + world.summaries + world.writes
    world.run(20)
    assert world.commits + world.summaries + world.writes == writes, "it stands, and costs nothing"
    world.poisoned = set()
    world.run(10)
    assert waits_for(world) == world.state.reason
    assert calls(world.state, world.now) == ()


def test_a_breach_that_only_one_fp32_workload_has_too_is_rolled_back() -> None:
    world = promoted(strategy={"steps": [{"setWeight": 40}]})
    moved = member_names(world)
    outside = sorted(set(world.workloads) - moved)
    world.poisoned = {*moved, outside[0]}
    until(world, lambda w: w.state.incident is not None)
    assert waits_for(world) != "CauseNotPrecision"
