"""The cluster's budget of restarts, on a real API server: a rollout takes it, an emergency does not wait for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from tests.support.cluster_fleet import deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, Scene, assert_all_in_fallback, staged
from tests.support.shadow_trainers import ShadowTrainers

BUDGET = 2
LITERAL = [f"literal-{index}" for index in range(6)]


@pytest.fixture
def scene(kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Six trainers that only a restart can move, and a budget of two."""
    shadow, settings = ShadowTrainers(kubectl, namespace), {"restartBudget": BUDGET}
    with staged(kubectl, shadow, tmp_path, operator=operator_kubeconfig, settings=settings) as scene:
        scene.apply(*(deployment(name, hot=False) for name in LITERAL))
        wait_for(lambda: len(scene.shadow.modes()) == len(LITERAL), what="pods of all", seconds=PATIENCE_SECONDS)
        yield scene


def restarted(scene: Scene, before: dict[str, str]) -> set[str]:
    """Workloads whose pod is another one than before."""
    return {name for name, uid in uids(scene).items() if uid != before[name]}


def uids(scene: Scene) -> dict[str, str]:
    return {workload: pod["metadata"]["uid"] for workload, pod in scene.pods().items()}


def test_a_rollout_restarts_no_more_at_once_than_the_budget_and_an_emergency_all(scene: Scene) -> None:
    before = uids(scene)
    scene.shadow.capacity = dict.fromkeys(LITERAL, 0)  # who is taken away does not come back
    scene.operators.start("one")
    scene.apply(policy(strategy={"steps": [{"setWeight": 100}]}, criteria=NO_SPEED))
    wait_for(lambda: len(restarted(scene, before)) == BUDGET, what="the first restarts", seconds=PATIENCE_SECONDS)
    first, begun = restarted(scene, before), time.monotonic()
    wait_for(lambda: time.monotonic() - begun > 5, what="ten evaluations", seconds=20)
    assert restarted(scene, before) == first

    scene.shadow.capacity = {}
    status = scene.wait_phase("Healthy")
    assert scene.in_mode("fp16") == set(LITERAL)
    before = uids(scene)
    scene.shadow.capacity = dict.fromkeys(LITERAL, 0)
    abort = f"precision.genesis.ai/abort={status['transitionId']}"
    scene.kubectl("annotate", "ppol", "fleet", "-n", scene.namespace, abort)
    wait_for(lambda: restarted(scene, before) == set(LITERAL), what="all to be restarted", seconds=PATIENCE_SECONDS)
    scene.shadow.capacity = {}
    assert scene.wait_phase("Held")["incident"]["reason"] == "Aborted"
    assert_all_in_fallback(scene)
