"""The Kubernetes client: ``kubernetes.aio`` for credentials and connections, raw JSON for everything else.

The library's models are not used: they cost time and memory and drop fields that they do not know.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self, cast
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject, RESTResponse

from precision_operator import __version__
from precision_operator.api.wire import mapping, sequence, text
from precision_operator.errors import AnswerTooLarge, KubeError, NotFound, TooManyRequests, Unavailable
from precision_operator.kube.access import Access, authorization, load_configuration
from precision_operator.kube.answers import error_of, parsed_object, unread_object
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

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
"""An answer without spec and status: nobody reads them, and a fleet's worth takes both sides' time in an emergency."""
METADATA_LIST = METADATA.replace("PartialObjectMetadata", "PartialObjectMetadataList")

EVICTIONS = Resource("", "v1", "pods/eviction")
LOGS = Resource("", "v1", "pods/log")
"""As requests are counted: both are addressed by their pod."""

READ_CONNECTIONS = 8
"""Connections on top of the concurrent writes, so that a Lease renewal never waits behind an emergency's writes."""

CONNECT_SECONDS = 2.0
"""How long a dry run waits for a connection: an API server that is gone does not refuse one, it says nothing."""

EVICTION_SECONDS = 12.0
"""How long the API server tries an eviction that conflicts before it says so: 20 times, 0.5 s apart. A pod that has been
replaced by another of its name conflicts (EvictionsRetry in pkg/registry/core/pod/storage/eviction.go).
"""

PAUSE_SECONDS = 0.1, 2.0
"""Least and most before a read is tried again, whatever the API server asks for: somebody waits for it."""

RequestHook = Callable[[str, str, str], None]
"""Called once a request with (verb, resource, result); result is ``Success`` or an error's reason."""


def _nothing(verb: str, resource: str, result: str) -> None:
    return None


class KubeClient:
    """The port over HTTP. Make it with :meth:`connect`, end it with :meth:`close`."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        concurrent_writes: int = 32,
        timeout_seconds: float = 10.0,
        on_request: RequestHook = _nothing,
        program: str = FIELD_MANAGER,
        read_retries: int = 0,
    ) -> None:
        configuration.connection_pool_maxsize = concurrent_writes + READ_CONNECTIONS
        configuration.retries = None
        # An environment proxy is looked up anew for every request, at more cost than the request; kubeconfig's is kept.
        configuration.client_session_kwargs = {"trust_env": False, "cookie_jar": aiohttp.DummyCookieJar()}
        self._configuration = configuration
        self._rest = RESTClientObject(configuration)
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._timeout_of_eviction = aiohttp.ClientTimeout(total=timeout_seconds + EVICTION_SECONDS)
        self._timeout_anew = aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS)
        self._on_request = on_request
        self._read_retries = read_retries
        self._headers = {"User-Agent": f"{program}/{__version__}"}
        self._manager = urlencode({"fieldManager": program})

    @classmethod
    async def connect(
        cls,
        access: Access,
        *,
        concurrent_writes: int = 32,
        timeout_seconds: float = 10.0,
        on_request: RequestHook = _nothing,
        program: str = FIELD_MANAGER,
        read_retries: int = 0,
    ) -> Self:
        """A client for this access; opens no connection yet.

        ``program``: who manages what it patches. ``read_retries``: how often a read that the API server puts off is tried
        again. One that has not read a CRD's objects yet puts everybody off for a second.

        Raises:
            ConfigurationError: the access cannot be used.
        """
        return cls(
            await load_configuration(access),
            concurrent_writes=concurrent_writes,
            timeout_seconds=timeout_seconds,
            on_request=on_request,
            program=program,
            read_retries=read_retries,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._rest.close()

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        """One object, read from quorum."""
        return await self._call("get", "GET", resource, _path(resource, namespace, name))

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        """All matching objects of a namespace; of all namespaces where ``namespace`` is empty."""
        path = _path(resource, namespace) + _selected(label_selector)
        return _items(await self._call("list", "GET", resource, path, most_bytes=most_bytes))

    async def list_metadata(
        self, resource: Resource, namespace: str, *, label_selector: str = ""
    ) -> Sequence[JsonObject]:
        """The same, as PartialObjectMetadata."""
        path = _path(resource, namespace) + _selected(label_selector)
        return _items(await self._call("list", "GET", resource, path, accept=METADATA_LIST))

    async def events_of(self, namespace: str, uid: str) -> Sequence[JsonObject]:
        """See the port; the API server selects them, so that a namespace's other Events are not sent."""
        query = urlencode({"fieldSelector": f"involvedObject.uid={uid}", "limit": EVENTS_LIMIT})
        answer = await self._call("list", "GET", EVENTS, f"{_path(EVENTS, namespace)}?{query}")
        return _items(answer)

    async def serves(self, resource: Resource) -> bool:
        """Whether the API server has this kind in this version, by its discovery."""
        try:
            found = await self._call("get", "GET", resource, resource.base)
        except NotFound:
            return False
        return any(mapping(kind).get("name") == resource.plural for kind in sequence(found.get("resources")))

    async def changed(self, resource: Resource, namespace: str, name: str, *, since: str, seconds: float) -> bool:
        """A watch of one object that ends with its first event. One that cannot go on counts as a change: read anew."""
        limit = max(1, round(seconds))
        query = {"watch": "1", "fieldSelector": f"metadata.name={name}", "resourceVersion": since}
        path = f"{_path(resource, namespace)}?{urlencode({**query, 'timeoutSeconds': limit})}"
        timeout = aiohttp.ClientTimeout(total=limit + float(self._timeout.total or 0.0))
        headers = {**self._headers, **await self._authorization()}
        with _reaching(f"GET {path}"):
            try:
                response = await self._rest.request(  # type: ignore[no-untyped-call]
                    "GET", f"{self._configuration.host}{path}", headers=headers, _request_timeout=timeout
                )
                async with response.response as stream:
                    if stream.status == 200:
                        return bool(await stream.content.readany())
                    answer = parsed_object(await stream.read())
            except TimeoutError:
                return False
        if stream.status == 410:
            return True
        raise error_of(f"GET {path}", stream.status, answer)

    async def create(self, resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        """POST; raises Conflict where it exists already."""
        return await self._call("create", "POST", resource, _path(resource, namespace), body, JSON)

    async def replace(self, resource: Resource, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """PUT; raises Conflict where the body's resourceVersion is not the newest."""
        return await self._call("update", "PUT", resource, _path(resource, namespace, name), body, JSON)

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, subresource: str = ""
    ) -> JsonObject:
        """Merge patch of the object, or of one of its subresources."""
        path = _path(resource, namespace, name) + (f"/{subresource}" if subresource else "")
        return await self._call("patch", "PATCH", resource, f"{path}?{self._manager}", dict(body), MERGE_PATCH)

    async def json_patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> None:
        """JSON patch; a ``test`` that does not hold raises PreconditionFailed."""
        body: list[JsonValue] = [operation.to_json() for operation in operations]
        path = _path(resource, namespace, name)
        await self._call(
            "patch", "PATCH", resource, f"{path}?{self._manager}", body, JSON_PATCH, accept=METADATA, read=unread_object
        )

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """DELETE; raises NotFound where it is gone already, Conflict where it is not the object that is meant."""
        verb, query = ("dry-run", "?dryRun=All") if deletion.dry_run else ("delete", "")
        path = _path(resource, namespace, name) + query
        await self._call(verb, "DELETE", resource, path, _options(deletion), read=unread_object)

    async def evict(self, namespace: str, pod: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """POST to the pod's subresource; raises DisruptionBudget where a budget keeps the pod."""
        verb, query = ("dry-run", "?dryRun=All") if deletion.dry_run else ("create", "")
        metadata: JsonObject = {"name": pod, "namespace": namespace}
        body: JsonObject = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
        body["deleteOptions"] = _options(deletion)
        path = f"{_path(PODS, namespace, pod)}/eviction{query}"
        await self._call(verb, "POST", EVICTIONS, path, body, read=unread_object, within=self._timeout_of_eviction)

    async def dry_run(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, server: str = ""
    ) -> JsonObject:
        """A merge patch that writes nothing, over a connection of its own: behind a load balancer each may reach another
        server.
        """
        path = f"{_path(resource, namespace, name)}?dryRun=All&{self._manager}"
        headers = {**self._headers, "Content-Type": MERGE_PATCH, "Accept": JSON, **await self._authorization()}
        url = f"{server or self._configuration.host}{path}"
        proxy = None if server else self._configuration.proxy
        with _reaching(f"PATCH {url}"):
            connector = aiohttp.TCPConnector(ssl=self._rest.ssl_context, force_close=True)
            async with aiohttp.ClientSession(connector=connector, timeout=self._timeout_anew) as session:
                answer = await session.patch(url, data=json.dumps(body), headers=headers, proxy=proxy)
                raw = await answer.read()
        return _success(f"PATCH {url}", answer.status, raw, answer.headers)

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
        return text((await self._call("get", "GET", LOGS, path, accept="*/*", read=_log_object)).get("log"))

    async def _call(
        self,
        verb: str,
        method: str,
        resource: Resource,
        path: str,
        body: JsonValue = None,
        content_type: str = JSON,
        *,
        accept: str = JSON,
        read: Callable[[bytes], JsonObject | None] = parsed_object,
        within: aiohttp.ClientTimeout | None = None,
        most_bytes: int | None = None,
    ) -> JsonObject:
        """One answer, and each request counted by its result. ``read``: how a success is read, where not as JSON."""
        what, url, timeout = f"{method} {path}", f"{self._configuration.host}{path}", within or self._timeout
        retries = self._read_retries if method == "GET" else 0
        while True:
            try:
                headers = {
                    **self._headers,
                    "Content-Type": content_type,
                    "Accept": accept,
                    **await self._authorization(),
                }
                with _reaching(what, late=f"no answer within {timeout.total} s"):
                    response = await self._rest.request(  # type: ignore[no-untyped-call]
                        method, url, headers=headers, body=body, _request_timeout=timeout
                    )
                    raw = await (response.read() if most_bytes is None else _start(response, most_bytes + 1))
                if most_bytes is not None and len(raw) > most_bytes:
                    raise AnswerTooLarge(f"{what}: expected at most {most_bytes} bytes, found more")
                answer = _success(what, response.status, raw, response.headers, read)
            except KubeError as error:
                self._on_request(verb, resource.plural, error.reason)
                if not retries or not isinstance(error, TooManyRequests):
                    raise
                retries -= 1
                least, most = PAUSE_SECONDS
                await asyncio.sleep(min(max(least, error.retry_after_seconds), most))
            else:
                self._on_request(verb, resource.plural, "Success")
                return answer

    async def _authorization(self) -> Mapping[str, str]:
        try:
            return await authorization(self._configuration)
        except OSError as error:
            raise Unavailable(f"the service account's token cannot be read: {error}") from error


@contextmanager
def _reaching(what: str, *, late: str = "no answer in time") -> Iterator[None]:
    """Whatever keeps an answer away is Unavailable. ``late``: how it is told that the time is over."""
    try:
        yield
    except TimeoutError as error:
        raise Unavailable(f"{what}: {late}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"{what}: {type(error).__name__}: {error}") from error


def _success(
    what: str,
    status: int,
    raw: bytes,
    headers: Mapping[str, str],
    read: Callable[[bytes], JsonObject | None] = parsed_object,
) -> JsonObject:
    """What an answer holds that is success; another raises its error."""
    answer = read(raw) if 200 <= status < 300 else None
    if answer is None:
        raise error_of(what, status, parsed_object(raw), retry_after=headers.get("Retry-After"))
    return answer


def _log_object(raw: bytes) -> JsonObject:
    """A log as an answer is read: as an object."""
    return {"log": raw.decode(errors="replace")}


def _selected(label_selector: str) -> str:
    return f"?{urlencode({'labelSelector': label_selector})}" if label_selector else ""


def _items(answer: JsonObject) -> list[JsonObject]:
    items = answer.get("items")
    return [cast(JsonObject, item) for item in items] if isinstance(items, list) else []


async def _start(response: RESTResponse, most_bytes: int) -> bytes:
    """The first bytes of an answer; the rest is not received."""
    async with response.response as stream:
        try:
            return cast(bytes, await stream.content.readexactly(most_bytes))
        except asyncio.IncompleteReadError as whole:
            return whole.partial


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
