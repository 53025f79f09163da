"""Jobs are suspended until they are empty and resumed: recorded before it is done, and never left half done."""

from dataclasses import replace

import pytest

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase, Suspension
from precision_operator.contract import ABORT
from precision_operator.core.actions import DeletePod, EvictPod, ResumeJob, SuspendJob
from precision_operator.core.decide import IDLE_SECONDS, Decision
from precision_operator.core.desired import Desired
from precision_operator.core.model import RestartBy
from precision_operator.core.plan import plan
from precision_operator.core.restart.pace import Pace
from precision_operator.core.restart.suspensions import ABANDONED_SECONDS, REPEATED_SECONDS, Suspensions
from precision_operator.core.sight import Sight
from tests.support.fleets import condition, emergency, until
from tests.support.views import pod, workload

NOW = 5000.0
SENT = NOW - 5.0
SIGHT = Sight(None, 9, {}, NOW)

JOBS = ("job-0", "job-1", "job-2")
AT_ONCE = {**FAST, "strategy": {"steps": [{"setWeight": 100}]}}
GRADUAL = {
    "gradual": {"sustain": "0s", "inFlight": "0s", "batchShare": 1.0},
    "mitigation": {"speed": {"window": "0s"}},
    "deadlines": {"P2": "2h"},
}


def jobs(**spec: object) -> World:
    """Three Jobs that only a restart moves; they were found in FP16, and are guarded in it."""
    world = World(policy(**{**AT_ONCE, **spec}))
    for name in JOBS:
        world.add_job(name, mode=Mode.FP16)
    world.run(3)
    assert (world.state.phase, world.restarts) == (Phase.HEALTHY, {})
    return world


def suspended(world: World) -> set[str]:
    return {name for name, job in world.workloads.items() if job.suspended}


def left_behind(world: World) -> set[str]:
    """Jobs that we suspended and that no record says so of."""
    return {
        name
        for name, job in world.workloads.items()
        if job.suspended and not job.suspended_by and job.key not in world.state.suspensions
    }


def test_an_emergency_suspends_jobs_and_resumes_them_in_the_fallback_and_uses_up_no_back_off() -> None:
    world = emergency(jobs())
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.run(3)
    assert world.really_in(Mode.FP32) == set(JOBS)
    assert (world.used_up, suspended(world), world.state.suspensions) == ({}, set(), {})
    assert world.restarts == dict.fromkeys(JOBS, 1)


def test_a_rollout_that_restarts_takes_jobs_to_the_target_the_same_way() -> None:
    world = World(policy(**AT_ONCE))
    for name in JOBS:
        world.add_job(name)
    until(world, lambda w: w.state.phase is Phase.HEALTHY, passes=60)
    assert world.really_in(Mode.FP16) == set(JOBS)
    assert world.used_up == {}


def test_a_job_is_resumed_only_once_none_of_its_pods_is_left() -> None:
    world = jobs()
    world.unreachable = {"job-1"}
    emergency(world).run(6, 5.0)
    assert suspended(world) == {"job-1"}
    assert world.state.suspensions.keys() == {"batch/Job/job-1"}
    world.unreachable = set()
    world.run(4)
    assert (suspended(world), world.really_in(Mode.FP32)) == (set(), set(JOBS))


def crashed_after(world: World, writes: int) -> None:
    """A leader commits and carries out so many of its writes on Jobs; its successor goes on."""
    decision = world.decide()
    world.commit(decision)
    for action in [a for a in decision.actions if isinstance(a, SuspendJob | ResumeJob)][:writes]:
        world.act(action)
    world.turn()
    world.now += 5.0


def test_a_job_whose_pods_are_right_by_themselves_takes_up_its_place_until_its_record_ends() -> None:
    world = emergency(jobs())
    crashed_after(world, 0)
    world.replace_pods("job-1")
    until(world, lambda w: "job-1" in w.really_in(Mode.FP32), seconds=5.0)
    for _ in range(12):
        world.step(5.0)
        assert world.state.suspensions.keys() <= world.state.restarts.keys()


@pytest.mark.parametrize("writes", [0, 1, 3])
@pytest.mark.parametrize("passes", [0, 1, 2, 3])
def test_a_leader_killed_at_any_step_leaves_no_job_suspended(passes: int, writes: int) -> None:
    world = emergency(jobs())
    world.run(passes, 5.0)
    crashed_after(world, writes)
    assert left_behind(world) == set()
    world.run(12, 5.0)
    assert (suspended(world), world.state.suspensions, world.used_up) == (set(), {}, {})
    assert world.really_in(Mode.FP32) == set(JOBS)


@pytest.mark.parametrize(("own_seconds", "predicted_seconds"), [(90.0, 60.0), (600.0, 600.0)])
def test_an_emergency_predicts_no_less_than_the_grace_that_a_suspension_leaves_to_a_jobs_pods(
    own_seconds: float, predicted_seconds: float
) -> None:
    world = jobs()
    job = world.workloads["job-1"]
    pods = tuple(replace(pod, own_grace_seconds=own_seconds) for pod in job.pods)
    world.workloads["job-1"] = replace(job, pods=pods)
    incident = emergency(world).decide().state.incident
    assert incident is not None
    assert incident.predicted_seconds == predicted_seconds


def test_a_job_that_somebody_else_suspended_stays_so() -> None:
    world = jobs()
    world.suspend("job-1", by="kubectl")
    world.run(2)
    emergency(world).run(10)
    assert suspended(world) == {"job-1"}
    assert "job-1" not in world.restarts
    world.resume("job-1")
    world.run(3)
    assert world.really_in(Mode.FP32) == set(JOBS), "by admission"


def test_a_job_that_somebody_suspends_while_we_restart_it_is_theirs_from_then_on() -> None:
    world = emergency(jobs())
    world.step(5.0)
    world.resume("job-1")
    world.suspend("job-1", by="kubectl")
    world.run(12, 5.0)
    assert (suspended(world), world.state.suspensions) == ({"job-1"}, {})


def late(world: World, decision: Decision, kind: type) -> None:
    """The writes of a leader that was paused arrive after its successor's."""
    for action in decision.actions:
        if isinstance(action, kind):
            world.act(action)


def test_a_suspension_that_arrives_after_the_job_was_resumed_changes_nothing() -> None:
    world = emergency(jobs())
    decision = world.decide()
    world.commit(decision)
    world.run(8, 5.0)
    assert world.really_in(Mode.FP32) == set(JOBS)
    late(world, decision, SuspendJob)
    assert suspended(world) == set()


def test_a_resumption_that_arrives_late_ends_no_suspension_of_somebody_else() -> None:
    world = emergency(jobs())
    until(world, lambda w: any(isinstance(a, ResumeJob) for a in w.decide().actions), seconds=5.0)
    decision = world.decide()
    world.commit(decision)
    world.run(3, 5.0)
    assert suspended(world) == set()
    world.suspend("job-1", by="kubectl")
    late(world, decision, ResumeJob)
    assert suspended(world) == {"job-1"}


def test_another_job_of_the_same_name_is_none_that_we_suspended() -> None:
    world = emergency(jobs())
    world.step(5.0)
    world.drop("job-1")
    world.add_job("job-1", mode=Mode.FP16)
    world.workloads["job-1"] = replace(world.workloads["job-1"], uid="another")
    world.suspend("job-1", by="kubectl")
    world.run(10, 5.0)
    assert (suspended(world), world.state.suspensions) == ({"job-1"}, {})


@pytest.mark.parametrize("change", ["deleted", "suspended", "selector", "released"])
def test_what_we_suspended_is_resumed_whatever_becomes_of_its_policy(change: str) -> None:
    world = emergency(jobs(deletionPolicy="Release" if change == "released" else "Hold"))
    world.step(5.0)
    assert suspended(world) == set(JOBS)
    match change:
        case "deleted" | "released":
            world.delete_policy()
        case "suspended":
            world.policy = replace(world.policy, spec=replace(world.policy.spec, suspend=True))
        case "selector":
            world.labels = {key: {"fleet": "another"} for key in JOBS}
    for _ in range(10):
        if not world.gone:
            decision = world.step(5.0)
            assert not decision.state.suspensions or decision.wake_at < world.now - 5.0 + IDLE_SECONDS
    assert (suspended(world), world.state.suspensions) == (set(), {})


def test_what_we_suspended_is_resumed_though_the_selector_leaves_it_out_now() -> None:
    world = World(policy(**AT_ONCE))
    for name in JOBS:
        world.add_job(name)
    until(world, suspended, seconds=5.0)
    elsewhere = replace(world.policy.spec, selector=Selector((("fleet", "another"),)))
    world.policy = replace(world.policy, spec=elsewhere, generation=2)
    for _ in range(4):
        world.step(5.0)
        assert left_behind(world) == set()
    world.run(4, 5.0)
    assert (suspended(world), world.state.suspensions) == (set(), {})


def test_a_job_that_shares_its_label_with_another_one_by_now_is_resumed_and_the_other_is_left_alone() -> None:
    """Their pods are seen as one process group, under the key of both."""
    ours = workload("ours", key="label/nightly", uid="uid-b", restart_by=RestartBy.SUSPENSION, suspended=True)
    ours = replace(ours, pods=(), emptied=True, object_generation=2)
    both = replace(ours, uid="uid-a", restart_by=RestartBy.NEVER, suspended=False, emptied=False, object_generation=1)
    record = {both.key: Suspension("uid-b", 1, NOW - 5.0)}
    for wanted in ([Desired(both, Mode.FP32, Delivery.HOT, rollback=True)], []):
        found = plan(SIGHT, wanted, pace=Pace(), suspensions=record, elsewhere=[both, ours])
        assert found.suspensions == {both.key: Suspension("uid-b", 2, NOW, resuming=True)}
        assert found.actions == (ResumeJob(ours, SIGHT.generation, 2),)


@pytest.mark.parametrize(
    ("seen", "record", "left", "resumed"),
    [
        ((True, 2, 0), (1, False), (2, True, NOW), True),
        ((True, 2, 1), (1, False), (1, False, SENT), False),
        ((True, 2, 0), (2, True), (2, True, SENT), True),
        ((True, 4, 0), (2, True), (4, True, NOW), True),
        ((True, 2, 0), (3, False), (3, False, SENT), False),
        ((False, 1, 0), (2, True), (2, True, SENT), False),
        ((False, 3, 0), (2, True), None, False),
        ((False, 1, 1), (1, False), (1, False, SENT), False),
        ((False, 3, 1), (1, False), None, False),
    ],
    ids=[
        "it is empty",
        "a pod is still seen",
        "its resumption is sent once more",
        "a suspension came late",
        "the next suspension is not seen yet",
        "its suspension is not seen yet",
        "it was resumed",
        "its suspension may still arrive",
        "it was changed, so that its suspension cannot arrive",
    ],
)
def test_the_record_of_a_suspension_stands_for_as_long_as_the_job_may_be_left_suspended(
    seen: tuple[bool, int, int], record: tuple[int, bool], left: tuple[int, bool, float] | None, *, resumed: bool
) -> None:
    """Of a Job: whether it is seen suspended, its generation, its pods. Of a record: its generation, whether it resumes."""
    suspended, generation, pods = seen
    job = workload("job", suspended=suspended, emptied=suspended, object_generation=generation, pods=(pod(),) * pods)
    jobs = Suspensions(SIGHT.generation, NOW)
    assert not jobs.go_on(job.key, Suspension(job.uid, record[0], SENT, resuming=record[1]), job, again=False)
    found = jobs.records.get(job.key)
    assert (found and (found.generation, found.resuming, found.since)) == left
    assert bool(jobs.resumptions) is resumed


@pytest.mark.parametrize(("since", "left"), [(NOW - 0.5, NOW - 0.5), (NOW - REPEATED_SECONDS, NOW), (NOW + 9.0, NOW)])
def test_a_suspension_that_is_asked_for_again_is_recorded_anew_after_a_while(since: float, left: float) -> None:
    jobs = Suspensions(SIGHT.generation, NOW)
    jobs.begin(workload("job"), respects_budgets=True, since=since)
    assert [record.since for record in jobs.records.values()] == [left]


def test_a_job_without_pods_is_not_resumed_before_its_controller_says_that_it_is_empty() -> None:
    job = workload("job", suspended=True, emptied=False, object_generation=2, pods=())
    jobs, record = Suspensions(SIGHT.generation, NOW), Suspension(job.uid, 1, SENT)
    jobs.go_on(job.key, record, job, again=False)
    assert (jobs.resumptions, jobs.records) == ([], {job.key: record})


def test_a_job_whose_record_a_person_has_written_anew_is_resumed() -> None:
    """By hand, with the generation that the Job has while it is suspended."""
    job = workload("job", suspended=True, emptied=True, object_generation=5, pods=())
    jobs = Suspensions(SIGHT.generation, NOW)
    jobs.go_on(job.key, Suspension(job.uid, 5, SENT), job, again=False)
    assert jobs.resumptions


def test_a_job_that_is_suspended_again_under_a_deleted_policy_keeps_its_record_from_being_deleted() -> None:
    world = emergency(jobs())
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.delete_policy()
    world.run(3, 5.0)
    assert world.state.deletable
    job = world.workloads["job-1"]
    wrong = tuple(replace(p, started_mode=Mode.FP16, created_at=world.now - 60.0) for p in job.pods)
    world.workloads["job-1"] = replace(job, pods=wrong)
    for _ in range(8):
        world.step(5.0)
        assert not (world.state.deletable and world.state.suspensions)
    assert (suspended(world), world.state.deletable) == (set(), True)


def test_a_leader_whose_caches_lack_a_job_that_is_suspended_keeps_its_record_and_resumes_it_once_it_sees_it() -> None:
    world = emergency(jobs())
    world.step(5.0)
    world.unlisted = {"job-1"}
    world.run(12, 5.0)
    assert (suspended(world), left_behind(world)) == ({"job-1"}, set())
    world.unlisted = set()
    world.run(6, 5.0)
    assert (suspended(world), world.state.suspensions) == (set(), {})


def test_an_assignment_cannot_be_deleted_by_a_person_while_it_records_a_suspended_job() -> None:
    world = emergency(jobs())
    world.unreachable = {"job-1"}
    world.step(5.0)
    world.policy = replace(world.policy, annotations={ABORT: "0"})
    world.delete_policy()
    world.run(40)
    assert (suspended(world), world.state.deletable) == ({"job-1"}, False)
    world.unreachable = set()
    world.run(5)
    assert (suspended(world), world.state.deletable) == (set(), True)


def test_a_budget_holds_a_gradual_suspension_back_and_no_emergency() -> None:
    world = slow(jobs(rollback=GRADUAL))
    world.budgeted = {"job-1"}
    world.run(12)
    assert world.really_in(Mode.FP32) == {"job-0", "job-2"}
    assert world.restarts.get("job-1", 0) == 0
    emergency(world).run(5)
    assert world.really_in(Mode.FP32) == set(JOBS)


def slow(world: World) -> World:
    """All train at half the speed of FP32: a rollback that can wait."""
    world.bad = {key: {Signal.SPEED: 0.5} for key in JOBS}
    return world


def test_jobs_that_a_budget_holds_take_turns_and_are_not_all_suspended_when_it_opens() -> None:
    world = slow(jobs(rollback={**GRADUAL, "deadlines": {"P2": "10h"}}))
    world.restart_slots, world.budgeted = 1, set(JOBS)
    asked: set[str] = set()
    for _ in range(4 * 45):
        now = {a.workload.name for a in world.step().actions if isinstance(a, SuspendJob)}
        assert len(now) <= 1
        asked |= now
    assert asked == set(JOBS), "each in its turn"
    world.budgeted = set()
    until(world, lambda w: w.restarts, seconds=15.0, passes=8)
    assert sum(world.restarts.values()) == 1
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0, passes=60)


def test_a_job_that_a_budget_held_is_not_suspended_while_capacity_is_lost_unless_it_is_urgent() -> None:
    world = slow(jobs(rollback={**GRADUAL, "deadlines": {"P2": "10h"}}))
    world.budgeted, world.room = {"job-1"}, {"job-0": Room.NONE}
    until(world, lambda w: condition(w, "CapacityLost").status == "True", seconds=15.0, passes=40)
    world.budgeted = set()
    world.run(20)
    assert world.restarts.get("job-1", 0) == 0
    emergency(world).run(3)
    assert world.restarts["job-1"] == 1


def test_a_suspension_that_was_repeated_until_now_is_not_forgotten_at_once() -> None:
    world = slow(jobs(rollback=GRADUAL))
    world.budgeted = {"job-1"}
    until(world, lambda w: "batch/Job/job-1" in w.state.suspensions)
    world.run(10)
    sent = world.decide()
    world.commit(sent)
    train_in_fp32(world, "job-1")
    world.run(2, 5.0)
    world.budgeted = set()
    late(world, sent, SuspendJob)
    assert (suspended(world), left_behind(world)) == ({"job-1"}, set())


def train_in_fp32(world: World, name: str) -> None:
    """Without any restart of ours."""
    job = world.workloads[name]
    world.workloads[name] = replace(job, pods=tuple(replace(p, started_mode=Mode.FP32) for p in job.pods))
    world.modes |= {p.name: (Mode.FP32, world.modes[p.name][1]) for p in job.pods}


def test_a_suspension_that_is_not_wanted_any_more_is_forgotten_once_it_cannot_arrive_any_more() -> None:
    world = slow(jobs(rollback=GRADUAL))
    world.budgeted = {"job-1"}
    until(world, lambda w: "batch/Job/job-1" in w.state.suspensions)
    began = world.now
    train_in_fp32(world, "job-1")
    world.step(5.0)
    assert "batch/Job/job-1" in world.state.suspensions, "its write may still be on its way"
    until(world, lambda w: not w.state.suspensions, seconds=15.0)
    assert world.now - began >= ABANDONED_SECONDS
    assert world.restarts.get("job-1", 0) == 0


def test_pods_of_jobs_are_neither_deleted_nor_evicted_unless_they_terminate_already() -> None:
    world = emergency(jobs())
    world.unreachable = {"job-2"}
    actions = [action for _ in range(30) for action in world.step(10.0).actions]
    assert all(action.pod.terminating for action in actions if isinstance(action, DeletePod | EvictPod))
    assert world.used_up == {}


def test_a_pod_that_does_not_go_is_hastened_once_and_named_and_no_deadline_is_about_it() -> None:
    world = jobs()
    world.places["job-2"] = "node-7", ""
    world.runs_on("job-2", "node-7")
    world.unreachable = {"job-2"}
    emergency(world).run(40)
    assert world.state.phase is Phase.ROLLING_BACK
    found = condition(world, "Blocked")
    assert (found.status, found.reason) == ("True", "NodeUnreachable")
    assert "job-2: NodeUnreachable node-7" in found.message
    assert world.state.incident is not None
    assert not world.state.incident.escalated
