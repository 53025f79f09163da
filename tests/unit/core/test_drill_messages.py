"""What is said of a drill: when one is due, why it was refused, what it waits for, why it has failed."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.model.world import OVERFLOWS, World
from precision_operator.api.drill import DrillResult
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase, State
from precision_operator.core.actions import Notify
from precision_operator.core.rollback.drill import OVERDUE_SECONDS, due
from precision_operator.reasons import Reason
from tests.support import fleets
from tests.support.drills import drill, in_a_drill, nothing_runs, of, over, promoted, without_metrics
from tests.support.fleets import change, condition, respec, until
from tests.support.standing_calls import DRILL, INCIDENT, NOW
from tests.support.views import key

PASSED = replace(DRILL, result=DrillResult.PASSED, passed_at=NOW)
ROLLED_BACK = "there was a rollback since the last drill"


@pytest.mark.parametrize(
    ("state", "later", "why"),
    [
        (State(), 0.0, "no drill has passed yet"),
        (State(incident=INCIDENT), 0.0, ROLLED_BACK),
        (State(last_drill=PASSED, incident=replace(INCIDENT, decided_at=NOW)), 1.0, ""),
        (State(last_drill=PASSED, incident=replace(INCIDENT, decided_at=NOW + 1.0)), 1.0, ROLLED_BACK),
        (State(last_drill=PASSED), OVERDUE_SECONDS, ""),
        (State(last_drill=PASSED), OVERDUE_SECONDS + 1.0, "the last drill passed 90 days ago"),
    ],
)
def test_a_drill_is_due_after_a_rollback_and_once_the_last_that_passed_is_older_than_a_quarter(
    state: State, later: float, why: str
) -> None:
    assert due(replace(state, phase=Phase.HEALTHY), NOW + later) == why


def test_no_drill_is_due_during_one_or_while_the_fleet_is_not_healthy() -> None:
    world = in_a_drill()
    assert due(world.state, world.now) == ""
    assert due(State(phase=Phase.DEGRADED), NOW) == ""


def one_goes_back_to_the_target() -> World:
    world = promoted()
    (pod,) = world.workloads["hot-1"].pods
    world.modes[pod.name] = Mode.BF16, world.state.generation
    return world


def new_pods_only() -> World:
    world = promoted()
    respec(world, delivery=Delivery.NEW_ONLY)
    return world


def breached_in_this_very_pass() -> World:
    world = fleets.promoted(evaluation={"interval": "15s", "failureLimit": 5, "minSamples": 1, "window": "60s"})
    world.bad = {"hot-2": OVERFLOWS}
    return world


@pytest.mark.parametrize(
    ("stands", "what", "why"),
    [
        (nothing_runs, key("hot-1"), "nothing that was moved runs"),
        (one_goes_back_to_the_target, key("hot-1"), "hot-1 do not report fp16 yet"),
        (new_pods_only, key("hot-1"), "running pods of hot-1 cannot be moved"),
        (without_metrics, key("hot-1"), "Prometheus gives no answer: no acknowledgement could be read"),
        (promoted, key("nobody"), "nobody is no workload that was moved; expected one of deployment/hot-0, "),
        (breached_in_this_very_pass, key("hot-1"), "has a breach that stands"),
    ],
)
def test_a_drill_that_could_not_be_rehearsed_is_refused_with_the_reason(
    stands: Callable[[], World], what: str, why: str
) -> None:
    world = stands()
    drill(world, what)
    (refused,) = [a for a in world.step(1.0).actions if isinstance(a, Notify) and a.reason is Reason.DRILL_REFUSED]
    assert why in refused.message
    assert world.state.last_drill is None


@pytest.mark.parametrize(
    ("what", "who"), [(key("hot-1"), "deployment/hot-1"), ("fleet allow-restarts", "all 6 workloads")]
)
def test_who_asked_for_which_drill_is_told(what: str, who: str) -> None:
    world = promoted()
    drill(world, what)
    world.step(1.0)
    assert world.state.message == f"ada asked for a drill: {who} to fp32 and back"


@pytest.mark.parametrize(
    ("away", "message"),
    [
        (False, "waiting for the trainers of hot-1 to report the fallback"),
        (True, "Prometheus gives no answer: whether hot-1 train in the fallback is not known"),
    ],
)
def test_a_drill_says_whom_it_waits_for_and_whether_that_can_be_seen(away: bool, message: str) -> None:
    world = promoted()
    world.unresponsive = {"hot-1"}
    drill(world, key("hot-1"))
    world.step(1.0)
    world.metrics_away = away
    world.step(1.0)
    assert condition(world, "Progressing").message == message


def unresponsive(world: World) -> None:
    world.unresponsive = {"hot-1"}


def away(world: World) -> None:
    world.metrics_away = True


def scaled_down(world: World) -> None:
    change(world, "hot-1", replicas=0, pods=())


def not_watched(world: World) -> None:
    """All go to the fallback, but the operator sees that after the deadline only."""
    world.train()
    world.now = of(world).deadline_at + 1.0


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (unresponsive, "no acknowledgement from hot-1"),
        (away, "no acknowledgement from hot-0, hot-1, hot-2, hot-3, hot-4 and 1 more; Prometheus gives no answer"),
        (scaled_down, "1 workloads without a running pod"),
        (not_watched, "the deadline had passed"),
    ],
)
def test_a_drill_that_has_failed_says_what_was_missing_and_nothing_else(
    fault: Callable[[World], None], why: str
) -> None:
    world = promoted()
    world.unresponsive = {"hot-1"}
    drill(world)
    world.run(5, 1.0)
    world.unresponsive = set()
    fault(world)
    until(world, over)
    assert of(world).message == f"{why}, after 40 s: all go back to fp16"


def test_a_drill_may_pass_in_its_last_moment_and_says_how_long_it_took() -> None:
    world = in_a_drill()
    world.now = of(world).deadline_at
    world.step()
    assert of(world).message == "1 workloads reported fp32 within 40.0 s, and go back to fp16"


@pytest.mark.parametrize(("missing", "half"), [(3, True), (4, False)])
def test_half_have_answered_when_as_many_have_as_have_not(missing: int, half: bool) -> None:
    world = promoted()
    world.unresponsive = {f"hot-{index}" for index in range(missing)}
    drill(world)
    world.run(20, 1.0)
    assert (of(world).running, of(world).half_at is not None) == (True, half)
