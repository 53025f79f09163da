"""What people ask for by annotation: what is carried out, and that no answer is good for two things."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.model.policies import policy
from lab.model.world import NAN, World
from precision_operator.api.canary import CanaryVerdict, Comparison
from precision_operator.api.commands import Command, Prerequisite
from precision_operator.api.drill import DrillResult
from precision_operator.api.mitigation import MitigationResult
from precision_operator.api.modes import Mode
from precision_operator.api.policy import deleted_policy
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase, Restart, State, Suspension
from precision_operator.core.commands import Allowed, Refused, allowed
from precision_operator.reasons import Reason
from tests.support.fleets import answer, condition, fleet, held_names, incident_of, promoted, respec, until
from tests.support.mitigations import breached
from tests.support.rollbacks import by_canary, compared
from tests.support.standing_calls import DRILL, NOW, WINDOW, rolling

MILD = {Signal.OVERFLOW: 0.25}
SLOWLY = {"gradual": {"sustain": "0s", "batchShare": 0.1}, "mitigation": {"overflow": {"window": "0s"}}}


def waiting_for_approval() -> World:
    world = fleet(strategy={"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]})
    until(world, lambda w: w.state.phase is Phase.PAUSED)
    return world


def guarding() -> World:
    return promoted()


def one_held() -> World:
    world = promoted()
    world.bad = {"hot-2": NAN}
    world.run(2)
    world.bad = {}
    world.run(30)
    assert held_names(world) == {"hot-2"}
    return world


def rolled_back() -> World:
    world = promoted()
    answer(world, "abort")
    world.run(30)
    assert world.state.phase is Phase.HELD
    return world


def rolling_back_gradually() -> World:
    world = promoted(rollback=SLOWLY)
    world.unresponsive = set(world.workloads)
    answer(world, "rollback")
    world.run(2)
    assert (world.state.phase, incident_of(world)) == (Phase.ROLLING_BACK, (Severity.P2, Strategy.GRADUAL))
    return world


def comparing() -> World:
    return compared(by_canary())


def regressed() -> World:
    """It still soaks, and the rollout canary was shown to do worse than the rest."""
    world = fleet(strategy={"steps": [{"setWeight": 50}, {"pause": {"duration": "2h"}}, {"setWeight": 100}]})
    world.bad = {name: {Signal.DIVERGENCE: 0.04} for name in world.workloads}
    until(world, lambda w: w.summary.reason == Reason.CANARY_REGRESSED, seconds=15.0)
    return world


@pytest.mark.parametrize(
    ("stands", "command"),
    [
        (waiting_for_approval, "promote"),
        (guarding, "rollback"),
        (guarding, "abort"),
        (guarding, "retry"),
        (breached, "retry"),
        (one_held, "retry"),
        (rolled_back, "retry"),
        (rolling_back_gradually, "abort"),
        (comparing, "promote"),
        (comparing, "rollback"),
        (comparing, "abort"),
        (regressed, "promote"),
        (regressed, "rollback"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_command_that_is_taken_is_one_transition_and_is_good_for_nothing_after_it(
    stands: Callable[[], World], command: str
) -> None:
    world = stands()
    before = world.state.transition_id
    answer(world, command)
    world.step(1.0)
    assert world.state.transition_id == before + 1
    named = {Command(key): int(value) for key, value in world.policy.annotations.items()}
    assert all(number != world.state.transition_id for number in named.values())


def test_a_step_is_approved_by_nobody_before_it_was_shown_to_wait() -> None:
    world = fleet(strategy={"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]})
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    answer(world, "promote")
    until(world, lambda w: w.state.phase is Phase.PAUSED)
    assert world.state.step_index == 0


@pytest.mark.parametrize("safer", ["abort", "rollback"])
@pytest.mark.parametrize(
    ("stands", "forward", "then"),
    [
        (rolled_back, "retry", Phase.HELD),
        (one_held, "retry", Phase.ROLLING_BACK),
        (comparing, "promote", Phase.ROLLING_BACK),
        (waiting_for_approval, "promote", Phase.ROLLING_BACK),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_of_two_commands_given_together_the_safer_is_carried_out_and_the_other_is_void(
    stands: Callable[[], World], forward: str, then: Phase, safer: str
) -> None:
    world = stands()
    before = world.state.transition_id
    answer(world, forward, safer)
    world.step(1.0)
    assert (world.state.transition_id, world.state.phase) == (before + 1, then)
    world.run(10)
    assert world.state.phase in (Phase.ROLLING_BACK, Phase.HELD)


def test_a_retry_that_was_withdrawn_can_be_given_anew() -> None:
    world = rolled_back()
    answer(world, "retry", "abort")
    world.run(2, 1.0)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.HEALTHY)


@pytest.mark.parametrize(("ahead", "waits"), [(0, True), (1, False)])
def test_a_retry_that_was_withdrawn_says_at_once_whether_the_next_one_needs_acknowledgements_anew(
    ahead: int, waits: bool
) -> None:
    world = promoted(reenable={"prerequisites": ["fix"], "backoff": "0s"})
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    number = world.state.transition_id
    answer(world, "retry", "rollback")
    given = {**world.policy.annotations, Prerequisite.FIX.annotation: f"{number + ahead}: because"}
    world.policy = replace(world.policy, annotations=given)
    world.step()
    assert (condition(world, "Progressing").reason == "AwaitingPrerequisites") is waits


def test_a_retry_of_nothing_does_not_wait_for_what_is_mitigated_later() -> None:
    world = promoted(rollback={"gradual": {"sustain": "0s"}})
    answer(world, "retry")
    world.run(3)
    world.bad = {"hot-0": MILD}
    until(world, lambda w: w.state.mitigations, passes=10)
    began = world.state.mitigations[0].since
    world.run(3)
    assert [m.since for m in world.state.mitigations] == [began]


def test_an_abort_hurries_a_gradual_rollback_once() -> None:
    world = rolling_back_gradually()
    answer(world, "abort")
    world.step(1.0)
    assert incident_of(world) == (Severity.P0, Strategy.EMERGENCY)
    transition = world.state.transition_id
    world.run(2, 1.0)
    assert world.state.transition_id == transition


@pytest.mark.parametrize(
    ("command", "phases"),
    [
        (Command.ABORT, {Phase.PENDING, Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY, Phase.DEGRADED}),
        (Command.ROLLBACK, {Phase.PENDING, Phase.PROGRESSING, Phase.PAUSED, Phase.HEALTHY, Phase.DEGRADED}),
        (Command.RETRY, {Phase.HELD}),
        (Command.PROMOTE, {Phase.PAUSED}),
        (Command.DRILL, {Phase.HEALTHY}),
    ],
)
def test_a_command_is_taken_where_it_changes_something(command: Command, phases: set[Phase]) -> None:
    world = guarding()
    assert {phase for phase in Phase if allowed(command, world.policy, replace(world.state, phase=phase))} == phases


WORSE = Comparison(verdict=CanaryVerdict.WORSE)
CANARY = replace(rolling(strategy=Strategy.CANARY), comparison=Comparison())
WELL = State(phase=Phase.HEALTHY)
RUNNING = replace(DRILL, result=DrillResult.RUNNING)


@pytest.mark.parametrize(
    ("command", "state", "because"),
    [
        (Command.PROMOTE, State(phase=Phase.PROGRESSING, comparison=WORSE), None),
        (Command.PROMOTE, State(phase=Phase.PROGRESSING, comparison=Comparison()), Reason.NOT_AWAITING_APPROVAL),
        (Command.PROMOTE, State(phase=Phase.HELD, comparison=WORSE), Reason.NOT_AWAITING_APPROVAL),
        (Command.PROMOTE, CANARY, None),
        (Command.RETRY, CANARY, Reason.COMPARING_CANARY),
        (Command.RETRY, replace(CANARY, comparison=WORSE), None),
        (Command.RETRY, State(phase=Phase.DEGRADED, mitigations=(WINDOW,)), None),
        (Command.RETRY, State(phase=Phase.PROGRESSING, mitigations=(WINDOW,)), Reason.NOTHING_TO_RETRY),
        (Command.DRILL, WELL, None),
        (Command.DRILL, replace(WELL, members=("a",), last_drill=RUNNING), Reason.DRILL_REFUSED),
        (Command.DRILL, replace(WELL, mitigations=(WINDOW,)), Reason.DRILL_REFUSED),
        (Command.DRILL, replace(WELL, restarts={"a": Restart(1, NOW)}), Reason.DRILL_REFUSED),
        (Command.DRILL, replace(WELL, suspensions={"a": Suspension("uid", 1, NOW)}), Reason.DRILL_REFUSED),
    ],
)
def test_a_command_is_refused_where_something_else_stands_in_its_way(
    command: Command, state: State, because: Reason | None
) -> None:
    found = allowed(command, policy(), state)
    assert (None if isinstance(found, Allowed) else found.reason) == because


def test_a_pause_lets_a_rollback_through_and_nothing_that_goes_forward() -> None:
    suspended = policy(suspend=True)
    answers = {command: allowed(command, suspended, WELL) for command in Command}
    passed = {command for command, found in answers.items() if found}
    assert passed == {Command.ABORT, Command.ROLLBACK}
    assert [found.reason for found in answers.values() if not found] == [Reason.SUSPENDED] * (len(answers) - 2)


@pytest.mark.parametrize("command", Command)
def test_no_command_of_a_policy_that_is_deleted_or_only_observes_is_carried_out(command: Command) -> None:
    assert allowed(command, deleted_policy("ns", "fleet", WELL), WELL) == Refused(
        Reason.POLICY_DELETED, "was deleted, so nobody reads its commands"
    )
    found = allowed(command, policy(enforcement="Observe"), WELL)
    assert isinstance(found, Refused)
    assert found.reason is Reason.OBSERVING


def test_a_fleet_that_a_new_target_made_pending_can_be_rolled_back() -> None:
    world = promoted()
    respec(world, target=Mode.BF16)
    world.metrics_away = True
    world.run(2)
    assert (world.state.phase, allowed(Command.ROLLBACK, world.policy, world.state)) == (Phase.PENDING, Allowed())
    assert world.really_in(Mode.FP16)
    world.metrics_away = False
    answer(world, "rollback")
    world.step(1.0)
    assert world.state.phase is Phase.ROLLING_BACK


def test_a_retry_after_a_rollback_forgets_what_was_tried_before_it() -> None:
    world = breached()
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert [m.result for m in world.state.mitigations] == [MitigationResult.FAILED]
    world.bad = {}
    answer(world, "retry")
    world.run(1)
    assert (world.state.phase, world.state.mitigations) == (Phase.PENDING, ())
