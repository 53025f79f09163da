"""Pods on their way out: which are late, and which cannot be ended from here."""

from collections.abc import Container
from dataclasses import replace

from precision_operator.api.state import Restart
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.reasons import Cause, Reason

MARGIN_SECONDS = 5.0
"""After its grace a pod's object may take this long to go."""

FORCED_SECONDS = 30.0
"""A kubelet that answers has ended a pod this long after it was deleted with a grace of one second."""


def begun(workload: WorkloadView, restart: Restart) -> bool:
    """A pod that ran when its restart began has gone since, or none did, or its Job is suspended.

    One that it no longer wants, or wants besides, is no sign of that: its owner has changed its size.
    """
    if restart.gone or workload.suspended or restart.pods == 0:
        return True
    left = sum(not (pod.terminating or pod.pending) and pod.created_at <= restart.newest for pod in workload.pods)
    return left < min(restart.pods if restart.pods > 0 else workload.replicas, workload.replicas)


def noticed(workload: WorkloadView, restart: Restart, now: float) -> Restart:
    """With the time at which its pods went, once one has: a passed one is not changed any more."""
    if restart.gone or not begun(workload, restart):
        return restart
    times = (
        pod.gone_by - pod.grace_seconds if pod.terminating else pod.created_at
        for pod in workload.pods
        if pod.terminating or pod.created_at > restart.newest
    )
    return replace(restart, gone=round(min(max(min(times, default=now), restart.since), now), 3))


def late(pod: PodView, now: float, *, leaving_seconds: float | None = None) -> bool:
    """It should be gone: its own grace is over, or it takes longer than ``leaving_seconds``."""
    if not pod.terminating:
        return False
    begun = pod.gone_by - pod.grace_seconds
    impatient = leaving_seconds is not None and now - begun > leaving_seconds
    return impatient or now - pod.gone_by > MARGIN_SECONDS


def blocked(pod: PodView, now: float, nodes_away: Container[str]) -> Cause | None:
    """Why a terminating pod does not go whatever is asked of the API server; None: it may still go."""
    if not late(pod, now):
        return None
    if pod.finalizer:
        return Cause(Reason.FOREIGN_FINALIZER, pod.finalizer)
    if pod.node in nodes_away:
        return Cause(Reason.NODE_UNREACHABLE, pod.node)
    if pod.grace_seconds <= 1 and now - pod.gone_by > FORCED_SECONDS:
        return Cause(Reason.NOT_TERMINATED, f"on {pod.node}")
    return None
