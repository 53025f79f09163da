"""Bodies into slim records: what a pod template and a pod say about precision. Pure, and tolerant of odd bodies."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from sys import intern

from precision_operator.api.injection import parse_refusal
from precision_operator.api.modes import Mode, is_safer, parse_mode
from precision_operator.api.text import bounded
from precision_operator.api.wire import generation as believed
from precision_operator.api.wire import (
    generation_text,
    has_condition,
    integer,
    mapping,
    number,
    parse_time,
    sequence,
    text,
    texts,
)
from precision_operator.contract import (
    ADMITTED,
    ENABLE,
    ENABLE_ENV,
    INJECT,
    INJECTED,
    MODE,
    MODE_ENV,
    NO_FAILURE_EXIT_CODES,
    REQUEST,
    REWIND,
    TRUE_SPELLINGS,
)
from precision_operator.core.model import PodView, Request
from precision_operator.workloads.gpus import gpus_of
from precision_operator.workloads.identity import pod_index
from precision_operator.workloads.owner import controller_of
from precision_operator.workloads.records import PodRecord

REQUEST_CHARACTERS = 1024
"""A longer request was not written by us: it is neither parsed nor kept."""

ADMITTED_CHARACTERS = 2048
"""A longer record was not written by admission."""

FINALIZER_CHARACTERS = 128

REVISION_LABEL = "controller-revision-hash"

_OWN_FINALIZERS = frozenset({"batch.kubernetes.io/job-tracking", "foregroundDeletion", "orphan"})
"""Kubernetes' own controllers remove these as soon as the pod has ended."""


@dataclass(frozen=True, slots=True)
class ContainerSlot:
    """A container whose environment concerns us."""

    field: str
    """``containers`` or ``initContainers``."""
    env_from: bool
    entries: Mapping[str, Mapping[str, object]]
    """The env entries of ours, by name; of several the last, which is the one that counts."""


class Source(StrEnum):
    """Where an env entry takes its value from."""

    LITERAL = "Literal"
    ANNOTATION = "Annotation"
    """Through fieldRef, from the annotation that the contract gives it."""
    REFERENCE = "Reference"
    """From a ConfigMap, a Secret, or anything else that is not ours to edit."""


def source_of(entry: Mapping[str, object]) -> Source:
    """Where this entry takes its value from."""
    origin = mapping(entry.get("valueFrom"))
    if not origin:
        return Source.LITERAL
    wanted = {ENABLE_ENV: ENABLE, MODE_ENV: MODE}.get(text(entry.get("name")))
    path = text(mapping(origin.get("fieldRef")).get("fieldPath"))
    return Source.ANNOTATION if path == f"metadata.annotations['{wanted}']" else Source.REFERENCE


def parse_request(raw: str | None) -> Request | None:
    """The request annotation's value; None where absent or malformed."""
    if raw is None or len(raw) > REQUEST_CHARACTERS:
        return None
    try:
        body = mapping(json.loads(raw))
    except (ValueError, RecursionError):
        return None
    mode = parse_mode(text(body.get("mode")))
    generation = believed(body.get("generation"))
    if mode is None or generation is None:
        return None
    return Request(generation, mode, body.get(REWIND) is True)


def strings(value: object) -> Mapping[str, str]:
    """A map of strings: labels or annotations."""
    return {key: item for key, item in mapping(value).items() if isinstance(item, str)}


def interned(body: Mapping[str, object]) -> Mapping[str, str]:
    """The labels of a pod; thousands of pods have the same ones."""
    labels = strings(mapping(body.get("metadata")).get("labels"))
    return {intern(key): intern(value) for key, value in labels.items()}


def containers_of(spec: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """(field, container) of all containers, init containers last."""
    for field in ("containers", "initContainers"):
        for container in sequence(spec.get(field)):
            yield field, mapping(container)


def is_hot(spec: Mapping[str, object]) -> bool:
    """Whether a container can read the request annotation as a file that follows it.

    A subPath mount does not count: the kubelet never updates it.
    """
    mounted = {
        text(mapping(mount).get("name"))
        for _, container in containers_of(spec)
        for mount in sequence(container.get("volumeMounts"))
        if not mapping(mount).get("subPath") and not mapping(mount).get("subPathExpr")
    }
    return any(
        text(volume.get("name")) in mounted and any(_reads_request(source) for source in _downward(volume))
        for volume in map(mapping, sequence(spec.get("volumes")))
    )


def _downward(volume: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    yield mapping(volume.get("downwardAPI"))
    for source in sequence(mapping(volume.get("projected")).get("sources")):
        yield mapping(mapping(source).get("downwardAPI"))


def _reads_request(downward: Mapping[str, object]) -> bool:
    wanted = f"metadata.annotations['{REQUEST}']"
    return any(
        text(mapping(mapping(item).get("fieldRef")).get("fieldPath")) == wanted
        for item in sequence(downward.get("items"))
    )


def slots_of(spec: Mapping[str, object]) -> tuple[ContainerSlot, ...]:
    """The containers that name our environment, or may be given it by envFrom."""
    slots = []
    for field, container in containers_of(spec):
        env = map(mapping, sequence(container.get("env")))
        entries = {text(entry.get("name")): entry for entry in env if entry.get("name") in (ENABLE_ENV, MODE_ENV)}
        env_from = bool(sequence(container.get("envFrom")))
        if entries or env_from:
            slots.append(ContainerSlot(field, env_from, entries))
    return tuple(slots)


@dataclass(frozen=True, slots=True)
class Environment:
    """What a container's environment, with these annotations, says of precision."""

    mode: Mode | None
    """None: a reference decides it. What is not known is not FP32."""
    movable: bool
    """ENABLE_FP16_TRAINING is a literal, or something that a literal can override: a reference, or an envFrom."""


def environment(slots: Sequence[ContainerSlot], annotations: Mapping[str, str], *, hot: bool) -> Environment:
    """The mode that containers start in without a request. Several containers: the least safe one counts."""
    named = any(ENABLE_ENV in slot.entries for slot in slots)
    # Where the variable is named nowhere, it can only come from an envFrom; the write overrides exactly these.
    inherited = not named and any(slot.env_from and slot.field == "containers" for slot in slots)
    mode, movable, unknown = Mode.FP32, inherited, inherited
    for slot in slots:
        enable = slot.entries.get(ENABLE_ENV)
        if enable is None:
            continue
        source = source_of(enable)
        movable = movable or source is not Source.ANNOTATION or not hot
        expanded = source is Source.LITERAL and "$(" in text(enable.get("value"))
        unknown = unknown or ((source is Source.REFERENCE or expanded) and slot.field == "containers")
        if slot.field == "containers" and _value(enable, annotations).strip().lower() in TRUE_SPELLINGS:
            meant = parse_mode(_value(slot.entries.get(MODE_ENV, {}), annotations)) or Mode.FP16
            mode = meant if is_safer(mode, meant) else mode
    # Nothing is less safe than FP16: with one container in it, what the others are does not matter.
    return Environment(None if unknown and mode is not Mode.FP16 else mode, movable)


def _value(entry: Mapping[str, object], annotations: Mapping[str, str]) -> str:
    """An entry's value as far as it can be known from here; empty for a reference."""
    match source_of(entry):
        case Source.LITERAL:
            return text(entry.get("value"))
        case Source.ANNOTATION:
            return annotations.get(ENABLE if entry.get("name") == ENABLE_ENV else MODE, "")
    return ""


def parse_admitted(raw: str | None) -> tuple[tuple[str, int], ...]:
    """The record of admission: ``<assignment>/<generation>/<mode>``, several separated by a space."""
    if raw is None or len(raw) > ADMITTED_CHARACTERS:
        return ()
    found = []
    for entry in raw.split(" "):
        name, _, rest = entry.partition("/")
        generation = generation_text(rest.partition("/")[0])
        if name and generation is not None:
            found.append((name, generation))
    return tuple(found)


def read_pod(body: Mapping[str, object]) -> PodRecord:
    """A pod's slim record."""
    metadata, spec, status = mapping(body.get("metadata")), mapping(body.get("spec")), mapping(body.get("status"))
    annotations = strings(metadata.get("annotations"))
    hot = is_hot(spec)
    labels = mapping(metadata.get("labels"))
    asks = INJECT in labels
    raw = annotations.get(REQUEST)
    view = PodView(
        name=text(metadata.get("name")),
        uid=text(metadata.get("uid")),
        node=text(spec.get("nodeName")),
        pool=intern(",".join(f"{k}={v}" for k, v in sorted(strings(spec.get("nodeSelector")).items()))),
        hot=hot,
        has_annotations=bool(annotations),
        request_raw=raw[: REQUEST_CHARACTERS + 1] if raw is not None else None,
        request=parse_request(raw),
        admitted=parse_admitted(annotations.get(ADMITTED)),
        refusal=parse_refusal(annotations.get(INJECTED)) if asks and not hot else None,
        started_mode=environment(slots_of(spec), annotations, hot=hot).mode,
        index=pod_index(body),
        created_at=parse_time(metadata.get("creationTimestamp")) or 0.0,
        graceless=spec.get("terminationGracePeriodSeconds") == 0,
        own_grace_seconds=max(0.0, number(spec.get("terminationGracePeriodSeconds"), 30.0)),
        ready=has_condition(status, "Ready"),
        pending=status.get("phase") in (None, "Pending"),
        terminating=metadata.get("deletionTimestamp") is not None,
        gone_by=parse_time(metadata.get("deletionTimestamp")) or 0.0,
        grace_seconds=max(0.0, number(metadata.get("deletionGracePeriodSeconds"), 0.0)),
        finalizer=_finalizer(metadata),
        gpus=gpus_of(spec),
        crashing=not _disrupted(status) and any(_crashed(container) for container in _statuses(status)),
        backing_off=any(_waits(container) for container in _statuses(status)),
    )
    owner = controller_of(body)
    return PodRecord(
        namespace=text(metadata.get("namespace")),
        view=view,
        controller=owner.uid if owner is not None else view.uid,
        finished=status.get("phase") in ("Succeeded", "Failed"),
        revision=intern(text(labels.get(REVISION_LABEL))),
    )


def _finalizer(metadata: Mapping[str, object]) -> str:
    """The first that keeps the object for somebody else than Kubernetes' own controllers."""
    found = texts(metadata.get("finalizers"))
    return intern(next((bounded(name, FINALIZER_CHARACTERS) for name in found if name not in _OWN_FINALIZERS), ""))


_DISRUPTED = frozenset({"Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated", "Shutdown"})
"""``status.reason`` of a pod that the kubelet or the node's controller has ended, also those of older Kubernetes."""

_LOST = frozenset({"ContainerStatusUnknown", "Unknown"})
"""Reasons of containers that the kubelet finds gone, as after its node has restarted: it makes up their exit codes."""


def _disrupted(status: Mapping[str, object]) -> bool:
    """It was preempted, evicted or lost with its node: how its containers end says nothing of the training."""
    return text(status.get("reason")) in _DISRUPTED or has_condition(status, "DisruptionTarget")


def _statuses(status: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for field in ("containerStatuses", "initContainerStatuses"):
        yield from map(mapping, sequence(status.get(field)))


def _crashed(container: Mapping[str, object]) -> bool:
    """Ended badly just now, or ended badly before and not back yet.

    A container that a signal has stopped was told to end, and one that went with its node had no say: neither is a crash.
    Nor is one that lost a rank of another pod: that pod may have been preempted. CrashLoopBackOff does not tell: the kubelet
    waits so after any end.
    """
    now = mapping(mapping(container.get("state")).get("terminated"))
    before = mapping(mapping(container.get("lastState")).get("terminated"))
    return _ended_badly(now) or (_ended_badly(before) and not container.get("ready"))


def _waits(container: Mapping[str, object]) -> bool:
    return mapping(mapping(container.get("state")).get("waiting")).get("reason") == "CrashLoopBackOff"


def _ended_badly(terminated: Mapping[str, object]) -> bool:
    code, reason = integer(terminated.get("exitCode"), 0), text(terminated.get("reason"))
    return code not in NO_FAILURE_EXIT_CODES and reason not in _LOST
