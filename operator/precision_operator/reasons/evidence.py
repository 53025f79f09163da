"""What the metrics say, and why they say nothing."""

from precision_operator.reasons.row import AFTER_BREACH, ATTENTION, CHECK_SCRAPE, NORMAL, WAITING

NO_SAMPLES = (ATTENTION, "Prometheus has no samples of these workloads: missing data never promotes", CHECK_SCRAPE)
SAMPLES_TOO_OLD = (ATTENTION, "the newest samples are older than evaluation.maxSampleAge", CHECK_SCRAPE)
TOO_FEW_STEPS = (
    ATTENTION,
    "the window holds fewer training steps than evaluation.minSteps",
    "wait, lengthen evaluation.window, or lower evaluation.minSteps",
)
NO_PODS = (ATTENTION, "the workload has no pods to judge", "why do they not run? `!kubectl describe pods {of}`")
NO_DATA = (
    ATTENTION,
    "evidence was missing for evaluation.noDataLimit, and onNoData is Rollback",
    CHECK_SCRAPE,
    *AFTER_BREACH,
)
METRICS_UNAVAILABLE = (
    ATTENTION,
    "Prometheus does not answer: nothing is promoted, and nothing is rolled back for it",
    "check the metric source of spec.prometheusRef; its address stands in the operator's configuration",
)
ENDPOINT_NOT_ANSWERING = (
    ATTENTION,
    "Prometheus failed several times in a row and is asked less often until it answers again",
    "check the metric source of spec.prometheusRef; its address stands in the operator's configuration",
)
EVALUATION_TIMEOUT = (
    ATTENTION,
    "Prometheus was asked, and did not answer in time",
    "see whether Prometheus is slow, or is asked for too much (its own query durations)",
)
EVALUATION_LATE = (
    ATTENTION,
    "the newest evaluation is too old to decide by",
    "see whether the operator lacks CPU: `!kubectl top pods --all-namespaces "
    "-l app.kubernetes.io/part-of=genesis-precision`",
)
QUERY_INVALID = (
    ATTENTION,
    "a query cannot be asked as it is written",
    "correct criteria.<signal>.promql, where it is the policy's own; else ask the operator's admin",
)
UNKNOWN_ENDPOINT = (
    ATTENTION,
    "spec.prometheusRef names a metric source that the operator's configuration lacks",
    "correct the name, or ask the operator's admin to add it (config.prometheus of the chart)",
)
RAW_QUERY_NOT_ALLOWED = (
    ATTENTION,
    "a criterion brings PromQL of its own, which this operator's admin does not allow",
    "name a query of the catalogue, or ask the admin for it (config.allowRawQueries of the chart)",
)
UNKNOWN_QUERY = (
    ATTENTION,
    "a criterion names a query that the operator's catalogue lacks",
    "correct the name, or ask the operator's admin to add it (config.queries of the chart)",
)
NOT_A_NUMBER = (ATTENTION, "a ratio could not be worked out, for one because there is no FP32 baseline", CHECK_SCRAPE)
DUPLICATE_SERIES = (
    ATTENTION,
    "Prometheus holds several series of one pod, and it is not known which of them is right",
    "look for a pod that is scraped twice, or for a query without `by (pod)`",
)
METRICS_AVAILABLE = (NORMAL, "every metric was read")
SIGNAL_ERROR = (WAITING, "a metric query gave no usable answer")
NOT_OBSERVED = (WAITING, "the operator has not read the newest spec")
NOT_JUDGED = (WAITING, "the workload has not been judged yet")
MISSING_POD_LABEL = (
    ATTENTION,
    "no series of a query's answer names its pod",
    "group the query by (pod), and have Prometheus attach pod from its service discovery",
)
