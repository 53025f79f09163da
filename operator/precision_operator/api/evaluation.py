"""``PrecisionPolicy.spec.evaluation``: when metrics are read, and what is believed of them."""

from dataclasses import dataclass
from typing import Annotated

from precision_operator.api.choices import Fallback
from precision_operator.api.fields import Duration, Field, Rule


@dataclass(frozen=True, slots=True)
class EvaluationSpec:
    """When and over what the metrics are read."""

    interval_seconds: Annotated[
        float,
        Duration(
            "Time between two evaluations ({default}). A breach is acted on after failureLimit + 1 of them, or after "
            "rollback.gradual.sustain, where that is longer and its answer is gradual.",
            least="500ms",
            most="5m",
        ),
    ] = 15.0
    window_seconds: Annotated[
        float,
        Duration(
            "How far back rates look ({default}). It must not be shorter than interval, and should hold at least four "
            "scrapes.",
            least="2s",
            most="1h",
        ),
    ] = 300.0
    failure_limit: Annotated[
        int,
        Field(
            "Consecutive breached evaluations of a workload that are tolerated ({default}). The next one acts.",
            least=0,
            most=100,
        ),
    ] = 1
    min_samples: Annotated[
        int,
        Field("Consecutive evaluations with all evidence good that a promotion needs ({default}).", least=1, most=1000),
    ] = 3
    min_steps: Annotated[
        int,
        Field(
            "Training steps that the window must hold for a rate to be believed; with fewer it is Unknown, which neither "
            "promotes nor rolls back ({default}).",
            least=0,
            most=1_000_000,
        ),
    ] = 20
    max_sample_age_seconds: Annotated[
        float,
        Duration("An older sample is Unknown, by Prometheus' own clock ({default}).", least="1s", most="10m"),
    ] = 60.0
    no_data_limit_seconds: Annotated[
        float,
        Duration(
            "How long evidence may be missing before onNoData applies ({default}). Until then the policy holds.",
            least="1s",
            most="24h",
        ),
    ] = 600.0
    on_no_data: Annotated[
        Fallback,
        Field(
            "What happens when evidence has been missing for noDataLimit ({default}). Hold: nothing moves, and a condition "
            "says so. Rollback: the moved workloads without evidence are rolled back. Missing evidence never promotes."
        ),
    ] = Fallback.HOLD


EVALUATION = Field(
    "How evidence is read. Durations are written like 500ms, 15s, 5m or 1h30m.",
    rules=(
        Rule(
            "!has(self.window) || !has(self.interval) || duration(self.window) >= duration(self.interval)",
            "evaluation.window must not be shorter than evaluation.interval: raise window or lower interval",
            "'evaluation.window must not be shorter than evaluation.interval, found window ' + self.window + "
            "' with interval ' + self.interval + ': raise window or lower interval'",
            field="window",
            invalid=True,
        ),
    ),
)
"""``spec.evaluation``."""
