"""From what should be to the writes that are missing: which, in what order, within which budget."""

from dataclasses import replace

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.core.actions import Action, Latch, RequestPod, Settle, SettleStage, Tuning, WriteTemplate
from precision_operator.core.model import Evaluation, PodSignals, PodView, Request, SettleIntent, WorkloadView
from precision_operator.core.plan import Budget, Desired, highest_generation, plan
from precision_operator.core.settle import next_settle

GENERATION = 9
UP, DOWN = PodView("p", "uid-p", hot=True, request=Request(7, Mode.FP16)), PodView("p", "uid-p", hot=True)


def workload(name: str = "w", **values: object) -> WorkloadView:
    base = WorkloadView("ns", name, f"uid-{name}", hot=True, replicas=1, updated_replicas=1, pods=(DOWN,))
    return replace(base, **values)  # type: ignore[arg-type]


def literal(name: str = "w", **values: object) -> WorkloadView:
    return workload(name, hot=False, literal=True, **{"pods": (PodView("p", "uid-p"),), **values})


def planned(*wanted: Desired, settle: bool = True, restarts: int = 5, settles: int = 5) -> list[Action]:
    said = Evaluation(1000.0, 0.0, {"p": PodSignals(Mode.FP16, 7)})
    return plan(wanted, said, generation=GENERATION, budget=Budget(restarts, settles), settle=settle)


def up(view: WorkloadView, delivery: Delivery = Delivery.HOT, **values: bool) -> Desired:
    return Desired(view, Mode.FP16, delivery, **values)


def test_a_hot_pod_is_asked_and_its_template_waits_until_it_has_acknowledged() -> None:
    view = workload()
    assert planned(up(view)) == [RequestPod(view, DOWN, Mode.FP16, GENERATION)]


def test_only_pods_that_stay_and_are_not_there_yet_are_asked() -> None:
    leaving = replace(DOWN, name="q", terminating=True)
    view = workload(pods=(UP, leaving, replace(DOWN, name="r")), replicas=2)
    assert [a.pod.name for a in planned(up(view)) if isinstance(a, RequestPod)] == ["r"]


def test_an_acknowledged_flip_is_settled_only_where_settling_is_allowed() -> None:
    view = workload(pods=(UP,))
    assert planned(up(view)) == [Settle(view, SettleStage.PAUSE, Mode.FP16, GENERATION, None)]
    assert planned(up(view), settle=False) == []
    assert planned(up(view), settles=0) == []


def test_a_settle_that_has_begun_needs_no_permission_and_no_budget() -> None:
    view = workload(pods=(UP,), settle=SettleIntent(8, Mode.FP16, was_paused=False), paused=True)
    assert planned(up(view), settle=False, settles=0) == [Settle(view, SettleStage.REPLICASET, Mode.FP16, 8, None)]


def test_budget_counts_what_is_begun() -> None:
    views = [workload(name, pods=(UP,)) for name in "abc"]
    begun = replace(views[0], settle=SettleIntent(8, Mode.FP16, was_paused=False), paused=True)
    wanted = [up(view) for view in (begun, *views[1:])]
    assert [a.workload.name for a in planned(*wanted, settles=1) if isinstance(a, Settle)] == ["a", "b"]
    restarted = planned(*(up(literal(name), Delivery.RESTART) for name in "abc"), restarts=2)
    assert [a.workload.name for a in restarted if isinstance(a, WriteTemplate)] == ["a", "b"]


def test_requests_come_before_templates_and_those_before_settles() -> None:
    actions = planned(up(workload("a", pods=(UP,))), up(literal("b"), Delivery.RESTART), up(workload("c")))
    assert [type(action) for action in actions] == [RequestPod, WriteTemplate, Settle]


def test_a_rollback_leaves_its_latch_with_the_template_and_a_rollout_removes_it() -> None:
    view = literal(template_mode=Mode.FP16, pods=(PodView("p", "uid-p", started_mode=Mode.FP16),))
    (written,) = planned(Desired(view, Mode.FP32, Delivery.RESTART, rollback=True))
    assert written == WriteTemplate(view, Mode.FP32, GENERATION, Mode.FP32)
    (raised,) = planned(up(literal(latch=Mode.FP32), Delivery.RESTART))
    assert isinstance(raised, WriteTemplate)
    assert raised.latch is None


def test_pods_that_the_gate_started_safely_are_not_restarted_for_their_template() -> None:
    view = literal(template_mode=Mode.FP16)
    assert planned(Desired(view, Mode.FP32, Delivery.RESTART, rollback=True)) == []


def test_a_workload_without_pods_has_its_template_written_at_no_cost() -> None:
    view = workload(replicas=0, pods=())
    assert planned(up(view), restarts=0) == [WriteTemplate(view, Mode.FP16, GENERATION, None)]
    assert planned(up(workload(replicas=0, pods=(UP,))), settle=False) == []


def test_escalated_is_restarted_once_a_generation_and_only_while_it_has_not_acknowledged() -> None:
    deaf = workload(pods=(replace(UP, request=Request(8, Mode.FP16)),))
    restart = WriteTemplate(deaf, Mode.FP16, GENERATION, None)
    assert planned(up(deaf, escalate=True)) == [restart]
    assert planned(up(deaf, escalate=True), restarts=0) == []
    assert planned(up(workload(pods=(UP,)), escalate=True), settle=False) == []
    again = replace(deaf, template_request=Request(GENERATION, Mode.FP16), template_mode=Mode.FP16)
    assert planned(up(again, escalate=True)) == []
    older = replace(deaf, template_request=Request(GENERATION - 1, Mode.FP16))
    assert planned(up(older, escalate=True)) == [WriteTemplate(older, Mode.FP16, GENERATION, None)]


def test_what_was_rolled_back_gets_a_latch_of_its_own_where_its_template_needs_no_write() -> None:
    view = workload()
    down = Desired(view, Mode.FP32, Delivery.HOT, rollback=True, latch=True)
    assert planned(down) == [Latch(view, Mode.FP32, GENERATION)]
    assert planned(down, settle=False) == []
    assert planned(replace(down, workload=replace(view, latch=Mode.FP32))) == []
    assert planned(replace(down, latch=False)) == []


def test_a_latch_is_one_write_and_takes_no_room_from_settles() -> None:
    views = [workload(name, latch=Mode.FP32) for name in "abc"]
    again = [Desired(view, Mode.FP32, Delivery.HOT, rollback=True, unlatch=True) for view in views]
    assert planned(*again, settles=0) == [Latch(view, None, GENERATION) for view in views]


def test_new_only_changes_the_template_and_asks_no_pod() -> None:
    view = workload()
    assert planned(up(view, Delivery.NEW_ONLY)) == [Settle(view, SettleStage.PAUSE, Mode.FP16, GENERATION, None)]


def test_highest_generation_is_looked_for_everywhere() -> None:
    assert highest_generation([]) == 0
    assert highest_generation([workload(generation_raw="5"), workload("v")]) == 5
    assert highest_generation([workload(template_request=Request(6, Mode.FP16), generation_raw="5")]) == 6
    assert (
        highest_generation([workload(pods=(UP, replace(UP, request=Request(3, Mode.FP16))), generation_raw="5")]) == 7
    )
    assert highest_generation([workload(generation_raw="9"), workload(template_request=Request(2, Mode.FP32))]) == 9


def settled(view: WorkloadView, mode: Mode = Mode.FP16, latch: Mode | None = None) -> Settle | None:
    return next_settle(view, mode, accepted=frozenset({mode}), generation=GENERATION, latch=latch)


def test_a_settle_begins_only_on_a_quiet_healthy_deployment_that_needs_one() -> None:
    assert settled(workload()) is not None
    assert settled(workload(template_mode=Mode.FP16)) is None
    assert settled(workload(observed=False)) is None
    assert settled(workload(updated_replicas=0)) is None
    assert settled(workload(pods=(DOWN, DOWN))) is None
    assert settled(workload(pods=(DOWN, replace(DOWN, crashing=True)), replicas=2, updated_replicas=2)) is None


def test_a_settle_goes_on_when_the_controller_has_seen_the_last_write() -> None:
    begun = workload(settle=SettleIntent(8, Mode.FP16, was_paused=False), paused=True)
    assert settled(replace(begun, observed=False)) is None
    assert settled(begun) == Settle(begun, SettleStage.REPLICASET, Mode.FP16, 8, None)
    changed = replace(begun, updated_replicas=0)
    assert settled(changed) == Settle(changed, SettleStage.RESUME, Mode.FP16, 8, None)


def test_a_settle_ends_in_the_mode_that_it_began_with_and_keeps_the_latch_that_stands() -> None:
    begun = workload(
        settle=SettleIntent(8, Mode.FP16, was_paused=False), paused=True, updated_replicas=0, latch=Mode.BF16
    )
    assert settled(begun, Mode.FP32, Mode.FP32) == Settle(begun, SettleStage.RESUME, Mode.FP16, 8, Mode.BF16)
    assert settled(begun, Mode.FP16, None) == Settle(begun, SettleStage.RESUME, Mode.FP16, 8, None)


def test_a_settle_that_somebody_resumed_starts_again_when_the_rollout_is_over() -> None:
    resumed = workload(settle=SettleIntent(8, Mode.FP16, was_paused=False))
    assert settled(resumed) == Settle(resumed, SettleStage.PAUSE, Mode.FP16, GENERATION, None)
    assert settled(replace(resumed, updated_replicas=0)) is None


def test_one_pod_that_is_heard_is_enough_to_know_that_its_gang_is_deaf() -> None:
    told = tuple(replace(UP, name=name, uid=name, request=Request(8, Mode.FP16)) for name in ("p", "silent"))
    gang = workload(pods=told, replicas=2, updated_replicas=2)
    assert planned(up(gang, escalate=True)) == [WriteTemplate(gang, Mode.FP16, GENERATION, None)]


def test_one_pod_that_the_gate_did_not_start_safely_is_reason_enough_to_restart_its_workload() -> None:
    safe, up_still = PodView("p", "uid-p"), PodView("q", "uid-q", started_mode=Mode.FP16)
    view = literal(template_mode=Mode.FP16, pods=(safe, up_still), replicas=2, updated_replicas=2)
    down = Desired(view, Mode.FP32, Delivery.RESTART, rollback=True)
    assert planned(down) == [WriteTemplate(view, Mode.FP32, GENERATION, Mode.FP32)]
    assert planned(replace(down, workload=replace(view, pods=(safe, replace(safe, name="q"))))) == []


def test_a_tuning_reaches_every_pod_that_was_not_asked_since_and_no_pod_twice() -> None:
    """A pod that its settled template started in the target has never been asked for anything."""
    never = PodView("never", "uid-never", hot=True, started_mode=Mode.FP16)
    asked = [replace(never, name=f"at-{at}", request=Request(at, Mode.FP16)) for at in (7, 8, 9)]
    view = workload(pods=(never, *asked), replicas=4, updated_replicas=4)
    tuned = replace(up(view), tuning=Tuning(loss_scale_factor=0.5), tuned_by=8)
    found = {a.pod.name: a.tuning for a in planned(tuned) if isinstance(a, RequestPod)}
    assert found == {"never": Tuning(loss_scale_factor=0.5), "at-7": Tuning(loss_scale_factor=0.5)}
    assert planned(replace(tuned, tuning=None)) == []
