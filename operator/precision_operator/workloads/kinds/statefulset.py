"""StatefulSets: their pods are taken away, and each comes back under its own name, in the revision that its index gets."""

from dataclasses import replace

from precision_operator.api.wire import integer, mapping, text
from precision_operator.contract import MAX_INDEXES
from precision_operator.core.model import RestartBy
from precision_operator.kube.port import Resource
from precision_operator.workloads.kinds.kind import (
    RESTART_ONCE,
    Body,
    WorkloadKind,
    made_anew,
    owned_by,
    read_template,
    replicas_of,
    unobserved,
)
from precision_operator.workloads.owner import controller_of
from precision_operator.workloads.records import Revisions, WorkloadRecord


def read_statefulset(body: Body) -> WorkloadRecord:
    """A StatefulSet's record. Whether a template change is pending also depends on what its pods run."""
    record = read_template(
        body,
        STATEFULSET.kind,
        STATEFULSET.restart_by,
        no_restart=owned_by(controller_of(body)),
        replicas=replicas_of(body),
        pending_revision=unobserved(body),
    )
    first, count = _first_index(body), record.view.replicas
    indexed = replace(record.view, first_index=first, indexes=count if first + count <= MAX_INDEXES else 0)
    return replace(record, view=indexed, revisions=_revisions(body))


def _first_index(body: Body) -> int:
    return integer(mapping(mapping(body.get("spec")).get("ordinals")).get("start"), 0)


def _revisions(body: Body) -> Revisions:
    """As its controller chooses them for a new pod: with OnDelete the newest, below a partition the current one."""
    status, partition = mapping(body.get("status")), _partition(body)
    return Revisions(
        current=text(status.get("currentRevision")),
        update=text(status.get("updateRevision")),
        first=_first_index(body) + partition if partition else 0,
    )


def _partition(body: Body) -> int:
    """How many of its first pods keep the current revision. The API server takes none with OnDelete."""
    strategy = mapping(mapping(body.get("spec")).get("updateStrategy"))
    return integer(mapping(strategy.get("rollingUpdate")).get("partition"), 0)


def _after_change(body: Body) -> str:
    if mapping(mapping(body.get("spec")).get("updateStrategy")).get("type") == "OnDelete":
        return made_anew(body)
    if partition := _partition(body):
        return f"its pods from index {_first_index(body) + partition} on restart, once (its update strategy has a partition)"
    return RESTART_ONCE


STATEFULSET = WorkloadKind(
    "apps/StatefulSet",
    Resource("apps", "v1", "statefulsets"),
    RestartBy.PODS,
    read_statefulset,
    after_change=_after_change,
)
