"""What the shell needs of a kind of workload, and the slim records that are kept of it instead of bodies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from precision_operator.core.actions import Latch, RequestPod, Restore, Settle, WriteTemplate
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.kube.port import JsonObject, KubeApi, Resource

WorkloadAction = RequestPod | WriteTemplate | Settle | Latch | Restore


@dataclass(frozen=True, slots=True)
class EnvEntry:
    """One env entry of ours in a container, as it stands."""

    index: int
    """Its place in the container's env list; a name may stand there twice, and the last one wins."""
    name: str
    raw: str
    """The whole entry as compact JSON, in the server's order of keys."""


@dataclass(frozen=True, slots=True)
class ContainerSlot:
    """A container whose environment concerns us."""

    field: str
    """``containers`` or ``initContainers``."""
    index: int
    name: str
    has_env: bool
    env_from: bool
    entries: tuple[EnvEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """What a write has to know of a pod template: enough to patch it without reading it again."""

    request: str | None = None
    enable: str | None = None
    mode: str | None = None
    slots: tuple[ContainerSlot, ...] = ()


@dataclass(frozen=True, slots=True)
class DeploymentView(WorkloadView):
    """A WorkloadView with what the adapter needs to write without reading first."""

    template: Template = Template()
    latch_raw: str | None = None
    settle_raw: str | None = None


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload as the inventory keeps it."""

    view: WorkloadView
    labels: Mapping[str, str]
    template_labels: Mapping[str, str]
    """What selectors are evaluated on."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod as the inventory keeps it."""

    namespace: str
    view: PodView
    workload: str
    """Name of the workload that owns it; empty where it is none of ours."""
    finished: bool
    """It has ended for good (evicted, for one) and only its object is left."""


class WorkloadAdapter(Protocol):
    """One kind of workload: how it is read, and how our actions are written to it."""

    @property
    def resource(self) -> Resource:
        """The kind that it adapts."""
        ...

    def workload(self, body: JsonObject) -> WorkloadRecord:
        """The slim record of a workload's body; never raises on odd bodies the API server let through."""
        ...

    def pod(self, body: JsonObject) -> PodRecord:
        """The slim record of a pod's body."""
        ...

    async def apply(self, api: KubeApi, action: WorkloadAction) -> bool:
        """Carry the action out; False where everything was so already and nothing was written.

        Raises:
            PreconditionFailed: the object is not the one that was decided on; gather again.
            PolicyError: the workload gives no way to set its precision.
            KubeError: as the API server answered.
        """
        ...
