"""An API server in memory, for tests: the few behaviours that our writes rely on, and nothing else.

``tests/cluster/test_kube_client.py`` runs one suite against this and against a real API server, to keep them equal.
"""

import asyncio
import copy
import itertools
import json
from collections.abc import Callable, Mapping, Sequence

from precision_operator.errors import (
    AnswerTooLarge,
    Conflict,
    DisruptionBudget,
    KubeError,
    NotFound,
    PreconditionFailed,
)
from precision_operator.kube.port import (
    DISRUPTION_BUDGETS,
    EVENTS,
    EVENTS_LIMIT,
    PODS,
    SELF_SUBJECT_REVIEWS,
    UNCONDITIONAL,
    Deletion,
    JsonObject,
    JsonValue,
    Operation,
    Resource,
)
from precision_operator.workloads.budgets import Budgets

Key = tuple[str, str, str]


class FakeKube:
    """:class:`~precision_operator.kube.port.KubeApi` in memory, with resourceVersions and counted writes."""

    def __init__(self) -> None:
        self.objects: dict[Key, JsonObject] = {}
        self.writes: list[tuple[str, str, str]] = []
        """(verb, plural, name) of every write that was attempted."""
        self.reads: list[tuple[str, str, str]] = []
        self.before_write: Callable[[str, Key], None] = lambda verb, key: None
        """Called before each write; a test raises a KubeError here, or changes an object behind the writer's back."""
        self.while_watched: Callable[[], None] = lambda: None
        """Called while somebody waits for a change; a test changes the object here."""
        self.user = "ada"
        """Who asks, by a SelfSubjectReview; empty: there is no such API."""
        self.answer: Callable[[JsonObject], JsonObject] = lambda body: body
        """What admission makes of an object in a dry run."""
        self.unserved: set[Resource] = set()
        """Kinds that there are not."""
        self.logs: dict[tuple[str, str, bool], str] = {}
        """(pod, container, previous) → its log."""
        self._versions = itertools.count(1)

    def put(self, resource: Resource, body: JsonObject) -> JsonObject:
        """Put an object there without it counting as a write; fills in uid and resourceVersion."""
        stored = _object(_pruned(copy.deepcopy(body)))
        metadata = _object(stored.setdefault("metadata", {}))
        metadata.setdefault("namespace", "default")
        metadata.setdefault("uid", f"uid-{resource.plural}-{metadata['name']}")
        metadata["resourceVersion"] = str(next(self._versions))
        self.objects[(resource.plural, str(metadata["namespace"]), str(metadata["name"]))] = stored
        return copy.deepcopy(stored)

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        """See the port."""
        self.reads.append(("get", resource.plural, name))
        return copy.deepcopy(self._find((resource.plural, namespace, name)))

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        """See the port; understands equalities, or one ``key in (…)``."""
        self.reads.append(("list", resource.plural, label_selector))
        key, among, values = label_selector.partition(" in ")
        wanted = {} if among else dict(part.split("=", 1) for part in label_selector.split(",") if part)
        allowed = set(values.strip("()").split(","))
        found = [
            copy.deepcopy(body)
            for (plural, where, _), body in sorted(self.objects.items())
            if plural == resource.plural
            and namespace in ("", where)
            and wanted.items() <= _labels(body).items()
            and (not among or _labels(body).get(key) in allowed)
        ]
        if most_bytes is not None and len(json.dumps(found)) > most_bytes:
            raise AnswerTooLarge(f"expected at most {most_bytes} bytes")
        return found

    async def events_of(self, namespace: str, uid: str) -> Sequence[JsonObject]:
        """See the port."""
        self.reads.append(("list", EVENTS.plural, f"involvedObject.uid={uid}"))
        kept = sorted(self.objects.items())
        found = [
            copy.deepcopy(body) for (plural, where, _), body in kept if (plural, where) == (EVENTS.plural, namespace)
        ]
        return [body for body in found if _object(body.get("involvedObject") or {}).get("uid") == uid][:EVENTS_LIMIT]

    async def list_metadata(
        self, resource: Resource, namespace: str, *, label_selector: str = ""
    ) -> Sequence[JsonObject]:
        """See the port."""
        found = await self.list(resource, namespace, label_selector=label_selector)
        return [{"metadata": body["metadata"]} for body in found]

    async def serves(self, resource: Resource) -> bool:
        """See the port."""
        return resource not in self.unserved

    async def changed(self, resource: Resource, namespace: str, name: str, *, since: str, seconds: float) -> bool:
        """See the port."""
        end = asyncio.get_running_loop().time() + seconds
        while self._version(resource, namespace, name) == since and asyncio.get_running_loop().time() < end:
            self.while_watched()
            await asyncio.sleep(0.01)
        return self._version(resource, namespace, name) != since

    def _version(self, resource: Resource, namespace: str, name: str) -> str:
        found = self.objects.get((resource.plural, namespace, name), {})
        return str(_object(found.get("metadata") or {}).get("resourceVersion", ""))

    async def create(self, resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        """See the port. A review is answered, and not stored."""
        if resource == SELF_SUBJECT_REVIEWS:
            if not self.user:
                raise NotFound("the server could not find the requested resource", status=404)
            return {**body, "status": {"userInfo": {"username": self.user}}}
        stored = copy.deepcopy(body)
        metadata = _object(stored.setdefault("metadata", {}))
        metadata["namespace"] = namespace
        if "name" not in metadata:
            metadata["name"] = f"{metadata['generateName']}{next(self._versions)}"
        key = (resource.plural, namespace, str(metadata["name"]))
        self._write("create", key)
        if key in self.objects:
            raise Conflict(f"{key} exists already", status=409)
        metadata["uid"] = f"uid-{resource.plural}-{metadata['name']}-{next(self._versions)}"
        return self.put(resource, stored)

    async def replace(self, resource: Resource, namespace: str, name: str, body: JsonObject) -> JsonObject:
        """See the port."""
        key = (resource.plural, namespace, name)
        self._write("update", key)
        current = self._find(key)
        self._check_version(current, body)
        metadata = {**_object(body["metadata"]), "uid": _object(current["metadata"])["uid"]}
        return self.put(resource, {**body, "metadata": metadata})

    async def merge_patch(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, subresource: str = ""
    ) -> JsonObject:
        """See the port. A patch of ``status`` changes nothing else; one of the object leaves its status alone."""
        key = (resource.plural, namespace, name)
        self._write("patch", key)
        current = self._find(key)
        self._check_version(current, body)
        wanted = {k: v for k, v in body.items() if (k == "status") == (subresource == "status")}
        merged = _object(merge(copy.deepcopy(current), wanted))
        return self.put(resource, merged)

    async def json_patch(self, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> None:
        """See the port."""
        key = (resource.plural, namespace, name)
        self._write("patch", key)
        patched = copy.deepcopy(self._find(key))
        for operation in operations:
            apply_operation(patched, operation)
        self.put(resource, patched)

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """See the port; the grace passes at once."""
        key = (resource.plural, namespace, name)
        if not deletion.dry_run:
            self._write("delete", key)
        _check_preconditions(_object(self._find(key)["metadata"]), deletion)
        if not deletion.dry_run:
            del self.objects[key]

    async def evict(self, namespace: str, pod: str, deletion: Deletion = UNCONDITIONAL) -> None:
        """See the port; counts as a creation of ``pods/eviction``. Each budget allows what its status says."""
        if not deletion.dry_run:
            self._write("create", ("pods/eviction", namespace, pod))
        body = self._find((PODS.plural, namespace, pod))
        budgets = Budgets()
        for budget in await self.list(DISRUPTION_BUDGETS, namespace):
            budgets.add(budget)
        against = budgets.against([body])
        if against is not None:
            raise DisruptionBudget(f"Cannot evict pod: {against}", budget=against)
        _check_preconditions(_object(body["metadata"]), deletion)
        if not deletion.dry_run:
            del self.objects[PODS.plural, namespace, pod]

    async def dry_run(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, server: str = ""
    ) -> JsonObject:
        """See the port; ``answer`` stands for admission."""
        self.reads.append(("dry-run", resource.plural, name))
        found = copy.deepcopy(self._find((resource.plural, namespace, name)))
        return self.answer(_object(merge(found, dict(body))))

    async def log(self, namespace: str, pod: str, container: str, *, since: str, previous: bool = False) -> str:
        """See the port: what :attr:`logs` holds; ``since`` is not understood."""
        self._find((PODS.plural, namespace, pod))
        return self.logs.get((pod, container, previous), "")

    def _write(self, verb: str, key: Key) -> None:
        self.writes.append((verb, key[0], key[2]))
        self.before_write(verb, key)

    def _find(self, key: Key) -> JsonObject:
        try:
            return self.objects[key]
        except KeyError:
            raise NotFound(f"{key} not found", status=404) from None

    @staticmethod
    def _check_version(current: JsonObject, body: Mapping[str, JsonValue]) -> None:
        metadata = body.get("metadata")
        wanted = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if wanted is not None and wanted != _object(current["metadata"])["resourceVersion"]:
            raise Conflict("the object has been modified", status=409)


def _object(value: JsonValue) -> JsonObject:
    assert isinstance(value, dict)
    return value


def _check_preconditions(found: JsonObject, deletion: Deletion) -> None:
    for what, wanted, there in (
        ("UID", deletion.uid, "uid"),
        ("ResourceVersion", deletion.resource_version, "resourceVersion"),
    ):
        if wanted and found[there] != wanted:
            raise Conflict(
                f"the {what} in the precondition ({wanted}) does not match the {what} in record ({found[there]})",
                status=409,
            )


def _labels(body: JsonObject) -> Mapping[str, JsonValue]:
    return _object(_object(body["metadata"]).get("labels") or {})


def _pruned(value: JsonValue) -> JsonValue:
    """Without the empty annotations, empty env lists and false pauses, which the API server does not keep either."""
    if isinstance(value, list):
        return [_pruned(item) for item in value]
    if not isinstance(value, dict):
        return value
    dropped: dict[str, JsonValue] = {"annotations": {}, "env": [], "paused": False}
    return {
        key: _pruned(item) for key, item in value.items() if item is None or key not in dropped or item != dropped[key]
    }


def merge(target: JsonValue, patch: Mapping[str, JsonValue]) -> JsonValue:
    """RFC 7396."""
    result: JsonObject = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge(result.get(key), value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def _invalid(operation: Operation, why: str) -> KubeError:
    return PreconditionFailed(f"{operation.op} {operation.path}: {why}", status=422)


def apply_operation(document: JsonObject, operation: Operation) -> None:
    """RFC 6902 as the API server's library does it.

    ``test`` for null holds where the last part of the path is absent; a missing parent is an error for every operation.
    """
    *parents, last = [p.replace("~1", "/").replace("~0", "~") for p in operation.path.split("/")[1:]]
    container: JsonValue = document
    for part in parents:
        child = _child(container, part)
        if child is None:
            raise _invalid(operation, f"{part} is missing")
        container = child
    if operation.op == "test":
        if _child(container, last) != operation.value:
            raise PreconditionFailed(f"testing value {operation.path} failed: test failed", status=422)
    elif isinstance(container, dict):
        if operation.op in ("remove", "replace") and last not in container:
            raise _invalid(operation, "the path is missing")
        if operation.op == "remove":
            del container[last]
        else:
            container[last] = copy.deepcopy(operation.value)
    elif isinstance(container, list):
        _change_list(container, last, operation)
    else:
        raise _invalid(operation, "the parent is neither a map nor a list")


def _change_list(container: list[JsonValue], last: str, operation: Operation) -> None:
    index = len(container) if last == "-" else int(last)
    if operation.op == "add" and index <= len(container):
        container.insert(index, copy.deepcopy(operation.value))
    elif operation.op == "replace" and index < len(container):
        container[index] = copy.deepcopy(operation.value)
    elif operation.op == "remove" and index < len(container):
        del container[index]
    else:
        raise _invalid(operation, "the index is out of range")


def _child(container: JsonValue, part: str) -> JsonValue:
    if isinstance(container, dict):
        return container.get(part)
    if isinstance(container, list) and part.isdigit() and int(part) < len(container):
        return container[int(part)]
    return None
