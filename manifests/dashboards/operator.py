"""The dashboard of the operator's own processes."""

from __future__ import annotations

from manifests.dashboards.model import Dashboard, Panel, Query, Row, Threshold, Variable

HERE = 'namespace=~"$namespace"'
CONDITION = "namespace_policy:precision_policy_condition:leader"
SINCE = "namespace_policy:precision_policy_timestamp_seconds:leader"


def per_second(name: str, by: str) -> str:
    """A counter's rate, summed over the replicas."""
    return f"sum by ({by}) (rate({name}{{{HERE}}}[$__rate_interval]))"


def counted(name: str, by: str) -> str:
    """A counter whose series begin with their first event. While the operator is scraped and has none, there was none."""
    none = f'label_replace(0 * max(precision_operator_leader{{{HERE}}}), "result", "none", "", "")'
    return f"sum by ({by}) ({name}{{{HERE}}}) or on () {none}"


QUERIES = per_second("precision_operator_prometheus_queries_total", "namespace")
FAILED_QUERIES = QUERIES.replace(HERE, f'{HERE},result!="success"')


def durations(histogram: str) -> tuple[Query, ...]:
    """The median and the slow end."""
    buckets = f"sum by (le) (rate({histogram}_bucket{{{HERE}}}[$__rate_interval]))"
    return tuple(Query(f"histogram_quantile({q}, {buckets})", f"quantile {q}") for q in (0.5, 0.95, 0.99))


WORKING = Row(
    "Does it work?",
    (
        Panel(
            title="Replicas that lead",
            description="Exactly 1 must lead. 0: nothing is promoted or rolled back; see OperatorHasNoLeader in "
            "docs/runbooks.md.",
            queries=(Query(f"sum(precision_operator_leader{{{HERE}}})", "leaders"),),
            unit="none",
            kind="stat",
            base="red",
            thresholds=(Threshold(1, "green"), Threshold(2, "red")),
            width=6,
            height=5,
        ),
        Panel(
            title="Halted",
            description="Whether the ConfigMap precision-halt stops every action. Delete it to go on.",
            queries=(Query(f"max(precision_operator_halted{{{HERE}}})", "halted"),),
            unit="none",
            kind="stat",
            mappings={"0": ("no", "green"), "1": ("halted", "orange")},
            width=6,
            height=5,
        ),
        Panel(
            title="Heartbeat age",
            description="Of the loop that has been silent longest. Above the line the process is restarted: read its "
            "logs from before.",
            queries=(Query(f"max(time() - precision_operator_heartbeat_timestamp_seconds{{{HERE}}})", "oldest"),),
            unit="s",
            kind="stat",
            thresholds=(Threshold(60, "orange"), Threshold(120, "red")),
            width=6,
            height=5,
        ),
        Panel(
            title="Oldest evaluation",
            description="Since the metrics of any policy were last read without an error. See EvaluationStale in "
            "docs/runbooks.md.",
            queries=(Query(f'max(time() - {SINCE}{{of="evaluation"}})', "oldest"),),
            unit="s",
            kind="stat",
            thresholds=(Threshold(60, "orange"), Threshold(600, "red")),
            width=6,
            height=5,
        ),
        Panel(
            title="Leader by replica",
            description="Which replica leads. Frequent changes: the API server is slow or the CPU limit too tight.",
            queries=(Query(f"precision_operator_leader{{{HERE}}}", "{{pod}} {{instance}}"),),
            unit="none",
            kind="state-timeline",
            mappings={"1": ("leads", "green"), "0": ("stands by", "text")},
            width=12,
        ),
        Panel(
            title="Admission enforced",
            description="Whether a new pod gets the mode that is assigned to it, by policy. NotEnforcing: see "
            "AdmissionNotEnforced in docs/runbooks.md.",
            queries=(Query(f'{CONDITION}{{type="AdmissionEnforced"}}', "{{namespace}}/{{policy}}"),),
            unit="none",
            kind="state-timeline",
            mappings={"1": ("Enforcing", "green"), "0": ("NotEnforcing", "red"), "-1": ("Unknown", "text")},
            width=12,
        ),
    ),
)

PASSES = Row(
    "Passes",
    (
        Panel(
            title="Passes a second",
            description="Reconciliations by result. A result other than success is an error's reason: "
            "docs/reference/reasons.md says what to do.",
            queries=(Query(per_second("reconcile_total", "result"), "{{result}}"),),
            unit="ops",
            lowest=0,
        ),
        Panel(
            title="Duration of a pass",
            description="How long one reconciliation takes. Above the line rollbacks are late: look at the duration "
            "of queries and at the CPU.",
            queries=durations("reconcile_duration_seconds"),
            unit="s",
            thresholds=(Threshold(1, "orange"),),
            lowest=0,
        ),
        Panel(
            title="Queue depth",
            description="Keys that wait for a worker, by replica. Growing: passes take longer than the interval.",
            queries=(
                Query(f"workqueue_depth{{{HERE}}} and on (instance) precision_operator_leader", "{{pod}} {{instance}}"),
            ),
            unit="none",
            lowest=0,
        ),
        Panel(
            title="Oldest key in the queue",
            description="Every rollback is late by as much. Above the line: see WorkqueueOld in docs/runbooks.md.",
            queries=(
                Query(
                    f"workqueue_oldest_seconds{{{HERE}}} and on (instance) precision_operator_leader",
                    "{{pod}} {{instance}}",
                ),
            ),
            unit="s",
            thresholds=(Threshold(60, "red"),),
            lowest=0,
        ),
        Panel(
            title="Evaluation age",
            description="Since the metrics of each policy were last read without an error. Growing: Prometheus does not "
            "answer, or a query is wrong; `kubectl precision explain POLICY`.",
            queries=(Query(f'time() - {SINCE}{{of="evaluation"}}', "{{namespace}}/{{policy}}"),),
            unit="s",
            thresholds=(Threshold(600, "red"),),
            lowest=0,
        ),
        Panel(
            title="Policies by phase",
            description="In the whole cluster. Many that are RollingBack at once: look for a common cause first.",
            queries=(Query("count by (phase) (namespace_policy:precision_policy_info:leader)", "{{phase}}"),),
            unit="none",
            lowest=0,
        ),
    ),
)

OUTSIDE = Row(
    "API server and Prometheus",
    (
        Panel(
            title="Writes a second",
            description="Writes to the API server by resource and result. Results other than success are reasons: "
            "Conflict is harmless, Forbidden is not.",
            queries=(
                Query(per_second("precision_operator_api_writes_total", "resource, result"), "{{resource}} {{result}}"),
            ),
            unit="wps",
            lowest=0,
        ),
        Panel(
            title="Queries that fail",
            description="Share of the queries to Prometheus without success. Above the line policies hold: check the "
            "address and the credentials in `config.prometheus`.",
            queries=(Query(f"({FAILED_QUERIES} or 0 * {QUERIES}) / {QUERIES}", "{{namespace}}"),),
            unit="percentunit",
            thresholds=(Threshold(0.05, "orange"), Threshold(0.5, "red")),
            lowest=0,
        ),
        Panel(
            title="Queries a second",
            description="By result. A steep rise: a policy with a very short interval.",
            queries=(Query(per_second("precision_operator_prometheus_queries_total", "result"), "{{result}}"),),
            unit="ops",
            lowest=0,
        ),
        Panel(
            title="Duration of a query",
            description="Waiting for a thread included. Near the endpoint's timeout: raise it, or give Prometheus more.",
            queries=durations("precision_operator_prometheus_query_duration_seconds"),
            unit="s",
            thresholds=(Threshold(1, "orange"), Threshold(5, "red")),
            lowest=0,
        ),
        Panel(
            title="Prometheus endpoints",
            description="Whether each endpoint is asked as usual. NotAsked: it failed repeatedly; see "
            "PrometheusCircuitOpen in docs/runbooks.md.",
            queries=(
                Query(
                    f"max by (endpoint) (precision_operator_prometheus_circuit_state{{{HERE}}}"
                    " and on (instance) (precision_operator_leader == 1))",
                    "{{endpoint}}",
                ),
            ),
            unit="none",
            kind="state-timeline",
            mappings={"0": ("asked", "green"), "1": ("tried", "yellow"), "2": ("not asked", "red")},
        ),
    ),
)

PEOPLE = Row(
    "Messages and alerts",
    (
        Panel(
            title="Messages",
            description="By channel and result, since the process started. Undelivered: somebody was not told; see "
            "MessagesUndelivered in docs/runbooks.md.",
            queries=(Query(counted("precision_notifications_total", "channel, result"), "{{channel}} {{result}}"),),
            unit="none",
            lowest=0,
        ),
        Panel(
            title="Alert receiver",
            description="Requests by result, since the process started. Unauthorized: compare Alertmanager's token "
            "with `receiver.tokenSecret`.",
            queries=(Query(counted("precision_operator_alert_requests_total", "result"), "{{result}}"),),
            unit="none",
            lowest=0,
        ),
        Panel(
            title="Reports that failed",
            description="Incidents, evidence or messages that could not be written, since the process started. No "
            "rollback waits for it; see ReportsFailing in docs/runbooks.md.",
            queries=(Query(counted("precision_report_errors_total", "reason"), "{{reason}}{{result}}"),),
            unit="none",
            lowest=0,
        ),
    ),
)

PROCESS = Row(
    "Process",
    (
        Panel(
            title="CPU",
            description="Cores that each replica uses. At its limit it is throttled: raise `resources.limits.cpu`.",
            queries=(
                Query(
                    f"rate(process_cpu_seconds_total{{{HERE}}}[$__rate_interval])"
                    " and on (instance) precision_operator_leader",
                    "{{pod}} {{instance}}",
                ),
            ),
            unit="none",
            lowest=0,
            width=12,
        ),
        Panel(
            title="Resident memory",
            description="Of each replica. The line is the chart's default limit: beyond it the process is killed.",
            queries=(
                Query(
                    f"process_resident_memory_bytes{{{HERE}}} and on (instance) precision_operator_leader",
                    "{{pod}} {{instance}}",
                ),
            ),
            unit="bytes",
            thresholds=(Threshold(256 * 2**20, "red"),),
            lowest=0,
            width=12,
        ),
    ),
)

OPERATOR = Dashboard(
    uid="precision-operator",
    title="Precision: operator",
    description="The operator's own processes: whether it works, how fast, and whom it reaches.",
    variables=(Variable("namespace", "Operator's namespace", "label_values(precision_operator_leader, namespace)"),),
    rows=(WORKING, PASSES, OUTSIDE, PEOPLE, PROCESS),
)
