"""What all kinds have in common: their description, and what a pod template says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from sys import intern

from precision_operator.api.wire import integer, mapping, text
from precision_operator.contract import REQUEST
from precision_operator.core.model import RestartBy, WorkloadView
from precision_operator.kube.port import Resource
from precision_operator.workloads.identity import workload_key
from precision_operator.workloads.owner import Owner
from precision_operator.workloads.reading import environment, is_hot, parse_request, slots_of, strings
from precision_operator.workloads.records import WorkloadRecord

Body = Mapping[str, object]


RESTART_ONCE = "its pods restart, once"


def made_anew(_: Body) -> str:
    """Of a kind whose controller makes no pods for a changed template's sake."""
    return "its pods get it when they are made anew"


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """One kind of workload."""

    kind: str
    """What a key begins with: ``apps/Deployment``."""
    resource: Resource
    restart_by: RestartBy
    """How its pods are made anew, unless an object says otherwise."""
    read: Callable[[Body], WorkloadRecord | None]
    """An object's slim record; None: it is finished, or a part of another workload."""
    template_fixed: bool = False
    """The API server takes no change of its pod template."""
    after_change: Callable[[Body], str] = made_anew
    """What becomes of an object's pods once its template has changed, as a message says it."""
    metrics_label: str = ""
    """By which kube-state-metrics names one, where that is not ``name``."""

    @property
    def name(self) -> str:
        """As kubectl takes it: ``deployment``."""
        return self.singular.lower()

    @property
    def singular(self) -> str:
        """As a manifest has it: ``Deployment``."""
        return self.kind.rpartition("/")[2]

    @property
    def alert_label(self) -> str:
        """By which an alert names one."""
        return self.metrics_label or self.name


def read_template(
    body: Body,
    kind: str,
    restart_by: RestartBy,
    *,
    no_restart: str = "",
    replicas: int = 1,
    pending_revision: bool = False,
    suspended: bool = False,
    suspended_by: str = "",
    emptied: bool = False,
) -> WorkloadRecord:
    """The record of an object with a pod template. ``no_restart``: why it cannot be restarted after all."""
    metadata = mapping(body.get("metadata"))
    template = mapping(mapping(body.get("spec")).get("template"))
    template_metadata, pod_spec = mapping(template.get("metadata")), mapping(template.get("spec"))
    hot = is_hot(pod_spec)
    annotations = strings(template_metadata.get("annotations"))
    started = environment(slots_of(pod_spec), annotations, hot=hot)
    request = parse_request(annotations.get(REQUEST)) if hot else None
    view = WorkloadView(
        namespace=intern(text(metadata.get("namespace"))),
        key=workload_key(pod_of(body, kind)),
        uid=text(metadata.get("uid")),
        hot=hot,
        literal=started.movable,
        replicas=replicas,
        template_mode=request.mode if request is not None else started.mode,
        restart_by=RestartBy.NEVER if no_restart else restart_by,
        no_restart=no_restart,
        object_name=text(metadata.get("name")),
        suspended=suspended,
        suspended_by=suspended_by,
        emptied=emptied,
        object_generation=generation_of(body),
        pending_revision=pending_revision,
    )
    return WorkloadRecord(view, strings(metadata.get("labels")), strings(template_metadata.get("labels")))


def pod_of(body: Body, kind: str) -> dict[str, object]:
    """As much of a pod of this object as tells whose it is."""
    group, _, name = kind.rpartition("/")
    owner = {
        "apiVersion": f"{group}/v1".removeprefix("/"),
        "kind": name,
        "name": text(mapping(body.get("metadata")).get("name")),
        "controller": True,
    }
    template = mapping(mapping(mapping(body.get("spec")).get("template")).get("metadata"))
    return {"metadata": {"labels": template.get("labels"), "ownerReferences": [owner]}}


def replicas_of(body: Body) -> int:
    """How many pods it should have, by ``spec.replicas``."""
    return integer(mapping(body.get("spec")).get("replicas"), 1)


def unobserved(body: Body) -> bool:
    """Its controller has not looked at its newest spec yet. One that never looked at it has made no pods either."""
    generation = generation_of(body)
    return integer(mapping(body.get("status")).get("observedGeneration"), generation) < generation


def generation_of(body: Body) -> int:
    """Grows with every change of its spec."""
    return integer(mapping(body.get("metadata")).get("generation"), 0)


def owned_by(owner: Owner | None) -> str:
    """Why its pods are not taken away where something else owns it; empty where nothing does."""
    return f"its owner {owner} decides about its pods" if owner is not None else ""
