"""A fleet that is guarded: who joins it and when, and what becomes of those that were rolled back by themselves."""

from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from tests.property.test_awkward_histories import NAN, answer, change
from tests.property.test_mitigation import breached, condition
from tests.property.test_story import promoted
from tests.property.world import World

MEMORY_ALERT = {Signal.MEMORY: 0.9}


def held(*, silent: bool = False, **spec: object) -> World:
    """A guarded fleet of which one workload is rolled back by itself; ``silent``: nothing is heard of it from then on."""
    world = promoted(**spec)
    world.bad = {"hot-2": NAN}
    world.step(1.0)
    assert [h.name for h in world.state.held] == ["hot-2"]
    if silent:
        world.blind = {"hot-2"}
    return world


def members(world: World) -> set[str]:
    return {m.name for m in world.state.members}


def test_a_newcomer_joins_when_the_window_of_another_is_over() -> None:
    world = breached()
    world.add("late")
    world.run(2)
    assert ("late" in members(world), condition(world)) == (False, "Mitigating")
    world.bad = {}
    world.run(10)
    assert "late" in members(world)


@pytest.mark.parametrize("values", [{}, MEMORY_ALERT])
def test_a_newcomer_joins_at_once_unless_people_were_told_of_the_fleet(values: dict[Signal, float]) -> None:
    world = promoted()
    world.bad = dict.fromkeys(world.workloads, values)
    world.run(80)
    world.add("late")
    world.step()
    assert ("late" in members(world)) == (values == {})


def test_a_retry_ends_the_windows_and_takes_in_all_whom_a_rollback_holds_in_one_pass() -> None:
    """The answer is good for one transition: who does not join in this pass would be left out of it for ever."""
    world = breached()
    world.bad["hot-3"] = NAN
    world.run(3)
    assert [h.name for h in world.state.held] == ["hot-3"]
    world.bad = {"hot-0": world.bad["hot-0"]}
    world.run(6)
    assert condition(world) == "Mitigating"
    world.add("late")
    change(world, "late", latch=Mode.FP32, has_original=True)
    before = world.state.generation
    answer(world, "retry")
    world.step()
    assert (world.state.phase, world.state.held, world.state.mitigations) == (Phase.HEALTHY, (), ())
    assert (world.state.reason, condition(world)) == ("Retried", "Retried")
    assert world.state.generation > before
    assert "late" in members(world)


def test_workloads_that_are_held_stay_down_though_the_record_of_their_incident_was_lost() -> None:
    world = held()
    world.run(3, 1.0)
    world.bad = {}
    world.state = replace(world.state, incident=None)
    world._start_pods("hot-2")
    world.run(4)
    assert (world.state.phase, [h.name for h in world.state.held]) == (Phase.DEGRADED, ["hot-2"])
    assert len(world.really_in(Mode.FP16)) == 5
    assert "hot-2" in world.really_in(Mode.FP32)


@pytest.mark.parametrize("answers", [True, False])
def test_past_the_deadline_only_who_never_answered_is_restarted_in_silence(answers: bool) -> None:
    """Who has answered once and is heard of no more has gone blind, not deaf: a restart would cost steps for nothing."""
    world = held(silent=not answers)
    world.run(12, 1.0)
    found = world.state.incident
    assert found is not None
    assert (found.last_ack_at is not None) is answers
    world.blind = {"hot-2"}
    world.now = found.deadline_at + 1.0
    world.run(10)
    assert world.restarts.get("hot-2", 0) == (0 if answers else 1)


def test_a_deaf_workload_that_is_held_is_restarted_where_it_can_be_seen() -> None:
    world = promoted()
    world.deaf, world.bad = {"hot-2"}, {"hot-2": NAN}
    world.run(20)
    assert world.restarts.get("hot-2") == 1
    assert "hot-2" in world.really_in(Mode.FP32)
