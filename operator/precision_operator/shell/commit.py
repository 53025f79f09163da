"""The commit: one compare-and-swap of the status, carrying only what changed."""

from collections.abc import Mapping

from precision_operator.api.state import State, status_to_wire
from precision_operator.kube.port import POLICIES, JsonObject, JsonValue, KubeApi
from precision_operator.shell.inventory import PolicyKey


def difference(old: Mapping[str, JsonValue], new: Mapping[str, JsonValue]) -> JsonObject:
    """The RFC 7396 merge patch that turns ``old`` into ``new``; empty where they are equal."""
    patch: JsonObject = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            inner = difference(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch


async def commit_status(api: KubeApi, key: PolicyKey, body: JsonObject, before: State, after: State) -> bool:
    """Write the status where it changed; returns whether it was written.

    Raises:
        Conflict: the policy changed since it was read, or an older leader is writing: gather again.
        KubeError: as the API server answered.
    """
    if after == before:
        return False
    raw = body.get("status")
    patch = difference(raw if isinstance(raw, dict) else {}, _json(status_to_wire(after)))
    if not patch:
        return False
    metadata = body.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    change: JsonObject = {"metadata": {"resourceVersion": version}, "status": patch}
    await api.merge_patch(POLICIES, key.namespace, key.name, change, subresource="status")
    return True


def _json(wire: Mapping[str, object]) -> JsonObject:
    """The wire form is JSON by construction; this only says so to the type checker."""
    return {key: value for key, value in wire.items() if _is_json(value)}  # type: ignore[misc]


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_json(v) for v in value.values())
    if isinstance(value, list):
        return all(_is_json(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)
