"""What ``decide`` may ask for. The shell carries these out; each is harmless when done twice."""

from dataclasses import dataclass
from enum import StrEnum

from precision_operator.api.modes import Mode
from precision_operator.core.model import PodView, WorkloadView


class SettleStage(StrEnum):
    """The three writes that make a hot flip last without a rollout; each is recorded on the workload before the next."""

    PAUSE = "Pause"
    REPLICASET = "ReplicaSet"
    RESUME = "Resume"


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a request asks of the loss scaler, beside the mode."""

    loss_scale_factor: float | None = None
    """The loss scale is multiplied by this, once."""
    growth_interval: int | None = None
    """Good steps after which the loss scale grows, from then on."""


@dataclass(frozen=True, slots=True)
class RequestPod:
    """Write the request onto a running pod: it flips at its next step boundary."""

    workload: WorkloadView
    pod: PodView
    mode: Mode
    generation: int
    rewind: bool = False
    """Go back to the newest checkpoint that was proven healthy: the weights themselves are poisoned."""
    tuning: Tuning | None = None


@dataclass(frozen=True, slots=True)
class WriteTemplate:
    """Write the mode into the workload's template. Restarts its pods, where it has any."""

    workload: WorkloadView
    mode: Mode
    generation: int
    latch: Mode | None
    """What the latch annotation shall say afterwards; None removes it."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The next write of a settle."""

    workload: WorkloadView
    stage: SettleStage
    mode: Mode
    generation: int
    latch: Mode | None


@dataclass(frozen=True, slots=True)
class Latch:
    """Say on a workload that was rolled back and needs no other write that it is: the latch outlives the policy."""

    workload: WorkloadView
    mode: Mode | None
    """None takes the latch off: a person has asked for another attempt."""
    generation: int


@dataclass(frozen=True, slots=True)
class Restore:
    """Write the template's original values back (deletionPolicy Restore)."""

    workload: WorkloadView


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """Add our finalizer: a deletion must restore first (only under deletionPolicy Restore)."""


@dataclass(frozen=True, slots=True)
class ReleasePolicy:
    """Remove our finalizer: the deletion has been carried out."""


@dataclass(frozen=True, slots=True)
class Notify:
    """One Event on the policy."""

    reason: str
    message: str
    warning: bool = False


Action = RequestPod | WriteTemplate | Settle | Latch | Restore | GuardPolicy | ReleasePolicy | Notify
