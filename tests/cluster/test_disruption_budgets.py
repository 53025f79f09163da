"""PodDisruptionBudgets, with the real disruption controller: who asks them, who waits for them, and how that shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from precision_operator.controller.act import Acted
from precision_operator.errors import DisruptionBudget
from precision_operator.kube.port import FIELD_MANAGER
from tests.support.cluster_acting import PATIENCE_SECONDS, Acting, acting, job, pod


@pytest.fixture
async def stage(kubectl: Kubectl, operator_kubeconfig: Path, namespace: str) -> AsyncIterator[Acting]:
    async with acting(kubectl, operator_kubeconfig, namespace) as stage:
        yield stage


def running(stage: Acting, *names: str) -> None:
    stage.apply(*map(pod, names))
    for name in names:
        stage.run(name)


def running_job(stage: Acting, *, pods: int) -> list[str]:
    """Names of its pods."""
    stage.apply(job("train", pods=pods))
    wait_for(lambda: len(stage.pods_of("train")) == pods, what="the Job's pods", seconds=PATIENCE_SECONDS)
    for name in stage.pods_of("train"):
        stage.run(name)
    return stage.pods_of("train")


def reasons(acted: Acted) -> list[str]:
    return [failure.reason for failure in acted.failures]


async def test_an_eviction_that_a_budget_refuses_shows_and_is_made_once_it_is_allowed(stage: Acting) -> None:
    running(stage, "a", "b")
    stage.budget(at_least=2, allowed=0)
    wanted = stage.eviction("a")
    for _ in range(2):
        assert reasons(await stage.act(wanted)) == [DisruptionBudget.reason]
    (refused,) = stage.refused()
    assert refused.reason == "DisruptionBudget"
    assert refused.what.startswith("EvictPod a: ")
    assert "train needs 2 healthy pods and has 2 currently" in refused.what
    assert stage.found("pod", "a") is not None
    running(stage, "c")
    stage.budget(at_least=2, allowed=1)
    assert (await stage.act(wanted)).failures == ()
    assert (stage.found("pod", "a"), stage.refused()) == (None, ())


async def test_of_several_workloads_as_many_are_evicted_as_are_allowed(stage: Acting) -> None:
    running(stage, "a", "b", "c")
    stage.budget(at_least=2, allowed=1)
    acted = await stage.act(*(stage.eviction(name, of=f"train-{name}") for name in "abc"))
    assert reasons(acted) == ["DisruptionBudget", "DisruptionBudget"]
    assert len([name for name in "abc" if stage.found("pod", name) is None]) == 1


async def test_the_pods_of_one_workload_are_evicted_once_all_of_them_may_go(stage: Acting) -> None:
    running(stage, "a", "b", "c")
    stage.budget(at_least=2, allowed=1)
    assert reasons(await stage.act(*map(stage.eviction, "abc"))) == ["DisruptionBudget"]
    assert all(stage.found("pod", name) is not None for name in "abc")
    stage.budget(at_least=0, allowed=3)
    assert (await stage.act(*map(stage.eviction, "abc"))).failures == ()
    assert all(stage.found("pod", name) is None for name in "abc")


async def test_of_two_process_groups_under_one_budget_one_goes_and_none_is_torn(stage: Acting) -> None:
    running(stage, *"abcd")
    stage.budget(at_least=2, allowed=2)
    groups = [stage.eviction(name, of="one") for name in "ab"] + [stage.eviction(name, of="two") for name in "cd"]
    assert reasons(await stage.act(*groups)) == ["DisruptionBudget"]
    assert [name for name in "abcd" if stage.found("pod", name) is not None] == ["c", "d"]


async def test_a_pod_with_two_budgets_cannot_be_evicted_and_it_is_said_why(stage: Acting) -> None:
    running(stage, "a")
    stage.budget(at_least=0, allowed=1)
    stage.budget(at_least=0, allowed=1, name="other")
    assert reasons(await stage.act(stage.eviction("a"))) == ["DisruptionBudget"]
    assert "more than one PodDisruptionBudget" in stage.refused()[0].what


async def test_a_deletion_asks_no_budget(stage: Acting) -> None:
    running(stage, "a", "b")
    stage.budget(at_least=2, allowed=0)
    assert (await stage.act(stage.deletion("a"), stage.deletion("b", grace_seconds=1))).failures == ()
    assert stage.found("pod", "a") is stage.found("pod", "b") is None


async def test_a_suspension_waits_until_the_budget_allows_that_all_pods_of_the_job_go(stage: Acting) -> None:
    running_job(stage, pods=2)
    stage.budget(at_least=1, allowed=1)
    assert reasons(await stage.act(stage.suspension("train", respects_budgets=True))) == ["DisruptionBudget"]
    assert "SuspendJob train: the disruption budget train allows 1 disruptions" in stage.refused()[0].what
    assert not stage.suspended("train")
    stage.budget(at_least=0, allowed=2)
    assert (await stage.act(stage.suspension("train", respects_budgets=True))).failures == ()
    assert (stage.suspended("train"), stage.refused()) == (True, ())


async def test_a_job_is_suspended_whatever_budgets_say_and_resumed_with_new_pods(stage: Acting) -> None:
    before = running_job(stage, pods=2)
    stage.budget(at_least=2, allowed=0)
    assert (await stage.act(stage.suspension("train"))).failures == ()
    wait_for(lambda: not stage.pods_of("train"), what="no pod", seconds=PATIENCE_SECONDS)
    assert (await stage.act(stage.resumption("train"))).failures == ()
    wait_for(lambda: len(stage.pods_of("train")) == 2, what="new pods", seconds=PATIENCE_SECONDS)
    assert not set(before) & set(stage.pods_of("train"))
    found = stage.found("job", "train") or {}
    assert found.get("status", {}).get("failed", 0) == 0


async def test_who_suspended_a_job_stands_in_its_managed_fields(stage: Acting) -> None:
    running_job(stage, pods=1)
    await stage.act(stage.suspension("train"))
    managed = stage.kubectl.json("get", "job", "train", "-n", stage.namespace, "--show-managed-fields")
    who = [m["manager"] for m in managed["metadata"]["managedFields"] if "f:suspend" in m["fieldsV1"].get("f:spec", {})]
    assert FIELD_MANAGER in who


async def test_a_job_that_somebody_else_changed_meanwhile_is_left_to_them(stage: Acting) -> None:
    running_job(stage, pods=1)
    decided = stage.suspension("train")
    stage.kubectl("patch", "job", "train", "-n", stage.namespace, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    assert reasons(await stage.act(decided)) == ["PreconditionFailed"]
    assert stage.refused() == ()
