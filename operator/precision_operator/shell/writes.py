"""One write, as the API server gets it: what is decided on stands in each as its condition."""

from precision_operator.core.actions import DeletePod, EvictPod, RequestPod, ResumeJob, SuspendJob
from precision_operator.errors import DisruptionBudget
from precision_operator.kube.port import DISRUPTION_BUDGETS, JOBS, PODS, Deletion, KubeApi, Operation
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
