"""The way back, tried as dry runs on an API server in memory."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lab.model.policies import policy
from precision_operator.api.policy import PolicyKey
from precision_operator.api.spec import Delivery
from precision_operator.controller.preflight import AGAIN_SECONDS, AT_ONCE, FIRST_SECONDS, FRESH_SECONDS, TRIED, WayBack
from precision_operator.core.model import PodView, RestartBy, WorkloadView
from precision_operator.errors import Forbidden, KubeError, NotFound, TooManyRequests, Unavailable
from precision_operator.kube.port import JOBS, PODS, Deletion, JsonObject, JsonValue, Resource
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock, finished, settle

POLICY = policy()


def workload(name: str, *, hot: bool = True, **fields: object) -> WorkloadView:
    pod = PodView(f"{name}-pod", f"uid-{name}-pod", hot=hot)
    view = WorkloadView("ns", f"apps/Deployment/{name}", f"uid-{name}", hot=hot, literal=True, pods=(pod,))
    return replace(view, **fields)  # type: ignore[arg-type]


class Api(FakeKube):
    """Refuses dry runs where it is told to."""

    refusal: KubeError | None = None

    async def dry_run(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, server: str = ""
    ) -> JsonObject:
        self.tried.append(("patch", str(resource), name))
        await self.answers.wait()
        return self._answer()

    async def delete(self, resource: Resource, namespace: str, name: str, deletion: Deletion = Deletion()) -> None:  # noqa: B008
        assert deletion.dry_run
        assert deletion.grace_seconds is not None
        assert deletion.grace_seconds >= 1
        assert deletion.uid
        self.tried.append(("delete", str(resource), name))
        self._answer()

    def __init__(self) -> None:
        super().__init__()
        self.tried: list[tuple[str, str, str]] = []
        self.answers = asyncio.Event()
        """While it is not set, it hangs."""
        self.answers.set()

    def _answer(self) -> JsonObject:
        if self.refusal is not None:
            raise self.refusal
        return {}


@pytest.mark.parametrize(
    ("view", "tried"),
    [
        (workload("a"), ("patch", str(PODS), "a-pod")),
        (workload("a", hot=False), ("delete", str(PODS), "a-pod")),
        (
            workload("a", hot=False, restart_by=RestartBy.SUSPENSION, object_name="job-a"),
            ("patch", str(JOBS), "job-a"),
        ),
    ],
    ids=["hot", "pods are taken away", "suspension"],
)
async def test_the_write_that_a_rollback_would_make_is_tried(view: WorkloadView, tried: tuple[str, str, str]) -> None:
    api = Api()
    assert await WayBack(api, ManualClock()).try_out(POLICY, [view]) == {view.key: ""}
    assert api.tried == [tried]


async def test_a_refusal_is_told_and_tried_again_soon_and_a_proof_counts_longer() -> None:
    api, clock, view = Api(), ManualClock(), workload("a")
    way_back = WayBack(api, clock)
    api.refusal = Forbidden("no", status=403)
    for _ in range(2):
        assert await way_back.try_out(POLICY, [view]) == {view.key: "Forbidden: no"}
    assert len(api.tried) == 1
    api.refusal = None
    await clock.advance(AGAIN_SECONDS)
    for _ in range(2):
        assert await way_back.try_out(POLICY, [view]) == {view.key: ""}
        await clock.advance(FRESH_SECONDS - 1.0)
    assert len(api.tried) == 2
    await clock.advance(1.0)
    await way_back.try_out(POLICY, [view])
    assert len(api.tried) == 3


@pytest.mark.parametrize(
    "error", [NotFound("gone"), TooManyRequests("busy"), Unavailable("away")], ids=lambda error: error.reason
)
async def test_no_answer_proves_nothing(error: KubeError) -> None:
    api = Api()
    api.refusal = error
    assert await WayBack(api, ManualClock()).try_out(POLICY, [workload("a")]) == {}


@pytest.mark.parametrize("error", [TooManyRequests("busy"), Unavailable("away")], ids=lambda error: error.reason)
async def test_what_gets_no_answer_is_asked_again_after_a_while_only(error: KubeError) -> None:
    api, clock = Api(), ManualClock()
    way_back = WayBack(api, clock)
    api.refusal = error
    for _ in range(3):
        await way_back.try_out(POLICY, [workload("a")])
    assert len(api.tried) == 1
    api.refusal = None
    await clock.advance(AGAIN_SECONDS)
    assert await way_back.try_out(POLICY, [workload("a")]) == {workload("a").key: ""}


async def test_an_api_server_that_hangs_is_waited_for_for_a_moment_and_asked_a_few_things_at_once() -> None:
    api, clock, changed = Api(), ManualClock(), list[PolicyKey]()
    way_back = WayBack(api, clock, changed=changed.append)
    many = [workload(f"w-{index}") for index in range(TRIED)]
    api.answers.clear()
    began = clock.now
    assert await finished(clock, way_back.try_out(POLICY, many)) == {}
    assert clock.now - began == pytest.approx(FIRST_SECONDS, abs=0.1)
    assert await way_back.try_out(POLICY, many) == {}, "what is under way is not waited for again"
    assert (len(api.tried), changed) == (AT_ONCE, [])
    api.answers.set()
    await settle()
    assert changed == [PolicyKey(POLICY.namespace, POLICY.name)]
    assert len(await way_back.try_out(POLICY, many)) == len(api.tried) == TRIED
    await way_back.close()


async def test_what_has_no_pod_or_is_moved_by_new_pods_alone_is_not_tried_and_of_many_only_some() -> None:
    api, clock = Api(), ManualClock()
    assert await WayBack(api, clock).try_out(POLICY, [workload("a", pods=())]) == {}
    new_only = replace(POLICY, spec=replace(POLICY.spec, delivery=Delivery.NEW_ONLY))
    assert await WayBack(api, clock).try_out(new_only, [workload("a")]) == {}
    assert api.tried == []
    many = [workload(f"w-{index}") for index in range(TRIED + 5)]
    assert len(await WayBack(api, clock).try_out(POLICY, many)) == len(api.tried) == TRIED
