"""What was observed: the frozen input of ``decide``.

Everything here is a plain value. The shell fills it from its caches, from one answer of Prometheus a metric and from the
clock; a recording of it is enough to decide again, bit for bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.verification import Checks


@dataclass(frozen=True, slots=True)
class Request:
    """The precision request that a pod or a template carries."""

    generation: int
    mode: Mode


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
    request_raw: str | None = None
    """The request annotation exactly as it stands: the value that the next write tests."""
    request: Request | None = None
    """The request, parsed; None where absent or malformed."""
    started_mode: Mode | None = Mode.FP32
    """What the environment made it start in (literal value, or its annotations).

    None: not known from here, for the value is a reference; ``facts.look`` puts the process' own word in its place.
    """
    ready: bool = False
    terminating: bool = False
    crashing: bool = False
    """A container waits in CrashLoopBackOff, or ended with a failure and has not come back."""

    @property
    def effective_mode(self) -> Mode | None:
        """What it has been told to train in: the request where it can read one, else its environment; None: unknown."""
        return self.request.mode if self.hot and self.request is not None else self.started_mode


@dataclass(frozen=True, slots=True)
class SettleIntent:
    """A settle that has begun: kept on the workload so that a crash is finished, never left paused."""

    generation: int
    mode: Mode
    was_paused: bool


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """One workload that the policy selects."""

    namespace: str
    name: str
    uid: str
    kind: str = "Deployment"
    hot: bool = False
    """Its template carries the contract: new pods will be hot."""
    literal: bool = False
    """A container of its template has a literal ENABLE_FP16_TRAINING: it can be moved by restart."""
    template_mode: Mode | None = Mode.FP32
    """What a new pod of the template starts in; None: a reference says it, so that it is not known, and never FP32."""
    template_request: Request | None = None
    generation_raw: str | None = None
    """Our generation annotation exactly as it stands: the value that the next write tests."""
    has_annotations: bool = False
    has_template_annotations: bool = False
    has_original: bool = False
    latch: Mode | None = None
    settle: SettleIntent | None = None
    paused: bool = False
    replicas: int = 1
    updated_replicas: int = 0
    observed: bool = True
    """The controller has seen the newest spec (observedGeneration == generation)."""
    labels_disagree: bool = False
    """Its own labels and its template's labels give different answers to the selector."""
    pods: tuple[PodView, ...] = ()

    @property
    def touched(self) -> bool:
        """We, or an operator before us, have written to it or to one of its pods."""
        return self.has_original or any(pod.request is not None for pod in self.pods)

    @property
    def rolled_out(self) -> bool:
        """No rollout is in progress."""
        return self.observed and self.updated_replicas == self.replicas and len(self.pods) == self.replicas

    @property
    def coming_up(self) -> bool:
        """It is rolling out, or a pod that has a node is not ready yet: part of the budget of restarts.

        A pod that waits for a node, or crashes, could hold the budget for ever.
        """
        return not self.rolled_out or any(pod.node and not (pod.ready or pod.crashing) for pod in self.pods)


@dataclass(frozen=True, slots=True)
class PodSignals:
    """What Prometheus says of one pod. None: no sample. NaN and infinities are kept as they are."""

    mode: Mode | None = None
    generation: int | None = None
    sampled_at: float | None = None
    """When the acknowledgement was scraped, by Prometheus' own clock; seconds since the epoch."""
    steps: float | None = None
    """Training steps within the window."""
    values: Mapping[Signal, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One reading of all metrics, taken at one time for the whole fleet."""

    at: float
    """When it was taken; seconds since the epoch. The same value means: the same reading, do not count it twice."""
    continuous_since: float
    """Since when this process has evaluated without a gap: evidence older than this was not watched by us."""
    pods: Mapping[str, PodSignals] = field(default_factory=dict)
    """By pod name, within the policy's namespace."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Query name → why it gave no answer. ``ack`` and ``steps`` are queries too."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that ``decide`` may know about the world."""

    workloads: tuple[WorkloadView, ...] = ()
    evaluation: Evaluation | None = None
    restart_slots: int = 0
    """How many more workloads may be restarted at once in the whole cluster."""
    settle_slots: int = 10
    """How many more settles may be under way at once."""
    problem: tuple[str, str] | None = None
    """(reason, message) of why the policy cannot be carried out as written, e.g. an unknown endpoint name."""
    canary_nodes: tuple[str, ...] = ()
    """Nodes that a person labelled to go first; empty also where they cannot be read."""
    contested: tuple[tuple[str, str], ...] = ()
    """(workload, older policy that selects it too): left out of ``workloads``, for two writers would never agree."""
    verified: tuple[str, Checks] | None = None
    """(incident, its checklist, counted), as the reporter has it; told on, and nothing is decided by it."""
    writer: str = ""
    """Who decides: the Lease's holder."""
    epoch: int = 0
    """The Lease's transitions count: rises with every change of leader."""
