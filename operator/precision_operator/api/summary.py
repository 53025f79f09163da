"""``PrecisionPolicy.status``: a summary for people and tools, a few KiB whatever the fleet's size. No decision reads it.

The one exception: it names the assignment, so that one which vanished is noticed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from precision_operator.api.codec import decode, encode
from precision_operator.api.conditions import Condition
from precision_operator.api.drill import Drill
from precision_operator.api.fields import Field, Time
from precision_operator.api.gain import Gain
from precision_operator.api.incident import Incident
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase

UNACKNOWLEDGED_LIMIT = 20
"""Names of workloads that the status lists: it must stay small."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What people and tools are shown."""

    observed_generation: Annotated[
        int,
        Field(
            "metadata.generation of the spec that this status answers; -1 before the operator has seen the policy.",
            least=-1,
            format="int64",
        ),
    ] = 0
    phase: Annotated[
        Phase,
        Field(
            "Pending: nothing moved yet. Progressing: a step is being carried out or judged. Paused: a step waits for "
            "approval. Healthy: all steps done, watched. Degraded: some workloads were rolled back by themselves. "
            "RollingBack: on the way to the fallback. Held: rolled back; a person must retry."
        ),
    ] = Phase.PENDING
    reason: Annotated[str, Field("Stable word for what it waits for, or why the phase is what it is.", longest=256)] = (
        ""
    )
    message: Annotated[str, Field("The same for a person, with numbers and the next step to take.", longest=4096)] = ""
    precision: Annotated[Mode | None, Field("Mode that the fleet is being held to.")] = None
    fallback: Annotated[
        Mode | None,
        Field(
            "Mode that new pods get whose workload has not been moved; absent: as their templates have it.",
            only=(Mode.FP32, Mode.BF16),
        ),
    ] = None
    generation: Annotated[
        int,
        Field(
            "Generation of the assignment, which pods carry. Rises only; not metadata.generation.",
            least=0,
            format="int64",
        ),
    ] = 0
    transition_id: Annotated[
        int,
        Field(
            "Counts phase and step changes; a person's command annotation names the one it answers.",
            least=0,
            format="int64",
        ),
    ] = 0
    step_index: Annotated[int, Field("Index of the step being carried out.", least=0)] = 0
    step: Annotated[str, Field("The same for a person, e.g. 2/4 25%.", longest=128)] = ""
    weight: Annotated[int, Field("Percent of workloads that this step moves.", least=0, most=100)] = 0
    phase_since: Annotated[float | None, Time("When the phase was entered.")] = None
    progress: Annotated[str, Field("moved/total for a person, e.g. 3/6.", longest=32)] = field(init=False, default="")
    total: Annotated[int, Field("Workloads that the selector matches.", least=0)] = 0
    moved: Annotated[
        int, Field("Workloads that are where the policy wants them, by their own acknowledgement.", least=0)
    ] = 0
    breached: Annotated[int, Field("Workloads in breach.", least=0)] = 0
    unknown: Annotated[int, Field("Workloads without enough evidence.", least=0)] = 0
    held: Annotated[int, Field("Workloads that were rolled back by themselves and wait for a retry.", least=0)] = 0
    unacknowledged: Annotated[
        tuple[str, ...],
        Field(
            "Names of workloads whose own processes do not report the mode that is wanted of them; the first 20.",
            longest=UNACKNOWLEDGED_LIMIT,
            topology="atomic",
            items=Field(longest=253),
        ),
    ] = ()
    attempts: Annotated[
        int,
        Field("Rollbacks of the fleet since it last proved itself; the back-off grows with them.", least=0),
    ] = 0
    incident: Annotated[Incident | None, Field("The rollback in progress, or the last one.")] = None
    gain: Annotated[
        Gain | None,
        Field(
            "What precision has brought against FP32, as it was when the status was written last: it is written with what "
            "else has changed, never for itself, unless it shows a figure that was not known before."
        ),
    ] = field(default=None, compare=False)
    """It wavers with every reading: two summaries that differ in nothing else are one."""
    last_drill: Annotated[Drill | None, Field("The drill in progress, or the last one.")] = None
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            "Latest observations, as of metav1.Condition. By kstatus: Ready, Reconciling, Stalled. Besides: Accepted, "
            "MetricsAvailable, Progressing, Healthy, RolledBack, AdmissionEnforced, FailSafe, WritesAccepted, Stuck, "
            "Restartable, PendingRevision, CapacityLost, Blocked, WeightsSuspect, InjectionRefused, KindsSupported, "
            "PreflightPassed, SpeedupLow, Alerting, WouldAct.",
            longest=32,
            topology="map",
        ),
    ] = ()
    assignment: Annotated[
        str,
        Field(
            "Name of the PrecisionAssignment, which holds members, modes and the operator's record; absent before there is "
            "one.",
            longest=253,
        ),
    ] = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "progress", f"{self.moved}/{self.total}")


STATUS = Field(
    "A summary for people and tools, a few KiB whatever the fleet's size. The operator writes it after each decision, and "
    "decides nothing by it: its own record stands in the PrecisionAssignment of this name."
)
"""``status``."""


def summary_to_wire(summary: Summary) -> dict[str, object]:
    """As the CRD has it; empty optional fields are left out."""
    return encode(summary)


def parse_summary(raw: object) -> Summary:
    """Read ``status``; an absent one is a new policy's."""
    return decode(raw, Summary())


def lost_transition(raw: Mapping[str, object]) -> int | None:
    """The transition that a status shows which names an assignment; None where it names none."""
    summary = parse_summary(raw)
    return summary.transition_id if summary.assignment else None
