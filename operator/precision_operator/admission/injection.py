"""The contract of docs/contract.md, written into a pod whose label ``inject`` names the container for it.

manifests/admission/inject.yaml does the same in the API server, step by step. tests/support/corpus.py holds both
together. Whatever is added here must be total, must read a bounded part of a pod, and must not make a pod invalid. It
must also not depend on what an assignment changes in a pod, because the two may run in any order.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from precision_operator.admission.annotations import LIMIT_BYTES, OURS, have_room, size
from precision_operator.api.injection import REFUSED, Refusal
from precision_operator.api.wire import mapping, sequence, text
from precision_operator.contract import (
    ENABLE,
    ENABLE_ENV,
    INJECT,
    INJECTED,
    METRICS_PORT,
    METRICS_PORT_NAME,
    MODE,
    MODE_ENV,
    POD_UID_ENV,
    REQUEST,
    REQUEST_FILE,
    REQUEST_FILE_ENV,
    SCRAPE,
    SCRAPE_PORT,
)

Body = Mapping[str, object]

MAX_CONTAINERS = 100
MAX_PARTS = 1_000
"""Env entries and ports of all containers, mounts and devices of the container, and volumes; without those of ours."""
MAX_ITEMS = 100
"""Files of one volume, and sources of a projected one. A volume with more is not read."""
MAX_PATH = 256
"""Characters of a mount's path. A longer one is not read, and counts as taken."""
MAX_ANNOTATIONS = 900
MAX_ANNOTATION_BYTES = LIMIT_BYTES - 9216
"""Below what an assignment needs, so that an injection never takes its room."""
MAX_OWN_BYTES = 2_048
"""What an assignment writes into one annotation, at most."""

VOLUME: Final = "precision"
_MIRROR = "kubernetes.io/config.mirror"
_DIRECTORY, _, _FILE = REQUEST_FILE.rpartition("/")
_OWN_PATH = re.compile("/*(?:[.]/+)*etc/+(?:[.]/+)*precision(?:/+[.])*/*")
_NEAR_PATH = re.compile(
    "/*(?:[.]/+)*(?:[.]|etc(?:/+[.])*/*|etc/+(?:[.]/+)*precision(?:/.*)?)?|(?:.*/)?[.][.](?:/.*)?", re.DOTALL
)
"""At, above or below our path; and with ``..`` in it, which is not worked out."""

_OWN_ENV = (ENABLE_ENV, MODE_ENV, POD_UID_ENV)
_SCRAPED = {SCRAPE: "true", SCRAPE_PORT: str(METRICS_PORT)}
_SCRAPING = (*_SCRAPED, "prometheus.io/path", "prometheus.io/scheme")


def _field(path: str) -> Body:
    return {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}


def _annotation(name: str) -> str:
    return f"metadata.annotations['{name}']"


_ENTRIES: Mapping[str, Body] = {
    ENABLE_ENV: {"name": ENABLE_ENV, "valueFrom": _field(_annotation(ENABLE))},
    MODE_ENV: {"name": MODE_ENV, "valueFrom": _field(_annotation(MODE))},
    POD_UID_ENV: {"name": POD_UID_ENV, "valueFrom": _field("metadata.uid")},
}
_PORT: Body = {"name": METRICS_PORT_NAME, "containerPort": METRICS_PORT, "protocol": "TCP"}
_MOUNT: Body = {"name": VOLUME, "readOnly": True, "mountPath": _DIRECTORY}
_VOLUME: Body = {
    "name": VOLUME,
    "downwardAPI": {"items": [{"path": _FILE, **_field(_annotation(REQUEST))}], "defaultMode": 0o644},
}


def asks(pod: Body) -> bool:
    """Whether a pod, or a pod template, carries the label."""
    return isinstance(_labels(pod).get(INJECT), str)


def inject(pod: Body) -> Body:
    """The pod with the contract in the container that its label names, or with the reason why not; else as it is.

    What is declared already is not declared again. Doing it twice changes nothing more.
    """
    if not asks(pod):
        return pod
    metadata, spec = mapping(pod.get("metadata")), mapping(pod.get("spec"))
    annotations = mapping(metadata.get("annotations"))
    if not _has_room(annotations):
        if INJECTED not in annotations:
            return pod
        others = {key: value for key, value in annotations.items() if key != INJECTED}
        return {**pod, "metadata": {**metadata, "annotations": others}}
    name = text(_labels(pod)[INJECT])
    refusal = _refusal(spec, annotations, name)
    if refusal is not None:
        said = {**annotations, INJECTED: f"{REFUSED}{refusal}"}
        return {**pod, "metadata": {**metadata, "annotations": said}}
    scraped = {} if any(key in annotations for key in _SCRAPING) else _SCRAPED
    said = {**annotations, **scraped, INJECTED: name}
    return {**pod, "metadata": {**metadata, "annotations": said}, "spec": _declared(spec, name)}


def _labels(pod: Body) -> Body:
    return mapping(mapping(pod.get("metadata")).get("labels"))


def _has_room(annotations: Body) -> bool:
    """Whether what we and an assignment write fits beside what stays, whether they stand there already or not."""
    ours = {*OURS, INJECTED, *(key for key, value in _SCRAPED.items() if annotations.get(key) == value)}
    if len(annotations) - sum(key in annotations for key in ours) > MAX_ANNOTATIONS:
        return False
    staying = {
        key: value
        for key, value in annotations.items()
        if key not in ours or (key in OURS and size(text(value)) > MAX_OWN_BYTES)
    }
    return have_room(staying, limit=MAX_ANNOTATION_BYTES)


# ---- what is there


def _items(body: Body, field: str) -> Sequence[Body]:
    return [mapping(item) for item in sequence(body.get(field))]


def _containers(spec: Body) -> Sequence[Body]:
    return [*_items(spec, "containers"), *_items(spec, "initContainers")]


def _chosen(spec: Body, name: str) -> Body | None:
    return next((container for container in _items(spec, "containers") if container.get("name") == name), None)


def _names(container: Body) -> frozenset[str]:
    return frozenset(text(entry.get("name")) for entry in _items(container, "env"))


def _is_metrics(port: Body) -> bool:
    return port.get("containerPort") == METRICS_PORT and port.get("protocol", "TCP") == "TCP"


def _has_port(container: Body) -> bool:
    return any(map(_is_metrics, _items(container, "ports")))


def _mounts(container: Body) -> Sequence[Body]:
    """The mounts at our path."""
    paths = [(mount, text(mount.get("mountPath"))) for mount in _items(container, "volumeMounts")]
    return [mount for mount, path in paths if len(path) <= MAX_PATH and _OWN_PATH.fullmatch(path)]


def _volume_names(spec: Body) -> frozenset[str]:
    return frozenset(text(volume.get("name")) for volume in _items(spec, "volumes"))


def _carries_request(spec: Body, name: str) -> bool:
    """Whether the volume of that name holds the request under the name that the trainer reads."""
    wanted = _annotation(REQUEST)
    for volume in _items(spec, "volumes"):
        sources = _items(mapping(volume.get("projected")), "sources")
        if volume.get("name") != name or len(sources) > MAX_ITEMS:
            continue
        for source in (volume, *sources):
            files = _items(mapping(source.get("downwardAPI")), "items")
            found = any(
                file.get("path") == _FILE and mapping(file.get("fieldRef")).get("fieldPath") == wanted
                for file in files[:MAX_ITEMS]
            )
            if found and len(files) <= MAX_ITEMS:
                return True
    return False


# ---- what stands against it


def _refusal(spec: Body, annotations: Body, name: str) -> Refusal | None:
    """The first reason not to inject; None: there is none."""
    chosen = _chosen(spec, name)
    if chosen is None:
        return Refusal.CONTAINER_ABSENT
    if _MIRROR in annotations:
        return Refusal.STATIC_POD
    if mapping(spec.get("os")).get("name") == "windows":
        return Refusal.WINDOWS
    if spec.get("hostNetwork") is True:
        return Refusal.HOST_NETWORK
    if _too_large(spec, chosen):
        return Refusal.TOO_LARGE
    return _elsewhere(chosen) or _no_place(spec, chosen) or _no_port(spec, chosen)


def _too_large(spec: Body, chosen: Body) -> bool:
    containers = _containers(spec)
    if len(containers) > MAX_CONTAINERS:
        return True
    parts = sum(len(_items(item, "env")) + len(_items(item, "ports")) for item in containers)
    parts += len(_items(chosen, "volumeMounts")) + len(_items(chosen, "volumeDevices")) + len(_items(spec, "volumes"))
    if parts > MAX_PARTS + len(_OWN_ENV) * len(containers) + 3:
        return True  # whatever of it is ours
    ours = sum(name in names for names in map(_names, containers) for name in _OWN_ENV)
    ours += _has_port(chosen) + bool(_mounts(chosen)) + (VOLUME in _volume_names(spec))
    return parts - ours > MAX_PARTS


def _elsewhere(chosen: Body) -> Refusal | None:
    told = (entry for entry in _items(chosen, "env") if entry.get("name") == REQUEST_FILE_ENV)
    return Refusal.REQUEST_FILE_ELSEWHERE if any(entry.get("value") != REQUEST_FILE for entry in told) else None


def _no_place(spec: Body, chosen: Body) -> Refusal | None:
    there = _mounts(chosen)
    if there:
        mount = there[0]
        partly = bool(mount.get("subPath") or mount.get("subPathExpr"))
        right = len(there) == 1 and not partly and _carries_request(spec, text(mount.get("name")))
        return None if right else Refusal.MOUNT_PATH_TAKEN
    paths = [text(mount.get("mountPath")) for mount in _items(chosen, "volumeMounts")]
    paths += [text(device.get("devicePath")) for device in _items(chosen, "volumeDevices")]
    if any(len(path) > MAX_PATH or _NEAR_PATH.fullmatch(path) for path in paths):
        return Refusal.MOUNT_PATH_TAKEN
    taken = VOLUME in _volume_names(spec) and not _carries_request(spec, VOLUME)
    return Refusal.VOLUME_NAME_TAKEN if taken else None


def _no_port(spec: Body, chosen: Body) -> Refusal | None:
    if any(_has_port(other) for other in _containers(spec) if other is not chosen):
        return Refusal.PORT_TAKEN
    named = any(port.get("name") == METRICS_PORT_NAME for item in _containers(spec) for port in _items(item, "ports"))
    return Refusal.PORT_NAME_TAKEN if named and not _has_port(chosen) else None


# ---- what is added


def _declared(spec: Body, name: str) -> Body:
    containers, done = list(_items(spec, "containers")), dict(spec)
    index = next(at for at, container in enumerate(containers) if container.get("name") == name)
    chosen = containers[index]
    mounted = bool(_mounts(chosen))
    added = {
        "env": [*_missing_entries(chosen), *sequence(chosen.get("env"))],
        "ports": [*sequence(chosen.get("ports")), *([] if _has_port(chosen) else [_PORT])],
        "volumeMounts": [*sequence(chosen.get("volumeMounts")), *([] if mounted else [_MOUNT])],
    }
    containers[index] = {**chosen, **{field: entries for field, entries in added.items() if entries}}
    if not mounted and VOLUME not in _volume_names(spec):
        done["volumes"] = [*sequence(spec.get("volumes")), _VOLUME]
    return {**done, "containers": containers}


def _missing_entries(container: Body) -> Sequence[Body]:
    """At the front of the list, because an assignment appends to it: so the order of the two does not matter.

    Where an assignment writes the mode itself (the container names the switch, or has an envFrom), it is left to that.
    """
    names = _names(container)
    written = ENABLE_ENV in names or bool(sequence(container.get("envFrom")))
    left = (ENABLE_ENV, MODE_ENV) if written else ()
    return [entry for name, entry in _ENTRIES.items() if name not in names and name not in left]
