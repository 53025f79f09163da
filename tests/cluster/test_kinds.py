"""Workloads of every kind, made by the real controllers and seen through the real watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from precision_operator.api.selector import Selector
from precision_operator.core.model import RestartBy, WorkloadView
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import JOBS, JsonObject
from precision_operator.settings import Settings
from precision_operator.workloads.kinds.pod import NO_CONTROLLER
from tests.support.watched import World, apply, watching

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

FLEET = Selector(match_labels=(("fleet", "a"),))
CONTAINERS: JsonObject = {"containers": [{"name": "trainer", "image": "none"}]}


def made(api: str, kind: str, name: str, labels: JsonObject | None = None, **spec: object) -> JsonObject:
    """An object whose pods the fleet's selector matches."""
    app: JsonObject = {"app": name, "fleet": "a", **(labels or {})}
    job = kind == "Job"
    pod: JsonObject = {**CONTAINERS, **({"restartPolicy": "Never"} if job else {})}
    body = {"template": {"metadata": {"labels": app}, "spec": pod}, **spec}
    if not job:
        body["selector"] = {"matchLabels": {"app": name}}
    found: JsonObject = json.loads(
        json.dumps({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": body})
    )
    return found


def owned(body: JsonObject, owner: JsonObject) -> JsonObject:
    """Controlled by an object that exists: without one it would be collected as garbage."""
    metadata = dict(body["metadata"]) if isinstance(body["metadata"], dict) else {}
    return {**body, "metadata": {**metadata, "ownerReferences": [owner]}}


@pytest.fixture
def fleet(kubectl: Kubectl, namespace: str) -> JsonObject:
    """One workload of each kind, and pods of a kind that is not known; the answer: a reference to their owner."""
    owner = kubectl.json("create", "configmap", "owner", "-n", namespace, "-o", "json")["metadata"]["uid"]
    reference: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner, "controller": True}
    stranger: JsonObject = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "labels": {"fleet": "a"}},
        "spec": CONTAINERS,
    }
    bare: JsonObject = {**stranger, "metadata": {"name": "probe", "labels": {"fleet": "a"}}}
    set_of: JsonObject = {"jobset.sigs.k8s.io/jobset-name": "set"}
    everything = (
        made("apps/v1", "Deployment", "web"),
        made("apps/v1", "ReplicaSet", "bare", replicas=2),
        made(
            "apps/v1",
            "StatefulSet",
            "db",
            replicas=2,
            serviceName="db",
            podManagementPolicy="Parallel",
            updateStrategy={"type": "OnDelete"},
        ),
        made("batch/v1", "Job", "by-kubectl", parallelism=2, completions=3),
        made("batch/v1", "Job", "by-us", completionMode="Indexed", parallelism=2, completions=2),
        owned(made("batch/v1", "Job", "set-0", set_of), reference),
        owned(made("batch/v1", "Job", "set-1", set_of), reference),
        bare,
        owned(stranger, reference),
    )
    asyncio.run(apply(kubectl, namespace, *everything))
    wait_for(lambda: len(kubectl.json("get", "pods", "-n", namespace)["items"]) == 13, what="all pods", seconds=60)
    return reference


@pytest.fixture
async def world(fleet: JsonObject, operator_kubeconfig: Path, namespace: str) -> AsyncIterator[World]:
    """Watched with the installed operator's rights, in its namespace alone."""
    async with watching(Access(operator_kubeconfig), Settings(watch_namespaces=(namespace,))) as found:
        yield found


def by_key(world: World, namespace: str) -> dict[str, WorkloadView]:
    return {view.key: view for view in world.inventory.selected(namespace, FLEET)}


async def test_each_kind_is_seen_with_its_pods_and_how_it_restarts(world: World, namespace: str) -> None:
    found = by_key(world, namespace)
    seen = {key: (view.restart_by, view.replicas, len(view.pods)) for key, view in found.items()}
    assert seen == {
        "apps/Deployment/web": (RestartBy.PODS, 1, 1),
        "apps/ReplicaSet/bare": (RestartBy.PODS, 2, 2),
        "apps/StatefulSet/db": (RestartBy.PODS, 2, 2),
        "batch/Job/by-kubectl": (RestartBy.SUSPENSION, 2, 2),
        "batch/Job/by-us": (RestartBy.SUSPENSION, 2, 2),
        "jobset.x-k8s.io/JobSet/set": (RestartBy.NEVER, 2, 2),
        "/Pod/probe": (RestartBy.NEVER, 1, 1),
    }
    assert found["/Pod/probe"].no_restart == NO_CONTROLLER
    assert found["jobset.x-k8s.io/JobSet/set"].no_restart == "its owner ConfigMap/owner would undo a suspension"
    assert world.inventory.unsupported(namespace, FLEET) == ("/ConfigMap/owner",)
    assert not any(view.pending_revision or view.suspended for view in found.values())


async def test_a_suspension_of_ours_is_told_from_anybody_elses(
    world: World, control_plane: ControlPlane, kubectl: Kubectl, namespace: str
) -> None:
    patch = '{"spec":{"suspend":true}}'
    await asyncio.to_thread(kubectl, "patch", "job", "by-kubectl", "-n", namespace, "-p", patch)
    client = await KubeClient.connect(Access(control_plane.kubeconfig))
    before = by_key(world, namespace)["batch/Job/by-us"].object_generation
    try:
        await client.merge_patch(JOBS, namespace, "by-us", {"spec": {"suspend": True}})
    finally:
        await client.close()

    def emptied() -> bool:
        jobs = [view for key, view in by_key(world, namespace).items() if key.startswith("batch/Job/")]
        return all(job.emptied and not job.pods for job in jobs)

    await world.until(emptied)
    found = by_key(world, namespace)
    theirs, ours = found["batch/Job/by-kubectl"], found["batch/Job/by-us"]
    assert (theirs.suspended, theirs.suspended_by) == (True, "kubectl-patch")
    assert (ours.suspended, ours.suspended_by, ours.object_generation) == (True, "", before + 1)
    assert theirs.restart_by is ours.restart_by is RestartBy.SUSPENSION
    resumed = '{"spec":{"suspend":false}}'
    await asyncio.to_thread(kubectl, "patch", "job", "by-kubectl", "-n", namespace, "-p", resumed)
    await world.until(lambda: len(by_key(world, namespace)["batch/Job/by-kubectl"].pods) == 2)
    assert not by_key(world, namespace)["batch/Job/by-kubectl"].suspended


async def test_a_manifest_that_states_suspend_makes_a_job_hot_only(
    world: World, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    for name, flags in (("applied", ()), ("server", ("--server-side", "--field-manager=gitops"))):
        manifest = tmp_path / f"{name}.json"
        manifest.write_text(json.dumps(made("batch/v1", "Job", name, suspend=False)))
        await asyncio.to_thread(kubectl, "apply", *flags, "-n", namespace, "-f", manifest)
    keys = ("batch/Job/applied", "batch/Job/server")
    await world.until(lambda: all(key in by_key(world, namespace) for key in keys))
    found = [by_key(world, namespace)[key] for key in keys]
    assert [view.restart_by for view in found] == [RestartBy.NEVER] * 2
    assert "its manifest states spec.suspend" in found[0].no_restart
    assert "gitops applies spec.suspend" in found[1].no_restart


async def test_a_job_that_fails_with_a_pod_that_is_stopped_is_hot_only(
    world: World, kubectl: Kubectl, namespace: str
) -> None:
    rules = {
        "In": {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [143]}},
        "NotIn": {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [137, 143]}},
    }
    jobs = (
        made("batch/v1", "Job", f"fails-{name.lower()}", podFailurePolicy={"rules": [rule]})
        for name, rule in rules.items()
    )
    await apply(kubectl, namespace, *jobs)
    keys = ("batch/Job/fails-in", "batch/Job/fails-notin")
    await world.until(lambda: all(key in by_key(world, namespace) for key in keys))
    fatal, harmless = (by_key(world, namespace)[key] for key in keys)
    assert (fatal.restart_by, harmless.restart_by) == (RestartBy.NEVER, RestartBy.SUSPENSION)
    assert "matches exit code 143" in fatal.no_restart


async def test_a_changed_template_is_pending_until_the_pods_have_it(
    world: World, kubectl: Kubectl, namespace: str
) -> None:
    template = '{"spec":{"template":{"metadata":{"annotations":{"changed":"yes"}}}}}'
    await asyncio.to_thread(kubectl, "patch", "statefulset", "db", "-n", namespace, "-p", template)
    paused = '{"spec":{"paused":true,"template":{"metadata":{"annotations":{"changed":"yes"}}}}}'
    await asyncio.to_thread(kubectl, "patch", "deployment", "web", "-n", namespace, "-p", paused)
    keys = ("apps/StatefulSet/db", "apps/Deployment/web")
    await world.until(lambda: all(by_key(world, namespace)[key].pending_revision for key in keys))
    await asyncio.to_thread(kubectl, "delete", "pods", "-n", namespace, "-l", "app=db", "--wait=false")
    await world.until(
        lambda: len((db := by_key(world, namespace)["apps/StatefulSet/db"]).pods) == 2 and not db.pending_revision
    )
    assert by_key(world, namespace)["apps/Deployment/web"].pending_revision


async def test_what_goes_is_forgotten(world: World, kubectl: Kubectl, namespace: str) -> None:
    await asyncio.to_thread(
        kubectl, "delete", "job,statefulset,replicaset,pod", "-n", namespace, "--all", "--wait=false"
    )
    await world.until(lambda: list(by_key(world, namespace)) == ["apps/Deployment/web"])
    await world.until(lambda: world.inventory.unsupported(namespace, FLEET) == ())
