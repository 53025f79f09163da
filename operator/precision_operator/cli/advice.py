"""What is valid in a policy, and probably unintended."""

import math
from collections.abc import Iterator

from precision_operator.api.modes import Mode
from precision_operator.api.schedule import ScheduleSpec, opens_at
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery, Fallback, PolicyEnforcement, PolicySpec, Severity, Strategy, Unit
from precision_operator.cli.schema import Fault
from precision_operator.core.evidence.confirmation import believed_seconds
from precision_operator.core.rollback.sequential import fewest_looks
from precision_operator.errors import QueryInvalid
from precision_operator.signals.promql import written

SOURCE_OVERFLOW_LIMIT = 0.30
"""Above this, steps that are skipped cost more than the precision gains."""


def advice(spec: PolicySpec, namespace: str = "default") -> Iterator[Fault]:
    """Warnings about a policy that the schema lets through; ``namespace`` is where it is to stand."""
    yield from _modes(spec)
    yield from _steps(spec)
    yield from _criteria(spec, namespace)
    yield from _times(spec)
    if spec.suspend:
        yield Fault("spec.suspend", "the policy is paused: nothing is moved, judged or watched until it is false")
    if spec.enforcement is PolicyEnforcement.OBSERVE:
        yield Fault("spec.enforcement", "the policy only observes: no breach is rolled back until it is Enforce")
    yield from _schedule(spec.schedule)


def _schedule(schedule: ScheduleSpec) -> Iterator[Fault]:
    try:
        opens_at(schedule, 0.0)
    except KeyError:
        yield Fault(
            "spec.schedule.timeZone",
            f"{schedule.time_zone} is not in the IANA database: the rollout never advances; name one like Europe/Berlin",
        )


def _modes(spec: PolicySpec) -> Iterator[Fault]:
    for field, mode in (("target", spec.target), ("fallback", spec.fallback)):
        if mode is Mode.BF16:
            yield Fault(
                f"spec.{field}",
                "bf16 needs hardware for it on every node of the fleet (NVIDIA Ampere or newer, or AMX): "
                "V100 and T4 have none; select only workloads on nodes that do",
            )
    if spec.target is Mode.FP32:
        yield Fault(
            "spec.target", "fp32 takes the fleet off reduced precision: to go back after a breach, use rollback"
        )
    if spec.delivery in (Delivery.HOT, Delivery.NEW_ONLY):
        yield Fault(
            "spec.delivery",
            f"{spec.delivery} restarts no pods: running pods without the contract (docs/contract.md) stay as they are, "
            "in a rollback too; Auto restarts those",
        )

    if spec.unit is Unit.POD and spec.delivery in (Delivery.RESTART, Delivery.NEW_ONLY):
        by_index = " but StatefulSets and Indexed Jobs" if spec.delivery is Delivery.RESTART else ""
        yield Fault(
            "spec.unit",
            f"Pod moves pods hot, found delivery {spec.delivery}: workloads of several pods that are no process group "
            f"will not take part{by_index}; use delivery: Auto, or unit: Workload",
        )


def _steps(spec: PolicySpec) -> Iterator[Fault]:
    path, stages, evaluation = "spec.strategy.steps", spec.stages, spec.evaluation
    if stages[0].weight == 100:
        yield Fault(path, "the first step moves the whole fleet at once: begin with a canary, e.g. {setWeight: 10}")
    if stages[-1].weight < 100:
        yield Fault(path, f"the last step stops at {stages[-1].weight} %: the rest stays where it is")
    for stage in stages[:-1]:
        if stage.approval:
            continue
        soak = max(stage.soak_seconds, (evaluation.min_samples - 1) * evaluation.interval_seconds)
        if soak < evaluation.window_seconds:
            yield Fault(
                path,
                f"after {stage.weight} % the evidence is watched for {soak:g} s, less than evaluation.window "
                f"({evaluation.window_seconds:g} s), which then still shows the time before the step: lengthen the pause",
            )


def _criteria(spec: PolicySpec, namespace: str) -> Iterator[Fault]:
    for signal in Signal:
        criterion = spec.criterion(signal)
        path = f"spec.criteria.{signal}"
        if not criterion.enabled and SIGNALS[signal].at_once:
            yield Fault(f"{path}.enabled", f"without {signal}, a P0, poisoned weights or failing jobs are not noticed")
        if criterion.query:
            yield Fault(
                f"{path}.query",
                f"{criterion.query!r} must stand in the operator's catalogue (config.queries of the chart)",
            )
        if criterion.promql:
            yield from _promql(f"{path}.promql", criterion.promql, spec=spec, namespace=namespace)
    rolling = [c for c in map(spec.criterion, Signal) if c.enabled and c.severity is not Severity.P3]
    if not rolling:
        yield Fault("spec.criteria", "every criterion is off: nothing would ever roll this fleet back")
    if spec.rollback.strategies[Severity.P0] is Strategy.HOLD:
        yield Fault("spec.rollback.strategies.P0", "Hold: failing jobs and NaN losses would roll nothing back")
    yield from _canary(spec)
    if not spec.reenable.prerequisites:
        yield Fault(
            "spec.reenable.prerequisites", "empty: a fleet starts again after a rollback without any acknowledgement"
        )
    overflow = spec.criterion(Signal.OVERFLOW)
    if overflow.enabled and overflow.enter > SOURCE_OVERFLOW_LIMIT:
        yield Fault(
            "spec.criteria.overflow.enter",
            f"{overflow.enter:.0%} of all steps may be thrown away unanswered; the default is 30 %",
        )
    if overflow.enabled and spec.target is Mode.BF16:
        yield Fault("spec.criteria.overflow", "bf16 has no loss scaler that could overflow: this signal always reads 0")


def _canary(spec: PolicySpec) -> Iterator[Fault]:
    strategies, rules, evaluation = spec.rollback.strategies, spec.rollback.canary, spec.evaluation
    for severity in (Severity.P0, Severity.P1):
        if strategies[severity] is Strategy.CANARY:
            yield Fault(
                f"spec.rollback.strategies.{severity}",
                f"Canary: the rest trains on in a {severity} breach for {rules.window_seconds:g} s while it is compared",
            )
    if Strategy.CANARY not in strategies.values():
        return
    possible = math.ceil(rules.window_seconds / evaluation.window_seconds)
    needed = fewest_looks(margin=rules.margin, alpha=rules.false_alarm_rate)
    if possible < needed:
        yield Fault(
            "spec.rollback.canary.window",
            f"holds {possible} windows of {evaluation.window_seconds:g} s; even the greatest difference needs {needed} "
            "to be shown: lengthen it, or shorten evaluation.window",
        )


def _promql(path: str, query: str, *, spec: PolicySpec, namespace: str) -> Iterator[Fault]:
    rules = spec.evaluation
    try:
        written(query, namespace, rules.window_seconds, rules.min_steps)
    except QueryInvalid as error:
        yield Fault(path, f"would be refused: {error}")
    else:
        yield Fault(path, "the operator's admin must allow it (config.allowRawQueries of the chart)")


def _times(spec: PolicySpec) -> Iterator[Fault]:
    evaluation, rollback = spec.evaluation, spec.rollback
    mitigation = rollback.mitigation
    ladder = len(mitigation.ladder) * max(mitigation.dwell_seconds, evaluation.window_seconds)
    if 0 < mitigation.overflow_window_seconds < ladder:
        yield Fault(
            "spec.rollback.mitigation.overflow.window",
            f"{mitigation.overflow_window_seconds:g} s end before every rung of the ladder has had its dwell, which takes "
            f"{ladder:g} s (at least one metrics window each): lengthen window, or shorten dwell or ladder",
        )
    confirm = believed_seconds(evaluation)
    for severity in (Severity.P0, Severity.P1):
        deadline = rollback.deadlines_seconds[severity]
        if confirm >= deadline:
            yield Fault(
                f"spec.rollback.deadlines.{severity}",
                f"a breach takes {confirm:g} s (failureLimit, interval) to be believed, which is the whole "
                f"deadline of {deadline:g} s: lower either, or raise the deadline",
            )
        elif confirm + rollback.ack_timeout_seconds >= deadline:
            late = confirm + rollback.ack_timeout_seconds
            yield Fault(
                "spec.rollback.ackTimeout",
                f"a workload that is unresponsive is restarted only after {late:g} s, past the {severity} deadline of "
                f"{deadline:g} s: shorten ackTimeout",
            )
    if (
        evaluation.on_no_data is Fallback.ROLLBACK
        and evaluation.no_data_limit_seconds < 2 * evaluation.max_sample_age_seconds
    ):
        yield Fault(
            "spec.evaluation.noDataLimit",
            "with onNoData: Rollback, a restart of Prometheus would roll the fleet back: allow at least twice maxSampleAge",
        )
