"""What ends the rest of a policy, and what does not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lab.model.policies import FAST
from lab.model.world import OVERFLOWS, World
from precision_operator.api.choices import Severity
from precision_operator.api.drill import DrillResult
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.mitigation import MitigationResult
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import PolicyEnforcement, PolicySpec
from precision_operator.api.state import Failing, Phase, Restart, Suspension
from precision_operator.core.actions import Notify
from precision_operator.core.evidence.readings import Ok, good_range, judge
from precision_operator.core.model import Evaluation, Observation, PodSignals, PodView, RunsOn
from precision_operator.core.observer import RecordedPass
from precision_operator.core.resting import Rest, again, rest_of
from precision_operator.reasons import Cause, Reason
from tests.support.fleets import answer, held, promoted, until
from tests.support.standing_calls import DRILL, WINDOW


def resting(world: World | None = None) -> tuple[World, Rest]:
    world = world or promoted()
    for _ in range(5):
        seen = RecordedPass(world.policy, world.state, world.observe(), world.decide(), world.now)
        rest = rest_of(seen)
        world.step()
        if rest is not None:
            return world, rest
    raise AssertionError("it never rests")


def reporting(seen: Observation, change: Callable[[PodSignals], PodSignals]) -> Observation:
    """The same of all pods, but for this."""
    assert seen.evaluation is not None
    pods = {name: change(signals) for name, signals in seen.evaluation.pods.items()}
    return replace(seen, evaluation=replace(seen.evaluation, pods=pods))


@pytest.mark.parametrize(
    "change",
    [
        lambda world: setattr(world, "everywhere", {Signal.SPEED: 1.9}),
        lambda world: setattr(world, "everywhere", {Signal.FAILURES: float("nan")}),
        lambda world: setattr(world, "everywhere", {Signal.MEMORY: 7.0}),
        lambda world: setattr(world, "restart_slots", 0),
        lambda world: setattr(world, "now", world.now + 0.0004),
    ],
    ids=[
        "other good values",
        "no run has ended",
        "a signal that is switched off",
        "slots of others",
        "less than a millisecond",
    ],
)
def test_it_goes_on_with_what_changes_no_decision(change: Callable[[World], None]) -> None:
    world, rest = resting(promoted(criteria={"memory": {"enabled": False}}))
    change(world)
    assert again(rest, world.observe(), world.now) == world.decide()


@pytest.mark.parametrize(("device", "goes_on"), [("cuda", False), ("cpu", True)])
def test_a_gain_that_falls_short_on_cuda_is_decided_on(device: str, goes_on: bool) -> None:
    _, rest = resting()

    def at(speed: float) -> Observation:
        on = RunsOn(device=device)
        return reporting(
            rest.seen.observation, lambda s: replace(s, runs_on=on, values={**s.values, Signal.SPEED: speed})
        )

    fast = rest_of(replace(rest.seen, observation=at(1.5)))
    assert fast is not None
    assert (again(fast, at(1.05), rest.seen.now) is not None) is goes_on


def test_a_fleet_that_was_rolled_back_once_rests_again_when_its_window_is_clear() -> None:
    world = held()
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    world.run(10)
    assert world.state.incident is not None
    resting(world)


def test_a_fleet_whose_window_reaches_back_into_a_rollback_is_decided_anew() -> None:
    world, rest = resting()
    seen = rest.seen
    incident = Incident(
        id="i", severity=Severity.P0, scope=Scope.FLEET, reason="", message="", workloads=(),
        detected_at=world.now, decided_at=world.now, last_ack_at=world.now - 1.0, deadline_at=world.now,
    )  # fmt: skip
    state = replace(seen.before, incident=incident)
    assert rest_of(replace(seen, before=state, decision=replace(seen.decision, state=state))) is None


@pytest.mark.parametrize(
    "going_on",
    [
        {"failing": (Failing("apps/Deployment/hot-0", Signal.MEMORY, Severity.P3, 1.0),)},
        {"mitigations": (replace(WINDOW, result=MitigationResult.MITIGATED),)},
        {"restarts": {"apps/Deployment/literal": Restart(1, 1.0)}},
        {"no_data_since": 1.0},
        {"last_drill": replace(DRILL, result=DrillResult.RUNNING)},
        {"suspensions": {"batch/Job/job": Suspension("uid", 1, 1.0)}},
    ],
    ids=lambda going_on: next(iter(going_on)),
)
def test_a_fleet_of_which_something_still_takes_its_time_does_not_rest(going_on: dict[str, Any]) -> None:
    _, rest = resting()
    state = replace(rest.seen.before, **going_on)
    assert rest_of(replace(rest.seen, before=state, decision=replace(rest.seen.decision, state=state))) is None


def test_a_policy_that_takes_places_of_a_promotion_does_not_rest() -> None:
    _, rest = resting()
    promoting = replace(rest.seen.decision, promoting=frozenset({"apps/Deployment/hot-0"}))
    assert rest_of(replace(rest.seen, decision=promoting)) is None


def test_a_pass_that_writes_is_followed_by_a_decision() -> None:
    _, rest = resting()
    seen = rest.seen
    acts = replace(seen.decision, actions=(Notify(Reason.MEMORY_TOO_SMALL, "hot-0"),))
    records = replace(seen.decision, state=replace(seen.before, generation=seen.before.generation + 1))
    assert rest_of(replace(seen, decision=acts)) is None
    assert rest_of(replace(seen, decision=records)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda pod: replace(pod, terminating=True),
        lambda pod: replace(pod, pending=True),
        lambda pod: replace(pod, crashing=True),
        lambda pod: replace(pod, backing_off=True),
    ],
)
def test_a_fleet_of_which_a_pod_is_on_its_way_does_not_rest(change: Callable[[PodView], PodView]) -> None:
    _, rest = resting()
    seen, (first, *others) = rest.seen, rest.seen.observation.workloads
    on_its_way = replace(first, pods=tuple(map(change, first.pods)))
    observation = replace(seen.observation, workloads=(on_its_way, *others))
    assert rest_of(replace(seen, observation=observation)) is None


@pytest.mark.parametrize(
    "stop",
    [lambda spec: replace(spec, suspend=True), lambda spec: replace(spec, enforcement=PolicyEnforcement.OBSERVE)],
)
def test_a_policy_that_a_person_has_stopped_does_not_rest(stop: Callable[[PolicySpec], PolicySpec]) -> None:
    _, rest = resting()
    policy = rest.seen.policy
    assert rest_of(replace(rest.seen, policy=replace(policy, spec=stop(policy.spec)))) is None


def test_the_assignment_of_a_policy_that_is_gone_does_not_rest() -> None:
    _, rest = resting()
    assert rest_of(replace(rest.seen, policy=replace(rest.seen.policy, deleted=True))) is None


def test_a_fleet_with_jobs_that_are_to_be_resumed_does_not_rest() -> None:
    _, rest = resting()
    observation = replace(rest.seen.observation, suspended=rest.seen.observation.workloads)
    assert rest_of(replace(rest.seen, observation=observation)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.bad.update(dict.fromkeys(world.workloads, OVERFLOWS)),
        lambda world: world.bad.update({name: {Signal.OVERFLOW: 0.15} for name in world.workloads}),
        lambda world: world.unobservable.update(world.workloads),
        lambda world: setattr(world, "metrics_away", True),
        lambda world: setattr(world, "halted", Cause(Reason.HALTED, "by a person")),
        lambda world: setattr(world, "outside_schedule", Cause(Reason.OUTSIDE_SCHEDULE, "opens tomorrow")),
        lambda world: setattr(world, "continuous_since", world.now),
        lambda world: world.crowded.update(world.workloads),
        lambda world: world.add("new-1"),
    ],
)
def test_it_is_decided_anew(change: Callable[[World], object]) -> None:
    world, rest = resting()
    change(world)
    assert again(rest, world.observe(), world.now) is None


def test_another_leader_decides_anew() -> None:
    world, rest = resting()
    assert again(rest, replace(world.observe(), epoch=2), world.now) is None


def test_a_clock_that_was_set_is_decided_on() -> None:
    world, rest = resting()
    seen = world.observe()
    assert seen.evaluation is not None
    assert again(rest, replace(seen, evaluation=replace(seen.evaluation, clock_since=world.now)), world.now) is None


def test_samples_that_grow_old_are_decided_on() -> None:
    world, rest = resting()
    seen = world.observe()
    assert seen.evaluation is not None
    late = replace(seen.evaluation, at=seen.evaluation.at + 3600.0)
    assert again(rest, replace(seen, evaluation=late), world.now + 3600.0) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda signals: replace(signals, steps=float("nan")),
        lambda signals: replace(signals, sampled_at=None),
        lambda signals: replace(signals, sampled_at=signals.sampled_at - 31.0),
        lambda signals: replace(signals, values={**signals.values, Signal.DIVERGENCE: float("nan")}),
        lambda signals: replace(signals, values={**signals.values, Signal.FAILURES: 0.9}),
    ],
    ids=["steps are no number", "no acknowledgement", "older than half a window", "a loss is no number", "runs fail"],
)
def test_a_fleet_of_which_a_reading_is_not_good_does_not_rest(change: Callable[[PodSignals], PodSignals]) -> None:
    world, rest = resting(promoted(evaluation={**FAST["evaluation"], "window": "60s"}))
    poor = reporting(rest.seen.observation, change)
    assert rest_of(replace(rest.seen, observation=poor)) is None
    assert again(rest, poor, world.now) is None


@pytest.mark.parametrize("signal", Signal)
def test_the_range_of_good_values_is_what_is_judged_so(signal: Signal) -> None:
    criterion = SIGNALS[signal].default
    low, high = good_range(criterion)
    for edge in (low, high, criterion.enter, criterion.leave, criterion.warn or 0.0, 0.0, float("inf"), -float("inf")):
        for value in (edge - 1e-9, edge, edge + 1e-9):
            assert (low <= value <= high) is isinstance(judge(criterion, value, failing=False), Ok), value


@pytest.mark.parametrize(
    "lost",
    [lambda _: None, lambda read: replace(read, errors={"speed": Cause(Reason.METRICS_UNAVAILABLE, "refused")})],
    ids=["nothing was read", "a query has failed"],
)
def test_without_a_whole_reading_nothing_rests(lost: Callable[[Evaluation], Evaluation | None]) -> None:
    world, rest = resting()
    assert rest.seen.observation.evaluation is not None
    unread = replace(rest.seen.observation, evaluation=lost(rest.seen.observation.evaluation))
    assert rest_of(replace(rest.seen, observation=unread)) is None
    assert again(rest, unread, world.now) is None


def test_a_fleet_rests_on_samples_as_old_as_its_criteria_believe() -> None:
    _, rest = resting(promoted(evaluation={**FAST["evaluation"], "window": "60s"}))
    seen = rest.seen.observation
    assert seen.evaluation is not None
    old = seen.evaluation.at - 30.0
    assert rest_of(replace(rest.seen, observation=reporting(seen, lambda s: replace(s, sampled_at=old)))) is not None
