"""From what should be to the writes that are missing: which, in what order, how many at once."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Restart
from precision_operator.core import plan as planning
from precision_operator.core.actions import DeletePod, EvictPod, RequestPod, Tuning
from precision_operator.core.desired import Desired
from precision_operator.core.fleet import highest_generation
from precision_operator.core.model import PodSignals, PodView, Request, RestartBy, WorkloadView
from precision_operator.core.plan import Plan
from precision_operator.core.restart.pace import CHECKPOINT_SECONDS, Pace
from precision_operator.core.restart.rounds import PLACELESS_SECONDS, RESTARTING_SECONDS, ROUND_SECONDS
from precision_operator.core.sight import Sight
from tests.support.views import key, literal, pod, reported, workload

GENERATION = 9
NOW = 5000.0
IN_FP16, IN_FP32 = pod(request=Request(7, Mode.FP16)), pod(request=Request(7, Mode.FP32))


def into(view: WorkloadView, mode: Mode = Mode.FP32, delivery: Delivery = Delivery.HOT, **values: object) -> Desired:
    rollback = mode is Mode.FP32
    return replace(Desired(view, mode, delivery, rollback=rollback), **values)  # type: ignore[arg-type]


def restarted(view: WorkloadView, *, rewind: bool = False) -> Desired:
    return into(view, delivery=Delivery.RESTART, rewind=rewind)


def plan(
    *wanted: Desired,
    restarts: dict[str, Restart] | None = None,
    slots: int = 5,
    urgent: bool = False,
    changed: int = 0,
    seconds: float = 0.0,
    pods: Mapping[str, PodSignals] | None = None,
) -> Plan:
    of_change = {desired.workload.key: changed for desired in wanted}
    sight = Sight(reported(**(pods or {})), GENERATION, of_change, NOW + seconds)
    pace = Pace(slots, left_seconds=300.0 if urgent else None, evicts=False)
    return planning.plan(sight, wanted, pace=pace, restarts=restarts)


def asked(found: Plan) -> list[str]:
    return [action.pod.name for action in found.actions if isinstance(action, RequestPod)]


def deleted(found: Plan) -> list[str]:
    return [action.pod.name for action in found.actions if isinstance(action, DeletePod | EvictPod)]


def old(name: str = "p", **values: object) -> PodView:
    """A pod that was started in FP16 and cannot be asked."""
    return pod(name, **{"hot": False, "started_mode": Mode.FP16, "created_at": 100.0, **values})


def test_a_hot_pod_is_asked_and_never_taken_away() -> None:
    view = workload(pods=(IN_FP16,))
    assert plan(into(view)).actions == (RequestPod(view, IN_FP16, Mode.FP32, GENERATION),)


def test_only_pods_that_stay_and_are_not_there_yet_are_asked() -> None:
    pods = (IN_FP32, replace(IN_FP16, name="leaving", terminating=True), replace(IN_FP16, name="late"))
    assert asked(plan(into(workload(pods=pods)))) == ["late"]


def test_in_a_rollback_what_is_as_safe_is_not_asked_and_in_a_rollout_it_must_match() -> None:
    view = workload(pods=(IN_FP32,))
    assert plan(into(view, Mode.BF16, rollback=True)).actions == ()
    assert asked(plan(into(view, Mode.BF16, rollback=False))) == ["p"]


@pytest.mark.parametrize(("changed", "again"), [(7, False), (8, True)])
def test_a_pod_in_the_right_mode_is_asked_again_where_its_workload_changed_since(changed: int, again: bool) -> None:
    """An older request for the same mode may be followed by an older one for another, still on its way."""
    assert bool(asked(plan(into(workload(pods=(IN_FP32,))), changed=changed))) is again


def test_what_is_safer_than_the_fallback_is_asked_again_for_what_it_is_in() -> None:
    found = plan(into(workload(pods=(IN_FP32,)), Mode.BF16, rollback=True), changed=8)
    assert [a.mode for a in found.actions if isinstance(a, RequestPod)] == [Mode.FP32]


def test_a_restart_takes_away_the_pods_in_the_wrong_mode_and_no_others() -> None:
    pods = (old("a"), old("b", started_mode=Mode.FP32), old("c", terminating=True), old("d", started_mode=None))
    found = plan(restarted(literal(pods=pods)))
    assert deleted(found) == ["a", "d"]
    assert found.restarts == {key("w"): Restart(1, NOW, 100.0, pods=3)}


def test_a_deletion_carries_the_generation_that_admission_must_know_first() -> None:
    view = literal(pods=(old(),))
    assert plan(restarted(view)).actions == (DeletePod(view, old(), GENERATION),)


def test_requests_come_before_deletions() -> None:
    found = plan(restarted(literal("a", pods=(old(),))), into(workload("b", pods=(IN_FP16,))))
    assert [type(action) for action in found.actions] == [RequestPod, DeletePod]


def test_pods_that_admission_started_safely_are_not_restarted() -> None:
    assert plan(restarted(literal(pods=(old(started_mode=Mode.FP32),)))) == Plan()


@pytest.mark.parametrize(("slots", "begun"), [(0, 0), (2, 2), (5, 3)])
def test_no_more_workloads_begin_to_restart_than_there_are_slots(slots: int, begun: int) -> None:
    wanted = [restarted(literal(name, pods=(old(name),))) for name in "abc"]
    assert len(deleted(plan(*wanted, slots=slots))) == len(plan(*wanted, slots=slots).restarts) == begun


def test_in_an_emergency_no_rollback_waits_for_a_slot_and_what_is_promoted_still_does() -> None:
    rolled = [restarted(literal(name, pods=(old(name),))) for name in "abc"]
    fp32 = old("d", started_mode=Mode.FP32)
    raised = into(literal("d", pods=(fp32,)), Mode.FP16, Delivery.RESTART)
    assert deleted(plan(*rolled, raised, slots=3, urgent=True)) == ["a", "b", "c"]
    assert deleted(plan(*rolled, raised, slots=4, urgent=True)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("ago", "begun"), [(0.0, 0), (RESTARTING_SECONDS - 1.0, 0), (RESTARTING_SECONDS, 1)])
def test_a_restart_holds_its_slot_until_it_is_over_or_its_time_is(ago: float, begun: int) -> None:
    going_on = {key("other"): Restart(1, NOW - ago, 100.0)}
    found = plan(restarted(literal(pods=(old(),))), restarts=going_on, slots=1)
    assert len(deleted(found)) == begun
    assert key("other") in found.restarts


@pytest.mark.parametrize(
    ("rollback", "held_seconds"), [(False, CHECKPOINT_SECONDS + RESTARTING_SECONDS), (True, 2 * RESTARTING_SECONDS)]
)
def test_no_patience_of_a_policy_holds_a_slot_longer(rollback: bool, held_seconds: float) -> None:
    """Five policies that wait a day for checkpoints would stop the restarts of a whole cluster for as long."""
    desired = replace(restarted(workload(pods=(listening(),))), rollback=rollback)
    known: Mapping[str, Restart] = {}
    for seconds in (0.0, held_seconds - 1.0):
        sight = Sight(None, GENERATION, {key("w"): GENERATION}, NOW + seconds)
        found = planning.plan(sight, [desired], pace=Pace(1, checkpoint_seconds=86400.0), restarts=known)
        known = found.restarts
        assert found.restarting == (NOW + held_seconds,)


def test_a_slot_that_others_may_take_ends_no_wait_for_a_checkpoint() -> None:
    view = restarted(workload(pods=(listening(),)))
    sight = Sight(None, GENERATION, {key("w"): GENERATION}, NOW + 3 * RESTARTING_SECONDS)
    known = {key("w"): Restart(1, NOW, 100.0, pods=1)}
    found = planning.plan(sight, [view], pace=Pace(1, checkpoint_seconds=86400.0), restarts=known)
    assert (found.restarts, asked(found), deleted(found)) == (known, ["p"], [])


def test_a_restart_that_has_begun_goes_on_without_a_slot() -> None:
    """The echo of admission is waited for: the same pods are named in pass after pass."""
    going_on = {key("w"): Restart(1, NOW - 1.0, 100.0)}
    found = plan(restarted(literal(pods=(old(),))), restarts=going_on, slots=0)
    assert (deleted(found), found.restarts) == (["p"], going_on)


def came_back(rounds: int, *, seconds: float) -> Plan:
    """A pod that came back in the wrong mode, so many seconds after its round began."""
    view = literal(pods=(old("new", created_at=NOW + 2.0),))
    going_on = {key("w"): Restart(rounds, NOW, 100.0)}
    return plan(restarted(view), restarts=going_on, slots=0, seconds=seconds)


@pytest.mark.parametrize("torn", [False, True])
def test_the_rest_of_a_process_group_that_is_torn_follows_its_other_pods(*, torn: bool) -> None:
    view = literal(pods=(old("a"), old("b"), old("c", terminating=torn)), replicas=3)
    desired = replace(restarted(view), rollback=False)  # so it is evicted
    found = plan(desired, restarts={key("w"): Restart(1, NOW, 100.0, pods=3)})
    follow = {action.follows for action in found.actions if isinstance(action, EvictPod)}
    assert follow == {torn}


def test_pods_that_come_back_in_the_wrong_mode_are_taken_away_once_more_and_then_they_are_stuck() -> None:
    early = came_back(1, seconds=ROUND_SECONDS - 1.0)
    assert (deleted(early), early.stuck) == ([], ())
    again = came_back(1, seconds=ROUND_SECONDS)
    assert (deleted(again), again.stuck) == (["new"], ())
    assert again.restarts == {key("w"): Restart(2, NOW + ROUND_SECONDS, NOW + 2.0, pods=1)}
    never = came_back(2, seconds=3600.0)
    assert (deleted(never), never.stuck) == ([], ("w",))
    assert never.restarts == {key("w"): Restart(2, NOW, 100.0)}


def test_the_old_pods_of_a_round_go_though_some_of_its_new_ones_are_wrong_too() -> None:
    view = literal(pods=(old("new", created_at=NOW + 2.0), old("still")), replicas=2)
    found = plan(restarted(view), restarts={key("w"): Restart(2, NOW, 100.0)}, seconds=60.0)
    assert (deleted(found), found.stuck) == (["still"], ())


def listening(**values: object) -> PodView:
    """A pod that reads requests, in a workload that is moved by restart."""
    return pod(**{"request": Request(7, Mode.FP16), "created_at": 100.0, **values})


def first_asked(view: PodView, *, seconds: float = 0.0, restart: Restart | None = None, **pods: PodSignals) -> Plan:
    going_on = {key("w"): restart} if restart is not None else {}
    return plan(restarted(workload(pods=(view,))), restarts=going_on, changed=GENERATION, seconds=seconds, pods=pods)


def test_a_pod_that_can_save_a_checkpoint_is_asked_for_one_in_the_mode_that_it_is_in_before_it_goes() -> None:
    found = first_asked(listening())
    (action,) = found.actions
    assert isinstance(action, RequestPod)
    assert (action.mode, action.generation, action.checkpoint) == (Mode.FP16, GENERATION, True)
    assert found.restarts == {key("w"): Restart(1, NOW, 100.0, pods=1)}


@pytest.mark.parametrize(
    ("seconds", "acknowledged", "goes"),
    [
        (1.0, False, False),
        (1.0, True, True),
        (CHECKPOINT_SECONDS - 0.001, False, False),
        (CHECKPOINT_SECONDS, False, True),
    ],
)
def test_it_goes_once_it_has_acknowledged_or_its_time_is_over(seconds: float, acknowledged: bool, goes: bool) -> None:
    view = listening(request=Request(GENERATION, Mode.FP16))
    said = PodSignals(Mode.FP16, GENERATION if acknowledged else 7, NOW)
    found = first_asked(view, seconds=seconds, restart=Restart(1, NOW, 100.0), p=said)
    assert (asked(found), deleted(found)) == ([], ["p"] if goes else [])


@pytest.mark.parametrize(
    "fields",
    [
        {"pending": True, "ready": False},
        {"crashing": True, "ready": False},
        {"backing_off": True, "ready": False},
        {"hot": False},
        {"request": None, "started_mode": None},  # nobody knows the mode that it would be asked to stay in
    ],
)
def test_a_pod_that_cannot_save_a_checkpoint_goes_at_once(fields: dict[str, object]) -> None:
    found = first_asked(listening(**{"started_mode": Mode.FP16, **fields}))
    assert (asked(found), deleted(found)) == ([], ["p"])


def test_no_checkpoint_is_asked_of_poisoned_weights() -> None:
    found = plan(restarted(workload(pods=(listening(),)), rewind=True), changed=GENERATION)
    assert (asked(found), deleted(found)) == ([], ["p"])


@pytest.mark.parametrize(
    ("delivery", "carried", "restarting", "rewound"),
    [
        (Delivery.RESTART, Request(GENERATION, Mode.FP32), True, True),
        (Delivery.RESTART, Request(GENERATION, Mode.FP32, rewind=True), True, False),
        (Delivery.RESTART, Request(GENERATION, Mode.FP16), True, False),
        (Delivery.HOT, Request(GENERATION, Mode.FP32), False, True),
        (Delivery.HOT, Request(GENERATION, Mode.FP32), True, True),
        (Delivery.NEW_ONLY, Request(GENERATION, Mode.FP32), False, False),
    ],
    ids=["came back", "was asked", "is to go", "new pod of a hot one", "did not answer, came back", "new pods only"],
)
def test_a_pod_in_its_mode_is_asked_once_to_rewind_poisoned_weights(
    delivery: Delivery, carried: Request, restarting: bool, rewound: bool
) -> None:
    view = workload(pods=(pod(request=carried),))
    found = plan(
        into(view, delivery=delivery, rewind=True),
        restarts={view.key: Restart(1, NOW, 0.0)} if restarting else {},
        changed=GENERATION,
    )
    assert [action.rewind for action in found.actions if isinstance(action, RequestPod)] == [True] * rewound


def escalated(
    *pods: PodView, force: bool = False, restarts: dict[str, Restart] | None = None, **seen: PodSignals
) -> Plan:
    view = workload(pods=pods, replicas=len(pods))
    return plan(into(view, escalate=True, force=force), restarts=restarts, seconds=3600.0, pods=seen)


SAYS_FP16 = PodSignals(Mode.FP16, 6, NOW)


def test_an_unresponsive_pod_is_restarted_without_a_checkpoint() -> None:
    found = escalated(IN_FP32, p=SAYS_FP16)
    assert (asked(found), deleted(found)) == ([], ["p"])


def test_an_unresponsive_workload_is_restarted_once_only() -> None:
    again = replace(IN_FP32, created_at=NOW + 5.0)
    found = escalated(again, restarts={key("w"): Restart(1, NOW, 0.0)}, p=SAYS_FP16)
    assert (deleted(found), found.stuck) == ([], ())


@pytest.mark.parametrize("force", [False, True])
def test_before_the_first_reading_nobody_is_taken_away_for_want_of_an_answer_but_past_the_deadline(force: bool) -> None:
    view = workload(pods=(IN_FP32,))
    sight = Sight(None, GENERATION, {view.key: 0}, NOW + 3600.0)
    found = planning.plan(sight, [into(view, escalate=True, force=force)], pace=Pace(5, evicts=False))
    assert deleted(found) == ["p"] * force


@pytest.mark.parametrize(("force", "age_seconds", "taken"), [(True, 30.0, ["p"]), (True, 29.0, []), (False, 30.0, [])])
def test_a_pod_that_cannot_even_be_asked_is_taken_away_past_the_deadline(
    force: bool, age_seconds: float, taken: list[str]
) -> None:
    """The API server may refuse the annotation for ever: of a pod with 256 KiB of them, or by somebody's policy."""
    refused = replace(IN_FP16, created_at=NOW + 3600.0 - age_seconds)
    found = escalated(refused, force=force, p=SAYS_FP16)
    assert (asked(found), deleted(found)) == (["p"], taken)


def test_missing_metrics_are_no_refusal_before_the_deadline() -> None:
    assert deleted(escalated(IN_FP32)) == []
    assert deleted(escalated(IN_FP32, force=True)) == ["p"]


def test_one_observable_pod_is_enough_to_know_that_its_process_group_is_unresponsive() -> None:
    assert deleted(escalated(IN_FP32, replace(IN_FP32, name="q"), p=SAYS_FP16)) == ["p", "q"]


@pytest.mark.parametrize(
    "fields", [{"pending": True}, {"crashing": True}, {"backing_off": True}, {"request": Request(7, Mode.FP16)}]
)
def test_who_cannot_answer_yet_is_not_unresponsive(fields: dict[str, object]) -> None:
    """It waits to start, crashes or backs off whatever it is told, or was not asked before this pass."""
    assert deleted(escalated(replace(IN_FP32, **fields), p=SAYS_FP16)) == []  # type: ignore[arg-type]


def test_who_has_acknowledged_is_not_restarted() -> None:
    assert deleted(escalated(IN_FP32, p=PodSignals(Mode.FP32, 7, NOW))) == []


def test_new_pods_only_asks_and_restarts_nobody() -> None:
    assert plan(into(workload(pods=(IN_FP16,)), delivery=Delivery.NEW_ONLY)).actions == ()


def test_a_tuning_reaches_every_pod_that_was_not_asked_since_and_no_pod_twice() -> None:
    """A pod that admission started in the target has never been asked for anything."""
    never = pod("never", started_mode=Mode.FP16)
    others = [pod(f"at-{at}", started_mode=Mode.FP16, request=Request(at, Mode.FP16)) for at in (7, 8, 9)]
    tuned = into(workload(pods=(never, *others)), Mode.FP16, tuning=Tuning(loss_scale_factor=0.5), tuned_by=8)
    found = {a.pod.name: a.tuning for a in plan(tuned).actions if isinstance(a, RequestPod)}
    assert found == {"never": Tuning(loss_scale_factor=0.5), "at-7": Tuning(loss_scale_factor=0.5)}
    assert plan(replace(tuned, tuning=None)).actions == ()


def test_highest_generation_is_looked_for_on_every_pod() -> None:
    assert highest_generation([]) == 0
    assert highest_generation([workload(), literal(pods=(old(admitted=(("fleet", 4),)),))]) == 4
    assert highest_generation([workload(pods=(IN_FP16, pod("q", request=Request(3, Mode.FP16))))]) == 7


@pytest.mark.parametrize(
    ("seen", "asked_again"),
    [
        (PodSignals(Mode.FP32, 12), True),
        (PodSignals(Mode.FP32, 7), False),
        (PodSignals(Mode.FP16, 12), False),
        (PodSignals(None, 12), False),
        (PodSignals(Mode.FP32, 2**60), False),
    ],
    ids=["younger", "its own request", "the same mode", "no mode", "not believed"],
)
def test_a_process_that_obeys_a_younger_request_than_its_pod_carries_is_asked_again(
    seen: PodSignals, asked_again: bool
) -> None:
    found = plan(into(workload(pods=(IN_FP16,)), Mode.FP16), pods={"p": seen})
    assert asked(found) == (["p"] if asked_again else [])


def back(age_seconds: float) -> PodView:
    """In the right mode, and ready."""
    return old("new", started_mode=Mode.FP32, created_at=NOW - age_seconds)


PODS, JOB = RestartBy.PODS, RestartBy.SUSPENSION


@pytest.mark.parametrize(
    ("by", "pods", "makes_pods_since", "lost"),
    [
        (PODS, (), 0.0, True),
        (PODS, (back(PLACELESS_SECONDS - 1),), 0.0, False),
        (PODS, (back(PLACELESS_SECONDS),), 0.0, True),
        (PODS, (back(PLACELESS_SECONDS), old("later", ready=False)), 0.0, False),
        (JOB, (), 0.0, False),
        (JOB, (), NOW - PLACELESS_SECONDS + 1, False),
        (JOB, (), NOW - PLACELESS_SECONDS, True),
        (JOB, (back(PLACELESS_SECONDS),), NOW - PLACELESS_SECONDS, False),
    ],
    ids=[
        "none is created",
        "the next one waits until this one is available",
        "no other is created",
        "one is not ready",
        "a Job whose controller may wait",
        "a Job that was resumed a moment ago",
        "a Job of which no pod is created",
        "a Job of which one runs",
    ],
)
def test_pods_that_are_not_created_are_lost_capacity_once_their_controller_has_had_the_time(
    by: RestartBy, pods: tuple[PodView, ...], makes_pods_since: float, *, lost: bool
) -> None:
    view = literal(pods=pods, replicas=3, restart_by=by, makes_pods_since=makes_pods_since)
    for ran in (3, -1):  # so many had started when it began; where that is not known, all of them
        under_way = {view.key: Restart(1, NOW - 400, newest=NOW - 500, pods=ran, gone=NOW - 300)}
        assert plan(restarted(view), restarts=under_way).lost == (("w",) if lost else ())


@pytest.mark.parametrize(("ago_seconds", "held"), [(300.0, 1), (2 * RESTARTING_SECONDS, 0)])
def test_lost_capacity_keeps_its_slot_from_other_policies_for_a_while(ago_seconds: float, held: int) -> None:
    view = literal(pods=(), replicas=1)
    gone = NOW - ago_seconds
    found = plan(restarted(view), restarts={view.key: Restart(1, gone - 1, newest=gone - 9, pods=1, gone=gone)})
    assert (found.lost, len(found.restarting)) == (("w",), held)


def test_a_place_that_a_pod_lacked_before_its_workload_was_restarted_is_no_lost_capacity() -> None:
    waits = old("waits", pending=True, ready=False, created_at=50.0)
    under_way = {key("w"): Restart(1, NOW - 10, newest=100.0, pods=1, gone=NOW - 5)}
    found = plan(restarted(literal(pods=(waits,), replicas=2)), restarts=under_way)
    assert (found.lost, len(found.restarting)) == ((), 1)


def test_of_a_share_the_pods_beside_it_need_no_write_where_they_are_safer_than_the_fallback() -> None:
    moved, other = pod("moved"), pod("other")
    wanted = into(workload(pods=(moved, other)), Mode.FP16, pods=frozenset({moved.uid}), rest=Mode.BF16)
    assert wanted.of(other).accepted == {Mode.FP32, Mode.BF16}
    assert wanted.of(moved).accepted == {Mode.FP16}
