"""Pods evicted, Jobs suspended and resumed: what is written when, and what holds it back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.api.state import State
from precision_operator.controller import fence
from precision_operator.controller.act import OVERDUE_SECONDS, Acted
from precision_operator.controller.disruptions import UNKNOWN_SECONDS
from precision_operator.controller.echo import PATIENCE_SECONDS
from precision_operator.controller.enforcement import FRESH_SECONDS
from precision_operator.controller.halt import HALT_CONFIG_MAP
from precision_operator.core.actions import Action, DeletePod, EvictPod, ResumeJob, SuspendJob
from precision_operator.core.model import RefusedWrite
from precision_operator.errors import DisruptionBudget, Forbidden, TooManyRequests, Unavailable
from precision_operator.kube.port import CONFIG_MAPS, DISRUPTION_BUDGETS, PODS
from precision_operator.reasons import Reason
from tests.support.acting import EMERGENCY, GRADUAL, KEY, POLICY, STATE, Rig, deletion, job, request, resumption
from tests.support.manual_clock import finished, late
from tests.support.views import pod, workload

LABELS = {"batch.kubernetes.io/controller-uid": "uid-train"}


def eviction(name: str, **fields: object) -> EvictPod:
    return EvictPod(workload(), pod(name, **fields), 7)


def suspension(name: str = "train", *, respects_budgets: bool = False) -> SuspendJob:
    return SuspendJob(job(name), 7, 1, respects_budgets)


def put_budget(rig: Rig, allowed: int, **labels: str) -> None:
    status: Any = {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2}
    metadata: Any = {"namespace": "ns", "name": "train", "generation": 1}
    selector: Any = {"matchLabels": labels} if labels else {}
    rig.kube.put(DISRUPTION_BUDGETS, {"metadata": metadata, "spec": {"selector": selector}, "status": status})


def put_pods(rig: Rig, *names: str, **labels: str) -> None:
    status: Any = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in names:
        metadata: Any = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "labels": {**LABELS, **labels}}
        rig.kube.put(PODS, {"metadata": metadata, "status": status})


async def test_pods_are_asked_first_then_jobs_resumed_and_others_taken_away_after_the_echo() -> None:
    rig = Rig("a", "b", "c")
    rig.put_job("train")
    rig.put_job("back", suspend=True)
    acted = await rig.act(suspension(), eviction("b"), deletion("c"), request("a"), resumption("back"))
    assert acted.failures == ()
    assert rig.order[:2] == ["patch a", "patch job back after the echo"]
    assert sorted(rig.order[2:]) == [
        "delete c after the echo",
        "evict b after the echo",
        "patch job train after the echo",
    ]
    assert (rig.pods, rig.suspended("train"), rig.suspended("back")) == (["a"], True, False)


async def test_a_job_is_resumed_before_all_else_where_admission_is_confirmed() -> None:
    rig = Rig("a", "b")
    rig.put_job("back", suspend=True)
    await rig.act(deletion("b"))
    rig.order.clear()
    await rig.act(request("a"), resumption("back"))
    assert rig.order == ["patch job back after the echo", "patch a after the echo"]


@pytest.mark.parametrize("state", [STATE, GRADUAL, EMERGENCY], ids=["rollout", "gradual", "emergency"])
async def test_a_suspended_job_waits_for_admission_as_long_as_an_emergency_and_no_longer(state: State) -> None:
    rig = Rig()
    rig.put_job("back", suspend=True)
    rig.put_job("train")
    rig.kube.installed = False
    began = rig.clock.now
    while rig.suspended("back"):
        assert rig.clock.now - began < OVERDUE_SECONDS + 2 * PATIENCE_SECONDS
        acted = await rig.act(resumption("back"), suspension(), state=state)
        await rig.clock.advance(1)
    assert rig.clock.now - began >= OVERDUE_SECONDS
    assert rig.suspended("train") == (state is EMERGENCY)
    assert ("AdmissionNotConfirmed" in rig.reasons(acted)) == (state is not EMERGENCY)
    said = 2 if state is EMERGENCY else 1
    assert rig.events == [("AdmissionNotConfirmed", 1)] * said


async def test_what_waits_for_admission_is_shown() -> None:
    rig = Rig("a")
    rig.put_job("back", suspend=True)
    rig.kube.installed = False
    await rig.act(resumption("back"), eviction("a"))
    reason = Reason.ADMISSION_NOT_CONFIRMED
    assert rig.actor.refused(KEY) == (RefusedWrite("resuming Jobs", reason), RefusedWrite("taking pods away", reason))
    await rig.act()
    assert rig.actor.refused(KEY) == ()
    assert rig.actor._waiting == {}


async def test_what_has_waited_for_one_thing_gives_another_no_head_start() -> None:
    rig = Rig("a")
    rig.put_job("back", suspend=True)
    rig.kube.installed = False
    for _ in range(3):
        await rig.act(eviction("a"), state=GRADUAL)
        await rig.clock.advance(OVERDUE_SECONDS)
    await rig.act(eviction("a"), resumption("back"), state=GRADUAL)
    assert rig.suspended("back")


async def test_a_job_waits_for_no_more_than_an_answer_where_the_last_one_is_old() -> None:
    rig = Rig()
    rig.put_job("back", suspend=True)
    await rig.act()
    await rig.clock.advance(FRESH_SECONDS)
    assert (await rig.act(resumption("back"))).failures == ()
    assert not rig.suspended("back")


async def test_what_is_being_written_is_halted_at_once_and_only_a_suspended_job_is_resumed() -> None:
    rig = Rig("a", "b")
    rig.put_job("train", suspend=True)
    rig.kube.put(CONFIG_MAPS, {"metadata": {"namespace": "system", "name": HALT_CONFIG_MAP}})
    await rig.halt.read()
    acted = await rig.act(request("a"), deletion("b"), resumption(), state=EMERGENCY)
    assert set(rig.reasons(acted)) == {Reason.HALTED}
    assert rig.order == ["patch job train after the echo"]
    assert not rig.suspended("train")


async def test_where_nothing_is_enforced_a_job_is_resumed_at_once() -> None:
    rig = Rig()
    rig.put_job("back", suspend=True)
    rig.kube.installed = False
    assert (await rig.act(resumption("back"), state=replace(STATE, enforce=False))).failures == ()
    assert not rig.suspended("back")


async def test_a_job_that_is_as_wanted_or_gone_is_not_written_and_one_that_changed_is_looked_at_again() -> None:
    rig = Rig()
    rig.put_job("train", suspend=True)
    done = SuspendJob(job(suspended=True), 7, 1), ResumeJob(job("gone"), 7, 1), suspension("gone too")
    assert (await rig.act(*done)).failures == ()
    assert rig.order == ["patch job gone too after the echo"]
    acted = await rig.act(suspension())
    assert rig.reasons(acted) == ["PreconditionFailed"]
    assert rig.actor.refused(KEY) == ()


async def test_a_pod_is_evicted_with_its_own_grace_and_deleted_with_the_one_that_is_asked_but_never_none() -> None:
    rig = Rig("a", "b", "c", "d")
    asked = DeletePod(workload(), pod("c"), 7, grace_seconds=5), DeletePod(workload(), pod("d"), 7, grace_seconds=0)
    await rig.act(eviction("a"), eviction("b", graceless=True), *asked)
    assert rig.kube.graces == {"a": None, "b": 1, "c": 5, "d": 1}


async def test_an_eviction_that_a_budget_refuses_shows_with_the_budget_and_is_tried_again() -> None:
    rig = Rig()
    put_pods(rig, "a", "b")
    put_budget(rig, 0)
    acted = await rig.act(eviction("a"), deletion("b"), state=GRADUAL)
    assert rig.reasons(acted) == ["DisruptionBudget"]
    words = "EvictPod a: the disruption budget train allows 0 disruptions, and 1 of its pods would go"
    assert rig.actor.refused(KEY) == (RefusedWrite(words, Reason.DISRUPTION_BUDGET),)
    assert rig.pods == ["a"], "a deletion asks no budget"
    assert rig.limiter.paused_seconds("ns") == 0, "the API server is not busy"
    put_budget(rig, 1)
    assert (await rig.act(eviction("a"), state=GRADUAL)).failures == ()
    assert (rig.pods, rig.actor.refused(KEY)) == ([], ())


async def test_a_suspension_that_respects_budgets_waits_until_all_pods_of_the_job_may_go() -> None:
    rig = Rig()
    rig.put_job("train")
    put_pods(rig, "a", "b")
    put_pods(rig, "other", **{"batch.kubernetes.io/controller-uid": "uid-other"})
    put_budget(rig, 1)
    acted = await rig.act(suspension(respects_budgets=True), state=GRADUAL)
    assert rig.reasons(acted) == ["DisruptionBudget"]
    assert not rig.suspended("train")
    (refused,) = rig.actor.refused(KEY)
    assert refused.what.startswith("SuspendJob train: the disruption budget train allows 1 disruptions, and 2")
    put_budget(rig, 2)
    assert (await rig.act(suspension(respects_budgets=True), state=GRADUAL)).failures == ()
    assert (rig.suspended("train"), rig.actor.refused(KEY)) == (True, ())


async def test_budgets_keep_the_pods_of_a_job_also_where_its_manual_selector_leaves_them_without_its_label() -> None:
    rig = Rig()
    rig.put_job("train")
    put_pods(rig, "a", "b")
    for name in "ab":
        body: Any = rig.kube.objects["pods", "ns", name]
        body["metadata"]["labels"].clear()
    put_budget(rig, 1)
    wanted = replace(suspension(respects_budgets=True), workload=replace(job(), pods=(pod("a"), pod("b"), pod("gone"))))
    assert rig.reasons(await rig.act(wanted, state=GRADUAL)) == ["DisruptionBudget"]
    assert not rig.suspended("train")
    put_budget(rig, 2)
    await rig.act(wanted, state=GRADUAL)
    assert rig.suspended("train")


async def test_a_suspension_that_respects_none_asks_none() -> None:
    rig = Rig()
    rig.put_job("train")
    put_pods(rig, "a")
    put_budget(rig, 0)
    assert (await rig.act(suspension())).failures == ()
    assert rig.suspended("train")
    assert [read for read in rig.kube.reads if read[1] == "poddisruptionbudgets"] == []


async def test_a_refusal_of_a_job_is_remembered_and_a_busy_server_is_waited_for() -> None:
    rig = Rig()
    rig.put_job("train")
    rig.refuse = {"train": Forbidden("403")}
    await rig.act(suspension())
    assert rig.actor.refused(KEY) == (RefusedWrite("SuspendJob train", Reason.FORBIDDEN),)
    rig.refuse = {"train": TooManyRequests("429", retry_after_seconds=4.0)}
    acted = await rig.act(suspension())
    assert rig.reasons(acted) == ["TooManyRequests"]
    assert rig.limiter.paused_seconds("ns") == pytest.approx(4.0)


UNRULED = {
    "evict-uid": "any eviction",
    "evict-grace": "any eviction",
    "jobs": "any suspension of a Job",
    "pods": "any write to a pod",
}


@pytest.mark.parametrize("rule", UNRULED)
async def test_a_kind_of_write_that_is_not_fenced_is_withheld_and_no_other(rule: str) -> None:
    rig = Rig("a", "b")
    rig.put_job("train")
    rig.put_job("back", suspend=True)
    rig.kube.unruled = {rule}
    acted = await rig.act(request("a"), eviction("b"), suspension(), resumption("back"))
    assert rig.reasons(acted) == ["Unfenced"]
    withheld = {
        "any eviction": "evict b",
        "any suspension of a Job": "patch job train",
        "any write to a pod": "patch a",
    }
    done = {line.removesuffix(" after the echo") for line in rig.order}
    assert done == {"patch a", "evict b", "patch job train", "patch job back"} - {withheld[UNRULED[rule]]}
    (refused,) = rig.actor.refused(KEY)
    assert refused.reason == "Unfenced"
    assert refused.what.startswith(f"{UNRULED[rule]}: the operator could ")


@pytest.mark.parametrize("trial", ["on_job", "on_eviction"])
async def test_asking_pods_and_resuming_jobs_waits_for_no_trial_of_another_kind_of_write(
    monkeypatch: pytest.MonkeyPatch, trial: str
) -> None:
    rig = Rig("a", "b")
    rig.put_job("train")
    rig.put_job("back", suspend=True)
    monkeypatch.setattr(fence, trial, late(rig.clock, 2 * PATIENCE_SECONDS, getattr(fence, trial)))
    writes = suspension(), eviction("b"), request("a"), resumption("back")
    task = asyncio.ensure_future(rig.actor.act(POLICY, STATE, writes, emergency=True))
    await rig.clock.advance(PATIENCE_SECONDS)
    assert rig.order == ["patch a", "patch job back after the echo"]
    assert not task.done()
    assert (await finished(rig.clock, task)).failures == ()
    assert sorted(rig.order[2:]) == ["evict b after the echo", "patch job train after the echo"]


async def test_nothing_fenced_a_job_is_resumed_all_the_same() -> None:
    rig = Rig()
    rig.put_job("back", suspend=True)
    rig.kube.fenced = False
    assert (await rig.act(resumption("back"))).failures == ()
    assert not rig.suspended("back")


async def test_one_failure_stops_no_other_kind() -> None:
    rig = Rig("a", "b")
    rig.put_job("train")
    rig.put_job("back", suspend=True)
    rig.refuse = {"a": DisruptionBudget("429"), "back": Unavailable("504")}
    acted = await rig.act(eviction("a"), eviction("b"), suspension(), resumption("back"))
    assert sorted(rig.reasons(acted)) == ["DisruptionBudget", "Unavailable"]
    assert (rig.pods, rig.suspended("train")) == (["a"], True)


def group(*names: str, of: str = "w", follows: bool = False) -> tuple[EvictPod, ...]:
    """Pods of one workload; ``follows``: others of it have gone."""
    pods = tuple(pod(name) for name in names)
    return tuple(EvictPod(workload(of, pods=pods), view, 7, follows) for view in pods)


async def test_of_a_process_group_all_pods_are_evicted_or_none() -> None:
    rig = Rig()
    put_pods(rig, "a", "b")
    put_budget(rig, 1)
    acted = await rig.act(*group("a", "b"))
    assert (rig.order, rig.reasons(acted)) == ([], ["DisruptionBudget"])
    assert {(found.reason, "allows 1 disruptions" in found.what) for found in rig.actor.refused(KEY)} == {
        ("DisruptionBudget", True)
    }
    put_budget(rig, 2)
    assert (await rig.act(*group("a", "b"))).failures == ()
    assert (rig.pods, rig.actor.refused(KEY)) == ([], ())


async def test_a_process_group_that_is_torn_already_is_finished() -> None:
    rig = Rig()
    put_pods(rig, "b", "c")
    put_budget(rig, 1)
    await rig.act(*group("b", "c", follows=True))
    assert len(rig.order) == 2, "the API server asks the budget for each"


async def test_of_two_process_groups_under_one_budget_one_goes_where_it_allows_no_more() -> None:
    rig = Rig()
    put_pods(rig, "a", "b", "c", "d")
    put_budget(rig, 3)
    acted = await rig.act(*group("a", "b", of="one"), *group("c", "d", of="two"), state=GRADUAL)
    assert (rig.pods, rig.reasons(acted)) == (["c", "d"], ["DisruptionBudget"])
    assert "allows 1 disruptions, and 2" in rig.actor.refused(KEY)[0].what


async def test_no_pod_goes_alone_at_the_expense_of_a_process_group_that_goes_with_it() -> None:
    rig = Rig()
    put_pods(rig, "a", "b", "c")
    put_budget(rig, 2)
    await rig.act(EvictPod(workload("single"), pod("c"), 7), *group("a", "b"), state=GRADUAL)
    assert rig.pods == ["c"]


@pytest.mark.parametrize("budgeted", [True, False], ids=["its budget", "another budget"])
async def test_while_a_process_group_is_torn_its_budget_is_left_to_it(*, budgeted: bool) -> None:
    rig = Rig()
    put_pods(rig, "b", team="a")
    put_pods(rig, "c", "d", "e", team="a" if budgeted else "b")
    put_budget(rig, 5, team="a")
    others = *group("c", "d", of="two"), *group("e", of="three")
    acted = await rig.act(*group("b", of="one", follows=True), *others, state=GRADUAL)
    assert rig.pods == (["c", "d", "e"] if budgeted else [])
    assert rig.reasons(acted) == ["DisruptionBudget"] * (2 if budgeted else 0)
    await rig.act(*others, state=GRADUAL)
    assert rig.pods == []


async def test_a_process_group_that_its_evictions_have_torn_is_finished_before_another_policy_begins_one() -> None:
    rig = Rig()
    put_pods(rig, "a", "b", "c", "d")
    put_budget(rig, 2)
    rig.refuse = {"b": DisruptionBudget("a drain was faster")}
    await rig.act(*group("a", "b", of="one"), state=GRADUAL)
    other, two = replace(POLICY, name="other", uid="other"), group("c", "d", of="two")
    acted = await rig.act(*two, state=GRADUAL, policy=other)
    assert (rig.pods, rig.reasons(acted)) == (["b", "c", "d"], ["DisruptionBudget"])
    rig.refuse = {}
    await rig.act(*group("b", of="one"), *two, state=GRADUAL)
    assert rig.pods == ["c", "d"], "the caches may not know yet that it is torn"
    await rig.act(state=GRADUAL)
    await rig.act(*two, state=GRADUAL, policy=other)
    assert rig.pods == []


async def test_policies_of_a_namespace_ask_its_budgets_one_after_the_other() -> None:
    rig = Rig()
    put_pods(rig, "a", "b", "c", "d")
    put_budget(rig, 2)
    other = replace(POLICY, name="other", uid="other")
    await asyncio.gather(
        rig.act(*group("a", "b", of="one"), state=GRADUAL),
        rig.act(*group("c", "d", of="two"), state=GRADUAL, policy=other),
    )
    assert rig.pods == ["c", "d"]
    assert rig.actor.refused(PolicyKey("ns", "other"))[0].reason == Reason.DISRUPTION_BUDGET


async def test_of_two_jobs_under_one_budget_one_is_suspended_also_before_the_budget_knows_of_it() -> None:
    rig = Rig()
    for name in ("one", "two"):
        rig.put_job(name)
        put_pods(rig, name, **{"batch.kubernetes.io/controller-uid": f"uid-{name}"})
    put_budget(rig, 1)
    both = suspension("one", respects_budgets=True), suspension("two", respects_budgets=True)
    await rig.act(*both, state=GRADUAL)
    assert (rig.suspended("one"), rig.suspended("two")) == (True, False)
    await rig.act(both[1], state=GRADUAL)
    assert not rig.suspended("two")
    await rig.clock.advance(UNKNOWN_SECONDS)
    await rig.act(both[1], state=GRADUAL)
    assert rig.suspended("two"), "by now its status is believed"


async def test_where_there_is_no_budget_no_pod_is_read_before_its_eviction() -> None:
    rig = Rig()
    put_pods(rig, "a", "b")
    await rig.act(*group("a", "b"))
    rig.kube.reads.clear()
    put_pods(rig, "c", "d")
    await rig.act(*group("c", "d"))
    assert [read for read in rig.kube.reads if read[0] == "get" and read[1] == "pods"] == []


async def test_of_a_policy_that_changed_in_mid_pass_a_suspension_is_ended_and_nothing_else_is_written() -> None:
    rig = Rig("a", "b", "c")
    rig.put_job("train", suspend=True)
    actions: list[Action] = [*map(request, "abc"), resumption()]
    acting = rig.actor.act(POLICY, STATE, actions, emergency=False, current=lambda write: not rig.order)
    assert await finished(rig.clock, acting) == Acted(again=True)
    assert rig.order == ["patch a", "patch job train after the echo"]
    assert not rig.suspended("train")
    assert rig.actor.refused(KEY) == ()
