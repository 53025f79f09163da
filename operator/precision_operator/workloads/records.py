"""Workloads and pods as the inventory keeps them: slim, without bodies."""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_operator.core.model import PodView, WorkloadView


@dataclass(frozen=True, slots=True)
class Revisions:
    """Which revision of its template a StatefulSet's pods come back in."""

    current: str
    update: str
    first: int
    """The first index that gets ``update``; those below come back in ``current``."""

    def passed(self, pod: "PodRecord") -> bool:
        """Whether a restart would bring this pod into another revision than the one it runs.

        Where the pod's index is not known (Kubernetes before 1.28), the newest revision is taken for what it would get.
        """
        due = self.current if 0 <= pod.view.index < self.first else self.update
        return bool(due and pod.revision) and pod.revision != due


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload as the inventory keeps it."""

    view: WorkloadView
    labels: Mapping[str, str]
    template_labels: Mapping[str, str]
    """What selectors are evaluated on."""
    injected: bool = False
    """Its template has the contract only once admission has written it into a pod."""
    revisions: Revisions | None = None
    """Where its pods say which revision they run."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod as the inventory keeps it."""

    namespace: str
    view: PodView
    controller: str
    """Uid of the object that controls it, its own where nothing does: only a chain of uids says whose it is."""
    finished: bool
    """It has ended for good (evicted, for one) and only its object is left."""
    revision: str = ""
    """The revision of its StatefulSet that it runs; empty where it has none."""

    @property
    def counts(self) -> bool:
        """It is somebody's pod, and alive; or its object is kept, so that no other can take its place."""
        kept = self.view.terminating and bool(self.view.finalizer)
        return bool(self.controller) and (kept or not self.finished)


@dataclass(frozen=True, slots=True)
class Stranger:
    """Pods whose chain of owners ends at an object of no kind that is known here."""

    key: str
    """Of their workload."""
    labels: Mapping[str, str]
    """What selectors are evaluated on."""
