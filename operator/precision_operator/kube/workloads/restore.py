"""Giving a template its original values back, byte for byte, from what was kept in the ``original`` annotation."""

import json
from collections.abc import Iterator, Mapping

from precision_operator.api.wire import mapping, sequence, text
from precision_operator.contract import ENABLE_ENV, GENERATION, LATCH, MODE_ENV, ORIGINAL, SETTLE
from precision_operator.errors import PolicyError
from precision_operator.kube.port import JsonObject, JsonValue, Operation
from precision_operator.kube.workloads.patches import INNER, OWN, POD_TEMPLATE, changes, ensure_map, pointer
from precision_operator.kube.workloads.reading import parse_settle, strings


def restore(body: Mapping[str, JsonValue], uid: str) -> list[Operation]:
    """The patch that undoes all our writes of the template; empty where nothing of ours is kept.

    The generation stays on the workload, so that a policy made later outranks what its trainers have seen. What
    somebody else changed meanwhile (a removed container, other annotations) is left as it is. Kubernetes drops empty
    maps and lists by itself.

    Raises:
        PolicyError: the kept original cannot be read.
    """
    metadata, spec = mapping(body.get("metadata")), mapping(body.get("spec"))
    own = strings(metadata.get("annotations"))
    kept = own.get(ORIGINAL)
    if kept is None:
        return []
    try:
        original = mapping(json.loads(kept))
    except ValueError as error:
        raise PolicyError(
            "OriginalUnreadable", f"annotation {ORIGINAL} is not JSON: {error}; restore by hand"
        ) from error
    operations = [
        Operation("test", "/metadata/uid", uid),
        Operation("test", pointer(OWN, ORIGINAL), kept),
        Operation("test", pointer(OWN, GENERATION), own.get(GENERATION)),
    ]
    template = mapping(spec.get("template"))
    inner = strings(mapping(template.get("metadata")).get("annotations"))
    wanted = {
        key: value if isinstance(value, str) else None for key, value in mapping(original.get("annotations")).items()
    }
    annotations = changes(INNER, inner, wanted)
    operations += (ensure_map(INNER, bool(inner)) + annotations) if annotations else []
    for container in map(mapping, sequence(original.get("containers"))):
        operations += _container(mapping(template.get("spec")), container)
    settle = parse_settle(own.get(SETTLE))
    if settle is not None and bool(spec.get("paused")) != settle.was_paused:
        operations.append(Operation("add", "/spec/paused", settle.was_paused))
    return operations + changes(OWN, own, {ORIGINAL: None, LATCH: None, SETTLE: None})


def _container(pod: Mapping[str, object], original: Mapping[str, object]) -> Iterator[Operation]:
    """Operations on one container: entries put back in place, ours removed from the end backwards."""
    field, name = text(original.get("field")), text(original.get("name"))
    found = enumerate(map(mapping, sequence(pod.get(field))))
    index = next((at for at, container in found if container.get("name") == name), None)
    if index is None:
        return
    env = list(map(mapping, sequence(mapping(sequence(pod.get(field))[index]).get("env"))))
    base = f"{POD_TEMPLATE}/spec/{field}/{index}"
    replaced: list[Operation] = []
    surplus: list[int] = []
    for variable in (ENABLE_ENV, MODE_ENV):
        now = [at for at, entry in enumerate(env) if entry.get("name") == variable]
        before = [entry for entry in map(_entry, sequence(original.get("env"))) if entry.get("name") == variable]
        surplus += now[len(before) :]
        for at, entry in zip(now, before, strict=False):
            if env[at] != entry:
                replaced.append(Operation("test", f"{base}/env/{at}/name", variable))
                replaced.append(Operation("replace", f"{base}/env/{at}", entry))
    if replaced or surplus:
        yield Operation("test", f"{base}/name", name)
        yield from replaced
    for at in sorted(surplus, reverse=True):
        yield Operation("test", f"{base}/env/{at}/name", text(env[at].get("name")))
        yield Operation("remove", f"{base}/env/{at}")


def _entry(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}
