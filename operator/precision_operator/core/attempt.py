"""What this attempt of a rollout goes by: another one after a rollback starts smaller and asks for more."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from precision_operator.api.canary import Choice
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Criterion, PolicySpec
from precision_operator.api.state import Phase, State
from precision_operator.api.steps import Stage


@dataclass(frozen=True)
class Attempt:
    """Steps, levels and patience of the policy, as they hold after so many rollbacks."""

    spec: PolicySpec
    state: State

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The steps of this attempt."""
        staged = self.spec.staging.by is Choice.NODE_LABEL
        again = self.state.attempts > 0
        return self.spec.reenable.stages_after(self.spec.stages, staged=staged) if again else self.spec.stages

    @cached_property
    def promotion(self) -> Mapping[Signal, Criterion]:
        """What readings are held against for a promotion; another attempt asks for more: runs that end well, and speed."""
        found, rules = {criterion.signal: criterion for criterion in self.spec.criteria}, self.spec.reenable
        if not self.state.attempts:
            return found
        failures, speed = found[Signal.FAILURES], found[Signal.SPEED]
        if failures.promote_below is not None:
            found[Signal.FAILURES] = replace(failures, promote_below=min(failures.promote_below, 1.0 - rules.success))
        if rules.speed > 0.0:
            found[Signal.SPEED] = replace(speed, promote_above=max(speed.promote_above or 0.0, rules.speed))
        return found

    @property
    def failure_limit(self) -> int:
        """Breached evaluations in a row that are tolerated: none in another attempt, the fault is known by then."""
        again = self.state.attempts > 0 and self.state.phase in (Phase.PROGRESSING, Phase.PAUSED)
        return 0 if again else self.spec.evaluation.failure_limit
