"""The operator's record of a fleet: all that outlives a process, and all that admission reads.

``assignment.py`` says how it stands in the object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from precision_operator.api.canary import Comparison
from precision_operator.api.conditions import Condition
from precision_operator.api.incident import Incident
from precision_operator.api.mitigation import Mitigation
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.workload import name_of


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

    key: str
    """The workload's; empty: all others that share signal and severity, where there were too many to list."""
    signal: Signal
    severity: Severity
    since: float
    count: int = 1
    """Evaluations in a row that found it, counted until they are enough to act on."""
    evaluated_at: float = 0.0
    """The evaluation that was counted last: the same one never counts twice."""
    measured: str = ""
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
    """When the last round began, in seconds since the epoch."""
    newest: float = 0.0
    """Creation time of the newest pod of that round, by the API server's clock: a later one is a replacement."""


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


@dataclass(frozen=True, slots=True)
class State:
    """Everything that survives a restart of the operator."""

    # What admission reads.
    selector: Selector = field(default_factory=Selector)
    """In force; the policy's own may differ while workloads are held under this one."""
    generation: int = 0
    """Grows whenever admission must do something else, and with every request."""
    fallback: Mode | None = Mode.FP32
    """The mode of every workload that ``modes`` does not list; None: as its template has it."""
    modes: Mapping[str, Mode] = field(default_factory=dict)
    """Workload key → mode, where that is not the fallback."""
    contested: frozenset[str] = frozenset()
    """Workloads that belong to another policy: this one assigns them nothing, not even its fallback."""
    enforce: bool = False
    """False until the fleet's modes were observed: pods start as their templates have them."""
    hold_on_delete: bool = True
    """What stays after the policy was deleted: what a rollback put into the fallback, or nothing."""
    deletable: bool = False
    """A person may delete the assignment: its policy is gone and nothing is under way."""

    # Whose it is.
    policy_uid: str = ""
    observed_generation: int = 0
    """The policy's ``metadata.generation``."""
    commands: Mapping[str, int] = field(default_factory=dict)
    """Command → the transition in which it was carried out last: none is carried out twice."""
    settings: str = ""
    """What finishing a rollback needs of the policy's spec, as JSON: it may be gone by then."""

    # Where the fleet stands.
    phase: Phase = Phase.PENDING
    reason: str = ""
    message: str = ""
    """Of the last edge; what is waited for stands in the policy's status."""
    precision: Mode | None = None
    transition_id: int = 0
    step_index: int = 0
    phase_since: float | None = None
    step_since: float | None = None
    evidence_since: float | None = None
    no_data_since: float | None = None
    """Since when somebody's metrics have been missing, for people."""
    attempts: int = 0
    """Rollbacks of the fleet since it last proved itself."""
    incident: Incident | None = None
    comparison: Comparison | None = None
    """How the rollback canary fares against the rest."""
    conditions: tuple[Condition, ...] = ()
    """Without messages, but for alerts: those stand in the policy's status."""
    writer: str = ""
    epoch: int = 0

    # Workloads, by key.
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
    restart_seconds: tuple[float, ...] = ()
    """How long the newest restarts took, the last at the end."""
    suspensions: Mapping[str, Suspension] = field(default_factory=dict)
    failing: tuple[Failing, ...] = ()
    mitigations: tuple[Mitigation, ...] = ()
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
    def held_keys(self) -> frozenset[str]:
        """The workloads that were rolled back by themselves."""
        return frozenset(h.key for h in self.held)

    @property
    def holds(self) -> bool:
        """Something that was rolled back waits for a person."""
        return bool(self.held) or self.phase in (Phase.ROLLING_BACK, Phase.HELD)

    def assigned(self, key: str) -> Mode | None:
        """The mode of a workload; None: as its template has it."""
        return None if key in self.contested else self.modes.get(key, self.fallback)
