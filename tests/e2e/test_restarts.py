"""Restarts on a real kubelet: every kind on a full node, pods that do not go, what holds a restart back, and a leader that
is killed while it has suspended a Job. Three fleets go through their stories at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.cluster import Cluster
from lab.cluster.kubectl import Json
from lab.demo.fleet import ACCELERATOR
from lab.demo.stage import advertise
from lab.restarts import KINDS
from lab.trainers import PREFIX
from lab.waiting import wait_for
from precision_operator.api.state import State
from tests.support.restarted import Stop, Watched, Workload, budget
from tests.support.running_fleets import side_by_side

STEPS = 320
"""After which the Job's training is finished: it is restarted long before."""

JOB = Workload("job", "Job", steps=STEPS, accelerator=True)
UNRESPONSIVE, LINGERING = Workload("unresponsive", stop=Stop.UNRESPONSIVE), Workload("lingering", stop=Stop.LINGERS)
CROWDED = (
    *(Workload(kind.lower(), kind, accelerator=True) for kind in KINDS if kind != "Job"),
    UNRESPONSIVE,
    LINGERING,
)
"""One of each kind takes up an accelerator of the node, which has no other one."""

BUDGETED, PENDING, FLIPPED = (
    Workload("budgeted"),
    Workload("pending", "StatefulSet"),
    Workload("flipped", "StatefulSet", hot=True),
)
INTERRUPTED = Workload("interrupted", "Job", stop=Stop.LINGERS, grace_seconds=35)
"""Nobody may shorten what the Job's controller gives its pods: its leader is killed meanwhile."""
SAVED = Workload("saved", hot=True)
"""It reads requests, and is restarted all the same: its policy says so."""

# Few steps are enough here, and a machine that does much else trains few.
EVALUATION = {"interval": "1s", "window": "20s", "failureLimit": 0, "minSteps": 4}
# What begins in FP16 has no losses of FP32 to be compared with.
CRITERIA = {"speed": {"enabled": False}, "divergence": {"enabled": False}}
ROLLBACK = {
    "ackTimeout": "8s",
    "gradual": {"sustain": "2s", "inFlight": "0s", "batchShare": 1.0},
    "mitigation": {"overflow": {"window": "0s"}},
}


@dataclass
class Facts:
    """What the stories left, read back from the cluster and the trainers."""

    crowded: Watched
    before: dict[str, str] = field(default_factory=dict)
    """Workload → its pod, before the emergency."""
    after: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    crowded_status: Json = field(default_factory=dict)
    job: Json = field(default_factory=dict)
    """As it ended."""
    last_pod_of_job: str = ""
    gradual: Json = field(default_factory=dict)
    """The status while a gradual rollback is held up; ``lives`` are the pods then."""
    urgent: Json = field(default_factory=dict)
    """The status once an emergency has done what it may."""
    lives: list[dict[str, str]] = field(default_factory=list)
    """Workload → uid of its pod: at the start, in the gradual rollback, and in the emergency."""
    flipped: str = ""
    """The mode of the hot one, while the gradual rollback waited."""
    rolled_out: str = ""
    """The mode of the pending one, after its change was rolled out by hand."""
    at_death: State = field(default_factory=State)
    interrupted: Json = field(default_factory=dict)
    """The Job, after the successor's rollback."""
    interrupted_mode: str = ""
    interrupted_pod: str = ""
    """The Job's, before it was suspended."""
    graces: dict[str, list[int]] = field(default_factory=dict)
    """Pod of any of the fleets → the graces that the operator named as it deleted it."""
    saved: tuple[float, list[float], float] = (0.0, [], 0.0)
    """When a checkpoint was asked for, when the trainer had one, and when its pod was taken away."""


@pytest.fixture(scope="module")
def facts(cluster: Cluster, prometheus_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Facts]:
    """All three stories, each up to its end."""
    directory, checkpoints = tmp_path_factory.mktemp("restarts"), tmp_path_factory.mktemp("checkpoints")
    plane = cluster.control_plane
    advertise(cluster.kubectl, ACCELERATOR, len(KINDS))
    stories = [("crowded", ()), ("held-up", ()), ("interrupted", ())]
    try:
        with side_by_side(plane, prometheus_url, directory, stories) as fleets:
            crowded, held_up, interrupted = (
                Watched(fleet, directory, plane.audit_log, prometheus_url) for fleet in fleets
            )
            try:
                yield _play(crowded, held_up, interrupted, checkpoints)
            finally:
                for fleet in fleets:  # some would take their time
                    words = ("delete", "pods", "--all", "-n", fleet.namespace, "--grace-period=1", "--wait=false")
                    cluster.kubectl(*words, check=False)
    finally:
        advertise(cluster.kubectl, ACCELERATOR, None)


def _play(crowded: Watched, held_up: Watched, interrupted: Watched, checkpoints: Path) -> Facts:
    facts = Facts(crowded)
    crowded.apply(CROWDED, checkpoints)
    held_up.apply((BUDGETED, PENDING, FLIPPED), checkpoints)
    interrupted.apply((INTERRUPTED, SAVED), checkpoints)
    crowded.fleet.until_training(len(CROWDED))
    crowded.apply((JOB,), checkpoints)  # last, so that it is not at its end before the others have begun
    for watched, count, delivery in (
        (crowded, len(CROWDED) + 1, "Auto"),
        (held_up, 3, "Auto"),
        (interrupted, 2, "Restart"),
    ):
        watched.fleet.until_training(count)
        watched.fleet.follow(
            strategy={"steps": [{"setWeight": 100}]},
            criteria=CRITERIA,
            rollback=ROLLBACK,
            evaluation=EVALUATION,
            delivery=delivery,
        )
    with crowded.followed([*(workload.name for workload in CROWDED), JOB.name]) as facts.before:
        _abort(crowded)
        _hold_up(held_up, facts)
        facts.crowded_status = crowded.fleet.until_phase("Held", seconds=300)
    facts.after = {name: crowded.pod(name)["metadata"]["name"] for name in facts.before}
    facts.modes = crowded.reported(*facts.before)
    _go_on_urgently(held_up, facts)
    _interrupt(interrupted, facts)
    held_up.fleet.until_phase("Held")
    facts.rolled_out = held_up.reported(PENDING.name)[PENDING.name]
    _end_of_the_job(crowded, facts)
    facts.graces = {
        pod: graces for watched in (crowded, held_up, interrupted) for pod, graces in watched.graces().items()
    }
    return facts


def _abort(watched: Watched) -> None:
    number = watched.fleet.until_phase("Healthy")["transitionId"]
    watched.fleet.annotate(f"{PREFIX}/abort={number}: drill")


def _hold_up(watched: Watched, facts: Facts) -> None:
    """A mild breach of a workload that no eviction may touch, and of one whose template was changed."""
    kubectl, namespace = watched.fleet.kubectl, watched.fleet.namespace
    facts.lives.append(_lives(watched))
    kubectl.apply(budget(BUDGETED.name, namespace))
    for name in (PENDING.name, FLIPPED.name):
        patch = '{"spec":{"template":{"metadata":{"annotations":{"note":"changed"}}}}}'
        kubectl("patch", "statefulset", name, "-n", namespace, "--type=merge", "-p", patch)
    watched.fleet.until_phase("Healthy")
    for name in (BUDGETED.name, PENDING.name, FLIPPED.name):
        watched.fault(name, "overflow=0.2")

    def held_up(status: Json) -> bool:
        refused, pending = (watched.condition(status, kind) for kind in ("WritesAccepted", "PendingRevision"))
        return refused.get("reason") == "DisruptionBudget" and pending.get("status") == "True"

    facts.gradual = watched.fleet.until(held_up, what="a gradual rollback to be held up", seconds=180)
    wait_for(lambda: watched.mode(FLIPPED.name) == "fp32", what="the hot one to flip", seconds=60)
    facts.flipped = watched.mode(FLIPPED.name)
    facts.lives.append(_lives(watched))


def _go_on_urgently(watched: Watched, facts: Facts) -> None:
    """A person aborts: the budget holds nothing back any more, and a change that was not rolled out still does."""
    watched.fleet.annotate(f"{PREFIX}/abort={facts.gradual['transitionId']}: drill")
    wait_for(
        lambda: watched.mode(BUDGETED.name) == "fp32",
        what="the one with a budget to be restarted",
        seconds=180,
        found=lambda: str(watched.fleet.state()),
    )
    facts.urgent = watched.fleet.until(
        lambda status: status["incident"]["strategy"] == "Emergency", what="the status to say so", seconds=60
    )
    facts.lives.append(_lives(watched))
    watched.fleet.kubectl("delete", "pod", f"{PENDING.name}-0", "-n", watched.fleet.namespace, "--wait=false")


def _lives(watched: Watched) -> dict[str, str]:
    return {workload.name: watched.pod(workload.name)["metadata"]["uid"] for workload in (BUDGETED, PENDING, FLIPPED)}


def _interrupt(watched: Watched, facts: Facts) -> None:
    """The leader is killed while the Job is suspended, and its pod takes its time; another one is started."""
    facts.interrupted_pod = watched.pod(INTERRUPTED.name)["metadata"]["name"]
    with watched.followed([SAVED.name]) as followed:
        _abort(watched)
        wait_for(
            lambda: watched.found("job", INTERRUPTED.name)["spec"].get("suspend"),
            what="the Job to be suspended",
            seconds=60,
            every=0.1,
        )
        operators = watched.fleet.operators
        operators.stop()
        facts.at_death = watched.fleet.state()
        assert watched.found("job", INTERRUPTED.name)["spec"]["suspend"], "it was resumed before its pod could be gone"
        operators.start("two")
        watched.fleet.until_phase("Held")
    pod = followed[SAVED.name]
    had = [line["time"] for line in watched.events(pod, "checkpoint", before=True)]
    facts.saved = watched.asked_to_save_at(pod), had, watched.taken_away_at({pod}, set())
    facts.interrupted_mode = watched.reported(INTERRUPTED.name)[INTERRUPTED.name]
    facts.interrupted = watched.found("job", INTERRUPTED.name)


def _end_of_the_job(watched: Watched, facts: Facts) -> None:
    facts.last_pod_of_job = facts.after[JOB.name]

    def ended() -> bool:
        facts.job = watched.found("job", JOB.name)
        return any(
            c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in facts.job["status"]["conditions"]
        )

    wait_for(ended, what="the Job to end", seconds=300, found=lambda: str(facts.job["status"]))


def _reason(status: Mapping[str, object], watched: Watched, kind: str) -> str:
    found: str = watched.condition(dict(status), kind).get("reason", "")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_comes_back_in_the_fallback_on_a_full_node(
    facts: Facts, kind: str, record_property: Callable[[str, object], None]
) -> None:
    name, watched = kind.lower(), facts.crowded
    old, new = facts.before[name], facts.after[name]
    assert facts.modes[name] == "fp32"
    taken_away = watched.taken_away_at({old}, {name} if kind == "Job" else set())
    (stopping,), resumed = watched.events(old, "stopping", before=True), watched.events(new, "resumed")
    failed = facts.job["status"].get("failed", 0) if kind == "Job" else 0
    completed = watched.events(facts.last_pod_of_job, "complete") if kind == "Job" else []
    record_property("restarted_kind", kind)
    record_property("restart_seconds", round(watched.reported_at(new, "fp32") - taken_away, 3))
    record_property("backoff_used", failed)
    record_property("steps_lost", stopping["step"] - resumed[0]["step"])
    record_property("completed_untrained", kind == "Job" and [line["step"] for line in completed] != [STEPS])
    assert (failed, stopping["step"] - resumed[0]["step"]) == (0, 0)


def test_a_job_that_was_suspended_and_resumed_is_trained_to_its_end(facts: Facts) -> None:
    (stopping,) = facts.crowded.events(facts.before[JOB.name], "stopping", before=True)
    (complete,) = facts.crowded.events(facts.last_pod_of_job, "complete")
    assert stopping["step"] < complete["step"] == STEPS
    assert (facts.job["status"].get("succeeded"), facts.job["status"].get("failed", 0)) == (1, 0)


@pytest.mark.parametrize("name", [UNRESPONSIVE.name, LINGERING.name])
def test_a_pod_that_does_not_go_is_killed_long_before_its_grace_is_over(facts: Facts, name: str) -> None:
    assert facts.before[name] != facts.after[name]
    assert facts.modes[name] == "fp32"


def test_an_emergency_on_a_full_node_keeps_its_deadline(facts: Facts) -> None:
    incident = facts.crowded_status["incident"]
    assert (incident["reason"], incident["strategy"]) == ("Aborted", "Emergency")
    assert incident["lastAckAt"] <= incident["deadlineAt"]


def test_a_gradual_rollback_waits_for_a_disruption_budget_and_says_so(facts: Facts) -> None:
    assert _reason(facts.gradual, facts.crowded, "WritesAccepted") == "DisruptionBudget"
    assert facts.gradual["incident"]["strategy"] == "Gradual"
    before, waiting, _ = facts.lives
    assert waiting[BUDGETED.name] == before[BUDGETED.name]


def test_an_emergency_does_not_wait_for_a_disruption_budget(facts: Facts) -> None:
    _, waiting, urgent = facts.lives
    assert urgent[BUDGETED.name] != waiting[BUDGETED.name]


def test_a_stateful_set_with_a_pending_revision_is_not_restarted_and_a_condition_says_so(facts: Facts) -> None:
    found = facts.crowded.condition(facts.urgent, "PendingRevision")
    assert (found["status"], found["reason"]) == ("True", "TemplateChanged")
    assert PENDING.name in found["message"]
    assert len({lives[PENDING.name] for lives in facts.lives}) == 1


def test_a_pending_revision_holds_no_hot_flip(facts: Facts) -> None:
    assert facts.flipped == "fp32"
    assert len({lives[FLIPPED.name] for lives in facts.lives}) == 1


def test_once_a_person_has_rolled_the_change_out_the_rollback_ends(facts: Facts) -> None:
    assert facts.rolled_out == "fp32"


def test_the_successor_of_a_killed_leader_resumes_the_job_that_it_suspended(
    facts: Facts, record_property: Callable[[str, object], None]
) -> None:
    record_property("killed_at", "suspended, by SIGKILL on the full cluster")
    record_property("jobs_left_suspended", int(bool(facts.interrupted["spec"].get("suspend"))))
    assert f"batch/Job/{INTERRUPTED.name}" in facts.at_death.suspensions
    assert not facts.interrupted["spec"].get("suspend")
    assert facts.interrupted["status"].get("failed", 0) == 0
    assert facts.interrupted_mode == "fp32"


def test_a_pod_that_is_late_is_deleted_again_with_a_grace_of_one_second_and_none_with_no_grace(facts: Facts) -> None:
    assert set(facts.graces[facts.interrupted_pod]) == {1}, "a Job's controller deletes its pod first"
    assert min(grace for graces in facts.graces.values() for grace in graces) == 1


def test_a_trainer_that_reads_requests_has_a_checkpoint_of_the_request_before_its_pod_is_taken_away(
    facts: Facts,
) -> None:
    asked, had, taken_away = facts.saved
    assert [at for at in had if asked <= at <= taken_away]
