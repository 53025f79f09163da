"""``PrecisionPolicy.spec.criteria``: how each signal is judged."""

from dataclasses import dataclass
from typing import Annotated

from precision_operator.api.choices import Severity
from precision_operator.api.fields import Duration, Field, Keyed
from precision_operator.api.signals import Signal

ANSWERS = "rollback.strategies says how it is answered."
ALERT = "P3: an Event and the condition Alerting report it, and nothing is promoted; never a rollback."


@dataclass(frozen=True, slots=True)
class Criterion:
    """How one signal is judged. Each signal's record has its defaults, for they differ (``signal_records``)."""

    signal: Signal
    severity: Annotated[Severity, Field("How urgent a breach is ({default}). {answers}")]
    enter: Annotated[float, Field("Breached {beyond} this {measure} ({default}).")]
    leave: Annotated[
        float, Field("No longer breached {within} this {measure} ({default}). It must be {within} enter (hysteresis).")
    ]
    promote_below: Annotated[
        float | None, Field("A step is promoted only below this {measure} ({default}). It must not be above enter.")
    ] = None
    """None: not breached is enough."""
    promote_above: Annotated[
        float | None,
        Field(
            "A step is promoted only above this {measure}, e.g. 1: faster than FP32. Absent: not asked for in a first "
            "rollout; reenable.speed asks it of a retry.",
            least=0,
            most=100,
        ),
    ] = None
    """The same of a value of which less is worse."""
    expected: Annotated[
        float,
        Field(
            "Below this {measure} an Event and the condition SpeedupLow report it, where training runs on CUDA; never a "
            "breach ({default}). 0: never.",
            least=0,
            most=100,
        ),
    ] = 0.0
    warn: Annotated[
        float | None,
        Field(
            "Above this {measure}, and not above enter, it is a breach of warnSeverity; from enter on it changes nothing "
            "({default})."
        ),
    ] = None
    """None: there is no such tier."""
    warn_severity: Annotated[
        Severity,
        Field(
            f"How urgent a breach above warn is ({{default}}). {ANSWERS} {ALERT}",
            only=(Severity.P2, Severity.P3),
        ),
    ] = Severity.P2
    alert_after_seconds: Annotated[
        float,
        Duration(
            "How long a P3 breach must have stood before the condition Alerting and an Event report it ({default}). It "
            "holds promotions at once.",
            name="alertAfter",
        ),
    ] = 0.0
    enabled: Annotated[
        bool, Field("false: this signal is not asked for, and neither promotes nor rolls back ({default}).")
    ] = True
    lower_is_worse: bool = False
    query: Annotated[
        str,
        Field(
            "Name of a query in the operator's catalogue that replaces the built-in one. A name, never PromQL: that is "
            "promql.",
            shortest=1,
            longest=63,
            pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        ),
    ] = ""
    promql: Annotated[
        str,
        Field(
            "PromQL in the built-in query's place, one sample a pod; only where the operator's admin allows it. Confined "
            "to this namespace; not beside query. $window and $minSteps are filled in.",
            shortest=1,
            longest=4096,
        ),
    ] = ""


CRITERIA = Keyed(
    "What is judged, for each workload on its own. A signal is breached from enter on and stays so until leave is passed; "
    "between them it keeps its state (hysteresis). rollback.strategies says how a breach of a severity is answered.",
    key="signal",
)
"""``spec.criteria``."""
