"""How far a workload is: told by every pod, acknowledged by every process, settled by its template."""

from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.core.model import Evaluation, PodSignals, PodView, Request, SettleIntent, WorkloadView
from precision_operator.core.progress import Progress, accepted_modes, pod_acknowledged, progress_of, resolve_delivery

FP16 = frozenset({Mode.FP16})
TOLD = PodView("p-0", "uid-0", hot=True, request=Request(7, Mode.FP16))
UNTOLD = PodView("p-1", "uid-1", hot=True)
HOT = WorkloadView("ns", "w", "uid", hot=True, replicas=1, updated_replicas=1, pods=(TOLD,))
LITERAL = replace(
    HOT, hot=False, literal=True, template_mode=Mode.FP16, pods=(PodView("p-0", "uid-0", started_mode=Mode.FP16),)
)


def says(mode: Mode | None = Mode.FP16, generation: int | None = 7, *pods: str) -> Evaluation:
    return Evaluation(1000.0, 0.0, {name: PodSignals(mode, generation) for name in pods or ("p-0",)})


def hot(workload: WorkloadView, evaluation: Evaluation | None) -> Progress:
    return progress_of(workload, FP16, evaluation, Delivery.HOT)


@pytest.mark.parametrize(
    ("wanted", "hot", "literal", "pods_hot", "found"),
    [
        (Delivery.HOT, True, False, True, Delivery.HOT),
        (Delivery.HOT, True, True, False, None),
        (Delivery.HOT, False, True, True, None),
        (Delivery.RESTART, True, False, True, Delivery.RESTART),
        (Delivery.RESTART, False, True, False, Delivery.RESTART),
        (Delivery.RESTART, False, False, True, None),
        (Delivery.NEW_ONLY, True, False, False, Delivery.NEW_ONLY),
        (Delivery.NEW_ONLY, False, True, True, None),
        (Delivery.AUTO, True, True, True, Delivery.HOT),
        (Delivery.AUTO, True, False, False, Delivery.RESTART),
        (Delivery.AUTO, False, True, True, Delivery.RESTART),
        (Delivery.AUTO, False, False, True, None),
    ],
)
def test_delivery_follows_the_contract_of_template_and_pods(
    wanted: Delivery, hot: bool, literal: bool, pods_hot: bool, found: Delivery | None
) -> None:
    workload = replace(HOT, hot=hot, literal=literal, pods=(replace(TOLD, hot=pods_hot), TOLD))
    assert resolve_delivery(wanted, workload) is found


def test_a_template_with_the_contract_is_hot_also_without_pods() -> None:
    assert resolve_delivery(Delivery.AUTO, replace(HOT, pods=(), replicas=0)) is Delivery.HOT


def test_on_the_way_down_what_is_safer_is_accepted_and_on_the_way_up_it_is_not() -> None:
    assert accepted_modes(Mode.BF16, rollback=True) == {Mode.BF16, Mode.FP32}
    assert accepted_modes(Mode.BF16, rollback=False) == {Mode.BF16}


@pytest.mark.parametrize(
    ("pod", "signals", "acknowledged"),
    [
        (TOLD, None, False),
        (TOLD, PodSignals(None, 7), False),
        (TOLD, PodSignals(Mode.FP32, 7), False),
        (TOLD, PodSignals(Mode.FP16, 6), False),
        (TOLD, PodSignals(Mode.FP16, None), False),
        (TOLD, PodSignals(Mode.FP16, 7), True),
        (TOLD, PodSignals(Mode.FP16, 8), True),
        (UNTOLD, PodSignals(Mode.FP16, None), True),
        (replace(TOLD, hot=False), PodSignals(Mode.FP16, 0), True),
    ],
)
def test_acknowledged_is_the_mode_and_the_generation_of_the_request(
    pod: PodView, signals: PodSignals | None, acknowledged: bool
) -> None:
    assert pod_acknowledged(pod, signals, FP16) is acknowledged


def test_hot_workload_moves_when_its_processes_say_so() -> None:
    assert hot(HOT, None) == Progress(told=True, acknowledged=False, settled=False)
    assert hot(HOT, says()) == Progress(told=True, acknowledged=True, settled=False)
    assert hot(replace(HOT, template_mode=Mode.FP16), says()).settled
    settling = replace(HOT, template_mode=Mode.FP16, settle=SettleIntent(7, Mode.FP16, was_paused=False))
    assert not hot(settling, says()).settled


def test_one_pod_that_was_not_told_or_does_not_say_so_keeps_the_workload_back() -> None:
    two = replace(HOT, replicas=2, pods=(TOLD, UNTOLD))
    assert hot(two, says(Mode.FP16, 7, "p-0", "p-1")) == Progress(told=False, acknowledged=False, settled=False)
    both = replace(two, pods=(TOLD, replace(TOLD, name="p-1")))
    assert hot(both, says()) == Progress(told=True, acknowledged=False, settled=False)
    assert hot(both, says(Mode.FP16, 7, "p-0", "p-1")).acknowledged


def test_a_missing_pod_has_not_acknowledged() -> None:
    assert not hot(replace(HOT, replicas=2), says()).acknowledged
    assert hot(replace(HOT, pods=()), says()) == Progress(told=False, acknowledged=False, settled=False)


def test_a_pod_on_its_way_out_need_not_acknowledge_but_must_have_been_told() -> None:
    leaving = replace(TOLD, name="p-9", terminating=True)
    assert hot(replace(HOT, pods=(TOLD, leaving)), says()).acknowledged
    assert not hot(replace(HOT, pods=(TOLD, replace(leaving, request=None))), says()).told
    assert not hot(replace(HOT, pods=(leaving,)), says(Mode.FP16, 7, "p-9")).told


def test_without_pods_the_template_has_the_word() -> None:
    idle = replace(HOT, replicas=0, pods=())
    assert hot(idle, says()) == Progress(told=False, acknowledged=False, settled=False)
    assert hot(replace(idle, template_mode=Mode.FP16), None) == Progress(told=True, acknowledged=True, settled=True)


def test_restarted_workload_has_moved_when_the_rollout_is_over_and_its_processes_say_so() -> None:
    def restarted(workload: WorkloadView) -> Progress:
        return progress_of(workload, FP16, says(), Delivery.RESTART)

    assert restarted(LITERAL) == Progress(told=True, acknowledged=True, settled=True)
    assert not restarted(replace(LITERAL, observed=False)).acknowledged
    assert not restarted(replace(LITERAL, updated_replicas=0)).acknowledged
    old_template = restarted(replace(LITERAL, template_mode=Mode.FP32))
    assert old_template == Progress(told=False, acknowledged=False, settled=False)


def test_new_only_is_told_at_once_and_done_when_the_template_is() -> None:
    def new_only(workload: WorkloadView) -> Progress:
        return progress_of(workload, FP16, None, Delivery.NEW_ONLY)

    assert new_only(HOT) == Progress(told=True, acknowledged=False, settled=False)
    assert new_only(replace(HOT, template_mode=Mode.FP16)) == Progress(told=True, acknowledged=True, settled=True)


def test_a_workload_that_is_scaled_to_nothing_has_moved_once_its_last_pod_is_gone() -> None:
    leaving = replace(UNTOLD, terminating=True, started_mode=Mode.FP32)
    idle = replace(HOT, replicas=0, template_mode=Mode.FP16, pods=(leaving,))
    assert hot(idle, says()) == Progress(told=False, acknowledged=False, settled=True)
    assert hot(replace(idle, pods=()), says()) == Progress(told=True, acknowledged=True, settled=True)
