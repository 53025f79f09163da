"""The dashboard of policies and the workloads that they move."""

from __future__ import annotations

from manifests import recording
from manifests.dashboards.model import Annotation, Color, Dashboard, Panel, Query, Row, Threshold, Variable
from manifests.recording import PODS
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity

TEAM = 'namespace=~"$namespace"'
POLICY = f'{TEAM},policy=~"$policy"'
INFO = "namespace_policy:precision_policy_info:leader"
SINCE = "namespace_policy:precision_policy_timestamp_seconds:leader"
CONDITION = "namespace_policy:precision_policy_condition:leader"
WORKLOAD = "{{namespace}}/{{workload}}"
OF_POLICY = "{{namespace}}/{{policy}}"
NO_EXPORTER = "no data: no DCGM exporter is scraped"
NO_BASELINE = "no data: no workload has an FP32 baseline yet"


def by_workload(series: str, *, worst: str) -> str:
    """A trainer's gauge, of the worst pod of each workload."""
    return f"{worst} by (namespace, workload) ({series} * on (namespace, pod) group_left (workload) {PODS})"


def trained(name: str) -> str:
    """A trainer's series."""
    return f"genesis_{name}{{{TEAM}}}"


def of_policies(counter: str, by: str) -> str:
    """A counter of policies, with the policy's namespace, which Prometheus may call exported_namespace."""
    named = f'label_replace({counter}{{policy=~"$policy"}}, "namespace", "$1", "exported_namespace", "(.+)")'
    chosen = f"max by (namespace, policy) ({INFO}{{{POLICY}}})"
    return f"sum by (namespace, policy, {by}) ({named} and on (namespace, policy) {chosen})"


def of_gpus(metric: str) -> str:
    """By pod; an exporter's own labels stand as exported_* where Prometheus attaches its own."""
    own = f'{metric}{{exported_namespace=~"$namespace",exported_pod!=""}}'
    named = f'label_replace({own}, "namespace", "$1", "exported_namespace", "(.*)")'
    return (
        f'avg by (namespace, pod, gpu) (label_replace({named}, "pod", "$1", "exported_pod", "(.*)"))'
        f' or avg by (namespace, pod, gpu) ({metric}{{{TEAM},exported_namespace="",pod!=""}})'
    )


def gpu(title: str, description: str, metric: str, *, unit: str, thresholds: tuple[Threshold, ...] = ()) -> Panel:
    """A panel of what a DCGM exporter reports."""
    queries = (Query(of_gpus(metric), "{{namespace}}/{{pod}} GPU {{gpu}}"),)
    return Panel(
        title=title,
        description=description,
        queries=queries,
        unit=unit,
        thresholds=thresholds,
        lowest=0,
        missing=NO_EXPORTER,
    )


REMARKS: dict[Signal, tuple[str, str, str]] = {
    Signal.OVERFLOW: ("Overflow rate", "Above the red line it is rolled back: look at the loss scale.", ""),
    Signal.DIVERGENCE: (
        "Divergence of the loss",
        "Above the red line it is rolled back and the weights are rewound.",
        NO_BASELINE,
    ),
    Signal.FAILURES: ("Failure rate", "Above the red line: read the logs of the pods that ended.", ""),
    Signal.NON_FINITE: (
        "Non-finite losses",
        "Any is a P0: weights may be poisoned. See docs/runbooks.md, LossNotFinite.",
        "",
    ),
    Signal.MEMORY: (
        "Memory against FP32",
        "Above the red line the mode saves little: consider a larger batch. Always 0 on a CPU.",
        NO_BASELINE,
    ),
}
"""Signal → the title of its panel, what to do, and what no data means. One without has a panel all the same."""


def signal(of: Signal) -> Panel:
    """A panel of what a policy is judged by, with the thresholds that hold where the policy names no others."""
    record, default = SIGNALS[of], SIGNALS[of].default
    answer = "told, and nothing is rolled back" if default.severity is Severity.P3 else "rolled back"
    plain = record.title or of[:1].upper() + of[1:], f"In the red it is {answer}.", ""
    title, do, missing = REMARKS.get(of, plain)
    marks: dict[float, Color] = {}
    if default.promote_below is not None:
        marks[default.promote_below] = "yellow"
    if default.warn is not None:
        marks[default.warn] = "orange"
    marks[default.enter] = "red"
    base: Color = "green"
    if default.lower_is_worse:
        base, marks = "red", {default.enter: "orange", default.leave: "green"}
    return Panel(
        title=title,
        description=f"{record.text} The worst pod of each workload. {do}",
        queries=(Query(f"{recording.by_workload(of)}{{{TEAM}}}", WORKLOAD),),
        unit="percentunit" if record.unit in ("share", "multiple") else "none",
        thresholds=tuple(Threshold(value, color) for value, color in sorted(marks.items())),
        base=base,
        lowest=None if of is Signal.DIVERGENCE else 0,
        missing=missing or "no data: no trainer reports it",
    )


POLICIES = Row(
    "Policies",
    (
        Panel(
            title="Phase",
            description="The phase of each policy. RollingBack, Degraded and Held ask for a person: "
            "`kubectl precision explain POLICY` names the reason and the next step.",
            queries=(Query(f"{INFO}{{{POLICY}}}", f"{OF_POLICY} {{{{phase}}}}"),),
            unit="none",
            kind="state-timeline",
            mappings={"1": ("in this phase", "blue")},
            width=12,
        ),
        Panel(
            title="Conditions",
            description="Each condition of each policy. Stuck and WeightsSuspect must not be True; AdmissionEnforced, "
            "MetricsAvailable and WritesAccepted must be. docs/runbooks.md says what to do.",
            queries=(Query(f"{CONDITION}{{{POLICY}}}", f"{OF_POLICY} {{{{type}}}}"),),
            unit="none",
            kind="state-timeline",
            mappings={"1": ("True", "blue"), "0": ("False", "orange"), "-1": ("Unknown", "text")},
            width=12,
        ),
        Panel(
            title="Workloads by mode",
            description="How many workloads report each mode. During a rollout FP32 falls and the target rises. "
            "Where they stand still, look at the phase.",
            queries=(
                Query(
                    f"sum by (namespace, mode) (namespace_mode:genesis_workloads:count{{{TEAM}}})",
                    "{{namespace}} {{mode}}",
                ),
            ),
            unit="none",
            lowest=0,
        ),
        Panel(
            title="Workloads by verdict",
            description="Workloads of each policy: all, moved, breached, held in the fallback, and unknown, which report "
            "nothing to judge them by. For unknown ones check that their pods are scraped.",
            queries=(
                Query(f"namespace_policy:precision_policy_workloads:leader{{{POLICY}}}", f"{OF_POLICY} {{{{state}}}}"),
            ),
            unit="none",
            lowest=0,
        ),
        Panel(
            title="Time in phase",
            description="How long each policy has been in its phase. Held for more than a day means that nobody has "
            "started it again: `kubectl precision retry POLICY`.",
            queries=(Query(f'time() - {SINCE}{{{POLICY},of="phase"}}', OF_POLICY),),
            unit="s",
            thresholds=(Threshold(86400, "orange"),),
            lowest=0,
        ),
        Panel(
            title="Rollbacks",
            description="Rollbacks since the operator's processes started, with severity and reason. After each: "
            "`kubectl precision incident list`.",
            queries=(
                Query(
                    of_policies("precision_rollbacks_total", "severity, reason"),
                    f"{OF_POLICY} {{{{severity}}}} {{{{reason}}}}",
                ),
            ),
            unit="none",
            lowest=0,
            missing="no data: no rollback since the operator started",
        ),
        Panel(
            title="Changes of phase",
            description="How often each policy went into a phase, and why, since the operator's processes started. Many "
            "changes between the same two phases: widen the criterion's `leave`.",
            queries=(
                Query(
                    of_policies("precision_policy_transitions_total", "to, reason"),
                    f"{OF_POLICY} {{{{to}}}} {{{{reason}}}}",
                ),
            ),
            unit="none",
            lowest=0,
        ),
        Panel(
            title="Acknowledgement latency",
            description="From a rollback's decision until the last trainer reported the fallback, since the operator's "
            "processes started. Deadlines by default: P0 5 minutes, P1 15. A slow one: look for restart-only workloads.",
            queries=tuple(
                Query(
                    f"histogram_quantile({quantile}, sum by (le) "
                    '(precision_rollback_stage_seconds_bucket{stage="decided_to_acknowledged"}))',
                    f"quantile {quantile}",
                )
                for quantile in (0.5, 0.95)
            ),
            unit="s",
            thresholds=(Threshold(300, "orange"), Threshold(900, "red")),
            lowest=0,
            missing="no data: no rollback since the operator started",
        ),
    ),
)

SPEED = Panel(
    title="Speed against FP32",
    description="Samples a second over the FP32 baseline's, the slowest pod of each workload. Below the red line "
    "FP16 does not pay: see Investigating in docs/mitigation.md.",
    queries=(
        Query(
            by_workload(
                f"(rate({trained('training_samples_total')}[$__rate_interval])"
                f" / ({trained('fp32_baseline_samples_per_second')} > 0 < Inf))",
                worst="min",
            ),
            WORKLOAD,
        ),
    ),
    unit="percentunit",
    thresholds=(
        Threshold(SIGNALS[Signal.SPEED].default.enter, "orange"),
        Threshold(SIGNALS[Signal.SPEED].default.leave, "green"),
    ),
    base="red",
    lowest=0,
    missing=NO_BASELINE,
)
"""By a rate over the interval that the dashboard shows; the record's is over a policy's window."""

SIGNAL_ROW = Row("What workloads are judged by", tuple(SPEED if of is Signal.SPEED else signal(of) for of in SIGNALS))

TRAINING = Row(
    "Training",
    (
        Panel(
            title="Loss and its FP32 baseline",
            description="The average loss, and the same at the end of the last FP32 training. A loss that leaves its "
            "baseline upwards after a change of mode: roll back.",
            queries=(
                Query(by_workload(trained("training_loss"), worst="max"), f"{WORKLOAD} loss"),
                Query(by_workload(trained("fp32_baseline_loss"), worst="max"), f"{WORKLOAD} baseline"),
            ),
            unit="none",
            width=12,
        ),
        Panel(
            title="Loss scale",
            description="The lowest of each workload; 1 where no scaler runs. A scale that halves again and again means "
            "that gradients overflow in every step.",
            queries=(Query(by_workload(trained("loss_scale"), worst="min"), WORKLOAD),),
            unit="none",
            logarithm=2,
            width=12,
        ),
        Panel(
            title="Gradient norm",
            description="The last finite norm, unscaled, largest pod. A norm that grows by tens before a breach points to "
            "the training, not to the precision: compare with FP32.",
            queries=(Query(by_workload(trained("grad_norm"), worst="max"), WORKLOAD),),
            unit="none",
            logarithm=10,
        ),
        Panel(
            title="Steps a second",
            description="Of the slowest pod of each workload. 0: it hangs or waits for data.",
            queries=(
                Query(by_workload(f"rate({trained('training_steps_total')}[$__rate_interval])", worst="min"), WORKLOAD),
            ),
            unit="ops",
            lowest=0,
        ),
        Panel(
            title="Throughput",
            description="Samples a second of the whole process group, by the slowest pod of each workload. Less than before "
            "a change of mode: compare with Speed against FP32.",
            queries=(
                Query(
                    by_workload(f"rate({trained('training_samples_total')}[$__rate_interval])", worst="min"), WORKLOAD
                ),
            ),
            unit="suffix: samples/s",
            lowest=0,
        ),
        Panel(
            title="Duration of a run (p95)",
            description="Of the runs of each workload that ended in the last hour (one has `--segment-steps` steps). "
            "Longer at the same number of steps: look at Steps a second.",
            queries=(
                Query(
                    "histogram_quantile(0.95, sum by (namespace, workload, le) ("
                    f"rate({trained('training_duration_seconds_bucket')}[1h])"
                    f" * on (namespace, pod) group_left (workload) {PODS}))",
                    WORKLOAD,
                ),
            ),
            unit="s",
            lowest=0,
            missing="no data: no run has ended in the last hour",
        ),
        Panel(
            title="Checkpoint age",
            description="Time since the last complete checkpoint, the oldest pod of each workload. A restart loses as "
            "much. Growing: look at genesis_checkpoint_failures_total and at the volume.",
            queries=(
                Query(
                    "time() - " + by_workload(trained("checkpoint_last_success_timestamp_seconds"), worst="min"),
                    WORKLOAD,
                ),
            ),
            unit="s",
            thresholds=(Threshold(3600, "orange"),),
            lowest=0,
            missing="no data: no trainer has a checkpoint directory",
        ),
        Panel(
            title="Sentinel level",
            description="How far the trainer itself went back towards FP32: 0 nominal, 1 lower scale, 2 layers pinned, "
            "3 BF16, 4 FP32, 5 rewound. See docs/sentinel.md.",
            queries=(Query(by_workload(trained("sentinel_level"), worst="max"), WORKLOAD),),
            unit="none",
            thresholds=(Threshold(1, "yellow"), Threshold(4, "orange"), Threshold(5, "red")),
            lowest=0,
            missing="no data: the sentinel is off",
        ),
    ),
)

GPUS = Row(
    "GPUs",
    (
        Panel(
            title="CUDA memory allocated",
            description="The most that each trainer's process has allocated since its mode began. Near the GPU's size, a "
            "rollback to FP32 does not fit beside it: the workload is restarted in place of a flip.",
            queries=(
                Query(
                    f"max by (namespace, pod, mode) ({trained('cuda_memory_allocated_bytes')})",
                    "{{namespace}}/{{pod}} {{mode}}",
                ),
            ),
            unit="bytes",
            lowest=0,
            missing="no data: no trainer with CUDA reports it",
        ),
        gpu(
            "GPU utilisation",
            "Share of the time in which a kernel ran. Low while steps are slow: the GPU waits for data or the CPU.",
            "DCGM_FI_DEV_GPU_UTIL",
            unit="percent",
        ),
        gpu(
            "Tensor cores busy",
            "Share of the cycles. Near 0 in FP16 or BF16: layers or batch are no multiples of 8, so FP16 does not pay.",
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            unit="percentunit",
        ),
        gpu(
            "GPU memory used",
            "Of the device, all processes. Near its size, a rollback to FP32 restarts the workload in place of a flip.",
            "DCGM_FI_DEV_FB_USED",
            unit="mbytes",
        ),
        gpu(
            "GPU temperature",
            "Above the line most devices slow down, which looks like a slow precision. Mend the cooling before a rollback.",
            "DCGM_FI_DEV_GPU_TEMP",
            unit="celsius",
            thresholds=(Threshold(85, "red"),),
        ),
    ),
)


def _entered(phases: str) -> str:
    """When a policy entered one of these phases, in milliseconds."""
    info = f'{INFO}{{{POLICY},phase=~"{phases}"}}'
    return f'{info} * on (namespace, policy) group_left () {SINCE}{{{POLICY},of="phase"}} * 1000'


FLEET = Dashboard(
    uid="precision-fleet",
    title="Precision: fleet",
    description="Policies, the workloads that they move, and what these are judged by. Needs the recording rules.",
    variables=(
        Variable("namespace", "Namespace", f"label_values({INFO}, namespace)"),
        Variable("policy", "Policy", f"label_values({INFO}{{{TEAM}}}, policy)"),
    ),
    annotations=(
        Annotation("Rollouts", _entered("Progressing|Healthy"), f"{OF_POLICY}: {{{{phase}}}}", "green"),
        Annotation("Rollbacks", _entered("RollingBack|Degraded|Held"), f"{OF_POLICY}: {{{{phase}}}}", "red"),
    ),
    rows=(POLICIES, SIGNAL_ROW, TRAINING, GPUS),
)
