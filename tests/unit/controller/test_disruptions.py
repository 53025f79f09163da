"""How budgets and pods are read before pods are taken away: with bounds, for a namespace may hold as many as it likes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import ModuleType
from typing import Any, NoReturn

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.controller import disruptions
from precision_operator.controller.disruptions import READS_AT_ONCE, Disruptions
from precision_operator.core.actions import EvictPod
from precision_operator.errors import Unavailable
from precision_operator.kube.port import DISRUPTION_BUDGETS, PODS, JsonObject, Resource
from precision_operator.kube.transport import READ_CONNECTIONS
from precision_operator.workloads import budgets
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock, finished
from tests.support.views import pod, workload

KEY = PolicyKey("ns", "fleet")


class Slow(FakeKube):
    """Each pod takes a while to be read."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.most = self.now = 0

    async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
        self.now += 1
        self.most = max(self.most, self.now)
        await self._clock.sleep(0.01)
        self.now -= 1
        return await super().get(resource, namespace, name)


def groups(number: int) -> list[EvictPod]:
    """Evictions of so many workloads of two pods."""
    views = [workload(f"w{n}", pods=(pod(f"w{n}-0"), pod(f"w{n}-1"))) for n in range(number)]
    return [EvictPod(view, one, 7) for view in views for one in view.pods]


def stage(clock: ManualClock, *, pods: list[EvictPod], allowed: int = 1_000) -> Slow:
    kube = Slow(clock)
    status: Any = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for write in pods:
        name = write.pod.name
        metadata: Any = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": {"app": "a"}}
        kube.put(PODS, {"metadata": metadata, "status": status})
    for name in ("one", "two"):
        found: Any = {"metadata": {"namespace": "ns", "name": name}, "status": {"disruptionsAllowed": allowed}}
        kube.put(DISRUPTION_BUDGETS, found | {"spec": {"selector": {"matchLabels": {"app": "a"}}}})
    return kube


async def test_few_pods_are_read_at_once_and_never_so_many_that_a_lease_would_wait_for_a_connection() -> None:
    clock, wanted = ManualClock(), groups(20)
    kube = stage(clock, pods=wanted)
    assert await finished(clock, Disruptions(kube, clock).against(KEY, wanted)) == {}
    assert [read[0] for read in kube.reads] == ["list", *["get"] * 40]
    assert 1 < kube.most <= READS_AT_ONCE < READ_CONNECTIONS


@pytest.mark.parametrize(
    ("where", "limit", "words"),
    [
        (budgets, "BUDGETS_LIMIT", "more than 1 disruption budgets"),
        (budgets, "TERMS_LIMIT", "more than 1 labels and values"),
        (disruptions, "BUDGETS_BYTES", "more than 1 bytes"),
    ],
)
async def test_of_more_budgets_than_can_be_judged_nothing_is_taken_away_and_it_is_said_why(
    where: ModuleType, limit: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, wanted = ManualClock(), groups(2)
    kube = stage(clock, pods=wanted)
    monkeypatch.setattr(where, limit, 1)
    found = await finished(clock, Disruptions(kube, clock).against(KEY, wanted))
    assert found.keys() == {write.workload.key for write in wanted}
    assert all(words in error.budget for error in found.values())


async def test_who_is_torn_is_finished_also_where_its_budgets_cannot_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, wanted = ManualClock(), groups(2)
    checks = Disruptions(stage(clock, pods=wanted), clock)
    assert await finished(clock, checks.against(KEY, wanted)) == {}
    monkeypatch.setattr(budgets, "BUDGETS_LIMIT", 1)
    for _ in range(2):
        found = await finished(clock, checks.against(KEY, wanted[1:]))
        assert found.keys() == {wanted[-1].workload.key}


@pytest.mark.parametrize(("namespace", "waits"), [("ns", True), ("elsewhere", False)])
async def test_a_lone_pod_waits_for_another_policys_group_that_shares_its_budget_in_the_namespace(
    namespace: str, *, waits: bool
) -> None:
    clock, wanted = ManualClock(), groups(2)
    kube = stage(clock, pods=wanted)
    kube.put(DISRUPTION_BUDGETS, {"metadata": {"namespace": "elsewhere", "name": "one"}, "spec": {}})
    checks, other = Disruptions(kube, clock), PolicyKey(namespace, "other")
    assert await finished(clock, checks.against(other, wanted[:2])) == {}
    found = await finished(clock, checks.against(KEY, wanted[2:3]))
    assert bool(found) is waits


async def test_before_a_lone_pod_goes_no_budget_is_read_for_the_api_server_asks_it() -> None:
    clock, wanted = ManualClock(), groups(2)
    kube = stage(clock, pods=wanted, allowed=0)
    assert await finished(clock, Disruptions(kube, clock).against(KEY, wanted[::2])) == {}
    assert kube.reads == []


async def test_the_last_pod_of_a_torn_group_is_waited_for_by_who_shares_its_budget() -> None:
    clock, wanted = ManualClock(), groups(2)
    checks = Disruptions(stage(clock, pods=wanted), clock)
    left = replace(wanted[1], follows=True)
    assert await finished(clock, checks.against(KEY, [left])) == {}
    found = await finished(clock, checks.against(PolicyKey("ns", "other"), wanted[2:]))
    assert found.keys() == {wanted[2].workload.key}


@pytest.mark.parametrize("error", [Unavailable("no answer"), asyncio.CancelledError()], ids=["no answer", "cut off"])
@pytest.mark.parametrize("read", ["list", "get"])
async def test_a_group_that_was_begun_is_waited_for_still_after_budgets_could_not_be_read(
    read: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> NoReturn:
        raise error

    clock, wanted = ManualClock(), groups(2)
    kube = stage(clock, pods=wanted)
    checks = Disruptions(kube, clock)
    assert await finished(clock, checks.against(KEY, wanted[:2])) == {}
    with monkeypatch.context() as away:
        away.setattr(kube, read, fail)
        with pytest.raises(type(error)):
            await finished(clock, checks.against(KEY, wanted[1:2]))
    found = await finished(clock, checks.against(PolicyKey("ns", "other"), wanted[2:]))
    assert found.keys() == {wanted[2].workload.key}
