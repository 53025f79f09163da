"""The operator's own metrics, behind methods named by intent: nobody else knows a label.

All series of a policy go with it: ``forget_policy``.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

RollbackStage = Literal[
    "detected_to_decided", "decided_to_patched", "decided_to_acknowledged", "acknowledged_to_recovered"
]
PolicyTime = Literal["phase", "evaluation", "deadline", "predicted", "created", "drill", "rollback"]

_Metric = TypeVar("_Metric", Gauge, Counter)

_OF_POLICY = ("namespace", "policy")
_STATUSES = {"True": 1.0, "False": 0.0, "Unknown": -1.0}
_FAST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STAGES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)


class Metrics:
    """One registry with everything that the operator says of itself."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        gauge = partial(Gauge, registry=registry)
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, registry=registry)

        self._depth = gauge("workqueue_depth", "Keys that wait for a worker.")
        self._oldest = gauge("workqueue_oldest_seconds", "How long the longest-waiting key has waited.")
        self._reconciles = counter("reconcile_total", "Reconciliations by result.", ["result"])
        self._reconcile_seconds = histogram(
            "reconcile_duration_seconds", "Duration of one reconciliation.", buckets=_FAST
        )
        self._writes = counter(
            "precision_operator_api_writes_total", "Writes to the API server.", ["verb", "resource", "result"]
        )
        self._queries = counter(
            "precision_operator_prometheus_queries_total", "Queries sent to Prometheus.", ["query", "result"]
        )
        self._query_seconds = histogram(
            "precision_operator_prometheus_query_duration_seconds",
            "Duration of one query, waiting for a thread included.",
            buckets=_FAST,
        )
        self._circuits = gauge(
            "precision_operator_prometheus_circuit_state",
            "An endpoint's circuit: 0 asked as usual, 1 tried with one query, 2 not asked because it failed repeatedly.",
            ["endpoint"],
        )
        self._leader = gauge("precision_operator_leader", "1 while this process leads, else 0.")
        self._halted = gauge(
            "precision_operator_halted", "1 while ConfigMap precision-halt stops every action on the cluster, else 0."
        )
        self._heartbeat = gauge(
            "precision_operator_heartbeat_timestamp_seconds",
            "When the loop that is silent longest last showed life; alert on its age and on its absence.",
        )
        self._info = gauge(
            "precision_policy_info",
            "1 for the phase and precision that a policy is in.",
            [*_OF_POLICY, "phase", "precision"],
        )
        self._suspended = gauge(
            "precision_policy_suspended", "1 while spec.suspend pauses the policy, else 0.", _OF_POLICY
        )
        self._workloads = gauge("precision_policy_workloads", "Workloads by state.", [*_OF_POLICY, "state"])
        self._conditions = gauge(
            "precision_policy_condition",
            "A condition of a policy's status: 1 True, 0 False, -1 Unknown.",
            [*_OF_POLICY, "type"],
        )
        self._times = gauge(
            "precision_policy_timestamp_seconds",
            "When the phase began, the metrics were last read whole, a rollback under way must end, and is predicted to; "
            "when the policy was created, a drill last passed, and a rollback was last decided.",
            [*_OF_POLICY, "of"],
        )
        self._gains = gauge(
            "precision_policy_gain",
            "What precision has brought against FP32: speed and memory as multiples, loss as a difference (medians of "
            "workloads); gpu_hours and cpu_hours saved since the last FP32 baseline, gpu_rate and cpu_rate saved in an "
            "hour. Absent where it was not measured.",
            [*_OF_POLICY, "of"],
        )
        self._rollbacks = counter(
            "precision_rollbacks_total", "Rollbacks decided.", [*_OF_POLICY, "severity", "reason", "scope"]
        )
        self._escalations = counter(
            "precision_rollback_escalations_total",
            "Rollbacks that became more urgent, restarted who did not acknowledge, or missed their deadline.",
            [*_OF_POLICY, "severity", "reason"],
        )
        self._mitigations = counter(
            "precision_mitigations_total",
            "What was tried against mild breaches, one a workload, and what came of it.",
            [*_OF_POLICY, "signal", "rung", "reason"],
        )
        self._stage_seconds = histogram(
            "precision_rollback_stage_seconds", "How long the stages of a rollback took.", ["stage"], buckets=_STAGES
        )
        self._transitions = counter(
            "precision_policy_transitions_total", "Changes of phase.", [*_OF_POLICY, "from", "to", "reason"]
        )
        self._report_errors = counter(
            "precision_report_errors_total",
            "Failures to write an incident, its evidence or a message; they hold up no rollback.",
            ["reason"],
        )
        self._notifications = counter(
            "precision_notifications_total",
            "Messages by channel and result: Delivered, Failed (tried again), Undelivered (failing for long), "
            "Deferred (the queue was full).",
            ["channel", "result"],
        )
        self._reviews = counter(
            "precision_operator_admission_reviews_total",
            "Requests that admission by webhook answered: Patched, Unchanged, or Failed (the pod passed unchanged).",
            ["result"],
        )
        self._alerts = counter(
            "precision_operator_alert_requests_total",
            "Requests to the alert receiver by result; ConnectionRefused counts connections beyond its limits.",
            ["result"],
        )
        self._series: dict[tuple[str, str], set[tuple[Gauge | Counter, tuple[str, ...]]]] = {}
        self._now: dict[tuple[str, str], tuple[str, str]] = {}

    def alerts_received(self, result: str) -> None:
        """The alert receiver answered a request, or refused a connection."""
        self._alerts.labels(result).inc()

    def watch_queue(self, depth: Callable[[], float], oldest_seconds: Callable[[], float]) -> None:
        """Read the queue whenever the metrics are asked for."""
        self._depth.set_function(depth)
        self._oldest.set_function(oldest_seconds)

    def watch_halt(self, halted: Callable[[], bool]) -> None:
        """Read the switch whenever the metrics are asked for."""
        self._halted.set_function(lambda: float(halted()))

    def watch_leadership(self, is_leader: Callable[[], bool]) -> None:
        """Read the elector whenever the metrics are asked for."""
        self._leader.set_function(lambda: float(is_leader()))

    def watch_circuits(self, circuits: Callable[[], Mapping[str, int]]) -> None:
        """Read the state of each endpoint's circuit whenever the metrics are asked for."""

        def state(endpoint: str) -> float:
            return float(circuits()[endpoint])

        for endpoint in circuits():
            self._circuits.labels(endpoint).set_function(partial(state, endpoint))

    def watch_heartbeat(self, oldest_beat: Callable[[], float]) -> None:
        """Read the watchdog (wall time of its oldest beat) whenever the metrics are asked for."""
        self._heartbeat.set_function(oldest_beat)

    def reconciled(self, result: str, seconds: float) -> None:
        """A reconciliation ended: ``success``, or an error's reason."""
        self._reconciles.labels(result).inc()
        self._reconcile_seconds.observe(seconds)

    def api_write(self, verb: str, resource: str, result: str) -> None:
        """A write was answered: ``success``, or an error's reason."""
        self._writes.labels(verb, resource, result).inc()

    def prometheus_query(self, query: str, result: str, seconds: float) -> None:
        """A query was answered; fits the Evaluator's ``observe``."""
        self._queries.labels(query, result).inc()
        self._query_seconds.observe(seconds)

    def policy_state(self, namespace: str, policy: str, *, phase: str, precision: str) -> None:
        """What a policy is in now; its former series ends."""
        key, state = (namespace, policy), (phase, precision)
        before = self._now.get(key)
        if before == state:
            return
        if before is not None:
            labels = (namespace, policy, *before)
            self._info.remove(*labels)
            self._series[key].discard((self._info, labels))
        self._now[key] = state
        self._of_policy(self._info, namespace, policy, *state).set(1)

    def policy_suspended(self, namespace: str, policy: str, suspended: bool) -> None:
        """Whether a person has paused it."""
        self._of_policy(self._suspended, namespace, policy).set(suspended)

    def policy_workloads(self, namespace: str, policy: str, counts: Mapping[str, int]) -> None:
        """How many workloads of a policy are in each state; a state not named is 0."""
        for gauge, labels in self._series.get((namespace, policy), ()):
            if gauge is self._workloads and labels[2] not in counts:
                self._workloads.labels(*labels).set(0)
        for state, count in counts.items():
            self._of_policy(self._workloads, namespace, policy, state).set(count)

    def policy_conditions(self, namespace: str, policy: str, statuses: Mapping[str, str]) -> None:
        """The conditions of a policy by type; one that is not named is gone."""
        known = (labels[2] for gauge, labels in self._series.get((namespace, policy), ()) if gauge is self._conditions)
        values: dict[str, float | None] = dict.fromkeys(known)
        values |= {kind: _STATUSES[status] for kind, status in statuses.items()}
        self._set(self._conditions, namespace, policy, values.items())

    def policy_times(self, namespace: str, policy: str, times: Mapping[PolicyTime, float | None]) -> None:
        """When what happened or is due; None: nothing is. One that is not named stays."""
        self._set(self._times, namespace, policy, times.items())

    def policy_gain(self, namespace: str, policy: str, gains: Mapping[str, float | None]) -> None:
        """What precision has brought; None: not measured. One that is not named stays."""
        self._set(self._gains, namespace, policy, gains.items())

    def rollback(self, namespace: str, policy: str, *, severity: str, reason: str, scope: str) -> None:
        """A rollback was decided."""
        self._of_policy(self._rollbacks, namespace, policy, severity, reason, scope).inc()

    def escalation(self, namespace: str, policy: str, *, severity: str, reason: str) -> None:
        """A rollback under way needed more than was planned; ``severity`` is what it has become."""
        self._of_policy(self._escalations, namespace, policy, severity, reason).inc()

    def mitigation(self, namespace: str, policy: str, *, signal: str, rung: str, reason: str) -> None:
        """A rung began or a window ended; ``rung`` is empty for an investigation."""
        self._of_policy(self._mitigations, namespace, policy, signal, rung, reason).inc()

    def rollback_stage(self, stage: RollbackStage, seconds: float) -> None:
        """A stage of a rollback is through."""
        self._stage_seconds.labels(stage).observe(max(0.0, seconds))

    def transition(self, namespace: str, policy: str, *, before: str, after: str, reason: str) -> None:
        """A policy changed its phase."""
        self._of_policy(self._transitions, namespace, policy, before, after, reason).inc()

    def report_error(self, reason: str) -> None:
        """An incident, its evidence or a message could not be written."""
        self._report_errors.labels(reason).inc()

    def notification(self, channel: str, result: str) -> None:
        """A message was tried on a channel, or put off."""
        self._notifications.labels(channel, result).inc()

    def reviewed(self, result: str) -> None:
        """Admission by webhook has answered a request."""
        self._reviews.labels(result).inc()

    def forget_policy(self, namespace: str, policy: str) -> None:
        """The policy is gone: so are its series."""
        for metric, labels in self._series.pop((namespace, policy), ()):
            metric.remove(*labels)
        self._now.pop((namespace, policy), None)

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)

    def _set(self, gauge: Gauge, namespace: str, policy: str, values: Iterable[tuple[str, float | None]]) -> None:
        """One series a name; None ends it."""
        for name, value in values:
            series = (gauge, (namespace, policy, name))
            if value is not None:
                self._of_policy(gauge, namespace, policy, name).set(value)
            elif series in (known := self._series.get((namespace, policy), set())):
                gauge.remove(*series[1])
                known.discard(series)

    def _of_policy(self, metric: _Metric, namespace: str, policy: str, *labels: str) -> _Metric:
        """The series with these labels, which goes with its policy."""
        self._series.setdefault((namespace, policy), set()).add((metric, (namespace, policy, *labels)))
        return metric.labels(namespace, policy, *labels)
