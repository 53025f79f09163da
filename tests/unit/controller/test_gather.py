"""What a decision is taken on: how often metrics are read, and whose a workload is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lab.model.policies import policy
from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Failing, Phase, State, Suspension
from precision_operator.api.wire import format_time
from precision_operator.core.evidence.confirmation import TURN_SHARE
from precision_operator.core.leaving import MARGIN_SECONDS, late
from precision_operator.core.model import UNSUPPORTED_LIMIT, Admission, Observation, PromotionSlots
from precision_operator.errors import Forbidden, Unavailable
from precision_operator.kube.port import JOBS, PODS, POLICIES
from precision_operator.reasons import Reason
from precision_operator.signals.queries import CHECKPOINT, FP32_MEMORY
from precision_operator.signals.service import WAKE_SECONDS
from tests.support import objects as b
from tests.support.acting import INCIDENT
from tests.support.controller import FLEET, KEY, Controller
from tests.support.manual_clock import ManualClock, finished, settle
from tests.support.recorded_kinds import owned_by, recorded

INTERVAL_SECONDS = 15.0


class WanderingClock(ManualClock):
    """Its wall time can be set."""

    offset = 0.0

    def time(self) -> float:
        return super().time() + self.offset


class Rig(Controller):
    def __init__(self, *names: str) -> None:
        self.wandering = WanderingClock()
        super().__init__(self.wandering)
        self.fleet(*names)
        self.watch()

    async def observe(
        self, found: Policy | None = None, state: State | None = None, *, key: PolicyKey = KEY
    ) -> Observation:
        found, state = found if found is not None else policy(), state if state is not None else State()
        self.gatherer.awaits(key, found, state)
        await settle()
        return await finished(self.wandering, self.gatherer.gather(key, found, state))


async def test_acknowledgements_are_read_often_however_long_the_interval_is() -> None:
    rig = Rig()
    slow = policy(evaluation={"interval": "60s"})
    for _ in range(12):
        await rig.observe(slow, State(phase=Phase.ROLLING_BACK))
        await rig.wandering.advance(1.0)
    assert len(rig.trainers.asked) == 3


@pytest.mark.parametrize(
    ("state", "urgent"),
    [
        (State(phase=Phase.HEALTHY), False),
        (State(phase=Phase.ROLLING_BACK), True),
        (State(phase=Phase.HEALTHY, failing=(Failing("a", Signal.OVERFLOW, Severity.P1, 0.0),)), True),
    ],
    ids=["all is well", "a rollback", "a breach that is not confirmed"],
)
async def test_the_evaluation_of_a_policy_in_trouble_goes_before_others(state: State, urgent: bool) -> None:
    rig, told = Rig(), list[bool]()
    rig.evaluations._finished = lambda key, urgent: told.append(urgent)
    await rig.observe(state=state)
    assert told == [urgent]


async def test_checkpoints_are_asked_for_while_a_gradual_rollback_waits_for_them_and_never_else() -> None:
    rig = Rig()
    waits = replace(INCIDENT, strategy=Strategy.GRADUAL, decided_at=rig.wandering.time())
    await rig.observe()
    await rig.wandering.advance(INTERVAL_SECONDS)
    await rig.observe(state=State(phase=Phase.ROLLING_BACK, incident=replace(waits, strategy=Strategy.EMERGENCY)))
    await rig.wandering.advance(INTERVAL_SECONDS)
    assert rig.trainers.besides[CHECKPOINT] == 0
    before = len(rig.trainers.asked)
    await rig.observe(state=State(phase=Phase.ROLLING_BACK, incident=waits))
    await rig.wandering.advance(INTERVAL_SECONDS)
    assert rig.trainers.besides[CHECKPOINT] == len(rig.trainers.asked) - before > 0, "once in each reading"


@pytest.mark.parametrize(
    ("state", "asked"),
    [
        (State(phase=Phase.HEALTHY), False),
        (State(phase=Phase.ROLLING_BACK), True),
        (State(phase=Phase.HELD), True),
        (State(phase=Phase.DEGRADED), True),
    ],
    ids=["it rests", "a rollback", "one that is over", "workloads are held alone"],
)
async def test_the_memory_of_fp32_is_asked_for_where_something_may_be_back_in_it(state: State, asked: bool) -> None:
    rig = Rig()
    await rig.observe(state=state)
    assert (rig.trainers.besides[FP32_MEMORY], len(rig.trainers.asked)) == (int(asked), 1)


async def test_a_wall_clock_set_back_does_not_stop_the_evaluations() -> None:
    rig = Rig()
    await rig.observe()
    rig.wandering.offset = -3600.0
    for _ in range(10):
        await rig.wandering.advance(INTERVAL_SECONDS)
        await rig.observe()
    assert len(rig.trainers.asked) == 11


async def test_passes_within_an_interval_share_its_reading() -> None:
    rig = Rig()
    first = (await rig.observe()).evaluation
    await rig.wandering.advance(10.0)
    assert (await rig.observe()).evaluation is first
    assert len(rig.trainers.asked) == 1


@pytest.mark.parametrize("seconds", [3600.0, -3600.0], ids=["forward", "back"])
async def test_nothing_is_decided_on_an_answer_from_before_the_wall_clock_was_set(seconds: float) -> None:
    rig = Rig()
    await rig.observe()
    await rig.wandering.advance(10.0)
    rig.wandering.offset = seconds
    assert rig.gatherer.awaits(KEY, policy(), State())
    found = (await rig.observe()).evaluation
    assert found is not None
    assert found.clock_since == found.continuous_since == rig.wandering.time()


async def test_an_answer_that_another_policy_had_asked_for_is_followed_by_one_in_time() -> None:
    rig = Rig()
    await rig.observe()
    await rig.wandering.advance(INTERVAL_SECONDS / 2 - 1.0)
    neighbour = PolicyKey(KEY.namespace, "neighbour")
    shared = await rig.observe(key=neighbour)
    assert len(rig.trainers.asked) == 1
    await rig.wandering.advance(INTERVAL_SECONDS / 2 + 1.0)
    again = await rig.observe(key=neighbour)
    assert len(rig.trainers.asked) == 2
    assert shared.evaluation is not None
    assert again.evaluation is not None
    assert again.evaluation.at - shared.evaluation.at == pytest.approx(INTERVAL_SECONDS, abs=0.5)


async def test_a_neighbour_with_another_interval_costs_a_policy_no_reading_that_counts() -> None:
    rig = Rig()
    neighbour, others = PolicyKey(KEY.namespace, "neighbour"), policy(evaluation={"interval": "10s"})
    counted: list[float] = []
    for second in range(121):
        if second % 10 == 0:
            await rig.observe(others, key=neighbour)
        evaluation = (await rig.observe()).evaluation
        assert evaluation is not None
        if not counted or evaluation.at - counted[-1] >= TURN_SHARE * INTERVAL_SECONDS:
            counted.append(evaluation.at)
        await rig.wandering.advance(1.0)
    assert len(counted) >= 120 / INTERVAL_SECONDS


async def test_an_alert_is_a_reason_to_read_anew_but_not_for_ever() -> None:
    rig = Rig()
    await rig.observe()
    for _ in range(50):
        await rig.wandering.advance(WAKE_SECONDS / 10)
        rig.evaluations.wake(KEY)
        await rig.observe()
    assert 4 <= len(rig.trainers.asked) <= 1 + 50 / 10


async def test_continuity_that_a_clock_set_back_would_put_into_the_future_begins_anew() -> None:
    rig = Rig()
    await rig.observe()
    rig.wandering.offset = -3600.0
    await rig.wandering.advance(INTERVAL_SECONDS)
    evaluation = (await rig.observe()).evaluation
    assert evaluation is not None
    assert evaluation.continuous_since == evaluation.at


async def test_the_next_pass_is_due_as_decided_though_the_wall_clock_was_set_back_in_mid_pass() -> None:
    rig = Rig("a")
    await rig.turn()

    def set_back(*_: object) -> None:
        rig.wandering.offset = -3600.0

    rig.kube.before_write = set_back
    ended = await rig.turn()
    assert rig.wandering.offset < 0
    assert ended is not None
    assert 0.0 <= ended.next_seconds <= 2 * INTERVAL_SECONDS


async def test_a_suspended_policy_reads_no_metrics() -> None:
    rig = Rig()
    assert (await rig.observe(policy(suspend=True))).evaluation is None
    assert rig.trainers.asked == []


async def test_admission_is_not_asked_about_an_assignment_that_does_not_exist_yet() -> None:
    rig = Rig()
    assert (await rig.observe()).admission.enforced is None
    assert rig.kube.asked == []


@pytest.mark.parametrize(
    ("state", "rests"),
    [
        (State(phase=Phase.HEALTHY), True),
        (State(phase=Phase.HEALTHY, suspensions={"batch/Job/a": Suspension("uid", 1, 0.0)}), False),
        (State(phase=Phase.DEGRADED), False),
    ],
    ids=["healthy", "it suspends a Job", "degraded"],
)
async def test_admission_may_be_asked_less_often_only_about_a_policy_that_moves_nothing(
    state: State, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, asked = Rig(), list[object]()

    async def current(*_: object, **how: object) -> Admission:
        asked.append(how["resting"])
        return Admission()

    monkeypatch.setattr(rig.enforcement, "current", current)
    await rig.observe(state=replace(state, policy_uid="uid"))
    assert asked == [rests]


async def test_a_workload_of_two_policies_is_left_to_the_older_one() -> None:
    rig = Rig("a", "b")
    older = b.policy({"matchLabels": {"app": "b"}}, name="older", uid="older", created="2026-11-22T09:00:00Z")
    rig.kube.put(POLICIES, older)
    rig.watch()
    observation = await rig.observe()
    assert [view.name for view in observation.workloads] == ["a"]
    assert observation.contested == (("apps/Deployment/b", "older"),)
    theirs = policy(selector={"matchLabels": {"app": "b"}})
    found = await rig.gatherer.gather(PolicyKey("default", "older"), theirs, State())
    assert [view.name for view in found.workloads] == ["b"]


async def test_while_a_selector_waits_both_are_observed() -> None:
    rig = Rig("a", "b")
    await rig.turn()
    edited = policy(selector={"matchLabels": {"app": "b"}})
    observation = await rig.observe(edited, rig.state)
    assert observation.matching == (
        frozenset({"apps/Deployment/a", "apps/Deployment/b"}),
        frozenset({"apps/Deployment/b"}),
    )
    assert [view.name for view in observation.workloads] == ["a", "b"]
    assert (await rig.observe(policy(selector=FLEET), rig.state)).matching is None


async def test_restarts_of_other_policies_take_from_the_budget() -> None:
    rig = Rig()
    now = rig.wandering.time()
    for key in (PolicyKey("elsewhere", "other"), KEY):
        with rig.restarts.noted(key, (now + 10, now - 10), epoch=0):
            pass
    assert (await rig.observe()).restart_slots == 4


async def test_nodes_are_read_only_for_policies_that_ask_for_them() -> None:
    rig = Rig()
    await rig.observe()
    assert ("list", "nodes", "pool=a") not in rig.kube.reads
    asking = policy(
        rollback={"strategies": {"P2": "Canary"}, "canary": {"by": "NodeLabel", "nodeLabel": "pool=a"}},
    )
    await rig.observe(asking)
    assert ("list", "nodes", "pool=a") in rig.kube.reads


async def test_what_was_refused_is_observed() -> None:
    rig = Rig("a")
    rig.actor._refusals.remember(KEY, "RequestPod a", Forbidden.reason)
    assert [write.reason for write in (await rig.observe()).refused] == ["Forbidden"]
    rig.gatherer.forget(KEY)
    assert (await rig.observe()).refused == ()


async def test_pods_of_unknown_kinds_are_named_and_counted_up_to_a_limit() -> None:
    rig = Rig("a")
    for index in range(UNSUPPORTED_LIMIT + 5):
        pod = owned_by(b.pod(name=f"w-{index}", uid=f"w-{index}"), "ray.io/v1", "RayCluster", f"rc-{index:02}")
        pod["metadata"]["labels"]["fleet"] = "demo"
        rig.kube.put(PODS, pod)
    rig.watch()
    observation = await rig.observe(policy(selector=FLEET))
    assert [view.name for view in observation.workloads] == ["a"]
    assert len(observation.unsupported) == UNSUPPORTED_LIMIT
    assert observation.unsupported[:2] == ("ray.io/RayCluster/rc-00", "ray.io/RayCluster/rc-01")
    other = policy(selector={"matchLabels": {"fleet": "other"}})
    assert (await rig.observe(other)).unsupported == ()
    assert len((await rig.observe(other, State(selector=policy(selector=FLEET).spec.selector))).unsupported) == 20


async def test_a_job_that_is_to_be_resumed_is_observed_by_itself_whatever_the_selector_matches() -> None:
    rig = Rig("a")
    job = recorded("job-ours")
    rig.kube.put(JOBS, job)
    rig.watch()
    key, uid = "batch/Job/ours", job["metadata"]["uid"]
    suspended = State(suspensions={key: Suspension(uid, 2, 0.0), "batch/Job/gone": Suspension("gone", 1, 0.0)})
    away = await rig.observe(policy(selector=FLEET), suspended)
    assert [(view.key, view.suspended, view.suspended_by) for view in away.suspended] == [(key, True, "")]
    selected = await rig.observe(policy(selector={"matchLabels": {"app": "ours"}}), suspended)
    assert [view.key for view in selected.workloads] == [key]
    assert [view.key for view in selected.suspended] == [key]


async def test_a_recorded_job_that_the_caches_lack_is_asked_for_and_only_then() -> None:
    rig = Rig("a")
    job, ended = recorded("job-ours"), recorded("job-ours")
    ended["metadata"] |= {"name": "ended", "uid": "ended"}
    ended["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
    uid = str(job["metadata"]["uid"])
    uids = (uid, "ended", "gone")
    state = State(suspensions={f"batch/Job/{one}": Suspension(one, 1, 0.0) for one in uids})
    rig.kube.put(JOBS, job)
    rig.kube.put(JOBS, ended)
    assert (await rig.observe(state=state)).unseen == {uid}
    rig.kube.failing["list"] = Unavailable("away")
    assert (await rig.observe(state=state)).unseen == set(uids), "what is not known is not dropped"
    rig.kube.reads.clear()
    rig.watch()
    alone = replace(state, suspensions={"batch/Job/ours": Suspension(uid, 1, 0.0)})
    assert (await rig.observe(state=alone)).unseen == set()
    assert not [read for read in rig.kube.reads if read[1] == "jobs"]


@pytest.mark.parametrize("seconds", [0.0, 40.0, 3600.0, -3600.0], ids=["right", "ahead", "far ahead", "behind"])
async def test_a_pod_is_late_by_the_time_since_it_was_seen_to_go_whatever_the_wall_clock_says(seconds: float) -> None:
    rig = Rig("a")
    body: Any = rig.kube.objects["pods", "default", "a-abc-1"]
    body["metadata"]["deletionTimestamp"] = format_time(rig.wandering.time() + 30.0)
    body["metadata"]["deletionGracePeriodSeconds"] = 30
    rig.wandering.offset = seconds
    for passed, expected in ((0.0, False), (30.0, False), (MARGIN_SECONDS + 1.0, True)):
        rig.watch()
        await rig.wandering.advance(passed)
        ((pod,),) = [view.pods for view in (await rig.observe()).workloads]
        assert late(pod, rig.wandering.time()) is expected


async def test_a_schedule_is_read_by_the_wall_clock_and_a_zone_that_does_not_exist_stops_nothing_else() -> None:
    rig = Rig("a")
    now = datetime.fromtimestamp(rig.wandering.time(), UTC)
    later, end = now + timedelta(hours=2), now + timedelta(hours=3)
    window = {"start": f"{later:%H:%M}", "end": f"{end:%H:%M}"}
    closed = await rig.observe(policy(schedule={"windows": [window]}))
    assert closed.outside_schedule is not None
    assert closed.outside_schedule.reason is Reason.OUTSIDE_SCHEDULE
    assert f"{later:%Y-%m-%dT%H:%M}" in closed.outside_schedule.message
    rig.wandering.offset = 2.5 * 3600.0
    assert (await rig.observe(policy(schedule={"windows": [window]}))).outside_schedule is None
    lost = await rig.observe(policy(schedule={"timeZone": "Mars/Olympus", "windows": [window]}))
    assert lost.outside_schedule is not None
    assert lost.outside_schedule.reason is Reason.UNKNOWN_TIME_ZONE
    assert lost.workloads


async def test_what_other_policies_promote_is_taken_off_the_cap() -> None:
    rig = Rig("a", "b")
    rig.promotions.note(PolicyKey("other", "fleet"), {"x"}, epoch=0)
    rig.gatherer._settings = replace(rig.gatherer._settings, max_promoting_workloads=3)
    assert (await rig.observe()).promotion_slots == PromotionSlots(2)
