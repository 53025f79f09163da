"""Bare pods: nothing makes another, so they change precision hot, or not at all."""

from precision_operator.api.wire import mapping, text
from precision_operator.core.model import RestartBy, WorkloadView
from precision_operator.kube.port import PODS
from precision_operator.workloads.identity import workload_key
from precision_operator.workloads.kinds.kind import Body, WorkloadKind
from precision_operator.workloads.owner import controller_of
from precision_operator.workloads.reading import environment, interned, is_hot, slots_of
from precision_operator.workloads.records import WorkloadRecord

NO_CONTROLLER = "a bare pod has no controller that makes another"


def read_bare_pod(body: Body) -> WorkloadRecord | None:
    """The record of a bare pod, as a workload of one; None where something controls it, or it is finished.

    Nothing starts another from a template: its template's mode is FP32, and what it trains in stands in its pod's view.
    """
    if controller_of(body) is not None or finished(body):
        return None
    metadata, spec = mapping(body.get("metadata")), mapping(body.get("spec"))
    hot = is_hot(spec)
    view = WorkloadView(
        namespace=text(metadata.get("namespace")),
        key=workload_key(body),
        uid=text(metadata.get("uid")),
        hot=hot,
        literal=environment(slots_of(spec), {}, hot=hot).movable,
        restart_by=POD.restart_by,
        no_restart=NO_CONTROLLER,
        object_name=text(metadata.get("name")),
    )
    labels = interned(body)
    return WorkloadRecord(view, labels, labels)


def finished(body: Body) -> bool:
    """Whether it has ended for good."""
    return mapping(body.get("status")).get("phase") in ("Succeeded", "Failed")


POD = WorkloadKind("/Pod", PODS, RestartBy.NEVER, read_bare_pod, template_fixed=True)
