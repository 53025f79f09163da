"""``PrecisionPolicy.spec.criteria``: how each signal is judged."""

from dataclasses import dataclass
from typing import Annotated

from precision_operator.api.choices import Severity
from precision_operator.api.fields import Duration, Field, Keyed, Rule
from precision_operator.api.signals import Signal

ANSWERS = "rollback.strategies says how it is answered."
ALERT = "P3: an Event and the condition Alerting report it, and nothing is promoted; never a rollback."


@dataclass(frozen=True, slots=True)
class Criterion:
    """How one signal is judged. ``DEFAULT_CRITERIA`` has the defaults, for they differ."""

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


DEFAULT_CRITERIA = (
    Criterion(Signal.OVERFLOW, Severity.P1, enter=0.30, leave=0.20, promote_below=0.05, warn=0.10),
    Criterion(
        Signal.DIVERGENCE,
        Severity.P1,
        enter=0.20,
        leave=0.10,
        promote_below=0.05,
        warn=0.05,
        warn_severity=Severity.P3,
        alert_after_seconds=1800.0,
    ),
    Criterion(Signal.FAILURES, Severity.P0, enter=0.50, leave=0.25, promote_below=0.05),
    Criterion(Signal.NON_FINITE, Severity.P0, enter=0.0, leave=0.0),
    Criterion(Signal.SPEED, Severity.P2, enter=0.8, leave=0.9, expected=1.5, lower_is_worse=True),
    Criterion(Signal.MEMORY, Severity.P3, enter=0.8, leave=0.75, alert_after_seconds=900.0),
)

CRITERIA = Keyed(
    "What is judged, for each workload on its own. A signal is breached from enter on and stays so until leave is passed; "
    "between them it keeps its state (hysteresis). rollback.strategies says how a breach of a severity is answered.",
    key="signal",
)
"""``spec.criteria``."""


_SHARE = Field(least=0, most=1)
_MULTIPLE = Field(above=0, most=10)


@dataclass(frozen=True, slots=True)
class Judged:
    """What the API server takes of one signal's criterion."""

    text: str
    attributes: tuple[str, ...]
    """Of a criterion, beside those that each has."""
    measure: str = "share"
    bounds: Field = _SHARE
    """Of its thresholds."""
    severities: tuple[Severity, ...] = (Severity.P0, Severity.P1, Severity.P2)


COMMON = ("enabled", "severity", "query", "promql")
"""What each criterion has."""

_THRESHOLDS = ("enter", "leave")
_WARNING = ("warn", "warn_severity", "alert_after_seconds")

JUDGED = {
    Signal.OVERFLOW: Judged(
        "Share of FP16/BF16 steps that the loss scaler skipped for infinite gradients, 0 to 1. Skipped steps leave weights "
        "intact.",
        (*_THRESHOLDS, "promote_below", *_WARNING),
    ),
    Signal.DIVERGENCE: Judged(
        "How far the loss lies above the workload's own FP32 baseline, as a share of it: 0.2 is 20 % worse. Better is "
        "never a breach.",
        (*_THRESHOLDS, "promote_below", *_WARNING),
        bounds=_MULTIPLE,
    ),
    Signal.FAILURES: Judged(
        "Share of training runs within the window that failed, 0 to 1; crashed ones count.",
        (*_THRESHOLDS, "promote_below"),
    ),
    Signal.NON_FINITE: Judged(
        "Non-finite losses in steps that the scaler did not skip: one is a breach, because weights may be poisoned. "
        "Skipped steps are overflow.",
        (),
    ),
    Signal.SPEED: Judged(
        "Throughput as a multiple of the workload's own FP32 baseline: 0.8 is 20 % slower. Lower is worse, so leave lies "
        "above enter. Switch it off on CPUs, where FP16 is no faster.",
        (*_THRESHOLDS, "promote_above", "expected"),
        "multiple",
        _MULTIPLE,
    ),
    Signal.MEMORY: Judged(
        "Device memory allocated in low precision as a multiple of the workload's own FP32 peak: 0.8 saves a fifth. It "
        "costs no training, so by default it is reported and nothing is promoted. Workloads on CPUs allocate none.",
        (*_THRESHOLDS, "alert_after_seconds"),
        "multiple",
        _MULTIPLE,
        (Severity.P2, Severity.P3),
    ),
}


def rules(default: Criterion) -> tuple[Rule, ...]:
    """The CEL rules of a signal's criterion."""
    signal, leave, enter, promote = default.signal, default.leave, default.enter, default.promote_below
    found = [
        Rule(
            "!has(self.query) || !has(self.promql)",
            "a criterion takes query or promql, not both: name a query of the catalogue, or bring your own",
            field="promql",
        )
    ]
    if "leave" in JUDGED[signal].attributes:
        order, side = (">", "above") if default.lower_is_worse else ("<", "below")
        why = (
            "because lower is worse here: raise leave or lower enter"
            if default.lower_is_worse
            else "so that a value between them keeps its state: lower leave or raise enter"
        )
        message = f"{signal}: leave (default {leave}) must be {side} enter (default {enter}), {why}"
        rule = f"!has(self.leave) || !has(self.enter) || self.leave {order} self.enter"
        found.append(Rule(rule, message, field="leave"))
    if promote is not None:
        message = (
            f"{signal}: promoteBelow (default {promote}) must not be above enter (default {enter}), because a breach "
            "never promotes: lower promoteBelow or raise enter"
        )
        rule = "!has(self.promoteBelow) || !has(self.enter) || self.promoteBelow <= self.enter"
        found.append(Rule(rule, message, field="promoteBelow"))
    return tuple(found)
