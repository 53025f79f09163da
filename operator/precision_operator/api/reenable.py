"""``PrecisionPolicy.spec.reenable``: what another attempt after a rollback of the fleet needs, beside a person's retry."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from precision_operator.api.commands import Prerequisite
from precision_operator.api.steps import Stage, parse_stages
from precision_operator.api.wire import duration_seconds, number, sequence


@dataclass(frozen=True, slots=True)
class ReenableSpec:
    """Prerequisites, back-off, and how another attempt is staged."""

    prerequisites: tuple[Prerequisite, ...] = tuple(Prerequisite)
    backoff_seconds: float = 600.0
    """Doubles with each failed attempt, from the second on; the first may come at once."""
    backoff_limit_seconds: float = 86400.0
    stable_seconds: float = 604800.0
    """A fleet that was Healthy for this long has proved itself: its next rollback is a first one again."""
    dwell_seconds: float = 259200.0
    """How long the evidence must have been good in the first step, at least."""
    success: float = 0.98
    """Share of runs that must end well for a promotion."""
    speed: float = 1.0
    """Throughput relative to FP32 that a promotion must exceed."""
    stages: tuple[Stage, ...] = ()
    """The steps of another attempt; empty: those of the first, dwelling in their first."""

    def stages_after(self, first: tuple[Stage, ...], *, staged: bool = False) -> tuple[Stage, ...]:
        """The steps of another attempt, where ``first`` are the policy's. A lone step has no canary to dwell in.

        ``staged``: the first step is that of labelled nodes. The canary by share follows it, and dwells too.
        """
        if self.stages or len(first) < 2:
            return self.stages or first
        canary = replace(first[0], soak_seconds=max(first[0].soak_seconds, self.dwell_seconds))
        return (*(canary,) * (2 if staged else 1), *first[1:])


def parse_reenable_spec(raw: Mapping[str, object]) -> ReenableSpec:
    """Read ``spec.reenable``."""
    base = ReenableSpec()
    asked = raw.get("prerequisites")
    return ReenableSpec(
        prerequisites=base.prerequisites if asked is None else tuple(p for p in Prerequisite if p in sequence(asked)),
        backoff_seconds=duration_seconds(raw.get("backoff"), base.backoff_seconds),
        backoff_limit_seconds=duration_seconds(raw.get("backoffLimit"), base.backoff_limit_seconds),
        stable_seconds=duration_seconds(raw.get("stable"), base.stable_seconds),
        dwell_seconds=duration_seconds(raw.get("dwell"), base.dwell_seconds),
        success=number(raw.get("success"), base.success),
        speed=number(raw.get("speed"), base.speed),
        stages=parse_stages(raw.get("steps")),
    )
