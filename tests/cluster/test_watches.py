"""kopf in its thread against a real API server: what it watches reaches the inventory, and what it loses is noticed."""

from __future__ import annotations

import asyncio

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.manifests import until_admitted
from precision_operator.api.selector import Selector
from precision_operator.controller import streams
from precision_operator.controller.sink import WatchLost
from precision_operator.kube.access import Access
from precision_operator.kube.port import PODS, JsonObject
from precision_operator.settings import Settings
from tests.support.watched import apply, watching

# kopf leaves TLS transports behind when the server under them is killed; they end with its loop, not a moment sooner.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")

FLEET = Selector(match_labels=(("fleet", "a"),))


def deployment(name: str, *, replicas: int = 1) -> JsonObject:
    labels: JsonObject = {"app": name, "fleet": "a"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}},
        },
    }


async def test_what_exists_comes_and_goes_is_known(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str
) -> None:
    await apply(kubectl, namespace, deployment("one"))
    async with watching(Access(control_plane.kubeconfig), Settings(watch_namespaces=(namespace,))) as world:
        inventory = world.inventory
        assert [view.name for view in inventory.selected(namespace, FLEET)] == ["one"]
        await apply(kubectl, namespace, deployment("two", replicas=2))
        await world.until(
            lambda: [(v.name, len(v.pods)) for v in inventory.selected(namespace, FLEET)] == [("one", 1), ("two", 2)]
        )
        await asyncio.to_thread(kubectl, "delete", "deployment", "one", "-n", namespace, "--cascade=foreground")
        await world.until(lambda: [v.name for v in inventory.selected(namespace, FLEET)] == ["two"])
        await world.until(lambda: inventory.count(PODS) == 2)
        assert world.beats >= {"deployments", "pods", "precisionpolicies"}


async def test_a_restart_of_the_api_server_is_survived_and_losses_are_noticed(
    kubectl: Kubectl, control_plane: ControlPlane, namespace: str
) -> None:
    await apply(kubectl, namespace, deployment("one"), deployment("two"))
    async with watching(Access(control_plane.kubeconfig), Settings()) as world:
        inventory = world.inventory
        await world.until(lambda: len(inventory.selected(namespace, FLEET)) == 2)
        await asyncio.to_thread(control_plane.stop_apiserver)
        control_plane.start_apiserver()  # in this thread: the server would die with another
        await asyncio.to_thread(kubectl, "delete", "deployment", "one", "-n", namespace)
        await apply(kubectl, namespace, deployment("three"))
        await world.until(lambda: [v.name for v in inventory.selected(namespace, FLEET)] == ["three", "two"])
    await asyncio.to_thread(until_admitted, kubectl)  # the next test finds admission as it was


async def test_a_watch_that_stays_forbidden_ends_the_run(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "REFUSED_SECONDS", 1.0)
    access = Access(control_plane.user_kubeconfig("nobody"))
    with pytest.raises(WatchLost, match="Forbidden"):
        async with watching(access, Settings(watch_namespaces=(namespace,))):
            raise AssertionError("it may not start")
