"""Canaries: the settings in ``spec.rollback.canary`` and ``spec.strategy``, and their memory (``state.comparison``)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from precision_operator.api.fields import Duration, Field, Rule, Time
from precision_operator.api.wire import format_duration


class Choice(StrEnum):
    """Which workloads go first."""

    SHARE = "Share"
    """A share: in a rollback of the breached ones, in a rollout of the fleet."""
    NODE_LABEL = "NodeLabel"
    """Those that run on labelled nodes."""


class OnNoDifference(StrEnum):
    """What follows where the fallback turns out neither better nor worse."""

    HOLD = "Hold"
    PROMOTE = "Promote"


class OnRegression(StrEnum):
    """What follows where the rollout canary is shown to do worse than the rest."""

    HOLD = "Hold"
    ROLLBACK = "Rollback"
    IGNORE = "Ignore"
    """Nothing is compared."""


class CanaryVerdict(StrEnum):
    """What the comparison of a canary with the rest has shown."""

    OPEN = "Open"
    BETTER = "Better"
    NO_DIFFERENCE = "NoDifference"
    WORSE = "Worse"
    INCONCLUSIVE = "Inconclusive"
    """The limit came before there was enough data to say anything."""


NODE_LABEL = Field(
    "key=value of the nodes that go first, with by: NodeLabel ({default}).",
    longest=380,
    pattern="^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?="
    "([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
)


@dataclass(frozen=True, slots=True)
class CanarySpec:
    """How a rollback by canary goes."""

    by: Annotated[
        Choice,
        Field(
            "Who goes first ({default}). Share: a share of the moved workloads. NodeLabel: those on nodes with nodeLabel; "
            "where none of the breached runs there, or all do, the share decides."
        ),
    ] = Choice.SHARE
    share: Annotated[
        float,
        Field(
            "Share of the moved workloads, at least one, at most half of the breached ones ({default}).",
            above=0,
            most=0.5,
        ),
    ] = 0.10
    node_label: Annotated[str, NODE_LABEL] = "fp16=disabled"
    window_seconds: Annotated[
        float,
        Duration(
            "How long the canary is compared at most, counted in looks that had data ({default}). A clear difference ends "
            "it earlier.",
            least="1s",
            most="24h",
        ),
    ] = 7200.0
    limit_seconds: Annotated[
        float,
        Duration(
            "Time from the decision after which the canary is held, whatever is known ({default}).",
            least="1s",
            most="24h",
        ),
    ] = 86400.0
    false_alarm_rate: Annotated[
        float,
        Field(
            "Chance that a comparison calls a difference that is not there, however often it is looked at ({default}).",
            least=0.001,
            most=0.5,
        ),
    ] = 0.05
    margin: Annotated[
        float,
        Field(
            "A mean difference in how bad the losses are (0 as good as what promotes, 1 a breach) up to this is none "
            "({default}).",
            least=0,
            most=0.4,
        ),
    ] = 0.10
    on_no_difference: Annotated[
        OnNoDifference,
        Field(
            "What follows where the fallback helped nobody ({default}). Hold: canary and rest stay as they are until a "
            "person decides. Promote: the rest is rolled back in batches."
        ),
    ] = OnNoDifference.HOLD


CANARY = Field(
    "How a rollback by canary goes. A few breached workloads are assigned the fallback first and are compared with the "
    "breached rest, each against its own FP32 baseline, once a window of the metrics.",
    rules=(
        Rule(
            "!has(self.window) || !has(self.limit) || duration(self.window) <= duration(self.limit)",
            f"canary.window (default {format_duration(CanarySpec().window_seconds)}) must not be longer than "
            f"canary.limit (default {format_duration(CanarySpec().limit_seconds)}): shorten window or raise limit",
            field="window",
        ),
    ),
)
"""``spec.rollback.canary``."""


@dataclass(frozen=True, slots=True)
class StagingSpec:
    """Who goes first in a rollout."""

    by: Annotated[
        Choice,
        Field(
            "Who is in the first step ({default}). Share: as many as its weight says, by a hash. NodeLabel: those whose "
            "pods all run on nodes with nodeLabel, and nobody else; needs the right to list nodes (rbac.nodes of the "
            "chart)."
        ),
    ] = Choice.SHARE
    node_label: Annotated[str, NODE_LABEL] = "fp16=enabled"


@dataclass(frozen=True, slots=True)
class ComparisonSpec:
    """How the rollout canary is compared with the rest of the fleet, beside the thresholds."""

    on_regression: Annotated[
        OnRegression,
        Field(
            "What follows where the moved workloads are shown to do worse ({default}). Hold: nothing more is promoted "
            "until a person promotes. Rollback: what was moved is rolled back as rollback.strategies.P2 says. Ignore: "
            "nothing is compared."
        ),
    ] = OnRegression.HOLD
    false_alarm_rate: Annotated[
        float,
        Field(
            "Chance that a rollout calls a regression that is not there, however long it takes ({default}).",
            least=0.001,
            most=0.5,
        ),
    ] = 0.05
    margin: Annotated[
        float,
        Field(
            "A mean difference in shortfall (0 as good as FP32, 1 at the promotion level) up to this is none ({default}).",
            least=0,
            most=0.8,
        ),
    ] = 0.20


@dataclass(frozen=True, slots=True)
class Comparison:
    """The running test: what it needs to go on in another process. Times are seconds since the epoch."""

    since: Annotated[float | None, Time()] = None
    """When every rollback canary had reported that it trains in the fallback; None in a rollout."""
    looked_at: Annotated[float | None, Time()] = None
    """The evaluation of the last look."""
    looks: Annotated[int, Field()] = 0
    total: Annotated[float, Field()] = 0.0
    """Sum of the differences (rest minus canary, -1 to 1)."""
    squares: Annotated[float, Field()] = 0.0
    better: Annotated[float, Field()] = 0.0
    """Logarithm of what a bet on the canary being better has grown to."""
    worse: Annotated[float, Field()] = 0.0
    verdict: Annotated[CanaryVerdict, Field()] = CanaryVerdict.OPEN
    ended_at: Annotated[float | None, Time()] = None

    @property
    def mean(self) -> float | None:
        """Mean difference so far; None before the first look."""
        return self.total / self.looks if self.looks else None
