"""Single passes over restarts that are under way: what overtakes them, what they wait for, and what goes on."""

from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Restart, Suspension
from precision_operator.core import plan as planning
from precision_operator.core.actions import DeletePod, EvictPod, RequestPod, SuspendJob
from precision_operator.core.desired import Desired
from precision_operator.core.model import PodSignals, PodView, Request, RestartBy, RunsOn, WorkloadView
from precision_operator.core.plan import Plan
from precision_operator.core.restart.pace import CHECKPOINT_SECONDS, LEAST_AT_ONCE, Pace
from precision_operator.core.restart.rounds import PLACELESS_SECONDS, RESTARTING_SECONDS
from precision_operator.core.restart.suspensions import ABANDONED_SECONDS
from precision_operator.core.sight import Sight
from tests.support.views import key, literal, pod, reported

Suspended = dict[str, Suspension]

NOW = 5000.0
SLOT = Pace(slots=1, evicts=False)
URGENT = Pace(left_seconds=300.0, evicts=False)
BEGUN = Restart(1, NOW - 10.0, newest=100.0, pods=2, gone=NOW - 5.0)
OLD = pod("old", hot=False, started_mode=Mode.FP16, created_at=100.0)
HOT = replace(OLD, hot=True)


def plan(*wanted: Desired, pace: Pace = SLOT, suspensions: Suspended | None = None, **restarts: Restart | None) -> Plan:
    """Restarts under way, by name; None: there is none."""
    known = {key(name): restart for name, restart in restarts.items() if restart is not None}
    return planning.plan(Sight(None, 9, {}, NOW), wanted, pace=pace, restarts=known, suspensions=suspensions)


def into(view: WorkloadView, mode: Mode = Mode.FP32) -> Desired:
    return Desired(view, mode, Delivery.RESTART, rollback=mode is Mode.FP32)


def removed(found: Plan) -> list[str]:
    return [action.pod.name for action in found.actions if isinstance(action, DeletePod | EvictPod)]


def test_what_waits_for_a_slot_names_a_change_of_its_template_that_it_waits_for_as_well() -> None:
    views = [literal(name, pods=(OLD,), pending_revision=name == "changed") for name in ("changed", "same")]
    assert plan(*map(into, views), pace=Pace(slots=0)).pending == ("changed",)


def test_what_waits_for_a_change_of_its_template_leaves_its_slot_to_the_next() -> None:
    views = [literal(name, pods=(OLD,), pending_revision=name == "changed") for name in ("changed", "same")]
    assert plan(*map(into, views)).restarts.keys() == {key("same")}


@pytest.mark.parametrize(("mode", "pending"), [(Mode.FP32, ()), (Mode.FP16, ("w",))])
def test_an_emergency_brings_changes_in_to_what_is_rolled_back_and_to_nothing_else(
    mode: Mode, pending: tuple[str, ...]
) -> None:
    view = literal(pods=(replace(OLD, started_mode=Mode.BF16),), pending_revision=True)
    pace = replace(URGENT, slots=1, brings_changes_in=True)
    assert plan(into(view, mode), pace=pace).pending == pending


def test_a_template_that_is_changed_after_the_first_pod_has_gone_holds_no_other_back() -> None:
    view = literal(pods=(OLD,), replicas=2, pending_revision=True)
    found = plan(into(view), w=BEGUN)
    assert (removed(found), found.pending) == (["old"], ())


WAITED = Restart(2, NOW - RESTARTING_SECONDS, newest=100.0, pods=1)


def test_another_turn_of_a_second_round_is_no_first_one() -> None:
    found = plan(into(literal(pods=(OLD,))), w=WAITED)
    assert found.restarts == {key("w"): Restart(2, NOW, 100.0, pods=1)}


def test_a_pod_that_had_no_place_before_the_restart_is_none_that_ran() -> None:
    waits = replace(OLD, name="waits", started_mode=Mode.FP32, pending=True, created_at=200.0)
    found = plan(into(literal(pods=(OLD, waits), replicas=2)))
    assert found.restarts == {key("w"): Restart(1, NOW, 100.0, pods=1)}


@pytest.mark.parametrize(("mode", "taken"), [(Mode.FP32, ["old"]), (Mode.FP16, [])])
def test_what_is_urgent_takes_no_turns_and_what_is_promoted_beside_it_does(mode: Mode, taken: list[str]) -> None:
    found = plan(into(literal(pods=(replace(OLD, started_mode=Mode.BF16),)), mode), pace=URGENT, w=WAITED)
    assert (removed(found), found.restarts) == (taken, {key("w"): WAITED})


def test_who_has_moved_meanwhile_gets_no_other_turn_and_is_not_stuck() -> None:
    view = literal(pods=(replace(OLD, started_mode=Mode.FP32),))
    for restart in (WAITED, replace(WAITED, since=NOW)):
        found = plan(into(view), w=restart)
        assert (found.restarts, found.stuck) == ({key("w"): restart}, ())


def test_the_next_turn_is_of_who_had_none_then_of_who_had_it_the_longest_ago() -> None:
    wanted = [into(literal(name, pods=(replace(OLD, name=name),))) for name in ("later", "first", "new")]
    before = replace(WAITED, since=WAITED.since - 1.0)
    assert removed(plan(*wanted, later=WAITED, first=before)) == ["new"]
    assert removed(plan(*wanted[:2], later=WAITED, first=before)) == ["first"]


def test_where_one_pod_can_save_a_checkpoint_the_turn_is_as_long_as_where_all_can() -> None:
    restart = Restart(1, NOW - RESTARTING_SECONDS - CHECKPOINT_SECONDS + 1.0, newest=100.0, pods=2)
    found = plan(into(literal(pods=(HOT, OLD), replicas=2)), w=restart)
    assert found.restarts == {key("w"): restart}


def test_pods_that_something_else_owns_by_now_are_not_taken_away() -> None:
    for by, taken in ((RestartBy.PODS, ["old"]), (RestartBy.NEVER, [])):
        assert removed(plan(into(literal(pods=(OLD,), replicas=2, restart_by=by)), w=BEGUN)) == taken
    assert plan(into(literal(pods=(OLD,), restart_by=RestartBy.NEVER)), pace=URGENT) == Plan()


FRESH = Restart(1, NOW - 10.0, newest=100.0, pods=1)
WAITS = replace(OLD, started_mode=Mode.FP32, pending=True, created_at=NOW - PLACELESS_SECONDS)
WITHOUT_A_PLACE = into(literal("lost", pods=(WAITS,)))
JOB = literal(pods=(OLD,), restart_by=RestartBy.SUSPENSION, object_generation=1)
LEAVING = replace(OLD, terminating=True, gone_by=NOW - 10.0, grace_seconds=2.0)
FULL = tuple(replace(OLD, name=str(number)) for number in range(LEAST_AT_ONCE))
"""As many pods as are taken away at once."""


@pytest.mark.parametrize(
    ("pods", "ran", "lost"),
    [
        ((WAITS,), 1, True),
        ((replace(WAITS, created_at=WAITS.created_at + 1.0),), 1, False),
        ((replace(WAITS, created_at=100.0),), 1, False),
        ((WAITS, OLD), 1, False),
        ((WAITS, LEAVING), 2, False),
        ((WAITS,), 0, False),
    ],
    ids=["no place", "not for long yet", "no replacement", "one more than ran", "in its place", "none ran"],
)
def test_a_replacement_has_no_place_once_it_has_waited_for_one(
    pods: tuple[PodView, ...], ran: int, *, lost: bool
) -> None:
    found = plan(into(literal(pods=pods, replicas=len(pods))), w=replace(BEGUN, pods=ran))
    assert found.lost == (("w",) if lost else ())


@pytest.mark.parametrize(
    ("mode", "pace", "restart", "taken"),
    [
        (Mode.FP32, SLOT, None, []),
        (Mode.FP32, SLOT, FRESH, []),
        (Mode.FP32, SLOT, BEGUN, ["old"]),
        (Mode.FP32, URGENT, FRESH, ["old"]),
        (Mode.FP16, URGENT, FRESH, []),
    ],
    ids=["not begun", "asks its budget", "begun", "urgent", "promoted beside an emergency"],
)
def test_while_capacity_is_lost_only_what_is_begun_or_urgent_is_taken_away(
    mode: Mode, pace: Pace, restart: Restart | None, taken: list[str]
) -> None:
    lost = Restart(1, NOW - 400.0, newest=100.0, pods=1, gone=NOW - 300.0)
    view = literal(pods=(replace(OLD, started_mode=Mode.BF16),))
    found = plan(into(view, mode), WITHOUT_A_PLACE, pace=replace(pace, slots=5), w=restart, lost=lost)
    assert removed(found) == taken


BACK = replace(OLD, started_mode=Mode.FP32, created_at=101.0)


@pytest.mark.parametrize(
    ("pods", "begins"),
    [
        ((BACK,), True),
        ((), False),
        ((replace(BACK, pending=True, created_at=NOW - 1.0),), False),
        ((replace(BACK, created_at=100.0),), False),
        ((replace(LEAVING, finalizer="acme.io/keep"),), True),
        (None, False),
    ],
    ids=["back", "none yet", "not started", "not gone", "kept by somebody else", "the workload is gone"],
)
def test_an_emergency_waits_for_pods_on_their_way_that_leave_no_room(
    pods: tuple[PodView, ...] | None, *, begins: bool
) -> None:
    restart = replace(BEGUN, pods=1)
    others = [into(literal("other", pods=pods))] if pods is not None else []
    assert bool(removed(plan(*others, into(literal(pods=FULL)), pace=URGENT, other=restart))) is begins
    assert removed(plan(*others, into(literal(pods=FULL[1:])), pace=URGENT, other=restart)), "for one there is room"


def test_pods_that_begin_in_a_pass_leave_less_room_for_the_next() -> None:
    found = plan(*(into(literal(name, pods=pods)) for name, pods in (("w", FULL), ("next", (OLD,)))), pace=URGENT)
    assert found.restarts.keys() == {key("w")}


def test_what_is_on_its_way_counts_to_what_the_deadline_needs_at_once() -> None:
    under_way = into(literal("other", pods=(), replicas=10))
    waiting = [into(literal(str(n), pods=(OLD,))) for n in range(20)]
    found = plan(under_way, *waiting, pace=URGENT, other=replace(BEGUN, pods=10))
    assert len(removed(found)) == 5, "30 pods in two rounds"


def test_no_prediction_is_longer_for_the_grace_of_pods_that_get_less() -> None:
    pace = replace(URGENT, leaving_seconds=0.4, restart_seconds=(0.5,))
    found = plan(into(literal(pods=(replace(OLD, own_grace_seconds=600.0),))), pace=pace)
    assert found.predicted_seconds == 0.5
    assert [action.grace_seconds for action in found.actions if isinstance(action, DeletePod)] == [1]


@pytest.mark.parametrize(
    ("age", "begins"), [(-1.0, True), (0.0, False), (CHECKPOINT_SECONDS - 1.0, False), (CHECKPOINT_SECONDS, True)]
)
def test_an_emergency_makes_room_for_pods_that_are_about_to_go_and_not_for_those_that_a_budget_keeps(
    age: float, *, begins: bool
) -> None:
    asks = literal("asks", pods=(replace(OLD, started_mode=Mode.BF16),), replicas=1_000)
    wanted = into(asks, Mode.FP16), into(literal(pods=FULL))
    found = plan(*wanted, pace=URGENT, asks=Restart(1, NOW - age, newest=100.0, pods=1))
    assert ("0" in removed(found)) is begins


@pytest.mark.parametrize(
    ("ranks", "seen", "answered", "force", "taken"),
    [
        (1, "ab", "a", True, ["b"]),
        (2, "ab", "a", True, ["a", "b"]),
        (2, "ab", "ab", True, []),
        (2, "a", "a", True, ["a", "b"]),
        (1, "", "", True, ["a", "b"]),
        (1, "", "", False, []),
        (1, "a", "a", False, []),
        (1, "b", "", False, ["a", "b"]),
    ],
)
def test_who_does_not_answer_is_taken_away_with_its_process_group_and_unseen_only_past_the_deadline(
    ranks: int, seen: str, answered: str, taken: list[str], *, force: bool
) -> None:
    request = Request(9, Mode.FP32)
    pods = tuple(replace(HOT, name=name, request_raw="", request=request) for name in "ab")
    modes = {name: Mode.FP32 if name in answered else Mode.FP16 for name in seen}
    said = {name: PodSignals(mode, 9, runs_on=RunsOn(world_size=ranks)) for name, mode in modes.items()}
    wanted = Desired(literal(pods=pods), Mode.FP32, Delivery.HOT, rollback=True, escalate=True, force=force)
    assert removed(planning.plan(Sight(reported(**said), 9, {}, NOW), [wanted], pace=URGENT)) == taken


@pytest.mark.parametrize(
    ("delivery", "escalate", "taken"),
    [(Delivery.HOT, True, ["old"]), (Delivery.HOT, False, []), (Delivery.NEW_ONLY, True, [])],
)
def test_only_who_is_asked_and_is_late_is_taken_away_for_not_answering(
    delivery: Delivery, taken: list[str], *, escalate: bool
) -> None:
    view = literal(pods=(replace(HOT, request=Request(9, Mode.FP32)),))
    wanted = Desired(view, Mode.FP32, delivery, rollback=True, escalate=escalate, force=True)
    assert removed(planning.plan(Sight(None, 9, {}, NOW), [wanted], pace=URGENT)) == taken


@pytest.mark.parametrize(("generation", "asked"), [(0, True), (1, False)])
def test_what_a_template_requests_is_no_checkpoint_that_was_asked_for(generation: int, *, asked: bool) -> None:
    view = literal(pods=(replace(HOT, request=Request(generation, Mode.FP16)),))
    found = plan(into(view), pace=URGENT, w=FRESH)
    assert [type(action) for action in found.actions] == [RequestPod] * asked


@pytest.mark.parametrize("recorded", [True, False])
def test_a_pod_of_a_job_that_should_be_gone_is_given_one_second_once_in_a_pass(*, recorded: bool) -> None:
    record = {key("w"): Suspension("uid-w", 1, NOW - 20.0)} if recorded else {}
    view = replace(JOB, suspended=True, pods=(LEAVING,))
    found = plan(into(view), suspensions=record, w=FRESH)
    assert found.actions == (DeletePod(view, LEAVING, 9, grace_seconds=1),)


@pytest.mark.parametrize(
    "change",
    [{"grace_seconds": 1.0}, {"started_mode": Mode.FP32}, {"gone_by": NOW}],
    ids=["was given one second", "is in the mode", "has its grace"],
)
def test_who_may_take_its_time_is_not_hastened(change: dict[str, object]) -> None:
    leaving = replace(LEAVING, **change)  # type: ignore[arg-type]
    assert plan(into(literal(pods=(leaving,))), w=BEGUN).actions == ()


def test_only_what_is_rolled_back_is_hastened() -> None:
    view = literal(pods=(replace(LEAVING, started_mode=Mode.BF16),))
    assert [len(plan(into(view, mode), w=BEGUN).actions) for mode in (Mode.FP32, Mode.FP16)] == [1, 0]


@pytest.mark.parametrize(
    ("job", "restart"),
    [
        (replace(JOB, suspended=True, suspended_by="kubectl"), FRESH),
        (replace(JOB, pods=(replace(OLD, created_at=NOW),)), Restart(1, NOW, newest=NOW, pods=1)),
    ],
    ids=["somebody has suspended it", "its pods are too young"],
)
def test_a_job_that_may_not_be_suspended_is_not_recorded_as_suspended(job: WorkloadView, restart: Restart) -> None:
    found = plan(into(job), pace=URGENT, w=restart)
    assert (found.actions, found.suspensions) == ((), {})


@pytest.mark.parametrize(
    ("job", "mode", "pace", "restart", "capacity_lost", "repeated"),
    [
        (JOB, Mode.FP32, SLOT, FRESH, False, True),
        (JOB, Mode.FP32, SLOT, None, False, False),
        (JOB, Mode.FP32, SLOT, WAITED, False, False),
        (JOB, Mode.FP32, SLOT, FRESH, True, False),
        (JOB, Mode.FP32, SLOT, BEGUN, True, True),
        (JOB, Mode.FP32, URGENT, None, True, True),
        (replace(JOB, pods=(replace(OLD, started_mode=Mode.BF16),)), Mode.FP16, URGENT, None, False, False),
        (replace(JOB, restart_by=RestartBy.NEVER), Mode.FP32, URGENT, FRESH, False, False),
        (replace(JOB, pods=(replace(OLD, started_mode=Mode.FP32),)), Mode.FP32, URGENT, FRESH, False, False),
    ],
    ids=[
        "its turn",
        "mode changed",
        "had its turn",
        "no capacity",
        "begun",
        "urgent",
        "promoted beside an emergency",
        "owned by now",
        "moved by now",
    ],
)
def test_a_suspension_that_was_not_carried_out_is_repeated_in_its_turn_or_where_it_is_begun_or_urgent(
    job: WorkloadView, mode: Mode, pace: Pace, restart: Restart | None, *, capacity_lost: bool, repeated: bool
) -> None:
    lost = Restart(1, NOW - 400.0, newest=100.0, pods=1, gone=NOW - 300.0)
    record = {key("w"): Suspension("uid-w", 1, NOW - ABANDONED_SECONDS)}
    wanted = [into(job, mode), *[WITHOUT_A_PLACE] * capacity_lost]
    found = plan(*wanted, pace=pace, suspensions=record, w=restart, lost=lost if capacity_lost else None)
    assert any(isinstance(action, SuspendJob) for action in found.actions) is repeated
    assert (key("w") in found.suspensions) is repeated
