"""The operator's record of a fleet: all that outlives a process, and all that admission reads.

``assignment.py`` says how it stands in the object.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from precision_operator.api.canary import Comparison
from precision_operator.api.choices import AS_DELETION_POLICY, Severity, Strategy
from precision_operator.api.conditions import Condition
from precision_operator.api.drill import Drill
from precision_operator.api.fields import Field, Rule, Time, Via
from precision_operator.api.incident import Incident
from precision_operator.api.messages import Notified
from precision_operator.api.mitigation import Mitigation
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.workload import name_of
from precision_operator.contract import MAX_GENERATION, MAX_INDEXES


class Phase(StrEnum):
    """Where the fleet stands."""

    PENDING = "Pending"
    PROGRESSING = "Progressing"
    PAUSED = "Paused"
    HEALTHY = "Healthy"
    DEGRADED = "Degraded"
    ROLLING_BACK = "RollingBack"
    HELD = "Held"


@dataclass(frozen=True, slots=True)
class HeldWorkload:
    """A workload that was rolled back by itself."""

    key: str
    reason: str
    since: float

    @property
    def name(self) -> str:
        """Its name, for a person."""
        return name_of(self.key)


@dataclass(frozen=True, slots=True)
class Failing:
    """A breach that stands: since when, so that consecutive evaluations need no write each."""

    key: Annotated[str, Field(name="workload")]
    """Empty: all others that share signal and severity, where there were too many to list."""
    signal: Annotated[Signal, Field()]
    severity: Annotated[Severity, Field(absent=Severity.P1)]
    since: Annotated[float, Time(absent=0.0)]
    count: Annotated[int, Field()] = 1
    """Evaluations in a row that found it, as core/evidence/confirmation.py counts them."""
    evaluated_at: Annotated[float, Time()] = 0.0
    """The evaluation that was counted last."""
    measured: Annotated[str, Field()] = ""
    """What that evaluation found, for a person."""

    @property
    def name(self) -> str:
        """The workload's name, for a person."""
        return name_of(self.key)


@dataclass(frozen=True, slots=True)
class Restart:
    """A workload whose pods we take away, until its new pods have acknowledged."""

    rounds: int
    """How often: a second round is for pods that came back in the wrong mode; there is no third."""
    since: float
    """When the last round began, or the last turn of one whose pods may not go yet; in seconds since the epoch."""
    newest: float = 0.0
    """Creation time of the newest pod of that round, by the API server's clock: a later one is a replacement."""
    pods: int = -1
    """How many pods of the workload had started when it began; -1: not known."""
    gone: float = 0.0
    """When the first of them went, in seconds since the epoch; 0: none has."""

    @property
    def counts_since(self) -> float:
        """Since when it takes up a slot; in seconds since the epoch."""
        return self.gone or self.since


@dataclass(frozen=True, slots=True)
class Suspension:
    """A Job that we suspend: recorded before it is done, so that whoever leads next resumes it, and no other."""

    uid: str
    generation: int
    """``metadata.generation`` of the Job when this step of it was recorded."""
    since: float
    """When this step of it was recorded, in seconds since the epoch."""
    resuming: bool = False
    """All its pods are gone: it is resumed, and the record ends once it runs."""


def _as_text(settings: Mapping[str, object]) -> str:
    return json.dumps(settings, sort_keys=True, separators=(",", ":")) if settings else ""


def _as_object(settings: str) -> object:
    return json.loads(settings) if settings else {}


@dataclass(frozen=True, slots=True)
class State:
    """Everything that survives a restart of the operator."""

    # What admission reads.
    selector: Annotated[
        Selector,
        Field(
            "Which pods of this namespace it is for: a copy of the policy's selector, because admission needs it when the "
            "policy is gone. An empty selector selects nothing.",
            required=True,
            topology="atomic",
        ),
    ] = field(default_factory=Selector)
    """In force; the policy's own may differ while workloads are held under this one."""
    generation: Annotated[
        int,
        Field(
            "Grows whenever admission must do something else, and with every request. Every pod that admission changes "
            "carries it. It is above every generation seen on a pod.",
            required=True,
            least=0,
            most=MAX_GENERATION,
            format="int64",
        ),
    ] = 0
    fallback: Annotated[
        Mode | None,
        Field(
            "Mode of every selected workload that modes does not list, new ones included. Absent: those pods stay as their "
            "templates have them.",
            name="default",
        ),
    ] = Mode.FP32
    """None: as its template has it."""
    modes: Annotated[
        Mapping[str, Mode],
        Field(
            "Mode of each workload whose mode is not the default. Keys are apiGroup/Kind/name (apps/Deployment/vit; "
            "/Pod/probe in the core group), or label/name for pods that carry the label precision.genesis.ai/workload. "
            "Empty: as its template has it, whatever the default says, because an older policy selects it too. At most "
            "20,000.",
            longest=20000,
            topology="atomic",
            items=Field(only=("", *Mode), longest=4),
            rules=(
                Rule(
                    "self.all(k, size(k) <= 571)",
                    "every key of modes must be the key of a workload, apiGroup/Kind/name, of at most 571 characters",
                ),
            ),
        ),
    ] = field(default_factory=dict)
    """Workload key → mode, where that is not the fallback."""
    indexes: Annotated[
        Mapping[str, int],
        Field(
            "Of workloads that have moved in part by the index of their pods: the first index that has not. A pod below it "
            "gets indexMode, where modes does not list its workload; any other pod the default. At most 20,000.",
            longest=20000,
            topology="atomic",
            items=Field(least=0, most=MAX_INDEXES),
            rules=(
                Rule(
                    "self.all(k, size(k) <= 571)",
                    "every key of indexes must be the key of a workload, apiGroup/Kind/name, of at most 571 characters",
                ),
            ),
        ),
    ] = field(default_factory=dict)
    index_mode: Annotated[
        Mode | None, Field("Mode of the pods below the index that indexes lists for their workload.", name="indexMode")
    ] = None
    contested: frozenset[str] = frozenset()
    """Workloads that belong to another policy: this one assigns them nothing, not even its fallback."""
    enforce: Annotated[
        bool,
        Field(
            "Whether admission gives new pods their mode. False or absent: pods start as their templates have them, until "
            "the mode of every workload was observed."
        ),
    ] = False
    hold_on_delete: Annotated[
        bool,
        Field(
            "What becomes of workloads that a rollback put into the fallback when the policy is deleted. Hold: they stay "
            "there, and this object stays. Release: new pods start as their templates have them, and this object is "
            "deleted.",
            name="deletionPolicy",
            via=AS_DELETION_POLICY,
        ),
    ] = True
    deletable: Annotated[
        bool,
        Field(
            "Whether a person may delete this object. True when its policy is gone and nothing is in flight; deleting it "
            "then releases what it holds."
        ),
    ] = False

    # Whose it is.
    policy_uid: Annotated[str, Field(name="state.policy.uid")] = ""
    observed_generation: Annotated[int, Field(name="state.policy.generation")] = 0
    """The policy's ``metadata.generation``."""
    commands: Annotated[Mapping[str, int], Field(name="state.commands")] = field(default_factory=dict)
    """Command → the transition in which it was carried out last: none is carried out twice."""
    settings: Annotated[str, Field(name="state.settings", via=Via(dict, read=_as_text, write=_as_object))] = ""
    """What finishing a rollback needs of the policy's spec, as JSON: it may be gone by then."""

    # Where the fleet stands.
    phase: Annotated[Phase, Field(name="state.phase")] = Phase.PENDING
    reason: Annotated[str, Field(name="state.reason")] = ""
    message: Annotated[str, Field(name="state.message")] = ""
    """Of the last edge; what is waited for stands in the policy's status."""
    precision: Annotated[Mode | None, Field(name="state.precision")] = None
    transition_id: Annotated[int, Field(name="state.transitionId")] = 0
    step_index: Annotated[int, Field(name="state.stepIndex")] = 0
    phase_since: Annotated[float | None, Time(name="state.phaseSince")] = None
    step_since: Annotated[float | None, Time(name="state.stepSince")] = None
    evidence_since: Annotated[float | None, Time(name="state.evidenceSince")] = None
    no_data_since: Annotated[float | None, Time(name="state.noDataSince")] = None
    """Since when somebody's metrics have been missing, for people."""
    waits_since: Annotated[float | None, Time(name="state.waitsSince")] = None
    """Since when the condition Progressing has its reason, for people."""
    attempts: Annotated[int, Field(name="state.attempts")] = 0
    """Rollbacks of the fleet since it last proved itself."""
    incident: Annotated[Incident | None, Field(name="state.incident")] = None
    comparison: Annotated[Comparison | None, Field(name="state.comparison")] = None
    """How the rollback canary fares against the rest."""
    last_drill: Annotated[Drill | None, Field(name="state.lastDrill")] = None
    """The last drill, or the one in progress: only in Healthy."""
    conditions: Annotated[tuple[Condition, ...], Field(name="state.conditions")] = ()
    """Without messages, but for alerts: those stand in the policy's status."""
    notified: Annotated[tuple[Notified, ...], Field(name="state.notified")] = ()
    """The messages that people got of what stands, and of the last hour."""
    writer: Annotated[str, Field(name="state.writer.holder")] = ""
    epoch: Annotated[int, Field(name="state.writer.epoch")] = 0

    # Workloads, by key: how they stand in the object, assignment.py says.
    changed: Mapping[str, int] = field(default_factory=dict)
    """Workload → the generation of its last change of mode: a pod that carries an older one is not right."""
    members: tuple[str, ...] = ()
    shares: Mapping[str, int] = field(default_factory=dict)
    """Member → how many of its pods train in the target, where that is not all: its new pods start in the fallback."""
    held: tuple[HeldWorkload, ...] = ()
    silent: Mapping[str, float] = field(default_factory=dict)
    """Workload → since when its own metrics have been missing, where the policy rolls back for that."""
    canary: tuple[str, ...] = ()
    """Who goes first in a rollback by canary."""
    breached: tuple[str, ...] = ()
    """The workloads that the newest incident is about."""
    poisoned: tuple[str, ...] = ()
    """Those whose weights a non-finite or diverged loss shows to be poisoned: they are rewound too."""
    restarts: Mapping[str, Restart] = field(default_factory=dict)
    restart_seconds: Annotated[tuple[float, ...], Field(name="state.restartSeconds")] = ()
    """How long the newest restarts took, the last at the end."""
    suspensions: Mapping[str, Suspension] = field(default_factory=dict)
    failing: Annotated[tuple[Failing, ...], Field(name="state.failing")] = ()
    mitigations: Annotated[tuple[Mitigation, ...], Field(name="state.mitigations")] = ()
    """What is tried against mild breaches before they are rolled back, and what came of it."""

    @property
    def by_canary(self) -> bool:
        """A rollback that has come no further than its canary: being compared, or held by what that has shown."""
        strategy = self.incident.strategy if self.incident is not None else None
        return self.phase is Phase.ROLLING_BACK and strategy is Strategy.CANARY

    @property
    def alone(self) -> bool:
        """Workloads are held by themselves while the rest of the fleet trains in the target, or is on its way there."""
        return bool(self.held) and self.phase not in (Phase.PENDING, Phase.ROLLING_BACK, Phase.HELD)

    @property
    def unacknowledged_alone(self) -> Incident | None:
        """The incident of the workloads that are held by themselves, until all of them have acknowledged."""
        incident = self.incident
        return incident if self.alone and incident is not None and incident.last_ack_at is None else None

    @property
    def returning(self) -> bool:
        """Trainers are on their way to the fallback: a retry ends that, however many of them had acknowledged it."""
        unanswered = self.phase is Phase.HELD and self.incident is not None and self.incident.last_ack_at is None
        return self.phase is Phase.ROLLING_BACK or self.alone or unanswered

    @property
    def held_keys(self) -> frozenset[str]:
        """The workloads that were rolled back by themselves."""
        return frozenset(h.key for h in self.held)

    @property
    def awaited_keys(self) -> frozenset[str]:
        """Those of them that the newest incident is about: what was held before it has acknowledged."""
        return self.held_keys.intersection(self.breached)

    @property
    def drilled(self) -> frozenset[str]:
        """The workloads that a drill in progress has in the fallback, though they are members."""
        drill = self.last_drill
        if drill is None or not drill.running:
            return frozenset()
        return frozenset(self.members).intersection((drill.workload,) if drill.workload else self.members)

    @property
    def back_keys(self) -> frozenset[str]:
        """What is assigned the fallback while the rest of the fleet is not: rolled back by itself, or for a drill."""
        return self.held_keys | self.drilled

    @property
    def holds(self) -> bool:
        """Something that was rolled back waits for a person."""
        return bool(self.held) or self.phase in (Phase.ROLLING_BACK, Phase.HELD)

    def rolled_back(self, keys: Iterable[str]) -> frozenset[str]:
        """Those of these workloads to which what is written is of a rollback: of the fleet, or of them by themselves."""
        whole = self.phase in (Phase.ROLLING_BACK, Phase.HELD)
        return frozenset(keys) if whole else self.held_keys.intersection(keys)

    def assigned(self, key: str) -> Mode | None:
        """The mode of a workload; None: as its template has it."""
        return None if key in self.contested else self.modes.get(key, self.fallback)


ASSIGNMENT = Field(
    groups={
        "state": Field(
            "The operator's record of its work. Admission does not read it, and nobody else writes it.",
            topology="atomic",
            opaque=True,
        )
    }
)
"""A PrecisionAssignment."""
