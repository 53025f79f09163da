"""``PrecisionPolicy.spec.reenable``: what another attempt after a rollback of the fleet needs, beside a person's retry."""

from dataclasses import dataclass, replace
from typing import Annotated

from precision_operator.api.commands import Prerequisite
from precision_operator.api.fields import Duration, Field
from precision_operator.api.steps import AS_STEPS, RULES, STEP, Stage


@dataclass(frozen=True, slots=True)
class ReenableSpec:
    """Prerequisites, back-off, and how another attempt is staged."""

    prerequisites: Annotated[
        tuple[Prerequisite, ...],
        Field(
            "What a person must acknowledge first, each by the annotation "
            "precision.genesis.ai/ack-<item>=<transitionId> (kubectl precision ack). Default: all six. [] asks for none.",
            longest=6,
            topology="set",
        ),
    ] = tuple(Prerequisite)
    backoff_seconds: Annotated[
        float,
        Duration(
            "How long after a second rollback was decided no retry begins; doubles with each further one ({default}). "
            "The first rollback asks for no wait.",
            least="0s",
            most="24h",
        ),
    ] = 600.0
    backoff_limit_seconds: Annotated[
        float, Duration("The longest wait between two retries ({default}).", least="0s", most="720h")
    ] = 86400.0
    stable_seconds: Annotated[
        float,
        Duration(
            "A fleet that stayed promoted for this long has proved itself; earlier failures count no more ({default}).",
            least="0s",
            most="8760h",
        ),
    ] = 604800.0
    dwell_seconds: Annotated[
        float,
        Duration(
            "How long the evidence must have been good in a retry's first step, at least ({default}). Where steps are "
            "given here, or strategy has only one, these alone count. 0s: the steps' own pauses.",
            least="0s",
            most="720h",
        ),
    ] = 259200.0
    success: Annotated[
        float,
        Field(
            "Share of runs that must end well before a retry is promoted ({default}); never less than criteria.failures "
            "asks for.",
            least=0,
            below=1,
        ),
    ] = 0.98
    speed: Annotated[
        float,
        Field(
            "Throughput relative to FP32 that a retry's promotions must exceed ({default}): 1 is faster than FP32. Never "
            "less than criteria.speed asks for. On CPUs reduced precision is seldom faster: there set 0, which asks for "
            "nothing.",
            least=0,
            most=100,
        ),
    ] = 1.0
    stages: Annotated[
        tuple[Stage, ...],
        Field(
            "The steps of a retry, as in strategy.steps. Absent, those of strategy, with the dwell in their first.",
            name="steps",
            shortest=1,
            longest=50,
            topology="atomic",
            rules=RULES,
            items=STEP,
            via=AS_STEPS,
        ),
    ] = ()

    def stages_after(self, first: tuple[Stage, ...], *, staged: bool = False) -> tuple[Stage, ...]:
        """The steps of another attempt, where ``first`` are the policy's. A lone step has no canary to dwell in.

        ``staged``: the first step is that of labelled nodes. The canary by share follows it, and dwells too.
        """
        if self.stages or len(first) < 2:
            return self.stages or first
        canary = replace(first[0], soak_seconds=max(first[0].soak_seconds, self.dwell_seconds))
        return (*(canary,) * (2 if staged else 1), *first[1:])
