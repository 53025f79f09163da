"""``PrecisionPolicy.spec``, typed and frozen. Each field has its meaning, bounds and default; the CRD is made from them."""

from dataclasses import dataclass, field
from typing import Annotated

from precision_operator.api.canary import ComparisonSpec, StagingSpec
from precision_operator.api.choices import (
    AS_DELETION_POLICY,
    Delivery,
    Fallback,
    OnMemoryShortage,
    OnPendingRevision,
    PolicyEnforcement,
    Severity,
    Strategy,
    Unit,
)
from precision_operator.api.codec import decode
from precision_operator.api.criteria import CRITERIA, Criterion
from precision_operator.api.evaluation import EVALUATION, EvaluationSpec
from precision_operator.api.fields import Field, Rule, Via
from precision_operator.api.modes import Mode
from precision_operator.api.reenable import ReenableSpec
from precision_operator.api.rollback import RollbackSpec
from precision_operator.api.schedule import SCHEDULE, ScheduleSpec
from precision_operator.api.selector import Selector
from precision_operator.api.signal_records import DEFAULT_CRITERIA
from precision_operator.api.signals import Signal
from precision_operator.api.steps import AS_STEPS, RULES, STEP, Stage

__all__ = [
    "DEFAULT_CRITERIA",
    "SPEC",
    "Criterion",
    "Delivery",
    "Fallback",
    "OnMemoryShortage",
    "OnPendingRevision",
    "PolicyEnforcement",
    "PolicySpec",
    "RollbackSpec",
    "Severity",
    "Strategy",
    "Unit",
    "parse_spec",
]


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What the user asked for."""

    selector: Annotated[
        Selector,
        Field(
            "Which workloads of this namespace are the fleet. It is evaluated on the labels of their pod template, so that "
            "it also holds for their pods; labels of the workload object itself do not count. At least one requirement is "
            "needed.",
            required=True,
            topology="atomic",
            rules=(
                Rule(
                    "(has(self.matchLabels) && size(self.matchLabels) > 0) || "
                    "(has(self.matchExpressions) && size(self.matchExpressions) > 0)",
                    "selector must have at least one requirement, because an empty one would select every workload of the "
                    "namespace: name a label that the pod templates of your training workloads carry, e.g. matchLabels: "
                    "{app: trainer}",
                ),
            ),
        ),
    ] = field(default_factory=Selector)
    target: Annotated[
        Mode,
        Field(
            "Mode that the fleet is to train in ({default}). fp16 and bf16 mean the mixed modes: parameters, gradients and "
            "optimizer state stay FP32. fp32 takes the fleet off reduced precision."
        ),
    ] = Mode.FP16
    fallback: Annotated[
        Mode,
        Field(
            "Mode that a rollback goes to ({default}). It must be safer than target: fp32 is safer than bf16, bf16 is "
            "safer than fp16. bf16 only for a target of fp16, where every node of the fleet has BF16 hardware.",
            only=(Mode.FP32, Mode.BF16),
        ),
    ] = Mode.FP32
    delivery: Annotated[
        Delivery,
        Field(
            "How running pods are moved ({default}); new pods get the assigned mode from admission in any case. Hot: they "
            "read the request and change at a step boundary, without a restart. Restart: they are asked for a checkpoint "
            "and taken away, and their controller makes new ones; a Job is suspended until it has no pods, and resumed. "
            "NewOnly: they finish as they are, and a rollback lasts until they have. Auto: Hot where the workload carries "
            "the contract, else Restart. Bare pods, and Jobs whose manifest states suspend, are never restarted."
        ),
    ] = Delivery.AUTO
    unit: Annotated[
        Unit,
        Field(
            "What the weight of a step counts ({default}). Pod: pods of independent replicas. Below 100 a new pod starts in "
            "the fallback and the pods with the lowest hash of their uid are moved hot. Where only a restart moves them, "
            "the pods of StatefulSets and Indexed Jobs are moved by their index, the lowest first; other workloads of "
            "several pods do not take part then. Pods that train together are one unit, by world_size of genesis_run_info."
        ),
    ] = Unit.WORKLOAD
    enforcement: Annotated[
        PolicyEnforcement,
        Field(
            "What comes of the operator's decisions ({default}). Enforce: they are carried out. Observe: metrics are read "
            "and the next decision is reported, in status, as an Event and in the condition WouldAct; no pod is changed and "
            "no mode assigned. What was assigned before stays."
        ),
    ] = PolicyEnforcement.ENFORCE
    suspend: Annotated[
        bool,
        Field(
            "true: no workload is moved, forward or back, and nothing is evaluated. New pods still get the mode that is "
            "assigned to their workload ({default})."
        ),
    ] = False
    hold_on_delete: Annotated[
        bool,
        Field(
            "What stays after this policy is deleted ({default}). A rollback in flight is finished in either case, and "
            "other running pods are not changed. Hold: what a rollback put into the fallback stays there, new pods "
            "included, until a person deletes the PrecisionAssignment of this name. Release: nothing is kept, and new pods "
            "start as their templates have them.",
            name="deletionPolicy",
            via=AS_DELETION_POLICY,
        ),
    ] = True
    prometheus_ref: Annotated[
        str,
        Field(
            "Name of a metric source in the operator's configuration ({default}).",
            name="prometheusRef.name",
            shortest=1,
            longest=63,
            pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        ),
    ] = "default"
    progress_deadline_seconds: Annotated[
        float,
        Field(
            "Seconds that a step may take to reach its workloads, all of them acknowledged, before the condition Stalled "
            "says so ({default}); nothing is rolled back for it. Pauses do not count.",
            least=10,
            most=86400,
            via=Via(int, read=float, write=int),
        ),
    ] = 600.0
    schedule: Annotated[ScheduleSpec, SCHEDULE] = field(default_factory=ScheduleSpec)
    staging: Annotated[StagingSpec, Field("Who goes first.", name="strategy.canary")] = field(
        default_factory=StagingSpec
    )
    comparison: Annotated[
        ComparisonSpec,
        Field(
            "A sequential test of what was moved against what still trains in the fallback, beside the thresholds. It "
            "never promotes; one look in each evaluation.window.",
            name="strategy.comparison",
        ),
    ] = field(default_factory=ComparisonSpec)
    stages: Annotated[
        tuple[Stage, ...],
        Field(
            "The rollout, from first to last: weights that rise strictly, with pauses between them. Each item is exactly "
            "one of setWeight and pause, the first one is a setWeight; 1 to 50 items. After the last step the policy keeps "
            "guarding. A last weight below 100 leaves the rest where it is. Default: 10, 25, 50 and 100 % with pauses of "
            "10m.",
            name="strategy.steps",
            shortest=1,
            longest=50,
            topology="atomic",
            rules=RULES,
            items=STEP,
            via=AS_STEPS,
        ),
    ] = (Stage(10, 600.0), Stage(25, 600.0), Stage(50, 600.0), Stage(100))
    evaluation: Annotated[EvaluationSpec, EVALUATION] = field(default_factory=EvaluationSpec)
    criteria: Annotated[tuple[Criterion, ...], CRITERIA] = DEFAULT_CRITERIA
    rollback: Annotated[RollbackSpec, Field("How far a rollback reaches and how long it may take.")] = field(
        default_factory=RollbackSpec
    )
    reenable: Annotated[
        ReenableSpec,
        Field(
            "What a retry needs after a rollback, of the fleet or of single workloads, beside a person's command. A retried "
            "rollout tolerates no breached evaluation."
        ),
    ] = field(default_factory=ReenableSpec)

    def criterion(self, signal: Signal) -> Criterion:
        """The criterion of a signal."""
        return next(c for c in self.criteria if c.signal is signal)


SPEC = Field(
    "What is wanted. Only the selector is required; every other field has a default.",
    required=True,
    groups={
        "prometheusRef": Field(
            "Which metric source is asked. Addresses and credentials live with the operator's admin, never here."
        ),
        "strategy": Field("How the fleet is moved onto target."),
    },
    rules=(
        Rule(
            "self.unit != 'Pod' || !has(self.strategy) || !has(self.strategy.canary) || !has(self.strategy.canary.by) || "
            "self.strategy.canary.by != 'NodeLabel'",
            "unit: Pod chooses pods by a hash, found strategy.canary.by: NodeLabel, which chooses workloads: use by: Share, "
            "or unit: Workload",
            field="unit",
            invalid=True,
        ),
        Rule(
            "self.fallback == 'fp32' || self.target == 'fp16'",
            "fallback must be safer than target (fp32 is safer than bf16, bf16 is safer than fp16): use fallback: fp32",
            "'fallback must be safer than target (fp32 is safer than bf16, bf16 is safer than fp16), found target ' + "
            "self.target + ' with fallback ' + self.fallback + ': use fallback: fp32'",
            field="fallback",
            invalid=True,
        ),
    ),
)
"""``spec``."""


def parse_spec(raw: object) -> PolicySpec:
    """Read ``spec`` as the API server stored it."""
    return decode(raw, PolicySpec())
