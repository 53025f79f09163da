"""The Kubernetes client: the port's verbs as requests of raw JSON.

The library's models are not used: they cost time and memory and drop fields that they do not know.
"""

from collections.abc import Mapping, Sequence
from typing import Self, cast
from urllib.parse import quote, urlencode

from precision_operator.api.wire import mapping, sequence, text
from precision_operator.errors import NotFound
from precision_operator.kube.access import Access, load_configuration
from precision_operator.kube.answers import unread_object
from precision_operator.kube.port import (
    EVENTS,
    EVENTS_LIMIT,
    FIELD_MANAGER,
    LOG_BYTES,
    LOG_LINES,
    PODS,
    UNCONDITIONAL,
    Deletion,
    JsonObject,
    JsonValue,
    Operation,
    Resource,
)
from precision_operator.kube.transport import JSON, RequestHook, Transport, not_counted

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
"""An answer without spec and status: nobody reads them, and a fleet's worth takes both sides' time in an emergency."""
METADATA_LIST = METADATA.replace("PartialObjectMetadata", "PartialObjectMetadataList")

EVICTIONS = Resource("", "v1", "pods/eviction")
LOGS = Resource("", "v1", "pods/log")
"""As requests are counted: both are addressed by their pod."""

EVICTION_SECONDS = 12.0
"""How long the API server tries an eviction that conflicts before it says so: 20 times, 0.5 s apart. A pod that has been
replaced by another of its name conflicts (EvictionsRetry in pkg/registry/core/pod/storage/eviction.go).
"""


class KubeClient:
    """The port over HTTP. Make it with :meth:`connect`, end it with :meth:`close`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._manager = urlencode({"fieldManager": transport.program})

    @classmethod
    async def connect(
        cls,
        access: Access,
        *,
        concurrent_writes: int = 32,
        timeout_seconds: float = 10.0,
        on_request: RequestHook = not_counted,
        program: str = FIELD_MANAGER,
        read_retries: int = 0,
    ) -> Self:
        """A client for this access; opens no connection yet.

        ``program``: who manages what it patches. ``read_retries``: how often a read that the API server puts off is tried
        again. One that has not read a CRD's objects yet puts everybody off for a second.

        Raises:
            ConfigurationError: the access cannot be used.
        """
        transport = Transport(
            await load_configuration(access),
            concurrent_writes=concurrent_writes,
            timeout_seconds=timeout_seconds,
            on_request=on_request,
            program=program,
            read_retries=read_retries,
        )
        return cls(transport)

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        """One object, read from quorum."""
        return await self._transport.request("get", "GET", resource, _path(resource, namespace, name))

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        """All matching objects of a namespace; of all namespaces where ``namespace`` is empty."""
        path = _path(resource, namespace) + _selected(label_selector)
        return _items(await self._transport.request("list", "GET", resource, path, most_bytes=most_bytes))

    async def list_metadata(
        self, resource: Resource, namespace: str, *, label_selector: str = ""
    ) -> Sequence[JsonObject]:
        """The same, as PartialObjectMetadata."""
        path = _path(resource, namespace) + _selected(label_selector)
        return _items(await self._transport.request("list", "GET", resource, path, accept=METADATA_LIST))

    async def events_of(self, namespace: str, uid: str) -> Sequence[JsonObject]:
        """See the port; the API server selects them, so that a namespace's other Events are not sent."""
        query = urlencode({"fieldSelector": f"involvedObject.uid={uid}", "limit": EVENTS_LIMIT})
        answer = await self._transport.request("list", "GET", EVENTS, f"{_path(EVENTS, namespace)}?{query}")
        return _items(answer)

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server has this kind in this version, by its discovery."""
        try:
            found = await self._transport.request("get", "GET", resource, resource.base)
        except NotFound:
            return False
        return any(mapping(kind).get("name") == resource.plural for kind in sequence(found.get("resources")))

    async def changed(self, resource: Resource, namespace: str, name: str, *, since: str, seconds: float) -> bool:
        """A watch of one object that ends with its first event. One that cannot go on counts as a change: read anew."""
        limit = max(1, round(seconds))
        query = {"watch": "1", "fieldSelector": f"metadata.name={name}", "resourceVersion": since}
        path = f"{_path(resource, namespace)}?{urlencode({**query, 'timeoutSeconds': limit})}"
        return await self._transport.watch(path, seconds=limit)

    async def create(self, resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        """POST; raises Conflict where it exists already."""
        return await self._transport.request("create", "POST", resource, _path(resource, namespace), body, JSON)

    async def replace(self, resource: Resource, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """PUT; raises Conflict where the body's resourceVersion is not the newest."""
        return await self._transport.request("update", "PUT", resource, _path(resource, namespace, name), body, JSON)

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, subresource: str = ""
    ) -> JsonObject:
        """Merge patch of the object, or of one of its subresources."""
        path = _path(resource, namespace, name) + (f"/{subresource}" if subresource else "")
        return await self._transport.request(
            "patch", "PATCH", resource, f"{path}?{self._manager}", dict(body), MERGE_PATCH
        )

    async def json_patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> None:
        """JSON patch; a ``test`` that does not hold raises PreconditionFailed."""
        body: list[JsonValue] = [operation.to_json() for operation in operations]
        path = _path(resource, namespace, name)
        await self._transport.request(
            "patch", "PATCH", resource, f"{path}?{self._manager}", body, JSON_PATCH, accept=METADATA, read=unread_object
        )

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """DELETE; raises NotFound where it is gone already, Conflict where it is not the object that is meant."""
        verb, query = ("dry-run", "?dryRun=All") if deletion.dry_run else ("delete", "")
        path = _path(resource, namespace, name) + query
        await self._transport.request(verb, "DELETE", resource, path, _options(deletion), read=unread_object)

    async def evict(self, namespace: str, pod: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """POST to the pod's subresource; raises DisruptionBudget where a budget keeps the pod."""
        verb, query = ("dry-run", "?dryRun=All") if deletion.dry_run else ("create", "")
        metadata: JsonObject = {"name": pod, "namespace": namespace}
        body: JsonObject = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        body["deleteOptions"] = _options(deletion)
        path = f"{_path(PODS, namespace, pod)}/eviction{query}"
        await self._transport.request(
            verb, "POST", EVICTIONS, path, body, read=unread_object, more_seconds=EVICTION_SECONDS
        )

    async def dry_run(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, server: str = ""
    ) -> JsonObject:
        """A merge patch that writes nothing, over a connection of its own: behind a load balancer each may reach another
        server.
        """
        path = f"{_path(resource, namespace, name)}?dryRun=All&{self._manager}"
        return await self._transport.request_anew("PATCH", path, body, MERGE_PATCH, server=server)

    async def log(self, namespace: str, pod: str, container: str, *, since: str, previous: bool = False) -> str:
        """A container's last lines. What is no UTF-8 in them is replaced."""
        query = {
            "container": container,
            "sinceTime": since,
            "timestamps": "true",
            "tailLines": LOG_LINES,
            "limitBytes": LOG_BYTES,
            "previous": str(previous).lower(),
        }
        path = f"{_path(PODS, namespace, pod)}/log?{urlencode(query)}"
        return text(
            (await self._transport.request("get", "GET", LOGS, path, accept="*/*", read=_log_object)).get("log")
        )


def _log_object(raw: bytes) -> JsonObject:
    """A log as an answer is read: as an object."""
    return {"log": raw.decode(errors="replace")}


def _selected(label_selector: str) -> str:
    return f"?{urlencode({'labelSelector': label_selector})}" if label_selector else ""


def _items(answer: JsonObject) -> list[JsonObject]:
    items = answer.get("items")
    return [cast(JsonObject, item) for item in items] if isinstance(items, list) else []


def _options(deletion: Deletion) -> JsonObject:
    """As the wire wants it."""
    options: JsonObject = {"kind": "DeleteOptions", "apiVersion": "v1"}
    preconditions: JsonObject = {"uid": deletion.uid, "resourceVersion": deletion.resource_version}
    if any(preconditions.values()):
        options["preconditions"] = {name: value for name, value in preconditions.items() if value}
    if deletion.grace_seconds is not None:
        options["gracePeriodSeconds"] = deletion.grace_seconds
    if deletion.dry_run:
        options["dryRun"] = ["All"]  # in a query alone it is ignored: the server reads the body's options then
    return options


def _path(resource: Resource, namespace: str, name: str = "") -> str:
    """The path of an object, or of a collection where there is no name."""
    parts = [resource.base]
    if namespace:
        parts.append(f"namespaces/{quote(namespace, safe='')}")
    parts.append(resource.plural)
    if name:
        parts.append(quote(name, safe=""))
    return "/".join(parts)
