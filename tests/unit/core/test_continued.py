"""What another policy of the same name takes over of a state, and what begins anew under it."""

from dataclasses import replace

from lab.model.policies import FAST, policy
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, Phase
from precision_operator.core.lifecycle import continued
from tests.support.fleets import answer, held, promoted
from tests.support.standing_calls import WINDOW
from tests.support.views import key


def test_a_command_that_was_carried_out_under_one_policy_is_not_again_under_the_next() -> None:
    state = replace(promoted().state, commands={"precision.genesis.ai/retry": 5})
    assert continued(policy(uid="another"), state).commands == state.commands


def test_a_breach_is_counted_and_treated_from_the_beginning_under_the_next_policy() -> None:
    breach = Failing(key("hot-0"), Signal.OVERFLOW, Severity.P1, 1.0)
    state = continued(policy(uid="another"), replace(promoted().state, failing=(breach,), mitigations=(WINDOW,)))
    assert (state.failing, state.mitigations) == ((), ())


def test_an_abort_before_the_next_rollout_enforces_the_fallback_again() -> None:
    world = held()
    world.delete_policy()
    world.run(3)
    reduced = world.state
    assert reduced.fallback is None, "what is held is listed, and nothing else is enforced"
    world.recreate_policy(policy(uid="another", **FAST))
    world.run(3)
    answer(world, "abort")
    world.step()
    assert (world.state.phase, world.state.fallback) == (Phase.ROLLING_BACK, Mode.FP32)


def test_the_same_policy_continues_as_it_was() -> None:
    state = promoted().state
    assert continued(policy(), state) is state
    assert continued(policy(uid="another"), replace(state, policy_uid="")).phase is state.phase
