"""How fast pods are taken away, what is predicted of it, and what becomes of pods that do not go or come."""

from dataclasses import replace

import pytest

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase, Restart
from precision_operator.core.actions import DeletePod, EvictPod, Notify
from precision_operator.core.leaving import FORCED_SECONDS, MARGIN_SECONDS, begun, blocked, late, noticed
from precision_operator.core.model import PodView, RestartBy
from precision_operator.core.restart.pace import KEPT_RESTARTS, LEAST_AT_ONCE, Pace, quantile
from precision_operator.core.restart.rounds import PLACELESS_SECONDS
from precision_operator.reasons import Cause, Reason
from tests.support.fleets import change, condition, emergency, gradual, restart_only, until
from tests.support.views import key, pod, workload

AT_ONCE = {**FAST, "strategy": {"steps": [{"setWeight": 100}]}}
GRADUAL = {
    "gradual": {"sustain": "0s", "inFlight": "0s", "batchShare": 1.0},
    "mitigation": {"speed": {"window": "0s"}},
    "deadlines": {"P2": "2h"},
}


@pytest.mark.parametrize(("sooner_seconds", "restarted"), [(1.0, 0), (0.0, 8)])
def test_a_gradual_rollback_waits_for_no_slot_from_three_timeouts_before_its_deadline_on(
    sooner_seconds: float, restarted: int
) -> None:
    world = gradual(restart_only(8, rollback=GRADUAL))
    world.restart_slots = 0
    until(world, lambda w: w.state.incident)
    assert world.state.incident is not None
    hurries = world.state.incident.deadline_at - 3 * world.policy.spec.rollback.ack_timeout_seconds
    world.now = hurries - sooner_seconds
    assert sum(isinstance(action, EvictPod) for action in world.decide().actions) == restarted


@pytest.mark.parametrize(
    ("left_seconds", "restart_seconds", "pods", "at_once"),
    [
        (300.0, (60.0,), 100, 50),  # two rounds in half of the time
        (300.0, (15.0,) * 9 + (30.0,), 100, 10),  # nine of ten take 15 s: ten rounds
        (300.0, (), 100, 50),  # nothing was measured: 60 s
        (300.0, (600.0,), 100, 100),  # not even one round
        (-5.0, (1.0,), 100, 100),  # the deadline is over
        (300.0, (1.0,), 100, LEAST_AT_ONCE),
        (300.0, (600.0,), 9000, 500),  # no more than the policy allows
    ],
)
def test_as_many_pods_are_on_their_way_as_the_deadline_needs(
    left_seconds: float, restart_seconds: tuple[float, ...], pods: int, at_once: int
) -> None:
    assert Pace(left_seconds=left_seconds, restart_seconds=restart_seconds).pods_at_once(pods) == at_once


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [((1,) * 4, 60.0), ((1,) * 10, 60.0), ((1,) * 100, 120.0), ((4,) * 25, 125.0)],
    ids=["one wave", "a full one", "two of fifty", "groups of four"],
)
def test_the_prediction_is_waves_of_typical_restarts_and_a_long_one(sizes: tuple[int, ...], seconds: float) -> None:
    assert Pace(left_seconds=300.0).predicted_seconds(sizes) == pytest.approx(seconds, abs=1.0)


@pytest.mark.parametrize(("sizes", "seconds"), [((1,), 20.0), ((1_000,), 20.0), ((1,) * 105, 6 * 28.0 + 100.0)])
def test_the_prediction_goes_by_the_restarts_that_were_measured(sizes: tuple[int, ...], seconds: float) -> None:
    pace = Pace(left_seconds=300.0, restart_seconds=(20.0,) * 9 + (100.0,))
    assert pace.predicted_seconds(sizes) == pytest.approx(seconds)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.1, 1.0), (0.5, 5.0), (0.9, 9.0), (1.0, 10.0)])
def test_a_quantile_is_one_of_the_values(share: float, value: float) -> None:
    assert quantile([float(n) for n in range(10, 0, -1)], share) == value


def test_restarts_are_measured_until_they_are_acknowledged_and_the_newest_are_kept() -> None:
    world = restart_only(30)
    emergency(world)
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0)
    world.run(2, 5.0)
    assert len(world.state.restart_seconds) == KEPT_RESTARTS
    assert set(world.state.restart_seconds) <= {5.0, 10.0, 15.0}


def test_a_rollback_that_is_decided_says_how_long_its_restarts_will_take() -> None:
    world = emergency(restart_only(4))
    decision = world.decide()
    assert decision.state.incident is not None
    assert decision.state.incident.predicted_seconds == 60.0
    assert not [a for a in decision.actions if isinstance(a, Notify) and a.reason == "DeadlineUnreachable"]


def test_a_deadline_that_cannot_be_kept_is_announced_with_the_decision_and_once() -> None:
    world = emergency(restart_only(4, rollback={"emergency": {"expectedRestart": "10m", "maxConcurrentPods": 2}}))
    notices = [a for _ in range(3) for a in world.step().actions if isinstance(a, Notify)]
    (said,) = [a for a in notices if a.reason == "DeadlineUnreachable"]
    assert said.warning
    assert "predicted to take 690 s" in said.message  # one wave of ten minutes, and of the last what is waited for


def test_a_replacement_that_is_not_waited_for_any_more_makes_no_prediction_longer() -> None:
    world = emergency(restart_only(4, rollback={"ackTimeout": "90s", "emergency": {"expectedRestart": "10m"}}))
    world.room = dict.fromkeys(world.workloads, Room.NONE)
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0, passes=40)
    incident = world.state.incident
    assert incident is not None
    assert incident.last_ack_at is not None
    assert incident.predicted_seconds == 90.0
    assert 90.0 <= incident.last_ack_at - incident.decided_at <= 100.0


def test_a_hot_rollback_predicts_nothing() -> None:
    world = World(policy(**AT_ONCE))
    world.add("hot", mode=Mode.FP16)
    world.run(3)
    found = emergency(world).decide().state.incident
    assert found is not None
    assert found.predicted_seconds is None


def test_an_emergency_deletes_and_everything_else_evicts() -> None:
    urgent = emergency(restart_only()).decide().actions
    mild = gradual(restart_only(rollback=GRADUAL)).decide().actions
    assert {type(a) for a in urgent if not isinstance(a, Notify)} == {DeletePod}
    assert {type(a) for a in mild if not isinstance(a, Notify)} == {EvictPod}


def test_an_emergency_that_respects_disruption_budgets_evicts() -> None:
    world = emergency(restart_only(rollback={"emergency": {"respectDisruptionBudgets": True}}))
    world.budgeted = {"old-00"}
    world.run(6, 5.0)
    assert world.really_in(Mode.FP32) == {"old-01", "old-02", "old-03"}
    world.budgeted = set()
    world.run(4, 5.0)
    assert world.state.phase is Phase.HELD


def test_a_gradual_rollback_waits_for_a_budget_also_when_its_deadline_comes() -> None:
    world = restart_only(rollback={**GRADUAL, "deadlines": {"P2": "5m"}})
    world.budgeted = {"old-00"}
    gradual(world).run(40)
    assert (world.state.phase, world.restarts.get("old-00", 0)) == (Phase.ROLLING_BACK, 0)
    assert world.really_in(Mode.FP32) == {"old-01", "old-02", "old-03"}


@pytest.mark.parametrize(
    ("rules", "strategy", "restarted"),
    [
        ({}, emergency, False),
        ({"onPendingRevision": "Restart"}, emergency, True),
        ({**GRADUAL, "onPendingRevision": "Restart"}, gradual, False),
    ],
    ids=["emergency", "emergency that may", "gradual"],
)
def test_a_workload_whose_template_was_changed_is_not_restarted_unless_the_policy_says_so(
    rules: dict[str, object],
    strategy: object,
    restarted: bool,
) -> None:
    world = restart_only(2, rollback=rules)
    change(world, "old-01", pending_revision=True)
    assert callable(strategy)
    strategy(world)
    world.run(4, 5.0)
    assert world.restarts.get("old-00") == 1
    assert world.restarts.get("old-01", 0) == restarted
    assert (condition(world, "PendingRevision").status == "True") is not restarted
    change(world, "old-01", pending_revision=False)
    world.run(6, 15.0)
    assert world.really_in(Mode.FP32) == {"old-00", "old-01"}
    assert condition(world, "PendingRevision").status == "False"


def test_a_pending_change_holds_no_hot_flip() -> None:
    world = World(policy(**AT_ONCE))
    world.add("hot", mode=Mode.FP16)
    world.run(3)
    change(world, "hot", pending_revision=True)
    until(emergency(world), lambda w: w.state.phase is Phase.HELD)
    assert world.restarts == {}


def test_a_replacement_without_a_place_stops_further_batches_and_is_named() -> None:
    world = restart_only(4, rollback=GRADUAL)
    world.restart_slots = 2
    world.room["old-00"] = Room.NONE
    gradual(world)
    until(world, lambda w: condition(w, "CapacityLost").status == "True", seconds=15.0, passes=40)
    assert world.now >= PLACELESS_SECONDS
    before = dict(world.restarts)
    world.run(10)
    assert world.restarts == before, "nothing more is begun"
    world.room = {}
    until(world, lambda w: w.really_in(Mode.FP32) == set(w.workloads), seconds=15.0, passes=40)
    world.run(2)
    assert condition(world, "CapacityLost").status == "False"


def test_lost_capacity_does_not_stop_an_emergency() -> None:
    world = restart_only(14)
    world.room["old-00"] = Room.NONE
    emergency(world)
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0, passes=40)
    assert len(world.really_in(Mode.FP32)) == 13


GOING = pod("p", terminating=True, gone_by=1000.0, grace_seconds=30.0, node="n")


@pytest.mark.parametrize(
    ("now", "leaving_seconds", "expected"),
    [
        (1000.0 + MARGIN_SECONDS, None, False),
        (1000.1 + MARGIN_SECONDS, None, True),
        (990.0, 20.0, False),
        (990.1, 20.0, True),
    ],
)
def test_a_pod_is_late_when_its_grace_is_over_or_patience_is(
    now: float, leaving_seconds: float | None, expected: bool
) -> None:
    assert late(GOING, now, leaving_seconds=leaving_seconds) is expected
    assert late(replace(GOING, terminating=False), now, leaving_seconds=leaving_seconds) is False


@pytest.mark.parametrize(
    ("view", "away", "why"),
    [
        (GOING, (), None),
        (GOING, ("n",), Cause(Reason.NODE_UNREACHABLE, "n")),
        (replace(GOING, finalizer="acme.io/keep"), ("n",), Cause(Reason.FOREIGN_FINALIZER, "acme.io/keep")),
        (replace(GOING, grace_seconds=1.0), (), Cause(Reason.NOT_TERMINATED, "on n")),
        (replace(GOING, grace_seconds=2.0), (), None),
    ],
)
def test_a_late_pod_that_cannot_be_ended_from_here_says_why(
    view: PodView, away: tuple[str, ...], why: Cause | None
) -> None:
    assert blocked(view, 1001.0 + FORCED_SECONDS, away) == why
    assert blocked(view, 1000.0, away) is None


def test_a_kubelet_that_answers_is_given_its_time_to_end_a_pod() -> None:
    assert blocked(replace(GOING, grace_seconds=1.0), GOING.gone_by + FORCED_SECONDS, ()) is None


def test_an_emergency_gives_a_pod_that_takes_its_time_one_second_and_does_so_once() -> None:
    world = restart_only(1)
    world.unreachable = {"old-00"}
    emergency(world)
    hastened = [
        a for _ in range(40) for a in world.step(10.0).actions if isinstance(a, DeletePod) and a.grace_seconds == 1
    ]
    assert len(hastened) == 1
    assert condition(world, "Blocked").reason == "NotTerminated"


@pytest.mark.parametrize(
    ("own_seconds", "rules", "given"),
    [(30.0, {}, None), (90.0, {}, None), (600.0, {}, 90), (600.0, {"ackTimeout": "8s"}, 8)],
)
def test_an_emergency_gives_a_pod_no_more_time_than_it_waits(
    own_seconds: float, rules: dict[str, object], given: int | None
) -> None:
    """A kubelet that has begun to wait for a process cannot be hastened: the first deletion says how long."""
    world = restart_only(1, rollback=rules)
    change(world, "old-00", pods=tuple(replace(p, own_grace_seconds=own_seconds) for p in live(world)))
    (deleted,) = [a for a in emergency(world).decide().actions if isinstance(a, DeletePod)]
    assert deleted.grace_seconds == given


def test_a_gradual_rollback_leaves_a_pod_its_own_grace() -> None:
    world = restart_only(1, rollback=GRADUAL)
    world.unreachable = {"old-00"}
    gradual(world).step(10.0)
    change(world, "old-00", pods=tuple(replace(p, gone_by=9e9) if p.terminating else p for p in live(world)))
    actions = [a for _ in range(20) for a in world.step(10.0).actions if isinstance(a, DeletePod)]
    assert actions == []


def live(world: World) -> tuple[PodView, ...]:
    return world.workloads["old-00"].pods


def test_a_process_group_larger_than_what_may_be_on_its_way_goes_all_the_same() -> None:
    world = restart_only(1, pods=8, rollback={"emergency": {"maxConcurrentPods": 2}})
    deleted = [a for a in emergency(world).decide().actions if isinstance(a, DeletePod)]
    assert len(deleted) == 8
    assert world.decide().state.restarts.keys() == {key("old-00")}


def test_what_may_not_go_yet_takes_no_place_of_others_in_a_gradual_rollback() -> None:
    """One has a change of its template pending, one a budget that forbids: the rest is moved, a batch at a time."""
    world = restart_only(5, rollback={**GRADUAL, "gradual": {"sustain": "0s", "inFlight": "0s", "batchShare": 0.2}})
    change(world, "old-00", pending_revision=True)
    world.budgeted = {"old-01"}
    gradual(world).run(20)
    assert world.really_in(Mode.FP32) == {"old-02", "old-03", "old-04"}
    assert {"old-00", "old-01"} & world.restarts.keys() == set()


def test_no_more_wait_for_a_budget_than_there_are_slots_and_none_of_that_time_is_a_restart() -> None:
    world = restart_only(10, rollback=GRADUAL)
    world.restart_slots, world.budgeted = 2, set(world.workloads)
    for _ in range(120):
        removed = [a for a in gradual(world).step().actions if isinstance(a, EvictPod)]
        assert len(removed) <= 2
    assert world.restarts == {}
    world.budgeted = set()
    world.step()
    assert sum(world.restarts.values()) == 2
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=5.0, passes=60)
    assert len(world.state.restart_seconds) == 10
    assert max(world.state.restart_seconds) < 30.0, "the time until the budget opened is none of theirs"


def test_who_waits_for_a_budget_that_never_opens_lets_the_others_go_on_and_has_its_turn_again() -> None:
    world = restart_only(6, rollback={**GRADUAL, "deadlines": {"P2": "10h"}})
    world.restart_slots, world.budgeted = 1, {"old-00", "old-01", "old-02"}
    until(gradual(world), lambda w: len(w.restarts) == 3, seconds=15.0, passes=4 * 40 + 20)
    asked: set[str] = set()
    for _ in range(4 * 40):
        asked |= {a.workload.name for a in world.step().actions if isinstance(a, EvictPod)}
    assert asked == world.budgeted, "each in its turn"
    world.budgeted.remove("old-01")
    until(world, lambda w: w.restarts.get("old-01"), seconds=15.0, passes=4 * 40)


def test_a_template_that_changes_while_the_workload_grows_is_not_let_in_by_a_restart_that_has_not_begun() -> None:
    world = restart_only(2, rollback=GRADUAL)
    world.budgeted = {"old-00"}
    until(gradual(world), lambda w: key("old-00") in w.state.restarts)
    world.scale("old-00", 2)
    change(world, "old-00", pending_revision=True)
    world.budgeted = set()
    world.run(6)
    assert (world.restarts, condition(world, "PendingRevision").status) == ({"old-01": 1}, "True")


def test_a_large_workload_is_not_overtaken_for_ever_and_what_started_and_crashes_takes_no_place() -> None:
    world = restart_only(1, pods=12, rollback={"emergency": {"maxConcurrentPods": 10}})
    world.add("a-small", hot=False, mode=Mode.FP16)
    world.run(3)
    world.crash("a-small")
    emergency(world)
    until(world, lambda w: w.restarts.get("old-00") == 12, seconds=5.0, passes=20)


def test_a_pod_on_a_node_that_is_gone_is_not_taken_for_ended_when_its_samples_are() -> None:
    world = restart_only(1)
    world.runs_on("old-00", "node-7")
    world.unreachable = {"old-00"}
    emergency(world).run(20)
    assert condition(world, "Blocked").reason == "NodeUnreachable"
    leaver = next(p.name for p in world.workloads["old-00"].pods if p.terminating)
    world.unobservable.add(leaver)
    world.run(10)
    assert (world.state.phase, condition(world, "Blocked").status) == (Phase.ROLLING_BACK, "True")


def test_an_escalation_says_who_cannot_be_restarted_and_a_condition_says_why() -> None:
    world = World(policy(**AT_ONCE))
    for name in ("fixed", "free"):
        world.add(name, mode=Mode.FP16)
    change(world, "fixed", restart_by=RestartBy.NEVER, no_restart="argocd applies spec.suspend")
    world.run(3)
    found = condition(world, "Restartable")
    assert (found.status, found.reason) == ("False", "HotOnly")
    assert "fixed (argocd applies spec.suspend)" in found.message
    world.unresponsive = {"fixed", "free"}
    notices = [a for _ in range(20) for a in emergency(world).step(10.0).actions if isinstance(a, Notify)]
    (said,) = [a.message for a in notices if a.reason == "RollbackEscalated"]
    assert "restarting free; fixed cannot be restarted" in said


OLD, LEAVING, NEW = (
    pod("old", created_at=50.0),
    pod("leaving", created_at=50.0, terminating=True),
    pod("new", created_at=70.0),
)


@pytest.mark.parametrize(
    ("pods", "replicas", "suspended", "expected"),
    [
        ((OLD, OLD), 2, False, False),
        ((OLD, LEAVING), 2, False, True),
        ((OLD, NEW), 2, False, True),
        ((OLD,), 2, False, True),
        ((OLD, OLD), 2, True, True),
        ((OLD, OLD, NEW), 3, False, False),
        ((OLD, OLD), 3, False, False),
        ((OLD, LEAVING), 1, False, False),
        ((OLD, OLD, LEAVING), 2, False, False),
        ((OLD, replace(OLD, pending=True)), 2, False, True),
    ],
    ids=[
        "all as before",
        "one is leaving",
        "one is new",
        "one is gone",
        "its Job is suspended",
        "it has grown",
        "it is to grow",
        "it has shrunk",
        "one was leaving before",
        "one does not run yet",
    ],
)
def test_a_restart_has_begun_when_one_pod_of_the_workload_was_taken_away(
    pods: tuple[PodView, ...], replicas: int, suspended: bool, expected: bool
) -> None:
    view = workload(pods=pods, replicas=replicas, suspended=suspended)
    assert begun(view, Restart(1, 60.0, newest=50.0, pods=2)) is expected


def test_a_restart_that_has_begun_stays_so_whatever_its_owner_makes_of_the_size() -> None:
    restart = Restart(1, 60.0, newest=50.0, pods=2)
    leaving = replace(LEAVING, gone_by=95.0, grace_seconds=30.0)
    found = noticed(workload(pods=(OLD, leaving), replicas=2), restart, 90.0)
    assert (found.gone, found.counts_since, restart.counts_since) == (65.0, 65.0, 60.0)
    smaller = workload(pods=(OLD,), replicas=1)
    assert begun(smaller, found)
    assert noticed(smaller, found, 99.0) == found


@pytest.mark.parametrize(
    ("pods", "expected"), [((NEW,), 70.0), ((), 90.0)], ids=["its replacement says when", "nothing does"]
)
def test_when_its_pods_went_is_known_as_well_as_it_can_be_seen(pods: tuple[PodView, ...], expected: float) -> None:
    assert noticed(workload(pods=pods), Restart(1, 60.0, newest=50.0, pods=1), 90.0).gone == expected


def test_what_had_no_place_before_its_restart_is_no_lost_capacity() -> None:
    world = restart_only(4, rollback=GRADUAL)
    world.restart_slots, world.room = 1, {"old-00": Room.NONE}
    world.templates["old-00"] = Mode.FP16
    world.replace_pods("old-00")
    until(gradual(world), lambda w: len(w.restarts) == 4, seconds=15.0, passes=40)
    assert condition(world, "CapacityLost").status == "False"
