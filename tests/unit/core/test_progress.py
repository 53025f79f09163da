"""How far a workload is: requested of every pod, acknowledged by every process that runs."""

from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase, State
from precision_operator.api.summary import UNACKNOWLEDGED_LIMIT, Summary
from precision_operator.core.model import Evaluation, PodSignals, PodView, Request, RestartBy, WorkloadView
from precision_operator.core.progress import (
    Progress,
    accepted_modes,
    complete,
    pod_acknowledged,
    progress_of,
    resolve_delivery,
    rewound,
)
from precision_operator.core.status.summary import has_acknowledged
from tests.support.views import keys, literal, pod, reported, workload

FP16 = frozenset({Mode.FP16})
ASKED = pod("p-0", request=Request(7, Mode.FP16))
NOT_ASKED = pod("p-1")
HOT = workload(pods=(ASKED,))
DONE, OPEN = Progress(requested=True, acknowledged=True), Progress(requested=True, acknowledged=False)


def says(mode: Mode | None = Mode.FP16, generation: int | None = 7, *pods: str) -> Evaluation:
    return reported(**{name: PodSignals(mode, generation) for name in pods or ("p-0",)})


def hot(view: WorkloadView, evaluation: Evaluation | None, *, since: int = 0, replacing: bool = False) -> Progress:
    return progress_of(view, FP16, evaluation, Delivery.HOT, since=since, replacing=replacing)


def restarted(view: WorkloadView, evaluation: Evaluation | None, *, replacing: bool = False) -> Progress:
    return progress_of(view, FP16, evaluation, Delivery.RESTART, replacing=replacing)


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
        (Delivery.NEW_ONLY, False, True, True, Delivery.NEW_ONLY),
        (Delivery.NEW_ONLY, False, False, True, None),
        (Delivery.AUTO, True, True, True, Delivery.HOT),
        (Delivery.AUTO, True, False, False, Delivery.RESTART),
        (Delivery.AUTO, False, True, True, Delivery.RESTART),
        (Delivery.AUTO, False, False, True, None),
    ],
)
def test_delivery_follows_the_contract_of_template_and_pods(
    wanted: Delivery, hot: bool, literal: bool, pods_hot: bool, found: Delivery | None
) -> None:
    view = replace(HOT, hot=hot, literal=literal, pods=(replace(ASKED, hot=pods_hot), ASKED))
    assert resolve_delivery(wanted, view) is found


@pytest.mark.parametrize(
    ("wanted", "hot", "literal", "found"),
    [
        (Delivery.AUTO, True, False, Delivery.HOT),
        (Delivery.HOT, True, False, Delivery.HOT),
        (Delivery.AUTO, False, True, None),
        (Delivery.RESTART, False, True, None),
        (Delivery.RESTART, True, False, None),
        (Delivery.NEW_ONLY, False, True, Delivery.NEW_ONLY),
    ],
)
def test_what_cannot_be_restarted_is_moved_hot_or_by_new_pods_alone(
    wanted: Delivery, hot: bool, literal: bool, found: Delivery | None
) -> None:
    view = replace(HOT, hot=hot, literal=literal, restart_by=RestartBy.NEVER, pods=(replace(ASKED, hot=hot),))
    assert resolve_delivery(wanted, view) is found


def test_a_template_with_the_contract_is_hot_also_without_pods() -> None:
    assert resolve_delivery(Delivery.AUTO, replace(HOT, pods=(), replicas=0)) is Delivery.HOT


def test_pods_of_an_older_template_on_their_way_out_do_not_make_the_new_ones_restart() -> None:
    leaving = replace(ASKED, name="old", hot=False, terminating=True)
    assert resolve_delivery(Delivery.AUTO, replace(HOT, pods=(ASKED, leaving))) is Delivery.HOT


def test_in_a_rollback_what_is_safer_is_accepted_and_in_a_rollout_it_is_not() -> None:
    assert accepted_modes(Mode.BF16, rollback=True) == {Mode.BF16, Mode.FP32}
    assert accepted_modes(Mode.BF16, rollback=False) == {Mode.BF16}


@pytest.mark.parametrize(
    ("view", "signals", "acknowledged"),
    [
        (ASKED, None, False),
        (ASKED, PodSignals(None, 7), False),
        (ASKED, PodSignals(Mode.FP32, 7), False),
        (ASKED, PodSignals(Mode.FP16, 6), False),
        (ASKED, PodSignals(Mode.FP16, None), False),
        (ASKED, PodSignals(Mode.FP16, 7), True),
        (ASKED, PodSignals(Mode.FP16, 8), True),
        (NOT_ASKED, PodSignals(Mode.FP16, None), True),
        (replace(ASKED, hot=False), PodSignals(Mode.FP16, 0), True),
    ],
)
def test_acknowledged_is_the_mode_and_the_generation_of_the_request(
    view: PodView, signals: PodSignals | None, acknowledged: bool
) -> None:
    assert pod_acknowledged(view, signals, FP16) is acknowledged


@pytest.mark.parametrize(
    ("since", "mode", "acknowledged"), [(0, Mode.FP16, True), (5, Mode.FP16, True), (0, Mode.FP32, False)]
)
def test_what_was_asked_for_since_the_change_of_mode_is_not_waited_for_where_it_asks_for_that_mode(
    since: int, mode: Mode, acknowledged: bool
) -> None:
    """Of a process group the first rank's request counts: a checkpoint that another rank was asked for is never had."""
    view = replace(ASKED, request=Request(7, mode))
    assert pod_acknowledged(view, PodSignals(Mode.FP16, 5), FP16, since=since) is acknowledged


def test_hot_workload_moves_when_its_processes_say_so() -> None:
    assert hot(HOT, None) == OPEN
    assert hot(HOT, says(Mode.FP32)) == OPEN
    assert hot(HOT, says()) == DONE


def test_one_pod_that_was_not_asked_or_does_not_say_so_keeps_the_workload_back() -> None:
    two = replace(HOT, replicas=2, pods=(ASKED, NOT_ASKED))
    both_say_so = says(Mode.FP16, 7, "p-0", "p-1")
    assert hot(two, both_say_so) == Progress(requested=False, acknowledged=False)
    asked = replace(two, pods=(ASKED, replace(ASKED, name="p-1")))
    assert hot(asked, says()) == OPEN
    assert hot(asked, both_say_so) == DONE


@pytest.mark.parametrize(("since", "requested"), [(7, True), (8, False)])
def test_a_request_from_before_the_last_change_is_none(since: int, requested: bool) -> None:
    assert hot(HOT, says(), since=since) == Progress(requested=requested, acknowledged=requested)


def test_admission_asks_as_well_as_a_request_does() -> None:
    admitted = pod("p-0", started_mode=Mode.FP16, admitted=(("fleet", 8),))
    assert hot(replace(HOT, pods=(admitted,)), says(Mode.FP16, 0), since=8) == DONE


def test_of_ten_pods_one_that_cannot_start_holds_the_workload_back_in_nothing() -> None:
    nine = tuple(replace(ASKED, name=f"p-{index}") for index in range(9))
    waits = replace(ASKED, name="p-9", pending=True, ready=False)
    ten = replace(HOT, replicas=10, pods=(*nine, waits))
    said = says(Mode.FP16, 7, *(view.name for view in nine))
    assert hot(ten, said) == restarted(replace(ten, hot=False, literal=True), said) == DONE
    running = replace(ten, pods=(*nine, replace(waits, pending=False)))
    assert hot(running, said) == OPEN, "a pod that runs and says nothing may train in anything"


def test_a_pending_pod_that_will_start_in_another_mode_was_not_asked() -> None:
    waits = pod("p-9", hot=False, started_mode=Mode.FP32, pending=True)
    assert restarted(literal(pods=(waits,)), says()) == Progress(requested=False, acknowledged=False)


def test_a_pod_on_its_way_out_counts_for_as_long_as_its_process_says_that_it_trains_in_something_else() -> None:
    leaving = replace(NOT_ASKED, name="p-9", terminating=True, started_mode=Mode.FP32)
    view = replace(HOT, pods=(ASKED, leaving))
    assert hot(view, reported(**{"p-0": PodSignals(Mode.FP16, 7), "p-9": PodSignals(Mode.FP32, 7)})) == OPEN
    assert hot(view, reported(**{"p-0": PodSignals(Mode.FP16, 7), "p-9": PodSignals(Mode.FP16, 7)})) == DONE
    assert hot(view, says()) == DONE, "nothing is known of it any more"
    assert hot(view, reported(**{"p-0": PodSignals(Mode.FP16, 7), "p-9": PodSignals()})) == DONE, "nor of its mode"


def test_while_its_pods_are_replaced_a_workload_has_acknowledged_only_when_as_many_run_again() -> None:
    fp16 = pod("p-0", hot=False, started_mode=Mode.FP16)
    coming = replace(fp16, name="p-1", pending=True)
    view = literal(replicas=2, pods=(fp16, coming))
    assert restarted(view, says(), replacing=True) == OPEN
    assert restarted(replace(view, pods=(fp16,)), says(), replacing=True) == OPEN
    assert restarted(view, says()) == DONE
    back = replace(view, pods=(fp16, replace(coming, pending=False)))
    assert restarted(back, says(Mode.FP16, 0, "p-0", "p-1"), replacing=True) == DONE


def test_a_workload_without_pods_has_nothing_to_acknowledge() -> None:
    idle = replace(HOT, replicas=0, pods=())
    assert hot(idle, None) == restarted(idle, None) == DONE


def test_new_pods_only_is_done_at_once_whatever_runs() -> None:
    assert progress_of(replace(HOT, pods=(NOT_ASKED,)), FP16, says(Mode.FP32), Delivery.NEW_ONLY) == DONE


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        ((ASKED, NOT_ASKED), True),
        ((ASKED,), False),
        ((ASKED, replace(NOT_ASKED, pending=True)), False),
        ((ASKED, replace(NOT_ASKED, terminating=True)), False),
        ((ASKED, replace(NOT_ASKED, crashing=True)), True),
    ],
    ids=["all run", "one is missing", "one cannot start", "one leaves", "one crashes"],
)
def test_a_workload_is_complete_when_all_its_pods_have_started(pods: tuple[PodView, ...], expected: bool) -> None:
    assert complete(replace(HOT, replicas=2, pods=pods)) is expected


BACK, OTHER = (pod(name, request=Request(7, Mode.FP32, rewind=True)) for name in ("p-0", "p-1"))


@pytest.mark.parametrize(
    ("pods", "evaluation", "expected"),
    [
        ((BACK, OTHER), says(Mode.FP32, 7, "p-0", "p-1"), True),
        ((BACK, OTHER), says(Mode.FP32, 7, "p-0"), False),
        ((BACK, OTHER), says(Mode.FP32, 6, "p-0", "p-1"), False),
        ((BACK, NOT_ASKED), says(Mode.FP32, 7, "p-0", "p-1"), False),
        ((), says(), False),
    ],
    ids=["all say so", "one is silent", "they have not got so far", "one was not asked", "none runs"],
)
def test_a_workload_has_gone_back_once_every_pod_says_that_it_has(
    pods: tuple[PodView, ...], evaluation: Evaluation, expected: bool
) -> None:
    assert rewound(workload(pods=pods), evaluation) is expected


@pytest.mark.parametrize(
    ("state", "silent", "said"),
    [
        (State(), (), None),
        (State(phase=Phase.HEALTHY), (), None),
        (State(phase=Phase.HEALTHY, members=keys("w")), (), True),
        (State(phase=Phase.HEALTHY, members=keys("w")), ("w",), False),
        (State(phase=Phase.HELD), ("w", *("other",) * UNACKNOWLEDGED_LIMIT), False),
        (State(phase=Phase.HELD), ("other",) * UNACKNOWLEDGED_LIMIT, None),
        (State(phase=Phase.HELD), ("other",) * (UNACKNOWLEDGED_LIMIT - 1), True),
    ],
)
def test_a_summary_says_of_a_workload_that_counts_whether_it_has_acknowledged_as_far_as_its_list_reaches(
    state: State, silent: tuple[str, ...], said: bool | None
) -> None:
    assert has_acknowledged(Summary(unacknowledged=silent), state, workload("w")) is said
