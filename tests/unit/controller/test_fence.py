"""The operator writes nothing unless the API server forbids it what it does not need."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from precision_operator.controller.fence import (
    AGAIN_SECONDS,
    KEPT_SECONDS,
    PARTLY_SECONDS,
    PATIENCE_SECONDS,
    PAUSE_SECONDS,
    TRIED,
    Fence,
)
from precision_operator.errors import Forbidden, KubeError, NotFound, TooManyRequests, Unavailable, Unfenced
from precision_operator.kube.port import DISRUPTION_BUDGETS, JOBS, PODS, POLICIES, JsonObject, JsonValue, Resource
from precision_operator.runtime.clock import within
from tests.support import objects as b
from tests.support.manual_clock import ManualClock, finished, late
from tests.support.server import Server

POD = [("default", "train-abc-1")]


def rig(*, required: bool = True) -> tuple[Server, Fence, ManualClock]:
    kube, clock = Server(), ManualClock()
    kube.put(PODS, b.pod())
    kube.put(POLICIES, b.policy())
    return kube, Fence(kube, clock, required=required), clock


def trials(kube: Server) -> list[tuple[str, str, str]]:
    """Dry runs of patches."""
    return sorted(read for read in kube.reads if read[0] == "dry-run")


async def test_what_is_forbidden_is_tried_as_dry_runs_and_again_in_time() -> None:
    kube, fence, clock = rig()
    for _ in range(3):
        assert await fence.check(POD) is None
    assert trials(kube) == [("dry-run", "pods", "train-abc-1"), ("dry-run", "precisionpolicies", "p")]
    assert (kube.grace, kube.writes) == ([0, 30], [])
    await clock.advance(AGAIN_SECONDS)
    kube.fenced = False
    assert isinstance(await fence.check(POD), Unfenced)


async def test_what_was_proven_at_the_start_on_the_operators_own_pod_is_not_tried_before_the_first_writes() -> None:
    kube, fence, _ = rig()
    kube.put(PODS, b.pod(name="operator", uid="uid-operator"))
    await fence.begin("default", "operator")
    assert trials(kube) == [("dry-run", "pods", "operator"), ("dry-run", "precisionpolicies", "p")]
    assert (kube.grace, kube.writes) == ([0, 30], [])
    tried = len(kube.reads)
    assert await fence.check(POD) is None
    assert await fence.check_evictions([(*POD[0], "uid")]) is None
    assert len(kube.reads) == tried


@pytest.mark.parametrize("rule", ["pods", "evict-uid"])
async def test_an_open_fence_is_said_at_the_start_and_tried_again_before_the_first_write(
    rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    kube, fence, _ = rig()
    kube.unruled = {rule}
    await fence.begin(*POD[0])
    assert [record.levelname for record in caplog.records if "the operator could" in record.message] == ["WARNING"]
    found = await fence.check(POD) if rule == "pods" else await fence.check_evictions([(*POD[0], "uid-train-abc-1")])
    assert isinstance(found, Unfenced)


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("pods", "change a pod's labels"),
        ("grace", "kill a pod without grace"),
        ("uid", "delete a pod without its uid"),
        ("policies", "change a policy"),
    ],
)
async def test_a_fence_that_lacks_one_rule_is_none(rule: str, what: str) -> None:
    kube, fence, _ = rig()
    kube.unruled = {rule}
    unfenced = await fence.check(POD)
    assert isinstance(unfenced, Unfenced)
    assert f"the operator could {what}" in str(unfenced)
    kube.unruled = set()
    assert await fence.check(POD) is None


async def test_a_grace_of_its_own_that_is_zero_does_not_hide_that_the_uid_is_not_asked_for() -> None:
    kube, fence, _ = rig()
    kube.put(PODS, b.pod({**b.hot_spec(), "terminationGracePeriodSeconds": 0}))
    kube.unruled = {"uid"}
    assert "without its uid" in str(await fence.check(POD))


def idle(name: str) -> JsonObject:
    """A pod that has no node yet."""
    body = b.pod(name=name, uid=name)
    del body["spec"]["nodeName"]
    return body


async def test_of_several_pods_one_that_runs_is_tried() -> None:
    kube, fence, clock = rig()
    ended, leaving = b.pod(name="ended", phase="Succeeded"), b.pod(name="leaving")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    for body in (idle("idle"), ended, leaving):
        kube.put(PODS, body)
    kube.unruled = {"grace"}
    pods = [("default", name) for name in ("idle", "ended", "leaving")]
    assert "without grace" in str(await fence.check([*pods, *POD]))
    kube.unruled = set()
    assert await fence.check([*pods, *POD]) is None
    await clock.advance(PARTLY_SECONDS)
    kube.fenced = False
    assert await fence.check(POD) is None, "it was proven in full"


async def test_a_deletion_that_admission_does_not_see_is_not_taken_for_a_hole() -> None:
    kube, fence, _ = rig()
    leaving = b.pod()
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    kube.put(PODS, leaving)
    assert await fence.check(POD) is None


@pytest.mark.parametrize("missing", ["a pod that runs", "a policy"])
async def test_what_could_be_tried_in_part_only_is_tried_again_soon(missing: str) -> None:
    kube, fence, clock = rig()
    if missing == "a policy":
        del kube.objects["precisionpolicies", "default", "p"]
    else:
        kube.put(PODS, idle("train-abc-1"))
    assert await fence.check(POD) is None
    tried = len(trials(kube))
    assert await fence.check(POD) is None
    assert len(trials(kube)) == tried
    await clock.advance(PARTLY_SECONDS)
    kube.fenced = False
    assert isinstance(await fence.check(POD), Unfenced)


class Refusing(Server):
    """Answers to trials on a policy with an error of its own."""

    error: KubeError = KubeError("422: a field that a newer schema does not know", status=422)

    async def dry_run(
        self, resource: Resource, namespace: str, name: str, body: Mapping[str, JsonValue], *, server: str = ""
    ) -> JsonObject:
        if resource == POLICIES:
            raise self.error
        return await super().dry_run(resource, namespace, name, body, server=server)


@pytest.mark.parametrize("error", [Refusing.error, Forbidden("RBAC", status=403), NotFound("gone", status=404)])
async def test_a_policy_that_cannot_be_changed_for_another_reason_holds_up_no_pod(error: KubeError) -> None:
    kube = Refusing()
    kube.error = error
    kube.put(PODS, b.pod())
    kube.put(POLICIES, b.policy())
    assert await Fence(kube, ManualClock()).check(POD) is None


def no_answer(kube: Server, error: KubeError | None) -> None:
    def refuse(body: JsonObject) -> JsonObject:
        if error is not None:
            raise error
        return body

    kube.answer = refuse


@pytest.mark.parametrize("error", [Unavailable("504"), Forbidden("no right", status=403), NotFound("gone", status=404)])
async def test_where_nothing_can_be_tried_at_the_start_it_is_tried_before_the_first_write(error: KubeError) -> None:
    kube, fence, _ = rig()
    no_answer(kube, error)
    await fence.begin(*POD[0])
    await fence.begin("default", "no such pod")
    no_answer(kube, None)
    assert await fence.check(POD) is None
    assert trials(kube)[-1] == ("dry-run", "precisionpolicies", "p")


@pytest.mark.parametrize("error", [TooManyRequests("429", retry_after_seconds=20.0), Unavailable("504")])
async def test_an_earlier_proof_counts_while_there_is_no_answer_but_not_for_ever(error: KubeError) -> None:
    kube, fence, clock = rig()
    assert await fence.check(POD) is None
    await clock.advance(AGAIN_SECONDS)
    no_answer(kube, error)
    kube.reads.clear()
    for _ in range(3):
        assert await fence.check(POD) is None
    assert len(trials(kube)) == 2, "no pass waits for the next trial before its time"
    pause_seconds = getattr(error, "retry_after_seconds", PAUSE_SECONDS)
    await clock.advance(pause_seconds - 0.1)
    assert await fence.check(POD) is None
    assert len(trials(kube)) == 2
    await clock.advance(0.1)
    assert await fence.check(POD) is None
    assert len(trials(kube)) == 4
    await clock.advance(KEPT_SECONDS)
    refused = await fence.check(POD)
    assert refused is not None
    assert str(error) in str(refused)
    kube.answer = lambda body: body
    assert await fence.check(POD) is None


async def test_an_api_server_that_hangs_holds_up_what_was_proven_for_a_moment_only() -> None:
    class Hanging(Server):
        hangs = False

        async def get(self, resource: Resource, namespace: str, name: str) -> JsonObject:
            if self.hangs:
                await asyncio.get_running_loop().create_future()
            return await super().get(resource, namespace, name)

    kube, clock = Hanging(), ManualClock()
    kube.put(PODS, b.pod())
    kube.put(POLICIES, b.policy())
    fence = Fence(kube, clock)
    assert await fence.check(POD) is None
    await clock.advance(AGAIN_SECONDS)
    kube.hangs = True
    began = clock.now
    for _ in range(5):
        assert await finished(clock, fence.check(POD)) is None
    assert clock.now - began < PATIENCE_SECONDS + 0.1


async def test_a_proof_that_was_refuted_does_not_count_again() -> None:
    kube, fence, clock = rig()
    assert await fence.check(POD) is None
    await clock.advance(AGAIN_SECONDS)
    kube.fenced = False
    assert isinstance(await fence.check(POD), Unfenced)
    no_answer(kube, Unavailable("504"))
    kube.unruled = {"uid", "grace"}
    assert isinstance(await fence.check(POD), Unfenced)
    kube.fenced, kube.unruled = True, set()
    assert isinstance(await fence.check(POD), Unfenced)


async def test_who_asks_to_wait_is_heard() -> None:
    kube, fence, _ = rig()
    no_answer(kube, TooManyRequests("slow down", retry_after_seconds=7.0))
    refused = await fence.check(POD)
    assert isinstance(refused, TooManyRequests)
    assert refused.retry_after_seconds == 7.0
    assert "slow down" in str(refused)


async def test_without_the_fence_nothing_may_be_written_and_it_is_tried_again_at_once() -> None:
    kube, fence, _ = rig()
    kube.fenced = False
    unfenced = await fence.check(POD)
    assert isinstance(unfenced, Unfenced)
    assert "change a pod's labels" in str(unfenced)
    assert "manifests/admission/fence.yaml" in str(unfenced)
    kube.fenced = True
    assert await fence.check(POD) is None


async def test_a_missing_right_is_no_fence_nor_is_an_api_server_that_is_away() -> None:
    for error in (Forbidden("pods is forbidden: RBAC", status=403), Unavailable("away"), KubeError("400")):
        kube, clock = Server(), ManualClock()
        kube.put(PODS, b.pod(name="precision-fence"))

        def refuse(body: object, error: KubeError = error) -> None:
            raise error

        kube.answer = refuse  # type: ignore[assignment]
        unfenced = await Fence(kube, clock).check([("default", "precision-fence")])
        assert isinstance(unfenced, Unfenced)
        assert str(error) in str(unfenced)


async def test_a_name_cannot_pass_for_a_denial() -> None:
    kube, clock = Server(), ManualClock()
    kube.put(PODS, b.pod(name="precision-fence"))

    def refuse(body: object) -> None:
        raise Unavailable("PATCH /api/v1/namespaces/precision-fence/pods/precision-fence: 503")

    kube.answer = refuse  # type: ignore[assignment]
    assert isinstance(await Fence(kube, clock).check([("default", "precision-fence")]), Unfenced)


async def test_pods_that_are_gone_prove_nothing() -> None:
    kube, fence, _ = rig()
    kube.fenced = False
    gone = [("default", f"gone-{number}") for number in range(100)]
    assert isinstance(await fence.check([*gone[:2], *POD]), Unfenced)
    kube.fenced = True
    assert await Fence(kube, ManualClock()).check([*gone[:2], *POD]) is None
    kube.reads.clear()
    unfenced = await Fence(kube, ManualClock()).check(gone)
    assert isinstance(unfenced, Unfenced)
    assert "gone" in str(unfenced)
    assert len(kube.reads) == TRIED


async def test_a_person_may_do_without_for_development() -> None:
    kube, fence, _ = rig(required=False)
    kube.fenced = False
    assert await fence.check(POD) is None
    assert kube.reads == []


# ---- evictions and Jobs

EVICTED = [("default", "train-abc-1", b.pod()["metadata"]["uid"])]
JOB = [("default", "train")]


def with_job() -> tuple[Server, Fence, ManualClock]:
    kube, fence, clock = rig()
    kube.put(JOBS, {"metadata": {"name": "train"}, "spec": {"suspend": False}})
    return kube, fence, clock


@pytest.mark.parametrize(
    ("rule", "what"), [("evict-uid", "evict a pod without its uid"), ("evict-grace", "evict a pod without grace")]
)
async def test_evictions_are_fenced_by_all_their_rules_or_not_used(rule: str, what: str) -> None:
    kube, fence, clock = with_job()
    kube.unruled = {rule}
    unfenced = await fence.check_evictions(EVICTED)
    assert isinstance(unfenced, Unfenced)
    assert f"the operator could {what}" in str(unfenced)
    assert "no pod is evicted until it is" in str(unfenced)
    assert await fence.check(POD) is await fence.check_jobs(JOB) is None, "what is fenced goes on"
    kube.unruled = set()
    assert await fence.check_evictions(EVICTED) is None
    assert kube.writes == []
    kube.fenced = False
    assert await fence.check_evictions(EVICTED) is None, "it was proven a moment ago"
    await clock.advance(AGAIN_SECONDS)
    assert isinstance(await fence.check_evictions(EVICTED), Unfenced)


async def test_a_budget_that_refuses_a_forbidden_eviction_hides_no_open_fence() -> None:
    kube, fence, _ = with_job()
    pod: Any = kube.objects["pods", "default", "train-abc-1"]
    pod["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    kube.put(DISRUPTION_BUDGETS, {"metadata": {"name": "b"}, "spec": {"selector": {}}, "status": {}})
    kube.fenced = False
    assert "the operator could evict" in str(await fence.check_evictions(EVICTED))
    kube.fenced = True
    assert await fence.check_evictions(EVICTED) is None


async def test_suspensions_are_fenced_or_not_used() -> None:
    kube, fence, _ = with_job()
    kube.unruled = {"jobs"}
    unfenced = await fence.check_jobs(JOB)
    assert isinstance(unfenced, Unfenced)
    assert "the operator could change a Job's labels" in str(unfenced)
    assert await fence.check(POD) is await fence.check_evictions(EVICTED) is None
    kube.unruled = set()
    assert await fence.check_jobs([("default", "gone"), *JOB]) is None


async def test_jobs_and_evicted_pods_that_are_gone_prove_nothing() -> None:
    kube, fence, _ = with_job()
    kube.fenced = False  # else it denies before it is seen that they are gone
    for answer in (
        await fence.check_jobs(("default", f"gone-{number}") for number in range(9)),
        await fence.check_evictions(("default", f"gone-{number}", "u") for number in range(9)),
    ):
        assert isinstance(answer, Unfenced)
        assert "gone" in str(answer)
    assert await fence.check(POD) is not None


async def test_an_operator_that_suspends_nothing_needs_no_job_to_be_fenced() -> None:
    kube, fence, _ = rig()
    assert await fence.check(POD) is await fence.check_evictions(EVICTED) is None
    assert [read for read in kube.reads if read[1] == "jobs"] == []


async def test_a_person_may_do_without_for_development_of_all_kinds() -> None:
    kube, fence, _ = rig(required=False)
    kube.fenced = False
    assert await fence.check_evictions(EVICTED) is await fence.check_jobs(JOB) is None
    assert kube.reads == []


async def test_a_trial_that_takes_longer_than_a_pass_waits_is_found_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kube, fence, clock = rig()
    monkeypatch.setattr(kube, "dry_run", late(clock, 3.0, kube.dry_run))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await finished(clock, within(clock, 0.5, fence.check(POD)))
    await clock.advance(3.0)
    assert await fence.check(POD) is None
    assert len(trials(kube)) == 2


async def test_a_trial_of_long_ago_that_nobody_waited_for_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, fence, clock = rig()
    with monkeypatch.context() as slowly:
        slowly.setattr(kube, "dry_run", late(clock, 3.0, kube.dry_run))
        with pytest.raises(TimeoutError):
            await finished(clock, within(clock, 0.5, fence.check(POD)))
    await clock.advance(PARTLY_SECONDS)
    kube.fenced = False
    assert isinstance(await fence.check(POD), Unfenced)


async def test_a_trial_on_what_is_gone_by_then_is_no_answer_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, fence, clock = rig()
    monkeypatch.setattr(kube, "get", late(clock, 1.0, kube.get))
    gone, there = (asyncio.ensure_future(fence.check([("default", name)])) for name in ("gone", "train-abc-1"))
    assert isinstance(await finished(clock, gone), Unfenced)
    assert await finished(clock, there) is None
