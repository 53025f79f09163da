"""What one workload should be in, as a phase decides it."""

from dataclasses import dataclass, replace

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.core.actions import Tuning
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.core.progress import accepted_modes


@dataclass(frozen=True, slots=True)
class Desired:
    """What one workload should be in."""

    workload: WorkloadView
    mode: Mode
    delivery: Delivery
    rollback: bool = False
    """In a rollback a workload that is already as safe needs no write; in a rollout it must match."""
    rewind: bool = False
    """Its weights are poisoned: another precision alone would not mend them."""
    escalate: bool = False
    """It did not acknowledge in time: its pods are restarted, where they can be seen to train in something else."""
    force: bool = False
    """Past the deadline: where it escalates, also those are restarted that cannot be seen."""
    tuning: Tuning | None = None
    """What its loss scaler is asked for."""
    tuned_by: int = 0
    """The generation of that: a pod whose request is older is asked, though its mode is right."""
    pods: frozenset[str] | None = None
    """The uids of the pods that this is wanted of; the others should be in ``rest``. None: of all."""
    rest: Mode = Mode.FP32

    @property
    def accepted(self) -> frozenset[Mode]:
        """The modes that need no write."""
        return accepted_modes(self.mode, rollback=self.rollback)

    def of(self, pod: PodView) -> "Desired":
        """What is wanted of this pod."""
        if self.pods is None or pod.uid in self.pods:
            return self
        return replace(self, mode=self.rest, rollback=True, tuning=None, pods=None)
