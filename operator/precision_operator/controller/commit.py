"""The commit: the whole record in one compare-and-swap."""

from collections.abc import Mapping
from contextlib import suppress

from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.policy import PolicyKey
from precision_operator.api.state import State
from precision_operator.api.wire import mapping, text
from precision_operator.errors import Conflict, NotFound
from precision_operator.kube.port import ASSIGNMENTS, Deletion, JsonObject, KubeApi

_OURS = ("apiVersion", "kind", "metadata")


async def commit(api: KubeApi, key: PolicyKey, body: JsonObject | None, before: State, after: State) -> bool:
    """Write the assignment where it changed, or where there is none; returns whether it was written.

    Raises:
        Conflict: it changed since it was read, or went: an older leader is writing, or a person deleted it; gather again.
        KubeError: as the API server answered.
    """
    if body is not None and after == before:
        return False
    wire = as_json(assignment_to_wire(after))
    metadata: JsonObject = {"name": key.name, "namespace": key.namespace}
    document: JsonObject = {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionAssignment",
        "metadata": metadata,
        **wire,
    }
    if body is None:
        await api.create(ASSIGNMENTS, key.namespace, document)
        return True
    if {name: value for name, value in body.items() if name not in _OURS} == wire:
        return False
    known = body.get("metadata")
    for name in ("resourceVersion", "uid", "labels", "annotations"):
        if isinstance(known, dict) and name in known:
            metadata[name] = known[name]
    try:
        await api.replace(ASSIGNMENTS, key.namespace, key.name, document)
    except NotFound as error:
        raise Conflict(f"{error}; it was deleted since it was read") from error
    return True


async def remove(api: KubeApi, key: PolicyKey, body: JsonObject) -> None:
    """Delete the assignment as it was read.

    Raises:
        Conflict: it changed since: gather again.
        KubeError: as the API server answered.
    """
    metadata = mapping(body.get("metadata"))
    uid, version = text(metadata.get("uid")), text(metadata.get("resourceVersion"))
    with suppress(NotFound):
        await api.delete(ASSIGNMENTS, key.namespace, key.name, Deletion(uid=uid, resource_version=version))


def as_json(wire: Mapping[str, object]) -> JsonObject:
    """The wire form is JSON by construction; this only says so to the type checker."""
    return {key: value for key, value in wire.items() if _is_json(value)}  # type: ignore[misc]


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_json(v) for v in value.values())
    if isinstance(value, list):
        return all(_is_json(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)
