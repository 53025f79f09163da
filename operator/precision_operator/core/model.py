"""What was observed: the frozen input of ``decide``.

Everything here is a plain value. The controller fills it from its caches, from one answer of Prometheus a metric and
from the clock; a recording of it is enough to decide again, bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from precision_operator.api.injection import Refusal
from precision_operator.api.messages import Notified
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.verification import Checks
from precision_operator.api.workload import kind_of, name_of
from precision_operator.reasons import Cause, Reason

RECORDED = "recorded"
"""In a field's metadata, whether recordings have it (replay/codec.py); yes, where nothing is said."""

UNSUPPORTED_LIMIT = 20
"""How many workloads of kinds that are not known are named."""


class RestartBy(StrEnum):
    """How the pods of a workload are made anew."""

    PODS = "Pods"
    """They are taken away, and their controller makes others."""
    SUSPENSION = "Suspension"
    """Its Job is suspended until no pod is left, and resumed: deleted pods would use up its back-off limit."""
    NEVER = "Never"
    """Nothing that we may do brings new ones."""


@dataclass(frozen=True, slots=True)
class Request:
    """The precision request that a pod carries."""

    generation: int
    mode: Mode
    rewind: bool = False
    """It asks for the newest healthy checkpoint too."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of a workload, terminating ones included."""

    name: str
    uid: str
    node: str = ""
    pool: str = ""
    """Its nodeSelector, which names the pool of nodes that it may run on; empty where it has none."""
    hot: bool = False
    """It mounts the request annotation as a file, so it can change precision without a restart."""
    has_annotations: bool = False
    """Whether ``metadata.annotations`` exists: a JSON patch must create the map where it does not."""
    request_raw: str | None = field(default=None, metadata={RECORDED: False})
    """The request annotation exactly as it stands: the value that the next write tests. Anything may stand there, and no
    decision reads it, so that no recording has it."""
    request: Request | None = None
    """The request, parsed; None where absent or malformed."""
    admitted: tuple[tuple[str, int], ...] = ()
    """(assignment, its generation) of each that gave this pod a mode at its creation."""
    refusal: Refusal | None = None
    """Why its label did not bring it the contract; None: it did, or it has no such label."""
    started_mode: Mode | None = Mode.FP32
    """What the environment made it start in (literal value, or its annotations).

    None: not known from here, for the value is a reference; ``derive_facts`` puts what the process reports there.
    """
    index: int = -1
    """That its StatefulSet or its Indexed Job gave it; -1: it has none."""
    created_at: float = 0.0
    """By the API server's clock, in seconds since the epoch. It is set for whatever is created: 0 stands only where no
    cluster made the pod, as in a backtest."""
    graceless: bool = False
    """Its own grace period is 0 seconds: it is given one second all the same, for an object that goes before its process
    has ended says nothing."""
    own_grace_seconds: float = 30.0
    """How long it may take to go by its own word."""
    ready: bool = False
    pending: bool = False
    """None of its containers has started yet: it waits for a node, an image, a quota."""
    terminating: bool = False
    gone_by: float = 0.0
    """When the grace of a terminating pod ends; seconds since the epoch, by our clock: a wrong one must end no pod early."""
    grace_seconds: float = 0.0
    """Of its deletion: how long before ``gone_by`` it was asked to go."""
    finalizer: str = ""
    """A finalizer that keeps its object after its process has ended; the first of several. The Job controller's is none."""
    gpus: int | None = 0
    """GPUs that its containers ask for; None: it asks for shares of them, so that they cannot be counted."""
    crashing: bool = False
    """A container ended with a failure and has not come back."""
    backing_off: bool = False
    """A container waits in CrashLoopBackOff, however it ended: as after a rank of another pod was lost."""

    @property
    def stopped(self) -> bool:
        """It trains in nothing, and can save and answer nothing: that says nothing of its training."""
        return self.crashing or self.backing_off

    @property
    def effective_mode(self) -> Mode | None:
        """What is asked of it: the request where it can read one, else its environment; None: unknown."""
        return self.request.mode if self.hot and self.request is not None else self.started_mode

    @property
    def asked_to_rewind(self) -> bool:
        """Its request asks for the newest healthy checkpoint."""
        return self.request is not None and self.request.rewind

    @property
    def generation(self) -> int:
        """The newest generation that it carries; 0: none."""
        requested = self.request.generation if self.request is not None else 0
        return max(requested, *(generation for _, generation in self.admitted), 0)


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """One workload that the policy selects."""

    namespace: str
    key: str
    """``apps/Deployment/vit-a``: what the assignment lists it by."""
    uid: str
    hot: bool = False
    """Its template carries the contract: new pods will be hot."""
    literal: bool = False
    """Admission can give its pods a mode though they cannot read the request: the switch is named, or an envFrom may."""
    replicas: int = 1
    indexes: int = 0
    """How many indexes its pods have, one each; 0: none that admission knows, or more than are listed."""
    first_index: int = 0
    template_mode: Mode | None = Mode.FP32
    """What its template starts a new pod in that admission does not see; None: a reference decides it."""
    labels_disagree: bool = False
    """Its own labels and its template's labels give different answers to the selector."""
    restart_by: RestartBy = RestartBy.PODS
    no_restart: str = ""
    """Why it cannot be restarted, for a person; where ``restart_by`` is NEVER."""
    object_name: str = ""
    """The name of its object: a label may have named its key."""
    suspended: bool = False
    """Its Job is suspended: it has no pods, or loses them."""
    suspended_by: str = ""
    """Who suspended its Job, where that was not the operator."""
    emptied: bool = False
    """The Job controller reports that no pod of the suspended Job is left, terminating ones included."""
    makes_pods_since: float = 0.0
    """When its Job's controller began to, or went on to; in seconds since the epoch. 0: not known, or it may wait."""
    object_generation: int = 0
    """``metadata.generation`` of its object: a write that was decided on another one must not be carried out."""
    pending_revision: bool = False
    """A new pod would come from another template than the ones that run: a change of it has not reached them."""
    pods: tuple[PodView, ...] = ()

    @property
    def name(self) -> str:
        """Its name, for a person."""
        return name_of(self.key)

    @property
    def kind(self) -> str:
        """Its kind, for a person."""
        return name_of(kind_of(self.key))


@dataclass(frozen=True, slots=True)
class RunsOn:
    """What a process says that it runs on; empty: it does not say."""

    torch: str = ""
    """Version, e.g. ``2.6.0+cu124``."""
    device: str = ""
    """``cuda`` or ``cpu``."""
    capability: str = ""
    """Of a CUDA device, e.g. ``8.0``."""
    world_size: int = 0
    """Ranks of its process group; 0: it does not say."""


@dataclass(slots=True)
class PodSignals:
    """What Prometheus says of one pod. None: no sample. NaN and infinities are kept as they are.

    Nobody changes one. It is not frozen, for there is a new one of each pod in every reading: that takes a third so long.
    """

    mode: Mode | None = None
    generation: int | None = None
    sampled_at: float | None = None
    """When the acknowledgement was scraped, by Prometheus' own clock; seconds since the epoch."""
    steps: float | None = None
    """Training steps within the window."""
    values: Mapping[Signal, float] = field(default_factory=dict)
    fp32_shortage_bytes: float | None = None
    """Device memory that FP32 would lack, by the most that it took before; None: it fits, or is not known."""
    fp32_memory: float | None = None
    """Device memory allocated in FP32, relative to its baseline; None: it does not train in FP32, or is not known."""
    runs_on: RunsOn | None = None
    fp32_work_seconds: float | None = None
    """What the work since its FP32 baseline would have taken in FP32; None: no baseline, or not in reduced precision."""
    checkpoint_at: float | None = None
    """When its last checkpoint was complete; None: it has none, does not say so, or nobody asked."""

    def has_made(self, least_steps: int) -> bool:
        """It has trained as many steps within the window as it takes to be judged. NaN is no number of steps."""
        return self.steps is not None and self.steps >= least_steps

    @property
    def lacks_memory(self) -> bool:
        """FP32 would run out of device memory: only a new process has it all."""
        return (self.fp32_shortage_bytes or 0.0) > 0.0

    @property
    def in_a_group(self) -> bool:
        """Its process says that it trains with others, perhaps of other pods."""
        return self.runs_on is not None and self.runs_on.world_size > 1


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One reading of all metrics, taken at one time for the whole fleet."""

    at: float
    """When it was taken; seconds since the epoch. The same value means: the same reading, do not count it twice."""
    continuous_since: float
    """Since when this process has evaluated without a gap: evidence older than this was not watched by us."""
    pods: Mapping[str, PodSignals] = field(default_factory=dict)
    """By pod name, within the policy's namespace."""
    errors: Mapping[str, Cause] = field(default_factory=dict)
    """Query name → why it gave no answer. ``ack`` and ``steps`` are queries too."""
    clock_since: float = 0.0
    """Since when all is dated by one clock: a leadership began, or the wall clock was seen to be set; 0: not known."""


def pods_seen(evaluation: Evaluation | None) -> Mapping[str, PodSignals]:
    """What a reading says of each pod, by its name; before the first one nothing is known of any."""
    return evaluation.pods if evaluation is not None else {}


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether the API servers give new pods the mode that is assigned to their workload."""

    enforced: bool | None = None
    """None: not known."""
    reason: Reason = Reason.NOT_CHECKED
    message: str = "no API server was asked yet"


@dataclass(frozen=True, slots=True)
class RefusedWrite:
    """A write of an earlier pass that the API server refuses."""

    what: str
    """For a person: ``RequestPod pod-a``."""
    reason: Reason
    """Of the error."""


@dataclass(frozen=True, slots=True)
class PromotionSlots:
    """What the cluster's cap leaves to one policy."""

    left: int
    """How many workloads may be promoted at once, less those of other policies that are."""
    overdue: frozenset[str] = frozenset()
    """Keys of the policy's own that have not acknowledged for so long that they take up no slot any more."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that ``decide`` may know about the world."""

    workloads: tuple[WorkloadView, ...] = ()
    """What the selector in force matches, and what the policy's own matches, where that is another."""
    matching: tuple[frozenset[str], frozenset[str]] | None = None
    """Where the policy's selector is not the one in force: the keys that each matches, the one in force first."""
    evaluation: Evaluation | None = None
    restart_slots: int = 0
    """How many workloads may be restarting at once in the whole cluster, less those of other policies that are."""
    problem: Cause | None = None
    """Why the policy cannot be carried out as written, e.g. an unknown endpoint name."""
    admission: Admission = Admission()
    halted: Cause | None = None
    """Why nothing may be done on the whole cluster, for any policy."""
    outside_schedule: Cause | None = None
    """Why the rollout may not advance now, by the policy's schedule."""
    promotion_slots: PromotionSlots | None = None
    """What the cap on promotions leaves; None: there is no cap."""
    refused: tuple[RefusedWrite, ...] = ()
    """Writes of the last pass that did not go through, and will not by themselves."""
    canary_nodes: tuple[str, ...] = ()
    """Nodes that a person labelled to go first in a rollback; empty also where they cannot be read."""
    staging_nodes: tuple[str, ...] = ()
    """The same, of a rollout."""
    way_back: Mapping[str, str] = field(default_factory=dict)
    """Key → why its way back would be refused, as a dry run showed; empty: it would not. Absent: it was not tried."""
    way_back_open: frozenset[str] = frozenset()
    """Keys of workloads of which the first dry run is under way."""
    contested: tuple[tuple[str, str], ...] = ()
    """(key, older policy that selects it too): left out of ``workloads``, for two writers would never agree."""
    suspended: tuple[WorkloadView, ...] = ()
    """Jobs that the state records as suspended by us, each by itself; they may be among ``workloads`` too."""
    unseen: frozenset[str] = frozenset()
    """Uids of those of them that the caches lack, though the API server has them, or did not say."""
    unsupported: tuple[str, ...] = ()
    """Keys of what the selector matches and nothing here governs: its kind is not known. UNSUPPORTED_LIMIT at most."""
    nodes_away: frozenset[str] = frozenset()
    """Nodes of terminating pods that do not answer: what runs there cannot be ended from here."""
    verified: tuple[str, Checks] | None = None
    """(incident, its checklist, counted), as the reporter has it; shown, and nothing is decided by it."""
    notified: tuple[Notified, ...] = ()
    """Messages that were delivered, and that the state does not know of yet; remembered, and nothing is decided by it."""
    writer: str = ""
    """Who decides: the Lease's holder."""
    epoch: int = 0
    """The Lease's transitions count: rises with every change of leader."""
