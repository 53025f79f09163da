"""How a rollback is followed to its end: from when an acknowledgement is due, who is excused, which Events are sent."""

from dataclasses import replace

import pytest

from lab.model.world import World
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery, Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.core.actions import Notify
from precision_operator.core.derive import derive_facts
from precision_operator.core.facts import Facts
from precision_operator.core.model import Request, RestartBy
from precision_operator.core.rollback.followup import awaited, follow, hurry_from
from precision_operator.reasons import Reason
from tests.support.fleets import change, promoted
from tests.support.views import keys, pod

TIMEOUT, IN_FLIGHT, DEADLINE = 45.0, 60.0, 1800.0
RULES = {"ackTimeout": "45s", "gradual": {"inFlight": "60s"}}
DECIDED = 10_000.0
INCIDENT = Incident(
    id="fleet-9",
    severity=Severity.P2,
    scope=Scope.FLEET,
    reason="TrainingSlow",
    message="",
    workloads=("hot-0",),
    detected_at=DECIDED,
    decided_at=DECIDED,
    deadline_at=DECIDED + DEADLINE,
    last_patch_at=DECIDED,
)


def facts(world: World, *, after: float) -> Facts:
    """What is known so many seconds after the decision."""
    world.now = DECIDED + after
    return derive_facts(world.policy, world.state, world.observe(), world.now)


@pytest.mark.parametrize(
    ("strategy", "seconds"),
    [
        (Strategy.EMERGENCY, 0.0),
        (Strategy.CANARY, IN_FLIGHT),
        (Strategy.GRADUAL, DEADLINE - 3 * TIMEOUT),
    ],
)
@pytest.mark.parametrize("raised", [None, DECIDED + 300.0], ids=["as decided", "raised since"])
def test_answers_are_due_at_once_or_once_runs_in_flight_had_their_time_or_where_the_deadline_comes_near(
    strategy: Strategy, seconds: float, raised: float | None
) -> None:
    found = facts(promoted(rollback=RULES), after=0.0)
    begun = DECIDED if strategy is Strategy.GRADUAL else raised or DECIDED
    assert hurry_from(found, replace(INCIDENT, strategy=strategy, expedited_at=raised)) == begun + seconds


def test_a_canary_is_not_restarted_for_want_of_an_answer_before_its_runs_in_flight_had_their_time() -> None:
    world = promoted(rollback=RULES)
    incident = replace(INCIDENT, strategy=Strategy.CANARY)
    for after, escalates in ((IN_FLIGHT + TIMEOUT, False), (IN_FLIGHT + TIMEOUT + 1.0, True)):
        found = facts(world, after=after)
        assert follow(found, incident, found.movable).escalate is escalates


def group(world: World, *, crashing: bool) -> None:
    """hot-0 has two pods that were asked for FP32 and do not report it; one of them may crash in a loop."""
    asked = pod("a", request=Request(9, Mode.FP32))
    world.modes.update(a=(Mode.FP16, 1), b=(Mode.FP16, 1))
    pods = (asked, replace(asked, name="b", uid="uid-b", ready=not crashing, crashing=crashing))
    change(world, "hot-0", pods=pods, replicas=2)


def test_a_process_group_of_which_one_pod_crashes_trains_in_nothing_and_is_waited_for_until_the_timeout_only() -> None:
    world = promoted(rollback=RULES)
    group(world, crashing=True)
    del world.modes["a"]  # waits for the other one
    for after, waited in ((TIMEOUT, True), (TIMEOUT + 1.0, False)):
        found = facts(world, after=after)
        mine = [(w, d) for w, d in found.movable if w.name == "hot-0"]
        assert (follow(found, replace(INCIDENT, strategy=Strategy.EMERGENCY), mine).waiting is not None) is waited
    group(world, crashing=False)
    found = facts(world, after=TIMEOUT + 1.0)
    mine = [(w, d) for w, d in found.movable if w.name == "hot-0"]
    assert follow(found, replace(INCIDENT, strategy=Strategy.EMERGENCY), mine).waiting is not None


@pytest.mark.parametrize(
    ("restart_by", "said"),
    [
        (RestartBy.PODS, "restarting hot-0"),
        (RestartBy.NEVER, "hot-0 cannot be restarted: end their pods by hand"),
    ],
)
def test_an_escalation_says_what_is_done_to_whom_and_nothing_else(restart_by: RestartBy, said: str) -> None:
    world = promoted(rollback=RULES)
    group(world, crashing=False)
    change(world, "hot-0", restart_by=restart_by)
    found = facts(world, after=TIMEOUT + 1.0)
    mine = [(w, d) for w, d in found.movable if w.name == "hot-0"]
    (notice,) = follow(found, replace(INCIDENT, strategy=Strategy.EMERGENCY), mine).notices
    assert notice.message == f"no acknowledgement from hot-0: {said}"


def stuck(world: World, *names: str) -> None:
    """Each has a pod in FP16 that does not go, beside one that reports FP32."""
    for name in names:
        back = pod(f"{name}-back", request=Request(9, Mode.FP32))
        left = pod(f"{name}-left", request=Request(1, Mode.FP16), terminating=True, gone_by=DECIDED - 900.0, node="n7")
        world.modes[back.name] = Mode.FP32, 9
        change(world, name, pods=(back, left))


def test_where_only_pods_that_do_not_go_are_missing_nobody_is_restarted_and_three_of_them_are_named() -> None:
    world = promoted(rollback=RULES)
    names = ("hot-0", "hot-1", "hot-2", "hot-3")
    stuck(world, *names)
    found = facts(world, after=TIMEOUT + 1.0)
    mine = [(w, d) for w, d in found.movable if w.name in names]
    incident = replace(INCIDENT, strategy=Strategy.EMERGENCY)
    followed = follow(found, incident, mine)
    assert followed.waiting is not None
    assert (followed.waiting.reason, followed.escalate) == (Reason.BLOCKED, False)
    assert [name in followed.waiting.message for name in names] == [True, True, True, False]
    others = [(w, d) for w, d in found.movable if w.name in ("hot-0", "hot-4")]
    followed = follow(found, incident, others)
    assert followed.waiting is not None
    assert (followed.waiting.reason, followed.escalate) == (Reason.AWAITING_ACKNOWLEDGEMENT, True)


def test_who_crashes_before_it_was_asked_is_awaited_for_it_may_come_back_in_the_target() -> None:
    world = promoted(rollback=RULES)
    crashing = pod("a", request=Request(1, Mode.FP16), ready=False, crashing=True)
    change(world, "hot-0", pods=(crashing,))
    found = facts(world, after=TIMEOUT + 1.0)
    mine = [(w, d) for w, d in found.movable if w.name == "hot-0"]
    assert follow(found, replace(INCIDENT, strategy=Strategy.EMERGENCY), mine).waiting is not None


def test_a_process_group_that_lost_a_rank_for_good_ends_a_rollback_after_the_timeout() -> None:
    world = promoted(rollback=RULES)
    waits = pod("a", request=Request(9, Mode.FP32), ready=False, backing_off=True)
    change(world, "hot-0", pods=(waits, replace(waits, name="b", uid="uid-b", pending=True)), replicas=2)
    for after, waited in ((TIMEOUT, True), (TIMEOUT + 1.0, False)):
        found = facts(world, after=after)
        mine = [(w, d) for w, d in found.movable if w.name == "hot-0"]
        assert (follow(found, replace(INCIDENT, strategy=Strategy.EMERGENCY), mine).waiting is not None) is waited


def test_a_crashing_pod_excuses_no_other_that_still_reports_the_target() -> None:
    world = promoted(rollback=RULES)
    group(world, crashing=True)
    found = facts(world, after=TIMEOUT + 1.0)
    mine = [(w, d) for w, d in found.movable if w.name == "hot-0"]
    followed = follow(found, replace(INCIDENT, strategy=Strategy.EMERGENCY), mine)
    assert (followed.waiting is not None, followed.escalate) == (True, True)


def test_a_deadline_that_is_missed_is_told_once_while_one_workload_after_the_other_still_answers() -> None:
    world = promoted()
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-3")}
    world.step()
    world.unobservable = set(world.workloads)
    events: list[Notify] = []
    missing: list[int] = []
    nobody = [""] * 25  # for longer than the deadline is
    for answering in (*nobody, "hot-0", "hot-1", "hot-2"):
        world.unobservable.discard(answering)
        events += [action for action in world.step().actions if isinstance(action, Notify)]
        missing.append(len(world.summary.unacknowledged))
    assert world.state.phase is Phase.ROLLING_BACK
    assert missing[-4:] == [6, 5, 4, 3]
    assert [(event.reason, event.warning) for event in events] == [
        ("RollbackEscalated", True),
        ("DeadlineExceeded", True),
    ]


@pytest.mark.parametrize(("after", "reason"), [(0.0, "AwaitingAcknowledgement"), (0.001, "DeadlineExceeded")])
def test_a_deadline_is_missed_after_its_last_moment(after: float, reason: str) -> None:
    found = facts(promoted(rollback=RULES), after=DEADLINE + after)
    waiting = follow(found, replace(INCIDENT, escalated=True), found.movable).waiting
    assert waiting is not None
    assert waiting.reason == reason


def test_all_are_patched_when_the_last_of_those_who_are_waited_for_has_been_asked() -> None:
    world = promoted(rollback=RULES)
    group(world, crashing=False)
    incident = replace(INCIDENT, last_patch_at=None)
    found = facts(world, after=5.0)
    assert follow(found, incident, found.movable).incident.last_patch_at is None
    asked = [(w, d) for w, d in found.movable if w.name == "hot-0"]
    assert follow(found, incident, asked).incident.last_patch_at == DECIDED + 5.0


@pytest.mark.parametrize("unread", ["nothing was read yet", "Prometheus is away"])
def test_while_no_acknowledgement_can_be_read_it_says_so_and_restarts_nobody_before_the_deadline(unread: str) -> None:
    world = promoted(rollback=RULES)
    world.metrics_away = True
    for after, escalates in ((DEADLINE, False), (DEADLINE + 1.0, True)):
        found = facts(world, after=after)
        if unread == "nothing was read yet":
            found = replace(found, observation=replace(found.observation, evaluation=None))
        followed = follow(found, INCIDENT, found.movable)
        assert (followed.escalate, followed.force) == (escalates, escalates)
        assert followed.waiting is not None
        assert followed.waiting.message.startswith("Prometheus gives no answer")


@pytest.mark.parametrize(
    ("watched", "patched", "decided", "escalates"),
    [
        (0.0, DECIDED, DECIDED, True),
        (DECIDED + 60.0, DECIDED, DECIDED, True),
        (DECIDED + 60.0, None, DECIDED, False),
        (0.0, None, DECIDED, True),
        (0.0, DECIDED + 60.0, DECIDED, False),
        (0.0, DECIDED, DECIDED + 101.0, True),
        (DECIDED + 60.0, DECIDED, DECIDED + 101.0, False),
    ],
    ids=[
        "all were asked long ago",
        "asked before this process began to watch",
        "not known when, and watched for a moment only",
        "not known when, and watched for long",
        "the last was asked a moment ago",
        "the clock was set back, and it was watched for long",
        "the clock was set back, and it was watched for a moment only",
    ],
)
def test_an_answer_is_overdue_a_timeout_after_the_last_was_asked_or_after_we_began_to_watch(
    watched: float, patched: float | None, decided: float, escalates: bool
) -> None:
    """100 s after a decision whose timeout is 45 s; a clock that was set back shows it in the future."""
    world = promoted(rollback=RULES)
    world.continuous_since = watched
    found = facts(world, after=100.0)
    incident = replace(INCIDENT, strategy=Strategy.EMERGENCY, decided_at=decided, last_patch_at=patched)
    assert follow(found, incident, found.movable).escalate is escalates


def test_of_what_nothing_can_move_only_what_is_asked_about_and_trains_in_less_is_awaited() -> None:
    world = promoted(rollback=RULES)
    for name, mode in (("hot-0", Mode.FP16), ("hot-1", Mode.FP32), ("hot-2", Mode.FP16)):
        (one,) = world.workloads[name].pods
        world.modes[one.name] = mode, 9
        change(world, name, hot=False, pods=(replace(one, hot=False),))
    found = facts(world, after=0.0)
    assert [w.name for w, _ in awaited(found, keys("hot-0", "hot-1", "hot-3"))] == ["hot-3", "hot-0"]


def test_a_fallback_is_acknowledged_by_what_is_as_safe_and_of_running_pods_that_nobody_asks_too() -> None:
    world = promoted(rollback=RULES)
    group(world, crashing=False)
    world.modes.update(a=(Mode.FP32, 9), b=(Mode.FP32, 9))
    found = facts(world, after=1.0)
    lower = replace(found, policy=replace(found.policy, spec=replace(found.spec, fallback=Mode.BF16)))
    mine = [(w, d) for w, d in found.movable if w.name == "hot-0"]
    assert follow(lower, INCIDENT, mine).waiting is None
    others = [(w, Delivery.NEW_ONLY) for w, _ in found.movable if w.name == "hot-1"]
    assert follow(found, INCIDENT, others).waiting is not None
