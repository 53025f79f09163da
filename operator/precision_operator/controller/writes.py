"""One write, as the API server gets it: what is decided on stands in each as its condition."""

from collections.abc import Sequence

from precision_operator.core.actions import DeletePod, EvictPod, RequestPod, ResumeJob, SuspendJob
from precision_operator.kube.port import JOBS, PODS, Deletion, KubeApi, Operation, Resource
from precision_operator.workloads.requests import request_pod, suspend_job

Write = RequestPod | DeletePod | EvictPod | SuspendJob | ResumeJob


def named(write: Write) -> str:
    """For a person, and to know it again."""
    target = write.pod.name if isinstance(write, RequestPod | DeletePod | EvictPod) else write.workload.object_name
    return f"{type(write).__name__} {target}"


async def send(api: KubeApi, write: Write) -> None:
    """Write it, where it is not so already.

    Raises:
        KubeError: as the API server answered.
    """
    namespace = write.workload.namespace
    match write:
        case RequestPod():
            await _patch(api, PODS, namespace, write.pod.name, request_pod(write))
        case DeletePod():
            await api.delete(PODS, namespace, write.pod.name, _deletion(write))
        case EvictPod():
            await api.evict(namespace, write.pod.name, _deletion(write))
        case SuspendJob() | ResumeJob():
            await _patch(api, JOBS, namespace, write.workload.object_name, suspend_job(write))


async def _patch(api: KubeApi, resource: Resource, namespace: str, name: str, operations: Sequence[Operation]) -> None:
    if operations:
        await api.json_patch(resource, namespace, name, operations)


def _deletion(write: DeletePod | EvictPod) -> Deletion:
    """Never with a grace of 0: the object would go while its process goes on."""
    asked = write.grace_seconds if isinstance(write, DeletePod) else None
    if asked is not None:
        return Deletion(uid=write.pod.uid, grace_seconds=max(1, asked))
    return Deletion(uid=write.pod.uid, grace_seconds=1 if write.pod.graceless else None)
