"""``PrecisionPolicy.spec``, typed and frozen. Defaults repeat the CRD's, for objects stored before a field existed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from precision_operator.api.canary import (
    CanarySpec,
    ComparisonSpec,
    StagingSpec,
    parse_canary_spec,
    parse_comparison_spec,
    parse_staging_spec,
)
from precision_operator.api.mitigation import MitigationSpec, parse_mitigation_spec
from precision_operator.api.modes import Mode, parse_mode
from precision_operator.api.reenable import ReenableSpec, parse_reenable_spec
from precision_operator.api.selector import Selector, parse_selector
from precision_operator.api.signals import Signal
from precision_operator.api.steps import DEFAULT_STAGES, Stage, parse_stages
from precision_operator.api.wire import boolean, choice, duration_seconds, integer, mapping, number, text


class Severity(StrEnum):
    """How fast a breach must be answered; how, says ``rollback.strategies``."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"
    P3 = "P3"
    """Told, and nothing is promoted meanwhile; never rolled back for."""


class Delivery(StrEnum):
    """How a workload is moved."""

    AUTO = "Auto"
    HOT = "Hot"
    RESTART = "Restart"
    NEW_ONLY = "NewOnly"


class Unit(StrEnum):
    """What the weight of a step counts."""

    WORKLOAD = "Workload"
    POD = "Pod"
    """Pods of independent replicas; a process group is one."""


class Strategy(StrEnum):
    """How a breach is answered."""

    EMERGENCY = "Emergency"
    """Everything at once: hot flips, restarts where those do not answer."""
    GRADUAL = "Gradual"
    """In batches, each acknowledged before the next; after in-flight work; expedited where the deadline would be missed."""
    CANARY = "Canary"
    """A share first, compared with the rest by a sequential test; the rest in batches only where that has helped."""
    HOLD = "Hold"
    """Nothing is promoted, and nothing rolled back."""


class Fallback(StrEnum):
    """What an unanswered metric leads to, past its limit."""

    HOLD = "Hold"
    ROLLBACK = "Rollback"


@dataclass(frozen=True, slots=True)
class Criterion:
    """How one signal is judged."""

    signal: Signal
    severity: Severity
    enter: float
    """Beyond this it is a breach."""
    leave: float
    """Until it is back at this, a breach stays one (hysteresis)."""
    promote_below: float | None = None
    """A promotion needs the value below this; None: not breached is enough."""
    promote_above: float | None = None
    """The same of a value of which less is worse."""
    expected: float = 0.0
    """Below this people are told that less was gained than can be expected, where training runs on CUDA; 0: never."""
    warn: float | None = None
    """Beyond this it is a breach of ``warn_severity``, whatever that beyond ``enter``; None: there is no such tier."""
    warn_severity: Severity = Severity.P2
    alert_after_seconds: float = 0.0
    """How long a P3 breach must have stood before people are told. Promotions it holds at once."""
    enabled: bool = True
    lower_is_worse: bool = False
    query: str = ""
    """Name in the admin's catalogue; empty: the built-in query."""
    promql: str = ""
    """PromQL in its place, where the admin allows it; confined to the policy's namespace."""


@dataclass(frozen=True, slots=True)
class EvaluationSpec:
    """When and over what the metrics are read."""

    interval_seconds: float = 15.0
    window_seconds: float = 300.0
    failure_limit: int = 1
    min_samples: int = 3
    min_steps: int = 20
    max_sample_age_seconds: float = 60.0
    no_data_limit_seconds: float = 600.0
    on_no_data: Fallback = Fallback.HOLD


@dataclass(frozen=True, slots=True)
class GradualSpec:
    """How a gradual rollback goes."""

    sustain_seconds: float = 600.0
    """A breach must have stood for this long."""
    batch_share: float = 0.25
    """Share of what has to move that may be under way at once."""
    in_flight_seconds: float = 600.0
    """How long workloads that need a restart are left to finish what they are at; hot flips lose nothing and do not wait."""


@dataclass(frozen=True, slots=True)
class EmergencySpec:
    """How an emergency takes pods away."""

    max_concurrent_pods: int = 500
    """So many may be on their way at once, whatever the deadline needs."""
    expected_restart_seconds: float = 60.0
    """How long a restart is taken to last until one was measured."""
    respect_disruption_budgets: bool = False
    """It evicts, and waits for PodDisruptionBudgets."""


class OnPendingRevision(StrEnum):
    """What becomes of a workload whose template was changed and whose pods were not, when it has to be restarted."""

    WAIT = "Wait"
    RESTART = "Restart"
    """An emergency restarts it, and its pods come from the changed template."""


class OnMemoryShortage(StrEnum):
    """What becomes of a workload that could change at a step boundary, where its devices lack memory for FP32."""

    RESTART = "Restart"
    BF16 = "BF16"
    """What trains in FP16 goes to BF16 at a step boundary and is held there."""


@dataclass(frozen=True, slots=True)
class RollbackSpec:
    """How far and how fast a rollback reaches."""

    fleet_share: float = 0.25
    fleet_minimum: int = 2
    ack_timeout_seconds: float = 90.0
    recovery_success: float = 0.95
    """Above this share of runs that end well, what was rolled back has recovered."""
    deadlines_seconds: Mapping[Severity, float] = field(
        default_factory=lambda: {Severity.P0: 300.0, Severity.P1: 900.0, Severity.P2: 1800.0}
    )
    strategies: Mapping[Severity, Strategy] = field(
        default_factory=lambda: {
            Severity.P0: Strategy.EMERGENCY,
            Severity.P1: Strategy.EMERGENCY,
            Severity.P2: Strategy.GRADUAL,
        }
    )
    emergency: EmergencySpec = EmergencySpec()
    on_pending_revision: OnPendingRevision = OnPendingRevision.WAIT
    on_memory_shortage: OnMemoryShortage = OnMemoryShortage.RESTART
    gradual: GradualSpec = GradualSpec()
    canary: CanarySpec = field(default_factory=CanarySpec)
    mitigation: MitigationSpec = field(default_factory=MitigationSpec)


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What the user asked for."""

    selector: Selector
    target: Mode = Mode.FP16
    fallback: Mode = Mode.FP32
    delivery: Delivery = Delivery.AUTO
    unit: Unit = Unit.WORKLOAD
    suspend: bool = False
    hold_on_delete: bool = True
    """After a deletion, what a rollback put into the fallback stays there."""
    prometheus_ref: str = "default"
    progress_deadline_seconds: float = 600.0
    stages: tuple[Stage, ...] = ()
    staging: StagingSpec = field(default_factory=StagingSpec)
    comparison: ComparisonSpec = field(default_factory=ComparisonSpec)
    criteria: tuple[Criterion, ...] = ()
    evaluation: EvaluationSpec = EvaluationSpec()
    rollback: RollbackSpec = field(default_factory=RollbackSpec)
    reenable: ReenableSpec = field(default_factory=ReenableSpec)

    def criterion(self, signal: Signal) -> Criterion:
        """The criterion of a signal."""
        return next(c for c in self.criteria if c.signal is signal)


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


def _criterion(default: Criterion, raw: Mapping[str, object]) -> Criterion:
    promote, above = raw.get("promoteBelow", default.promote_below), raw.get("promoteAbove", default.promote_above)
    return Criterion(
        signal=default.signal,
        severity=choice(raw.get("severity"), default.severity),
        enter=number(raw.get("enter"), default.enter),
        leave=number(raw.get("leave"), default.leave),
        promote_below=None if promote is None else number(promote, 0.0),
        promote_above=None if above is None else number(above, 0.0),
        expected=number(raw.get("expected"), default.expected),
        enabled=boolean(raw.get("enabled"), True),
        lower_is_worse=default.lower_is_worse,
        query=text(raw.get("query")),
        promql=text(raw.get("promql")),
        warn=None if default.warn is None else number(raw.get("warn"), default.warn),
        warn_severity=choice(raw.get("warnSeverity"), default.warn_severity),
        alert_after_seconds=duration_seconds(raw.get("alertAfter"), default.alert_after_seconds),
    )


def _evaluation(raw: Mapping[str, object]) -> EvaluationSpec:
    base = EvaluationSpec()
    return EvaluationSpec(
        interval_seconds=duration_seconds(raw.get("interval"), base.interval_seconds),
        window_seconds=duration_seconds(raw.get("window"), base.window_seconds),
        failure_limit=integer(raw.get("failureLimit"), base.failure_limit),
        min_samples=integer(raw.get("minSamples"), base.min_samples),
        min_steps=integer(raw.get("minSteps"), base.min_steps),
        max_sample_age_seconds=duration_seconds(raw.get("maxSampleAge"), base.max_sample_age_seconds),
        no_data_limit_seconds=duration_seconds(raw.get("noDataLimit"), base.no_data_limit_seconds),
        on_no_data=choice(raw.get("onNoData"), base.on_no_data),
    )


def _rollback(raw: Mapping[str, object]) -> RollbackSpec:
    base = RollbackSpec()
    deadlines, strategies = mapping(raw.get("deadlines")), mapping(raw.get("strategies"))
    gradual, emergency = mapping(raw.get("gradual")), mapping(raw.get("emergency"))
    return RollbackSpec(
        fleet_share=number(raw.get("fleetShare"), base.fleet_share),
        fleet_minimum=integer(raw.get("fleetMinimum"), base.fleet_minimum),
        ack_timeout_seconds=duration_seconds(raw.get("ackTimeout"), base.ack_timeout_seconds),
        recovery_success=number(raw.get("recoverySuccess"), base.recovery_success),
        deadlines_seconds={
            severity: duration_seconds(deadlines.get(severity), seconds)
            for severity, seconds in base.deadlines_seconds.items()
        },
        strategies={s: choice(strategies.get(s), default) for s, default in base.strategies.items()},
        emergency=EmergencySpec(
            max_concurrent_pods=integer(emergency.get("maxConcurrentPods"), base.emergency.max_concurrent_pods),
            expected_restart_seconds=duration_seconds(
                emergency.get("expectedRestart"), base.emergency.expected_restart_seconds
            ),
            respect_disruption_budgets=boolean(emergency.get("respectDisruptionBudgets"), False),
        ),
        on_pending_revision=choice(raw.get("onPendingRevision"), base.on_pending_revision),
        on_memory_shortage=choice(raw.get("onMemoryShortage"), base.on_memory_shortage),
        gradual=GradualSpec(
            sustain_seconds=duration_seconds(gradual.get("sustain"), base.gradual.sustain_seconds),
            batch_share=number(gradual.get("batchShare"), base.gradual.batch_share),
            in_flight_seconds=duration_seconds(gradual.get("inFlight"), base.gradual.in_flight_seconds),
        ),
        canary=parse_canary_spec(mapping(raw.get("canary"))),
        mitigation=parse_mitigation_spec(mapping(raw.get("mitigation"))),
    )


def parse_spec(raw: object) -> PolicySpec:
    """Read ``spec`` as the API server stored it."""
    body = mapping(raw)
    criteria, strategy = mapping(body.get("criteria")), mapping(body.get("strategy"))
    return PolicySpec(
        selector=parse_selector(body.get("selector")),
        target=parse_mode(text(body.get("target"))) or Mode.FP16,
        fallback=parse_mode(text(body.get("fallback"))) or Mode.FP32,
        delivery=choice(body.get("delivery"), Delivery.AUTO),
        unit=choice(body.get("unit"), Unit.WORKLOAD),
        suspend=boolean(body.get("suspend"), False),
        hold_on_delete=body.get("deletionPolicy") != "Release",
        prometheus_ref=text(mapping(body.get("prometheusRef")).get("name"), "default"),
        progress_deadline_seconds=float(integer(body.get("progressDeadlineSeconds"), 600)),
        stages=parse_stages(strategy.get("steps")) or DEFAULT_STAGES,
        staging=parse_staging_spec(mapping(strategy.get("canary"))),
        comparison=parse_comparison_spec(mapping(strategy.get("comparison"))),
        criteria=tuple(_criterion(default, mapping(criteria.get(default.signal))) for default in DEFAULT_CRITERIA),
        evaluation=_evaluation(mapping(body.get("evaluation"))),
        rollback=_rollback(mapping(body.get("rollback"))),
        reenable=parse_reenable_spec(mapping(body.get("reenable"))),
    )
