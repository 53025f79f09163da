"""The few calls we make to the API server, as a port.

Bodies are plain JSON as the server sent it: no models (they cost time and memory, and drop unknown fields). Every
method raises a :class:`~precision_operator.errors.KubeError` and nothing else; none retries by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind, as the API addresses it."""

    group: str
    version: str
    plural: str

    @property
    def base(self) -> str:
        """The path prefix, without namespace."""
        return f"/api/{self.version}" if not self.group else f"/apis/{self.group}/{self.version}"

    @property
    def api_version(self) -> str:
        """As a manifest has it: ``apps/v1``, ``v1`` in the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """As kubectl takes it: ``deployments.apps``, ``pods`` in the core group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


POLICIES = Resource("precision.genesis.ai", "v1alpha1", "precisionpolicies")
ASSIGNMENTS = Resource("precision.genesis.ai", "v1alpha1", "precisionassignments")
INCIDENTS = Resource("precision.genesis.ai", "v1alpha1", "precisionincidents")
FIELD_MANAGER = "precision-operator"
"""Who manages the fields that the operator patches: whether it suspended a Job is read from there."""

DEPLOYMENTS = Resource("apps", "v1", "deployments")
REPLICASETS = Resource("apps", "v1", "replicasets")
JOBS = Resource("batch", "v1", "jobs")
DISRUPTION_BUDGETS = Resource("policy", "v1", "poddisruptionbudgets")
PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes")
EVENTS = Resource("", "v1", "events")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
SELF_SUBJECT_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews")
CONFIG_MAPS = Resource("", "v1", "configmaps")
SECRETS = Resource("", "v1", "secrets")
MUTATING_WEBHOOKS = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations")
MUTATING_POLICIES = Resource("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies")
MUTATING_POLICIES_BETA = Resource("admissionregistration.k8s.io", "v1beta1", "mutatingadmissionpolicies")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")

LOG_LINES = 500
LOG_BYTES = 256 * 1024
"""How much of a container's log is asked for, at most."""
EVENTS_LIMIT = 500
"""Of one object. The operator counts an Event that it tells again, so a policy has far fewer."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One JSON patch operation (RFC 6902): ``add``, ``remove``, ``replace`` or ``test``."""

    op: str
    path: str
    value: JsonValue = None

    def to_json(self) -> JsonObject:
        """As the wire wants it; ``remove`` carries no value."""
        body: JsonObject = {"op": self.op, "path": self.path}
        if self.op != "remove":
            body["value"] = self.value
        return body


@dataclass(frozen=True, slots=True)
class Deletion:
    """Which object is meant, and how it goes."""

    uid: str = ""
    """Another that has its name by now is not meant; empty: any."""
    resource_version: str = ""
    """Nor is the object once it has changed since it was read; empty: any."""
    dry_run: bool = False
    """The server judges, and deletes nothing."""
    grace_seconds: int | None = None
    """Until it is killed; None: what the object says itself."""


UNCONDITIONAL = Deletion()


class Discovery(Protocol):
    """What an API server has."""

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server has this kind in this version."""
        ...


class Watching(Protocol):
    """One object's changes, for who waits for it."""

    async def changed(self, resource: Resource, namespace: str, name: str, *, since: str, seconds: float) -> bool:
        """Wait until the object is no longer at this resourceVersion; False: it still was after these seconds.

        An empty ``since`` means that it was not there.
        """
        ...


class Telling(Protocol):
    """What Events tell of one object."""

    async def events_of(self, namespace: str, uid: str) -> Sequence[JsonObject]:
        """Events of a namespace about the object with this uid, EVENTS_LIMIT at most."""
        ...


class KubeApi(Protocol):
    """What the controller, the adapters, the elector and the event recorder need of Kubernetes."""

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        """One object, read from quorum (no ``resourceVersion`` parameter)."""
        ...

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        """All objects of a namespace that the label selector matches.

        ``most_bytes``: of the whole answer; raises AnswerTooLarge beyond, before anything of it is parsed.
        """
        ...

    async def list_metadata(
        self, resource: Resource, namespace: str, *, label_selector: str = ""
    ) -> Sequence[JsonObject]:
        """The same objects, each with its ``metadata`` alone: for bodies that are large, or many."""
        ...

    async def create(self, resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        """Create; raises Conflict where it exists already."""
        ...

    async def replace(self, resource: Resource, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """PUT with the body's resourceVersion; raises Conflict where it is not the newest."""
        ...

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, subresource: str = ""
    ) -> JsonObject:
        """Merge patch; with ``metadata.resourceVersion`` in the body it is a compare-and-swap."""
        ...

    async def json_patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> None:
        """JSON patch; where a ``test`` does not hold or a path is missing, PreconditionFailed, and nothing is written."""
        ...

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = Deletion()) -> None:
        """Delete it; NotFound where it is gone already, Conflict where it is not the object that is meant."""
        ...

    async def evict(self, namespace: str, pod: str, deletion: Deletion = Deletion()) -> None:
        """Delete a pod as far as PodDisruptionBudgets allow it.

        DisruptionBudget where one does not; NotFound and Conflict as for a deletion.
        """
        ...

    async def dry_run(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, server: str = ""
    ) -> JsonObject:
        """What a merge patch would make of the object, asked over a new connection; nothing is written.

        ``server``: base URL of one API server; empty: whichever the configured address leads to.
        """
        ...

    async def log(self, namespace: str, pod: str, container: str, *, since: str, previous: bool = False) -> str:
        """The last LOG_LINES lines of a container, each with its time; ``previous``: of the one that ended before it.

        ``since``: RFC 3339; older lines are left out.
        """
        ...


class Cluster(KubeApi, Discovery, Watching, Telling, Protocol):
    """All of it, for a program that a person runs."""
