"""What ``decide`` may ask for. The controller carries these out; each is harmless when done twice."""

from dataclasses import dataclass

from precision_operator.api.modes import Mode
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.reasons import Reason


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
    checkpoint: bool = False
    """Save a checkpoint: the pod is about to be taken away."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Take a pod away: its controller makes a new one, which admission gives the assigned mode.

    Waits until every API server has acknowledged that generation of the assignment.
    """

    workload: WorkloadView
    pod: PodView
    generation: int
    grace_seconds: int | None = None
    """Until it is killed; None: what the pod says itself."""


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Take a pod away as far as the PodDisruptionBudgets allow it; waits for admission as :class:`DeletePod` does."""

    workload: WorkloadView
    pod: PodView
    generation: int
    follows: bool = False
    """Others of its workload have gone already: of a process group that is torn the rest goes as soon as it may."""


@dataclass(frozen=True, slots=True)
class SuspendJob:
    """Take all pods of a Job away, which uses up none of its back-off limit; recorded in the state before it is done.

    Waits for admission as :class:`DeletePod` does.
    """

    workload: WorkloadView
    generation: int
    job_generation: int
    """``metadata.generation`` of the Job as it is recorded: a late write must not suspend what was resumed since."""
    respects_budgets: bool = False
    """Only once the PodDisruptionBudgets allow all its pods to go: the suspension itself asks none of them."""


@dataclass(frozen=True, slots=True)
class ResumeJob:
    """End a suspension that the state records as ours; waits for admission, but never for longer than an emergency does."""

    workload: WorkloadView
    generation: int
    job_generation: int
    """As in :class:`SuspendJob`: a late write must not resume what somebody else has suspended since."""


@dataclass(frozen=True, slots=True)
class DeleteAssignment:
    """The policy is gone, and nothing is held: the assignment goes too."""


@dataclass(frozen=True, slots=True)
class Notify:
    """One Event on the policy."""

    reason: Reason
    message: str

    @property
    def warning(self) -> bool:
        """Whether somebody should look at it."""
        return self.reason.warns


Action = RequestPod | DeletePod | EvictPod | SuspendJob | ResumeJob | DeleteAssignment | Notify
