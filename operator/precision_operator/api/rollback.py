"""``PrecisionPolicy.spec.rollback``: how far a rollback reaches, and how it goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from precision_operator.api.canary import CANARY, CanarySpec
from precision_operator.api.choices import OnMemoryShortage, OnPendingRevision, Severity, Strategy
from precision_operator.api.fields import Duration, Field
from precision_operator.api.mitigation import MITIGATION, MitigationSpec


@dataclass(frozen=True, slots=True)
class GradualSpec:
    """How a gradual rollback goes."""

    sustain_seconds: Annotated[
        float,
        Duration(
            "How long a breach must have stood before it is answered gradually ({default}).", least="0s", most="24h"
        ),
    ] = 600.0
    batch_share: Annotated[
        float,
        Field("Share of the moved workloads that may be under way at once, at least one ({default}).", above=0, most=1),
    ] = 0.25
    in_flight_seconds: Annotated[
        float,
        Duration(
            "How long a workload that has to be restarted is waited for ({default}): with the contract, until it has saved "
            "the checkpoint that it is asked for; without it, until its metrics show a checkpoint younger than the "
            "decision, or its Job ends. Then it is restarted all the same. Hot flips lose nothing and do not wait.",
            least="0s",
            most="24h",
        ),
    ] = 600.0


@dataclass(frozen=True, slots=True)
class EmergencySpec:
    """How an emergency takes pods away."""

    max_concurrent_pods: Annotated[
        int,
        Field("Pods that may be restarting at once, whatever the deadline needs ({default}).", least=1, most=5000),
    ] = 500
    expected_restart_seconds: Annotated[
        float,
        Duration(
            "How long a restart is taken to last until one was measured: from taking a pod away until its replacement "
            "reports the new mode ({default}).",
            least="1s",
            most="24h",
        ),
    ] = 60.0
    respect_disruption_budgets: Annotated[
        bool,
        Field(
            "true: an emergency evicts pods, and waits where a PodDisruptionBudget forbids it. false: it deletes them, "
            "gracefully ({default})."
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class RollbackSpec:
    """How far and how fast a rollback reaches."""

    fleet_share: Annotated[
        float,
        Field(
            "Share of the moved workloads that must be breached at once for the whole fleet to be rolled back ({default}). "
            "Below it a breached workload is rolled back itself, and within a rollout step its cohort.",
            above=0,
            most=1,
        ),
    ] = 0.25
    fleet_minimum: Annotated[
        int,
        Field(
            "Workloads that must be breached, besides fleetShare, before the whole fleet is rolled back ({default}). In a "
            "smaller fleet, all of it is enough.",
            least=1,
            most=100_000,
        ),
    ] = 2
    ack_timeout_seconds: Annotated[
        float,
        Duration(
            "How long a hot workload may take to acknowledge the new mode before it is restarted ({default}). An "
            "acknowledgement arrives by a scrape, and scrapes are up to a minute apart.",
            least="1s",
            most="30m",
        ),
    ] = 90.0
    recovery_success: Annotated[
        float,
        Field(
            "Share of runs that must end well, in every pod rolled back, before it counts as recovered ({default}).",
            least=0,
            below=1,
        ),
    ] = 0.95
    deadlines_seconds: Annotated[
        Mapping[Severity, float],
        Field(
            "Time from the breach until the last workload acknowledged, by severity; where it is answered gradually, from "
            "when the breach has stood for gradual.sustain. A miss is reported and escalated.",
            name="deadlines",
            items=Duration("Deadline of a {key} rollback ({default}).", least="1s", most="24h"),
        ),
    ] = field(default_factory=lambda: {Severity.P0: 300.0, Severity.P1: 900.0, Severity.P2: 1800.0})
    strategies: Annotated[
        Mapping[Severity, Strategy],
        Field(
            "How a breach is answered, by severity. Emergency: everything at once. Gradual: in batches, each acknowledged "
            "before the next, and expedited where the deadline would be missed. Canary: a share first, the rest in batches "
            "where that is shown to have helped. Hold: nothing is promoted, nothing rolled back. A higher severity takes "
            "over at every evaluation; within a rollback it never falls.",
            items=Field("Answer to {key} ({default})."),
        ),
    ] = field(
        default_factory=lambda: {
            Severity.P0: Strategy.EMERGENCY,
            Severity.P1: Strategy.EMERGENCY,
            Severity.P2: Strategy.GRADUAL,
        }
    )
    emergency: Annotated[
        EmergencySpec,
        Field(
            "How an emergency takes pods away. It takes as many at once as its deadline needs, by the time that restarts "
            "took before."
        ),
    ] = field(default_factory=EmergencySpec)
    on_pending_revision: Annotated[
        OnPendingRevision,
        Field(
            "What happens to a workload that has to be restarted while a change of its template has not reached its pods "
            "({default}). A restart would bring that change in. Wait: it is not restarted until the change is rolled out "
            "or taken back. Restart: an emergency restarts it all the same; a gradual rollback waits in either case."
        ),
    ] = OnPendingRevision.WAIT
    on_memory_shortage: Annotated[
        OnMemoryShortage,
        Field(
            "What happens in a rollback to a workload that could change at a step boundary, but whose devices lack memory "
            "for FP32 ({default}). The need is the peak of its own FP32 baseline. Restart: it is restarted in FP32. BF16: "
            "where it trains in FP16 it goes to BF16 at a step boundary, and is held there until a retry; set it only "
            "where all devices support BF16. What nothing can restart changes to FP32 at a step boundary all the same, "
            "unless BF16 is set."
        ),
    ] = OnMemoryShortage.RESTART
    gradual: Annotated[
        GradualSpec,
        Field(
            "How a gradual rollback goes. New pods start in the fallback at once; running pods are moved in batches."
        ),
    ] = field(default_factory=GradualSpec)
    canary: Annotated[CanarySpec, CANARY] = field(default_factory=CanarySpec)
    mitigation: Annotated[MitigationSpec, MITIGATION] = field(default_factory=MitigationSpec)
