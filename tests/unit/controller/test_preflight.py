"""The way back, tried as dry runs on an API server in memory."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lab.model.policies import policy
from precision_operator.api.policy import PolicyKey
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase
from precision_operator.controller.preflight import (
    AGAIN_SECONDS,
    AT_ONCE,
    FIRST_SECONDS,
    FRESH_SECONDS,
    OPEN_SECONDS,
    TRIED,
    Tried,
    WayBack,
)
from precision_operator.core.model import PodView, RestartBy, WorkloadView
from precision_operator.errors import Conflict, Forbidden, KubeError, NotFound, TooManyRequests, Unavailable
from precision_operator.kube.port import JOBS, PODS, Deletion, JsonObject, JsonValue, Resource
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock, finished, settle
from tests.support.reconciling import FAST, Rig

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
    assert await WayBack(api, ManualClock()).try_out(POLICY, [view]) == Tried({view.key: ""})
    assert api.tried == [tried]


async def test_a_refusal_is_told_and_tried_again_soon_and_a_proof_counts_longer() -> None:
    api, clock, view = Api(), ManualClock(), workload("a")
    way_back = WayBack(api, clock)
    api.refusal = Forbidden("no", status=403)
    for _ in range(2):
        assert await way_back.try_out(POLICY, [view]) == Tried({view.key: "Forbidden: no"})
    assert len(api.tried) == 1
    api.refusal = None
    await clock.advance(AGAIN_SECONDS)
    for _ in range(2):
        assert await way_back.try_out(POLICY, [view]) == Tried({view.key: ""})
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
    assert await WayBack(api, ManualClock()).try_out(POLICY, [workload("a")]) == Tried({})


NO_ANSWERS = [NotFound("gone"), Conflict("changed"), TooManyRequests("busy"), Unavailable("away")]


@pytest.mark.parametrize("error", NO_ANSWERS, ids=lambda error: error.reason)
async def test_what_gets_no_answer_is_asked_again_after_a_while_only(error: KubeError) -> None:
    api, clock = Api(), ManualClock()
    way_back = WayBack(api, clock)
    api.refusal = error
    for _ in range(3):
        await way_back.try_out(POLICY, [workload("a")])
    assert len(api.tried) == 1
    api.refusal = None
    await clock.advance(AGAIN_SECONDS)
    assert await way_back.try_out(POLICY, [workload("a")]) == Tried({workload("a").key: ""})


@pytest.mark.parametrize("answer", [*NO_ANSWERS, None], ids=lambda answer: answer.reason if answer else "none yet")
async def test_a_refusal_stands_until_another_try_has_ended_with_an_answer(answer: KubeError | None) -> None:
    api, clock, view = Api(), ManualClock(), workload("a")
    way_back = WayBack(api, clock)
    api.refusal = refusal = Forbidden("no", status=403)
    refused = await way_back.try_out(POLICY, [view])
    await clock.advance(AGAIN_SECONDS)
    api.refusal = answer
    if answer is None:
        api.answers.clear()
    for _ in range(2):
        assert (
            await finished(clock, way_back.try_out(POLICY, [view]))
            == refused
            == Tried({view.key: f"{refusal.reason}: no"})
        )
    api.answers.set()
    await settle()
    api.refusal = None
    await clock.advance(AGAIN_SECONDS)
    assert await way_back.try_out(POLICY, [view]) == Tried({view.key: ""})


async def test_a_first_answer_is_awaited_and_not_for_ever() -> None:
    api, clock, view = Api(), ManualClock(), workload("a")
    way_back = WayBack(api, clock)
    api.answers.clear()
    assert (await finished(clock, way_back.try_out(POLICY, [view]))).open == {view.key}
    another = workload("b")
    assert (await way_back.try_out(POLICY, [view, another])).open == {view.key, another.key}
    await clock.advance(OPEN_SECONDS)
    assert await way_back.try_out(POLICY, [view]) == Tried({})
    await way_back.close()


async def test_an_api_server_that_hangs_is_waited_for_for_a_moment_and_asked_a_few_things_at_once() -> None:
    api, clock, changed = Api(), ManualClock(), list[PolicyKey]()
    way_back = WayBack(api, clock, changed=changed.append)
    many = [workload(f"w-{index}") for index in range(TRIED)]
    opened = Tried({}, frozenset(view.key for view in many))
    api.answers.clear()
    began = clock.now
    assert await finished(clock, way_back.try_out(POLICY, many)) == opened
    assert clock.now - began == pytest.approx(FIRST_SECONDS, abs=0.1)
    assert await way_back.try_out(POLICY, many) == opened, "what is under way is not waited for again"
    assert (len(api.tried), changed) == (AT_ONCE, [])
    api.answers.set()
    await settle()
    assert changed == [PolicyKey(POLICY.namespace, POLICY.name)]
    assert len((await way_back.try_out(POLICY, many)).why) == len(api.tried) == TRIED
    await way_back.close()


async def test_what_has_no_pod_or_is_moved_by_new_pods_alone_is_not_tried_and_of_many_only_some() -> None:
    api, clock = Api(), ManualClock()
    assert await WayBack(api, clock).try_out(POLICY, [workload("a", pods=())]) == Tried({})
    new_only = replace(POLICY, spec=replace(POLICY.spec, delivery=Delivery.NEW_ONLY))
    assert await WayBack(api, clock).try_out(new_only, [workload("a")]) == Tried({})
    assert api.tried == []
    many = [workload(f"w-{index}") for index in range(TRIED + 5)]
    assert len((await WayBack(api, clock).try_out(POLICY, many)).why) == len(api.tried) == TRIED


@pytest.mark.parametrize("seconds", [0.5, 2.0])
async def test_no_rollout_starts_while_its_way_back_is_refused_late(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    rig.fleet("a", "b", **FAST)

    async def refused(workload: WorkloadView, pod: PodView, *, hot: bool) -> None:
        await rig.manual.sleep(seconds)
        raise Forbidden("webhook of another", status=403)

    monkeypatch.setattr(rig.gatherer._way_back, "_write", refused)
    for _ in range(20):
        ended = await rig.go()
        await rig.manual.advance(max(1.0, ended.next_seconds if ended is not None else 1.0))
    assert (rig.state.phase, rig.summary.reason) == (Phase.PENDING, "PreflightFailed")
