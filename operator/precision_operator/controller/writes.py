"""One write, as the API server gets it: what is decided on stands in each as its condition."""

import asyncio
from collections.abc import Iterable, Mapping

from precision_operator.core.actions import DeletePod, EvictPod, RequestPod, ResumeJob, SuspendJob
from precision_operator.errors import DisruptionBudget, NotFound
from precision_operator.kube.port import DISRUPTION_BUDGETS, JOBS, PODS, Deletion, JsonObject, KubeApi, Operation
from precision_operator.workloads.budgets import budget_against
from precision_operator.workloads.requests import request_pod, suspend_job

Write = RequestPod | DeletePod | EvictPod | SuspendJob | ResumeJob

JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"
"""What the Job controller writes onto each pod of a Job."""


def named(write: Write) -> str:
    """For a person, and to know it again."""
    target = write.pod.name if isinstance(write, RequestPod | DeletePod | EvictPod) else write.workload.object_name
    return f"{type(write).__name__} {target}"


async def send(api: KubeApi, write: Write) -> None:
    """Write it, where it is not so already.

    Raises:
        KubeError: as the API server answered. DisruptionBudget also for a suspension that some budget speaks against.
    """
    namespace = write.workload.namespace
    match write:
        case RequestPod():
            await _patch_pod(api, namespace, write.pod.name, request_pod(write))
        case DeletePod():
            await api.delete(PODS, namespace, write.pod.name, _deletion(write))
        case EvictPod():
            await api.evict(namespace, write.pod.name, _deletion(write))
        case SuspendJob() | ResumeJob():
            await _patch_job(api, write)


async def torn(api: KubeApi, writes: Iterable[Write]) -> Mapping[str, DisruptionBudget]:
    """Workload → the budget that lets some of its pods be evicted and not the others: a process group goes as a whole.

    One that was begun is finished: its pods wait for each other.

    Raises:
        KubeError: as the API server answered.
    """
    groups: dict[str, list[EvictPod]] = {}
    for write in writes:
        if isinstance(write, EvictPod) and not any(pod.terminating for pod in write.workload.pods):
            groups.setdefault(write.workload.key, []).append(write)
    several = {key: group for key, group in groups.items() if len(group) > 1}
    found: dict[str, DisruptionBudget] = {}
    if not several:
        return found
    namespace = next(iter(several.values()))[0].workload.namespace
    budgets = await api.list(DISRUPTION_BUDGETS, namespace)
    for key, group in several.items() if budgets else ():
        pods = await asyncio.gather(*(_there(api, namespace, write.pod.name) for write in group))
        against = budget_against([pod for pod in pods if pod is not None], budgets)
        if against is not None:
            found[key] = DisruptionBudget(f"pods of {key} are not evicted: {against}", budget=against)
    return found


async def _there(api: KubeApi, namespace: str, name: str) -> JsonObject | None:
    try:
        return await api.get(PODS, namespace, name)
    except NotFound:
        return None


async def _patch_pod(api: KubeApi, namespace: str, name: str, operations: list[Operation]) -> None:
    if operations:
        await api.json_patch(PODS, namespace, name, operations)


async def _patch_job(api: KubeApi, write: SuspendJob | ResumeJob) -> None:
    operations = suspend_job(write)
    if not operations:
        return
    if isinstance(write, SuspendJob) and write.respects_budgets:
        await _ask_budgets(api, write)
    await api.json_patch(JOBS, write.workload.namespace, write.workload.object_name, operations)


async def _ask_budgets(api: KubeApi, write: SuspendJob) -> None:
    """Read anew each time: what a budget allows changes with every pod that comes or goes.

    Raises:
        DisruptionBudget: one of them does not allow that all pods of the Job go.
    """
    workload = write.workload
    budgets = await api.list(DISRUPTION_BUDGETS, workload.namespace)
    if not budgets:
        return
    pods = await api.list(PODS, workload.namespace, label_selector=f"{JOB_UID_LABEL}={workload.uid}")
    against = budget_against(pods, budgets)
    if against is not None:
        raise DisruptionBudget(f"Job {workload.object_name} is not suspended: {against}", budget=against)


def _deletion(write: DeletePod | EvictPod) -> Deletion:
    """Never with a grace of 0: the object would go while its process goes on."""
    asked = write.grace_seconds if isinstance(write, DeletePod) else None
    if asked is not None:
        return Deletion(uid=write.pod.uid, grace_seconds=max(1, asked))
    return Deletion(uid=write.pod.uid, grace_seconds=1 if write.pod.graceless else None)
