"""Deployments: their pods are taken away, and a ReplicaSet of theirs makes others."""

from precision_operator.api.wire import integer, mapping
from precision_operator.core.model import RestartBy
from precision_operator.kube.port import DEPLOYMENTS
from precision_operator.workloads.kinds.kind import (
    RESTART_ONCE,
    Body,
    WorkloadKind,
    owned_by,
    read_template,
    replicas_of,
    unobserved,
)
from precision_operator.workloads.owner import controller_of
from precision_operator.workloads.records import WorkloadRecord


def read_deployment(body: Body) -> WorkloadRecord:
    """A Deployment's record."""
    return read_template(
        body,
        DEPLOYMENT.kind,
        DEPLOYMENT.restart_by,
        no_restart=owned_by(controller_of(body)),
        replicas=replicas_of(body),
        pending_revision=_pending(body),
    )


def _pending(body: Body) -> bool:
    """Pods of an older template are left, as in a rollout under way, or a paused one."""
    status = mapping(body.get("status"))
    return unobserved(body) or integer(status.get("replicas"), 0) > integer(status.get("updatedReplicas"), 0)


def _after_change(body: Body) -> str:
    paused = mapping(body.get("spec")).get("paused") is True
    return f"{RESTART_ONCE}, when its rollout is resumed (spec.paused)" if paused else RESTART_ONCE


DEPLOYMENT = WorkloadKind("apps/Deployment", DEPLOYMENTS, RestartBy.PODS, read_deployment, after_change=_after_change)
