"""Whole passes over an API server in memory: read, decide, commit, act, show."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from precision_operator.api.messages import Notified
from precision_operator.api.modes import Mode
from precision_operator.api.policy import PolicyKey
from precision_operator.api.state import Phase, State
from precision_operator.api.summary import Summary, summary_to_wire
from precision_operator.controller.act import PATIENCE_SECONDS
from precision_operator.controller.committer import LEAST_SECONDS
from precision_operator.controller.enforcement import FRESH_SECONDS
from precision_operator.controller.reconcile import Pass
from precision_operator.controller.summaries import PROGRESS_SECONDS
from precision_operator.errors import Conflict, Forbidden, NotFound, Unavailable
from precision_operator.kube.port import POLICIES, JsonObject
from tests.support.controller import KEY
from tests.support.manual_clock import finished, late, settle
from tests.support.reconciling import FAST, NAMES, OVERFLOW, Rig, promoted


async def test_the_first_pass_makes_the_assignment_and_asks_for_another_at_once() -> None:
    rig = Rig()
    rig.fleet("a")
    ended = await rig.go()
    assert ended == Pass(0.0)
    assert [write for write in rig.kube.writes if write[0] == "create"] == [("create", "precisionassignments", "fleet")]
    assert rig.state.phase is Phase.PENDING
    assert not rig.state.enforce
    assert rig.summary.assignment == "fleet"
    assert rig.pod_writes == []


async def test_who_does_not_lead_any_more_writes_no_first_status() -> None:
    rig = Rig()
    rig.fleet("a")
    rig.watch()
    rig.leads = lambda: False
    await finished(rig.manual, rig.reconciler.reconcile(KEY))
    assert rig.kube.writes == []


async def test_a_new_policy_has_a_status_before_its_metrics_were_read_and_an_old_one_keeps_its_own() -> None:
    rig = Rig()
    rig.fleet("a")
    rig.watch()
    for _ in range(2):
        rig.evaluations.forget(KEY)
        await finished(rig.manual, rig.reconciler.reconcile(KEY))
    assert rig.summary.reason == "AwaitingEvaluation"
    assert [c.type for c in rig.summary.conditions] == ["Ready", "Reconciling"]
    assert [write[0] for write in rig.kube.writes] == ["patch"]
    await rig.go()
    await rig.go()
    before, shown = len(rig.kube.writes), rig.summary
    rig.evaluations.forget(KEY)
    await finished(rig.manual, rig.reconciler.reconcile(KEY))
    assert (len(rig.kube.writes), rig.summary) == (before, shown)


async def test_a_message_that_was_sent_is_remembered_with_the_next_pass_by_one_write_even_of_a_fleet_that_rests() -> (
    None
):
    rig = await promoted()
    for _ in range(3):
        await rig.go()
    before = len(rig.kube.writes)
    rig.notified = (Notified("ApprovalWanted", "transition-1", rig.manual.time()),)
    for _ in range(3):
        await rig.go()
    assert rig.state.notified == rig.notified
    assert [write[:2] for write in rig.kube.writes[before:]] == [("update", "precisionassignments")]
    rig.notified = ()
    await rig.go()
    assert len(rig.kube.writes) == before + 1


async def test_a_fleet_is_promoted_step_by_step_and_then_costs_no_write() -> None:
    rig = await promoted()
    assert set(rig.modes.values()) == {Mode.FP16}
    assert (rig.summary.moved, rig.summary.total) == (4, 4)
    assert rig.state.modes == {f"apps/Deployment/{name}": Mode.FP16 for name in NAMES}
    await rig.go()
    rig.kube.writes.clear()
    for _ in range(10):
        await rig.go()
        await rig.manual.advance(15.0)
    assert rig.kube.writes == []


async def test_without_admission_nothing_is_promoted() -> None:
    rig = Rig()
    rig.kube.installed = False
    rig.fleet(*NAMES, **FAST)
    for _ in range(20):
        await rig.go()
        await rig.manual.advance(15.0)
    assert set(rig.modes.values()) == {Mode.FP32}
    assert rig.pod_writes == []
    (condition,) = [c for c in rig.summary.conditions if c.type == "AdmissionEnforced"]
    assert (condition.status, condition.reason) == ("False", "NotEnforcing")
    rig.kube.installed = True
    await rig.until(lambda: rig.state.phase is Phase.HEALTHY)


async def test_a_breach_is_rolled_back_and_held() -> None:
    rig = await promoted()
    rig.kube.writes.clear()
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    await rig.until(lambda: rig.state.phase is Phase.HELD)
    assert set(rig.modes.values()) == {Mode.FP32}
    assert rig.state.modes == {}
    assert len(rig.pod_writes) == len(NAMES)


async def test_a_rollback_costs_a_write_a_pod_three_commits_two_summaries_and_two_events() -> None:
    rig = await promoted()
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    rig.kube.writes.clear()
    await rig.until(lambda: rig.state.phase is Phase.HELD)
    await rig.go()
    about = Counter(plural for _, plural, _ in rig.kube.writes)
    assert about["pods"] == len(NAMES)
    assert about["precisionassignments"] <= 3
    assert about["precisionpolicies"] <= 2
    assert about["events"] == 2


async def test_how_far_a_rollback_has_come_is_shown_once_in_a_while() -> None:
    rig = await promoted()
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    await rig.until(lambda: rig.state.phase is Phase.ROLLING_BACK)
    rig.trainers.silent = {f"{name}-abc-1" for name in NAMES}
    for _ in range(3):
        await rig.manual.advance(5.0)
        await rig.go()
    rig.kube.writes.clear()
    shown = []
    for name in NAMES[:2]:
        rig.trainers.silent.discard(f"{name}-abc-1")
        await rig.manual.advance(5.0)
        await rig.go()
        shown.append(sum(plural == "precisionpolicies" for _, plural, _ in rig.kube.writes))
    assert shown[-1] <= 1, "two workloads acknowledged within ten seconds"
    await rig.manual.advance(PROGRESS_SECONDS)
    rig.trainers.silent.clear()
    await rig.until(lambda: rig.state.phase is Phase.HELD)
    assert rig.summary.moved == len(NAMES)


def meanwhile(rig: Rig, change: Callable[[], None]) -> None:
    """Something changes after a pass has decided to promote, before it makes sure."""
    confirm = rig.reconciler._committer._confirm

    async def changed(key: PolicyKey, body: JsonObject, state: State) -> None:
        change()
        await confirm(key, body, state)

    rig.reconciler._committer._confirm = changed  # type: ignore[method-assign]


def edit(rig: Rig) -> None:
    rig.policy["metadata"]["generation"] += 1


def abort(rig: Rig) -> None:
    rig.policy["metadata"]["annotations"] = {"precision.genesis.ai/abort": "1"}


def recreate(rig: Rig) -> None:
    rig.policy["metadata"]["uid"] = "another"


def stop_admission(rig: Rig) -> None:
    rig.kube.installed = False


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (edit, "generation was 1 and is 2"),
        (abort, "annotations changed"),
        (recreate, "uid was pp and is another"),
        (stop_admission, "nothing is promoted"),
    ],
)
async def test_a_promotion_is_given_up_where_what_it_was_decided_on_has_changed(
    change: Callable[[Rig], None], why: str
) -> None:
    rig = Rig()
    rig.fleet(*NAMES, **FAST)
    meanwhile(rig, lambda: change(rig))
    with pytest.raises(Conflict, match=why):
        await rig.until(lambda: rig.assigned and rig.state.enforce)
    assert not rig.state.enforce
    assert rig.state.modes == {}
    assert rig.pod_writes == []


async def test_a_forged_status_changes_no_decision_and_is_put_right() -> None:
    rig = await promoted()
    before, shown = rig.state, rig.summary
    forged = Summary(
        phase=Phase.HELD, reason="StateLost", generation=10**6, transition_id=99, precision=Mode.FP32, total=9
    )
    rig.policy["status"] = {**summary_to_wire(forged), "members": ["x"], "assignment": "another"}
    await rig.go()
    assert rig.state == before
    assert rig.summary == shown
    assert "members" not in rig.policy["status"]
    assert set(rig.modes.values()) == {Mode.FP16}


async def test_what_the_api_server_refuses_is_shown() -> None:
    rig = Rig()
    rig.fleet(*NAMES, **FAST)

    def refuse(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == "pods":
            raise Forbidden("a webhook says no", status=403)

    rig.kube.before_write = refuse
    await rig.until(lambda: any(c.type == "WritesAccepted" and c.status == "False" for c in rig.summary.conditions))
    (condition,) = [c for c in rig.summary.conditions if c.type == "WritesAccepted"]
    assert condition.reason == "Forbidden"
    assert "RequestPod" in condition.message
    rig.kube.before_write = lambda verb, key: None
    await rig.until(lambda: rig.state.phase is Phase.HEALTHY)
    await rig.go()
    assert all(c.status == "True" for c in rig.summary.conditions if c.type == "WritesAccepted")


async def test_a_pass_whose_summary_cannot_be_written_has_acted_all_the_same() -> None:
    rig = Rig()
    rig.fleet(*NAMES, **FAST)

    def refuse(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == POLICIES.plural:
            raise Unavailable("away")

    rig.kube.before_write = refuse
    ended = await rig.go()
    assert ended is not None
    assert [failure.reason for failure in ended.failures] == ["Unavailable"]
    assert rig.assigned


async def test_a_policy_that_goes_in_mid_pass_fails_nothing() -> None:
    rig = Rig()
    rig.fleet(*NAMES, **FAST)

    def gone(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == POLICIES.plural:
            raise NotFound("gone", status=404)

    rig.kube.before_write = gone
    ended = await rig.go()
    assert ended is not None
    assert ended.failures == ()


async def test_nothing_is_left_of_a_policy_that_is_gone() -> None:
    rig = await promoted()
    rig.kube.fenced = False
    rig.trainers.bad = {"a-abc-1": OVERFLOW}
    await rig.manual.advance(15.0)
    await rig.go()
    del rig.kube.objects["precisionpolicies", "default", "fleet"]
    del rig.kube.objects["precisionassignments", "default", "fleet"]
    assert await rig.go() is None
    kept = (rig.evaluations._watches, rig.actor._refusals._known, rig.actor._waiting)
    assert all(not found for found in (*kept, rig.enforcement._known, rig.restarts._counted))


async def test_a_literal_workload_is_moved_by_taking_its_pods_away_after_the_echo() -> None:
    rig = Rig()
    rig.fleet("a", hot=False, **FAST)
    await rig.until(lambda: rig.modes == {})
    assert ("create", "pods/eviction", "a-abc-1") in rig.pod_writes
    rig.replace("a", hot=False, number=2, created="2026-11-22T10:10:00Z")
    assert rig.modes == {"a-abc-2": Mode.FP16}, "by admission"
    await rig.until(lambda: rig.state.phase is Phase.HEALTHY)
    assert rig.state.restarts == {}


async def test_a_pod_that_admission_missed_is_a_reason_to_ask_it_again() -> None:
    rig = Rig()
    rig.fleet("a", hot=False, **FAST)
    await rig.until(lambda: rig.modes == {})
    rig.kube.installed = False
    rig.replace("a", hot=False, number=2, created="2026-11-22T10:10:00Z")
    asked = len(rig.kube.asked)
    await rig.go()
    assert len(rig.kube.asked) > asked
    assert rig.enforcement.admission(KEY).reason == "NotEnforcing"
    assert rig.modes == {"a-abc-2": Mode.FP32}
    rig.kube.installed = True
    await rig.until(lambda: rig.modes == {}, passes=40)
    assert replace(rig.state, restarts={}) != rig.state


async def test_a_breach_does_not_wait_for_an_api_server_that_does_not_answer_about_admission() -> None:
    rig = await promoted()
    await rig.go()
    await rig.manual.advance(FRESH_SECONDS + 1)
    rig.kube.hanging = {"https://10.0.0.1:6443"}
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    rig.kube.writes.clear()
    for _ in range(3):
        began = rig.manual.now
        task = asyncio.ensure_future(rig.turn())
        await settle()  # the answer
        await settle()  # the pass
        if rig.pod_writes:
            break
        assert task.done(), "a pass that has nothing to take away waits for no answer"
        await rig.manual.advance(15.0)
    assert len(rig.pod_writes) == len(NAMES)
    assert rig.manual.now == began
    task.cancel()
    await rig.enforcement.close()


async def test_admission_is_asked_about_a_steady_fleet_once_a_minute_and_what_is_installed_is_compared_as_often() -> (
    None
):
    rig = await promoted()
    await rig.go()
    rig.kube.asked.clear()
    rig.kube.reads.clear()
    for _ in range(40):
        await rig.manual.advance(15.0)
        await rig.go()
    assert rig.enforcement.admission(KEY).enforced is True
    assert len(rig.kube.asked) == 10
    assert sum(plural.endswith("admissionpolicies") for _, plural, _ in rig.kube.reads) <= 10
    assert not any(verb == "list" for verb, _, _ in rig.kube.reads)


def slow_commits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.kube, "replace", late(rig.manual, SLOW_SECONDS, rig.kube.replace))


SLOW_SECONDS = 3 * PATIENCE_SECONDS


async def test_a_promotions_commit_gives_way_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.fleet(*NAMES, **FAST)
    began = list[float]()

    def confirmed() -> None:
        began.append(rig.manual.monotonic())
        slow_commits(rig, monkeypatch)

    meanwhile(rig, confirmed)
    with pytest.raises(Unavailable, match="no answer to a promotion's commit"):
        await rig.until(lambda: rig.assigned and rig.state.enforce)
    assert rig.manual.monotonic() - began[0] == pytest.approx(PATIENCE_SECONDS, abs=0.2)
    assert rig.pod_writes == []


async def test_a_promotion_that_is_confirmed_late_is_committed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.fleet(*NAMES, **FAST)
    confirm = late(rig.manual, 0.95 * PATIENCE_SECONDS, rig.reconciler._committer._confirm)
    monkeypatch.setattr(rig.reconciler._committer, "_confirm", confirm)
    monkeypatch.setattr(rig.kube, "replace", late(rig.manual, 0.5 * LEAST_SECONDS, rig.kube.replace))
    await rig.until(lambda: rig.assigned and rig.state.enforce)


async def test_a_promotion_that_no_api_server_confirms_holds_a_breach_up_for_a_second() -> None:
    rig = Rig()
    rig.fleet(*NAMES, **FAST)
    await rig.until(lambda: Mode.FP16 in rig.modes.values())
    began = list[float]()

    def hang() -> None:
        began.append(rig.manual.monotonic())
        rig.kube.hanging = {"https://10.0.0.1:6443", ""}
        rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}

    meanwhile(rig, hang)
    with pytest.raises(Conflict, match="no answer about admission"):
        await rig.until(lambda: rig.state.phase is Phase.HEALTHY)
    assert rig.manual.monotonic() - began[0] == pytest.approx(PATIENCE_SECONDS, abs=0.2)
    for _ in range(3):
        await rig.manual.advance(15.0)
        task = asyncio.ensure_future(rig.turn())
        await settle()  # the answer
        await settle()  # the pass
        if set(rig.modes.values()) == {Mode.FP32}:
            break
        assert task.done(), "what nobody confirmed is not tried again at once"
    assert set(rig.modes.values()) == {Mode.FP32}
    task.cancel()
    await rig.enforcement.close()


async def test_a_rollbacks_commit_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await promoted()
    slow_commits(rig, monkeypatch)
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    await rig.until(lambda: rig.state.phase is Phase.HELD)
    assert set(rig.modes.values()) == {Mode.FP32}


async def test_a_workload_that_is_rolled_back_by_itself_gives_way_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await promoted()
    slow_commits(rig, monkeypatch)
    monkeypatch.setattr(rig.kube, "json_patch", late(rig.manual, SLOW_SECONDS, rig.kube.json_patch))
    rig.trainers.bad = {"a-abc-1": OVERFLOW}
    await rig.until(lambda: rig.state.phase is Phase.DEGRADED)
    assert rig.modes["a-abc-1"] is Mode.FP32
