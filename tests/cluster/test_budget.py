"""The cluster's budget of restarts, on a real API server: an emergency takes no more down at once than it allows."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kubernetes import client, config

from lab.cluster import Kubectl
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, Scene, staged
from tests.support.shadow_trainers import ShadowTrainers

BUDGET = 2
LITERAL = [f"literal-{index}" for index in range(6)]


@pytest.fixture
def scene(kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Six trainers that only a restart can move, and a budget of two."""
    with staged(kubectl, ShadowTrainers(kubectl, namespace), tmp_path, settings={"restartBudget": BUDGET}) as scene:
        scene.apply(*(deployment(name, hot=False) for name in LITERAL))
        wait_for(lambda: len(scene.shadow.modes()) == len(LITERAL), what="pods of all", seconds=PATIENCE_SECONDS)
        yield scene


def rolling_out(items: list[Json]) -> int:
    """How many Deployments the controller has not brought up again."""

    def busy(item: Json) -> bool:
        status = item.get("status", {})
        seen = status.get("observedGeneration", 0) >= item["metadata"]["generation"]
        return not seen or status.get("updatedReplicas", 0) != 1 or status.get("replicas", 0) != 1

    return sum(map(busy, items))


@contextmanager
def watched(scene: Scene) -> Iterator[list[int]]:
    """Looks, as quick as they go, of how many are being restarted."""
    looks: list[int] = []
    over = threading.Event()
    api = client.AppsV1Api(config.new_client_from_config(str(scene.kubectl.kubeconfig), context=scene.kubectl.context))

    def look() -> None:
        while not over.is_set():
            answer = api.list_namespaced_deployment(scene.namespace, _preload_content=False, _request_timeout=5)
            looks.append(rolling_out(json.loads(answer.data)["items"]))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield looks
    finally:
        over.set()
        thread.join(timeout=10)
        api.api_client.close()


def test_an_emergency_restarts_no_more_at_once_than_the_budget_and_reaches_all(scene: Scene) -> None:
    scene.operators.start("one")
    scene.apply(policy(strategy={"steps": [{"setWeight": 100}]}, criteria=NO_SPEED))
    scene.wait_phase("Healthy")
    number = scene.status()["transitionId"]
    with watched(scene) as looks:
        scene.kubectl("annotate", "pp", "fleet", "-n", scene.namespace, f"precision.genesis.ai/abort={number}")
        status = scene.wait_phase("Held")
    assert status["incident"]["reason"] == "Aborted"
    assert all(modes == {"fp32"} for modes in scene.shadow.modes().values())
    assert max(looks) == BUDGET
