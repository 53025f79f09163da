"""Assignments that somebody else changed, policies that go, and leaders that follow one another."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from precision_operator.api.assignment import VERSION
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.controller.reconcile import REST_SECONDS, Pass
from precision_operator.errors import Conflict, Forbidden, KubeError, LeaseLost, NewerVersion, Unavailable
from precision_operator.kube.port import ASSIGNMENTS, POLICIES, JsonObject, Resource
from tests.support.reconciling import FAST, NAMES, OVERFLOW, Rig, promoted


async def test_an_assignment_that_a_newer_operator_wrote_is_left_alone() -> None:
    rig = await promoted()
    assignment = rig.kube.objects["precisionassignments", "default", "fleet"]
    assert isinstance(assignment["state"], dict)
    assignment["state"]["version"] = VERSION + 1
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    rig.kube.writes.clear()
    for _ in range(5):
        with pytest.raises(NewerVersion, match="newer operator"):
            await rig.go()
        await rig.manual.advance(15.0)
    assert rig.kube.writes == []


async def test_an_assignment_that_was_lost_is_made_anew_and_holds_everything() -> None:
    rig = await promoted()
    transition = rig.summary.transition_id
    del rig.kube.objects["precisionassignments", "default", "fleet"]
    await rig.go()
    assert set(rig.modes.values()) == {Mode.FP32}
    assert rig.state.reason == "StateLost"
    assert rig.state.transition_id > transition
    assert rig.state.enforce
    await rig.until(lambda: rig.state.phase is Phase.HELD)
    assert rig.state.modes == {}


async def test_a_new_policy_that_never_had_an_assignment_has_lost_none() -> None:
    rig = Rig()
    rig.fleet(*NAMES, **FAST)
    rig.policy["status"] = {"phase": "Pending", "transitionId": 4}
    await rig.go()
    assert (rig.state.phase, rig.state.reason) != (Phase.HELD, "StateLost")


async def test_a_policy_that_is_deleted_while_all_is_well_takes_its_assignment_along() -> None:
    rig = await promoted()
    del rig.kube.objects["precisionpolicies", "default", "fleet"]
    rig.kube.writes.clear()
    assert await rig.go() == Pass(0.0)
    assert rig.kube.writes == [("delete", "precisionassignments", "fleet")]
    assert await rig.go() is None
    assert set(rig.modes.values()) == {Mode.FP16}, "no running pod is changed"


@pytest.mark.parametrize(
    "answer",
    [Forbidden("no", status=403), Unavailable("broken", status=500), Unavailable("no answer within 5 s")],
    ids=["403", "500", "time-out"],
)
async def test_a_policy_that_cannot_be_read_counts_as_no_deleted_one(
    monkeypatch: pytest.MonkeyPatch, answer: KubeError
) -> None:
    rig = await promoted()
    read = rig.kube.get

    async def get(resource: Resource, namespace: str, name: str) -> JsonObject:
        if resource == POLICIES:
            raise answer
        return await read(resource, namespace, name)

    monkeypatch.setattr(rig.kube, "get", get)
    rig.kube.writes.clear()
    for _ in range(3):
        await rig.manual.advance(REST_SECONDS)
        with pytest.raises(type(answer), match=str(answer)):
            await rig.go()
    assert (rig.kube.writes, rig.assigned) == ([], True)


async def test_an_assignment_that_another_leader_has_changed_is_not_deleted() -> None:
    rig = await promoted()
    del rig.kube.objects["precisionpolicies", "default", "fleet"]

    def changed(verb: str, key: tuple[str, str, str]) -> None:
        if verb == "delete":
            rig.kube.put(ASSIGNMENTS, copy.deepcopy(rig.kube.objects[key]))

    rig.kube.before_write = changed
    with pytest.raises(Conflict):
        await rig.go()
    assert rig.assigned


async def test_a_rollback_in_flight_is_finished_without_its_policy_and_held() -> None:
    rig = await promoted()
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}

    def nothing_is_written(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == "pods":
            raise Unavailable("away")

    rig.kube.before_write = nothing_is_written
    await rig.until(lambda: rig.state.phase is Phase.ROLLING_BACK)
    del rig.kube.objects["precisionpolicies", "default", "fleet"]
    rig.kube.before_write = lambda verb, key: None
    await rig.until(lambda: rig.state.deletable)
    assert set(rig.modes.values()) == {Mode.FP32}
    assert rig.state.fallback is None
    assert set(rig.state.modes.values()) == {Mode.FP32}
    rig.kube.writes.clear()
    for _ in range(5):
        await rig.go()
        await rig.manual.advance(60.0)
    assert rig.kube.writes == []


async def test_a_stale_leader_loses_at_the_commit_before_it_has_touched_a_pod() -> None:
    rig = await promoted()
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    await rig.manual.advance(15.0)

    def another_leader_commits(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == ASSIGNMENTS.plural:
            rig.kube.before_write = lambda verb, key: None
            rig.kube.put(ASSIGNMENTS, copy.deepcopy(rig.kube.objects[key]))

    rig.kube.before_write = another_leader_commits
    rig.kube.writes.clear()
    with pytest.raises(Conflict):
        await rig.until(lambda: rig.state.phase is Phase.ROLLING_BACK)
    assert rig.pod_writes == []


@pytest.mark.parametrize("asked", [1, 2, 3], ids=["before the commit", "after it", "after a pod"])
async def test_a_pass_whose_lease_is_lost_writes_nothing_more(asked: int) -> None:
    rig = await promoted()
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    await rig.manual.advance(15.0)
    rig.kube.writes.clear()
    answers = [True] * (asked - 1)
    rig.leads = lambda: bool(answers) and answers.pop()
    try:
        await rig.go()
    except LeaseLost:
        assert asked == 1
    written = [plural for _, plural, _ in rig.kube.writes if plural != "events"]
    assert written == ["precisionassignments", "pods"][: asked - 1]


async def test_a_new_leader_goes_on_where_the_last_one_died() -> None:
    rig = await promoted()
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    rig.kube.before_write = _dies_at_the_third_pod()
    await rig.until(lambda: rig.state.phase is Phase.ROLLING_BACK)
    assert set(rig.modes.values()) == {Mode.FP16, Mode.FP32}
    rig.kube.before_write = lambda verb, key: None
    second = Rig(rig, "two")
    await second.until(lambda: set(second.modes.values()) == {Mode.FP32})
    assert second.state.transition_id == rig.state.transition_id


async def test_a_new_leader_in_mid_rollback_asks_running_pods_before_it_asks_admission() -> None:
    rig = await promoted()
    rig.trainers.bad = {f"{name}-abc-1": OVERFLOW for name in NAMES}
    rig.kube.before_write = _dies_at_the_third_pod()
    await rig.until(lambda: rig.state.phase is Phase.ROLLING_BACK)
    rig.kube.asked.clear()
    rig.kube.installed = False
    questions: list[int] = []

    def count(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == "pods":
            questions.append(len(rig.kube.asked))

    rig.kube.before_write = count
    second = Rig(rig, "two")
    await second.go()
    assert set(questions) == {0}
    assert set(second.modes.values()) == {Mode.FP32}


def _dies_at_the_third_pod() -> Callable[[str, tuple[str, str, str]], None]:
    left = [2]

    def before_write(verb: str, key: tuple[str, str, str]) -> None:
        if key[0] == "pods":
            left[0] -= 1
            if left[0] < 0:
                raise Unavailable("the leader is gone")

    return before_write
