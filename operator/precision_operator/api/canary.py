"""Canaries: the settings in ``spec.rollback.canary`` and ``spec.strategy``, and their memory (``state.comparison``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from precision_operator.api.wire import choice, duration_seconds, format_time, integer, mapping, number, parse_time
from precision_operator.reasons import Reason


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


REGRESSED = Reason.CANARY_REGRESSED
"""The reason where it is so."""


class Verdict(StrEnum):
    """What the comparison of a canary with the rest has shown."""

    OPEN = "Open"
    BETTER = "Better"
    NO_DIFFERENCE = "NoDifference"
    WORSE = "Worse"
    INCONCLUSIVE = "Inconclusive"
    """The limit came before there was enough data to say anything."""


@dataclass(frozen=True, slots=True)
class CanarySpec:
    """How a rollback by canary goes."""

    by: Choice = Choice.SHARE
    share: float = 0.10
    """Of the moved workloads, at least one."""
    node_label: str = "fp16=disabled"
    window_seconds: float = 7200.0
    """For how long, counted in looks that had data, the canary is compared at most."""
    limit_seconds: float = 86400.0
    """Clock time from the decision after which it is held, whatever is known."""
    false_alarm_rate: float = 0.05
    """Chance that a comparison that may be looked at after every window calls a difference that is not there."""
    margin: float = 0.10
    """A difference in trouble (0 to 1) up to this is none."""
    on_no_difference: OnNoDifference = OnNoDifference.HOLD


@dataclass(frozen=True, slots=True)
class StagingSpec:
    """Who goes first in a rollout."""

    by: Choice = Choice.SHARE
    node_label: str = "fp16=enabled"


@dataclass(frozen=True, slots=True)
class ComparisonSpec:
    """How the rollout canary is compared with the rest of the fleet, beside the thresholds."""

    on_regression: OnRegression = OnRegression.HOLD
    false_alarm_rate: float = 0.05
    """Chance that a rollout, however long, calls a regression that is not there."""
    margin: float = 0.20
    """A mean difference in shortfall (0 as good as FP32, 1 at the promotion level) up to this is none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The running test: what it needs to go on in another process. Times are seconds since the epoch."""

    since: float | None = None
    """When every rollback canary had said that it trains in the fallback; None in a rollout."""
    looked_at: float | None = None
    """The evaluation of the last look."""
    looks: int = 0
    total: float = 0.0
    """Sum of the differences (rest minus canary, -1 to 1)."""
    squares: float = 0.0
    better: float = 0.0
    """Logarithm of what a bet on the canary being better has grown to."""
    worse: float = 0.0
    verdict: Verdict = Verdict.OPEN
    ended_at: float | None = None

    @property
    def mean(self) -> float | None:
        """Mean difference so far; None before the first look."""
        return self.total / self.looks if self.looks else None


def parse_canary_spec(raw: Mapping[str, object]) -> CanarySpec:
    """Read ``spec.rollback.canary``."""
    base = CanarySpec()
    label = raw.get("nodeLabel")
    return CanarySpec(
        by=choice(raw.get("by"), base.by),
        share=number(raw.get("share"), base.share),
        node_label=label if isinstance(label, str) else base.node_label,
        window_seconds=duration_seconds(raw.get("window"), base.window_seconds),
        limit_seconds=duration_seconds(raw.get("limit"), base.limit_seconds),
        false_alarm_rate=number(raw.get("falseAlarmRate"), base.false_alarm_rate),
        margin=number(raw.get("margin"), base.margin),
        on_no_difference=choice(raw.get("onNoDifference"), base.on_no_difference),
    )


def parse_staging_spec(raw: Mapping[str, object]) -> StagingSpec:
    """Read ``spec.strategy.canary``."""
    base = StagingSpec()
    label = raw.get("nodeLabel")
    return StagingSpec(choice(raw.get("by"), base.by), label if isinstance(label, str) else base.node_label)


def parse_comparison_spec(raw: Mapping[str, object]) -> ComparisonSpec:
    """Read ``spec.strategy.comparison``."""
    base = ComparisonSpec()
    return ComparisonSpec(
        on_regression=choice(raw.get("onRegression"), base.on_regression),
        false_alarm_rate=number(raw.get("falseAlarmRate"), base.false_alarm_rate),
        margin=number(raw.get("margin"), base.margin),
    )


def comparison_to_wire(comparison: Comparison | None) -> dict[str, object] | None:
    """As ``state.comparison`` has it; what is absent is left out."""
    if comparison is None:
        return None
    wire: dict[str, object] = {
        "since": format_time(comparison.since),
        "lookedAt": format_time(comparison.looked_at),
        "looks": comparison.looks,
        "total": comparison.total,
        "squares": comparison.squares,
        "better": comparison.better,
        "worse": comparison.worse,
        "verdict": str(comparison.verdict),
        "endedAt": format_time(comparison.ended_at),
    }
    return {key: value for key, value in wire.items() if value is not None}


def parse_comparison(raw: object) -> Comparison | None:
    """Read ``state.comparison``; None where there is none."""
    body = mapping(raw)
    if not body:
        return None
    return Comparison(
        since=parse_time(body.get("since")),
        looked_at=parse_time(body.get("lookedAt")),
        looks=integer(body.get("looks"), 0),
        total=number(body.get("total"), 0.0),
        squares=number(body.get("squares"), 0.0),
        better=number(body.get("better"), 0.0),
        worse=number(body.get("worse"), 0.0),
        verdict=choice(body.get("verdict"), Verdict.OPEN),
        ended_at=parse_time(body.get("endedAt")),
    )
