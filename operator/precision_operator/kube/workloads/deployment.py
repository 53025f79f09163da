"""The adapter of apps/v1 Deployments: one JSON patch an action, reading first only where the view does not suffice."""

from dataclasses import dataclass, replace

from precision_operator.api.wire import mapping, sequence
from precision_operator.core.actions import Latch, RequestPod, Restore, Settle, SettleStage, WriteTemplate
from precision_operator.core.model import WorkloadView
from precision_operator.errors import Conflict, PreconditionFailed
from precision_operator.kube.port import DEPLOYMENTS, PODS, REPLICASETS, JsonObject, KubeApi, Operation, Resource
from precision_operator.kube.workloads import patches
from precision_operator.kube.workloads.port import DeploymentView, PodRecord, WorkloadAction, WorkloadRecord
from precision_operator.kube.workloads.reading import read_deployment, read_pod, strings
from precision_operator.kube.workloads.restore import restore

REVISION = "deployment.kubernetes.io/revision"


@dataclass(frozen=True, slots=True)
class DeploymentAdapter:
    """How Deployments are read, and how our actions are written to them. See the port."""

    resource: Resource = DEPLOYMENTS

    def workload(self, body: JsonObject) -> WorkloadRecord:
        """The slim record of a Deployment's body."""
        return read_deployment(body)

    def pod(self, body: JsonObject) -> PodRecord:
        """The slim record of a pod's body."""
        return read_pod(body)

    async def apply(self, api: KubeApi, action: WorkloadAction) -> bool:
        """One write an action, or none where it is so already. Reads: none for RequestPod, nor for views of ours."""
        view = action.workload
        match action:
            case RequestPod():
                return await _patch(api, PODS, view.namespace, action.pod.name, patches.request_pod(action))
            case WriteTemplate():
                operations = patches.write_template(await _detailed(api, view), action)
            case Latch():
                operations = patches.latch(await _detailed(api, view), action)
            case Settle(stage=SettleStage.PAUSE):
                operations = patches.pause(await _detailed(api, view), action)
            case Settle(stage=SettleStage.RESUME):
                operations = patches.resume(await _detailed(api, view), action)
            case Settle():
                return await _settle_replicaset(api, action)
            case Restore():
                body = await api.get(DEPLOYMENTS, view.namespace, view.name)
                _same(view, read_deployment(body).view)
                operations = restore(body, view.uid)
        return await _patch(api, DEPLOYMENTS, view.namespace, view.name, operations)


async def _patch(api: KubeApi, resource: Resource, namespace: str, name: str, operations: list[Operation]) -> bool:
    if not patches.writes_anything(operations):
        return False
    await api.json_patch(resource, namespace, name, operations)
    return True


def _same(decided: WorkloadView, found: WorkloadView) -> None:
    """Refuse where the object is not the one, or not in the state, that was decided on."""
    if (found.uid, found.generation_raw) != (decided.uid, decided.generation_raw):
        raise PreconditionFailed(
            f"{decided.namespace}/{decided.name}: decided on {decided.uid} at generation {decided.generation_raw}, "
            f"found {found.uid} at {found.generation_raw}"
        )


async def _detailed(api: KubeApi, view: WorkloadView) -> DeploymentView:
    """The view with its template's details; read where the view came without them (from a recording, for one)."""
    if isinstance(view, DeploymentView):
        return view
    found = read_deployment(await api.get(DEPLOYMENTS, view.namespace, view.name)).view
    _same(view, found)
    assert isinstance(found, DeploymentView)
    return replace(found, pods=view.pods)


async def _settle_replicaset(api: KubeApi, action: Settle) -> bool:
    """Patch the template of the ReplicaSet that the Deployment stands on. Two reads, one write."""
    view = action.workload
    body = await api.get(DEPLOYMENTS, view.namespace, view.name)
    found = read_deployment(body).view
    _same(view, found)
    if not found.paused or found.settle is None or found.settle.generation != action.generation:
        raise PreconditionFailed(f"{view.namespace}/{view.name} is not paused for a settle of {action.generation}")
    current = _current(body, await api.list(REPLICASETS, view.namespace, label_selector=_selector(body)))
    operations = patches.replicaset(current, action.mode, action.generation)
    return await _patch(api, REPLICASETS, view.namespace, str(mapping(current["metadata"])["name"]), operations)


def _selector(body: JsonObject) -> str:
    """The Deployment's selector as a query; matchExpressions are left to the owner check."""
    labels = strings(mapping(mapping(mapping(body.get("spec")).get("selector")).get("matchLabels")))
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _current(body: JsonObject, candidates: object) -> JsonObject:
    """The ReplicaSet of the Deployment's own revision, by owner uid."""
    metadata = mapping(body.get("metadata"))
    revision = strings(metadata.get("annotations")).get(REVISION)
    found = [
        candidate
        for candidate in sequence(candidates)
        if isinstance(candidate, dict)
        and revision is not None
        and strings(mapping(candidate.get("metadata")).get("annotations")).get(REVISION) == revision
        and any(
            mapping(owner).get("uid") == metadata.get("uid")
            for owner in sequence(mapping(candidate.get("metadata")).get("ownerReferences"))
        )
    ]
    if len(found) != 1:
        raise Conflict(f"{metadata.get('name')}: {len(found)} ReplicaSets of revision {revision}, expected one")
    return found[0]
