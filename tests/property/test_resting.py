"""A policy that rests: what is not decided anew is what ``decide`` would have decided."""

from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from lab.model.policies import FAST, policy
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.decide import Decision
from precision_operator.core.observer import RecordedPass
from precision_operator.core.resting import Rest, again, rest_of
from tests.support.fleets import answer, until
from tests.support.histories import NAMES, Checked, History, events, play


class Resting(Checked):
    """A world with values that waver, which compares every pass that rests with the decision."""

    rest: Rest | None = None
    rested: int = 0

    def decide(self) -> Decision:
        """One pass, decided anew, and compared."""
        observation, decision = self.observe(), super().decide()
        known = self.rest
        if known is not None and (known.seen.policy, known.seen.before) == (self.policy, self.state):
            found = again(known, observation, self.now)
            assert found in (None, decision)
            self.rested += found is not None
        self.rest = rest_of(RecordedPass(self.policy, self.state, observation, decision, self.now))
        return decision

    def _values(self, name: str, mode: Mode) -> Mapping[Signal, float]:
        values = dict(super()._values(name, mode))
        values[Signal.SPEED] = values.get(Signal.SPEED, 1.25) + (self.now % 7.0) / 100.0
        return values


def promoted() -> Resting:
    """A world that is healthy."""
    world = Resting(policy(**FAST))
    for name in NAMES:
        world.add(name, hot=name.startswith("hot"), pods=2 if name == "hot-0" else 1)
    for _ in range(60):
        world.step()
        if world.state.phase is Phase.HEALTHY and world.rested:
            return world
    raise AssertionError(world.state.phase)


def test_a_healthy_fleet_rests_though_its_values_waver() -> None:
    world = promoted()
    before = world.rested
    world.run(3)
    assert world.rested == before + 3


def promoted_again() -> Resting:
    """A world that is healthy after a rollback."""
    world = promoted()
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0)
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    return world


@given(st.sampled_from([promoted, promoted_again]), st.lists(events, max_size=25))
def test_what_is_not_decided_anew_would_have_been_the_same_decision(
    begin: Callable[[], Resting], history: History
) -> None:
    play(begin(), history)
