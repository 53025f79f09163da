"""Before a mild breach is rolled back: when a rung has had its chance, what an edit changes, what outlives a rollback."""

import json
from dataclasses import replace
from typing import Any

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.assignment import assignment_to_wire, parse_assignment
from precision_operator.api.mitigation import Mitigation, MitigationResult, Rung, mitigation_bytes
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase, State
from precision_operator.api.wire import format_time
from precision_operator.core.actions import Notify, RequestPod
from precision_operator.core.decide import Decision, decide
from precision_operator.core.mitigation import ladder
from precision_operator.core.mitigation.ladder import ended
from precision_operator.core.model import Observation, Request
from precision_operator.reasons import Reason
from tests.support.fleets import ROLLED_BACK, answer, change, fleet, held_names, promoted, respec, until
from tests.support.mitigations import EVALUATION, MILD, QUICK, RULES, SLOW, WINDOWS, breached, window
from tests.support.views import key, keys

WINDOW_SECONDS = 600.0


def overflow(**settings: object) -> dict[str, Any]:
    """QUICK with other settings of the overflow window."""
    return {**QUICK, "rollback": {**RULES, "mitigation": {**WINDOWS, "overflow": {**WINDOWS["overflow"], **settings}}}}


def tried(*, seconds_left: float = 300.0, **spec: object) -> World:
    """A workload that overflows on, long after it took what is tried; its window ends in ``seconds_left``."""
    world = breached(**{**QUICK, **spec})
    until(world, lambda w: window(w).acknowledged_at, seconds=15.0, passes=3)
    world.now += 200.0
    left = replace(window(world), until=round(world.now + seconds_left, 3))
    world.state = replace(world.state, mitigations=(left,))
    return world


def edited(world: World, **spec: object) -> None:
    world.policy = replace(world.policy, spec=policy(**{**FAST, **spec}).spec)


def damaged(world: World, **fields: object) -> None:
    """The state as another version of the operator, or a person, left it."""
    wire = json.loads(json.dumps(assignment_to_wire(world.state)))
    (entry,) = wire["state"]["mitigations"]
    wire["state"]["mitigations"] = [{key: value for key, value in {**entry, **fields}.items() if value is not None}]
    world.state = parse_assignment(wire)


@pytest.mark.parametrize(("seconds_left", "rung"), [(0.001, Rung.GROWTH_INTERVAL), (0.0, Rung.HALVE_SCALE)])
def test_nothing_new_is_tried_once_the_window_is_over(seconds_left: float, rung: Rung) -> None:
    """Overflow that is tolerated past the window stays as it is: what is tried then would have no time to show."""
    world = tried(seconds_left=seconds_left, **overflow(rollbackAbove=0.3))
    asked = [a.workload.name for a in world.step().actions if isinstance(a, RequestPod)]
    assert window(world).rung is rung
    assert asked == (["hot-0"] if rung is Rung.GROWTH_INTERVAL else [])
    assert (world.state.phase, window(world).open) == (Phase.HEALTHY, True)


@pytest.mark.parametrize("unread", [True, False])
def test_nothing_is_given_up_on_a_workload_of_which_nothing_is_known(unread: bool) -> None:
    """Silence is no breach: what is tried has its chance until it is seen to have failed."""
    world = tried()
    before = window(world)
    world.unobservable = {"hot-0"}
    observation = replace(world.observe(), evaluation=None) if unread else world.observe()
    decision = decide(world.policy, world.state, observation, world.now)
    (after,) = decision.state.mitigations
    assert (after.rung, after.until, after.open) == (before.rung, before.until, True)
    assert not [action for action in decision.actions if isinstance(action, RequestPod)]


@pytest.mark.parametrize(("length", "seconds"), [("5m", 300.0), ("10m", WINDOW_SECONDS), ("30m", WINDOW_SECONDS)])
def test_an_edit_shortens_an_open_window_and_never_lengthens_it(length: str, seconds: float) -> None:
    world = breached()
    since = window(world).since
    assert window(world).until == since + WINDOW_SECONDS
    edited(world, **overflow(window=length))
    world.run(2)
    assert (window(world).since, window(world).until) == (since, since + seconds)


@pytest.mark.parametrize("unseen", [True, False])
def test_a_rung_that_is_not_applied_is_given_up_only_where_every_pod_is_seen(unseen: bool) -> None:
    """One pod overflows and is unresponsive; of the other nothing is known while it is unobservable."""
    world = promoted(**QUICK)
    world.scale("hot-0", 2)
    world.run(4)
    world.unresponsive, world.bad = {"hot-0"}, {"hot-0": MILD}
    until(world, lambda w: w.state.mitigations, seconds=15.0, passes=10)
    other = world.workloads["hot-0"].pods[1]
    world.unobservable = {other.name} if unseen else set()
    world.run(4)
    assert window(world).rung is (Rung.HALVE_SCALE if unseen else Rung.GROWTH_INTERVAL)
    assert window(world).found == (() if unseen else ("HalveScale: NotAcknowledged",))


@pytest.mark.parametrize("fields", [{"rung": "Pray"}, {"rungSince": None}, {"rungSince": None, "acknowledgedAt": None}])
def test_a_rung_of_which_not_all_is_known_is_waited_out(fields: dict[str, object]) -> None:
    """What another version of the operator tries has its window; nothing is tried on top of it, and nothing fails."""
    world = tried()
    damaged(world, **fields)
    before = window(world)
    world.run(3)
    assert (window(world).rung, window(world).found) == (before.rung, ())
    until(world, lambda w: w.state.held, seconds=15.0, passes=30)
    assert before.until <= world.now - 15.0 < before.until + 15.0


@pytest.mark.parametrize(("name", "signal"), [("hot-0", MILD), ("literal", SLOW)])
def test_new_pods_of_a_workload_change_nothing_of_its_window(name: str, signal: dict[Signal, float]) -> None:
    """Its manifest is applied again, or its node is drained: the new pods start in the mode that is assigned."""
    world = breached(name, values=signal)
    before = window(world, name)
    world.templates[name] = Mode.FP32
    world.replace_pods(name)
    world.run(2)
    assert name in world.really_in(Mode.FP16)
    assert (window(world, name).since, window(world, name).until, window(world, name).open) == (
        before.since,
        before.until,
        True,
    )


def test_the_windows_of_workloads_that_are_gone_are_forgotten() -> None:
    world = breached(cured_by=Rung.HALVE_SCALE)
    until(world, lambda w: window(w).result is MitigationResult.MITIGATED, seconds=15.0, passes=20)
    world.drop("hot-0")
    world.run(2)
    assert world.state.mitigations == ()


def test_an_open_window_of_a_workload_that_nothing_moves_any_more_is_forgotten() -> None:
    world = breached()
    change(world, "hot-0", hot=False, literal=False)
    world.run(1)
    assert world.state.mitigations == ()


def test_what_there_is_no_room_to_remember_is_rolled_back_without_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    both = breached("hot-0", "hot-1").state.mitigations
    limit = sum(mitigation_bytes(m) + ladder.GROWTH_BYTES for m in both)
    monkeypatch.setattr(ladder, "MITIGATIONS_BYTES", limit)
    assert breached("hot-0", "hot-1").state.mitigations == both
    monkeypatch.setattr(ladder, "MITIGATIONS_BYTES", limit - 1)
    world = breached("hot-0", "hot-1")
    assert [m.name for m in world.state.mitigations] == ["hot-0"]
    until(world, lambda w: w.state.held, seconds=15.0, passes=10)
    assert (held_names(world), window(world).open) == ({"hot-1"}, True)


def test_what_is_tried_on_several_is_told_of_once_with_the_end_of_the_first_window() -> None:
    world = breached("hot-0", "hot-1")
    until(world, lambda w: all(m.acknowledged_at for m in w.state.mitigations), seconds=15.0, passes=3)
    world.now += 200.0
    ends = {"hot-0": world.now + 400.0, "hot-1": world.now + 300.0}
    windows = tuple(replace(m, until=round(ends[m.name], 3)) for m in world.state.mitigations)
    world.state = replace(world.state, mitigations=windows)
    (said,) = (action.message for action in world.step().actions if isinstance(action, Notify))
    assert said.startswith("GrowthInterval in hot-0, hot-1: ")
    assert f" stands at {format_time(ends['hot-1'])} is" in said


def one(name: str, result: MitigationResult) -> Mitigation:
    return Mitigation(key(name), Signal.OVERFLOW, since=0.0, until=9.0, rung=Rung.BF16, result=result)


@pytest.mark.parametrize("names", [None, ("open", "helped"), ("helped",)])
def test_a_rollback_fails_what_was_open_of_its_workloads_and_remembers_what_helped(
    names: tuple[str, ...] | None,
) -> None:
    state = State(
        mitigations=(
            one("failed", MitigationResult.FAILED),
            one("helped", MitigationResult.MITIGATED),
            one("open", MitigationResult.OPEN),
        )
    )
    left = MitigationResult.OPEN if names == ("helped",) else MitigationResult.FAILED
    assert [m.result for m in ended(state, None if names is None else frozenset(keys(*names)))] == [
        MitigationResult.FAILED,
        MitigationResult.MITIGATED,
        left,
    ]


def test_what_helped_one_workload_is_still_known_to_have_helped_after_the_fleet_was_rolled_back() -> None:
    world = breached(cured_by=Rung.HALVE_SCALE)
    until(world, lambda w: window(w).result is MitigationResult.MITIGATED, seconds=15.0, passes=20)
    answer(world, "abort")
    world.run(3, 1.0)
    assert world.state.phase in ROLLED_BACK
    assert window(world).result is MitigationResult.MITIGATED


@pytest.mark.parametrize(
    ("fields", "after", "remembered"),
    [
        ({}, -0.001, True),
        ({}, 0.0, False),
        ({"result": MitigationResult.FAILED}, 0.0, True),
        ({"rung": Rung.BF16}, 0.0, True),
        ({"good_since": None}, 0.0, True),
    ],
)
def test_what_helped_is_remembered_until_the_workload_has_proved_itself_and_bf16_or_a_failure_for_good(
    fields: dict[str, object], after: float, remembered: bool
) -> None:
    world = breached(cured_by=Rung.HALVE_SCALE)
    until(world, lambda w: window(w).result is MitigationResult.MITIGATED, seconds=15.0, passes=20)
    good_since = window(world).good_since
    assert good_since is not None
    world.state = replace(world.state, mitigations=(replace(window(world), **fields),))  # type: ignore[arg-type]
    world.now = round(good_since + world.policy.spec.reenable.stable_seconds + after, 3)
    world.step()
    assert bool(world.state.mitigations) is remembered


@pytest.mark.parametrize(("name", "values", "dwell"), [("hot-0", MILD, 90.0), ("literal", SLOW, 60.0)])
def test_a_window_ends_well_once_its_signal_was_good_without_a_gap(
    name: str, values: dict[Signal, float], dwell: float
) -> None:
    """Overflow for the policy's dwell; speed for one window of the metrics, which then shows nothing of the slow time."""
    world = breached(name, values=values, **overflow(dwell="90s"))
    found, world.bad = dict(world.bad), {}
    world.step(dwell - 15.0)
    world.bad = found
    world.step()
    assert window(world, name).good_since is None, "a relapse: what was good before counts no more"
    world.bad = {}
    world.step(dwell - 1.0)
    world.step(1.0)
    assert window(world, name).open
    world.step()
    assert window(world, name).result is MitigationResult.MITIGATED


@pytest.mark.parametrize(("dwell", "metrics", "chance"), [("60s", "120s", 120.0), ("120s", "60s", 120.0)])
def test_a_rung_that_is_applied_has_the_longer_of_the_dwell_and_the_metrics_window_to_show_it(
    dwell: str, metrics: str, chance: float
) -> None:
    world = breached(**{**overflow(dwell=dwell), "evaluation": {**EVALUATION, "window": metrics}})
    until(world, lambda w: window(w).acknowledged_at, seconds=15.0, passes=3)
    applied = window(world).acknowledged_at
    assert applied is not None
    for seconds, rung in ((chance - 1.0, Rung.HALVE_SCALE), (chance, Rung.GROWTH_INTERVAL)):
        world.now = applied + seconds
        world.step()
        assert window(world).rung is rung


def test_a_trainer_has_its_whole_timeout_to_apply_a_rung() -> None:
    world = promoted(**QUICK)
    world.unresponsive, world.bad = {"hot-0"}, {"hot-0": MILD}
    until(world, lambda w: w.state.mitigations, seconds=15.0, passes=10)
    since, timeout = window(world).rung_since, world.policy.spec.rollback.ack_timeout_seconds
    assert since is not None
    for seconds, rung in ((timeout, Rung.HALVE_SCALE), (timeout + 0.001, Rung.GROWTH_INTERVAL)):
        world.now = since + seconds
        world.step()
        assert window(world).rung is rung


@pytest.mark.parametrize(
    ("replicas", "pods", "kept"), [(0, False, False), (0, True, True), (1, False, True), (1, True, True)]
)
def test_a_window_ends_with_the_last_pod_of_what_was_scaled_to_zero(replicas: int, pods: bool, kept: bool) -> None:
    """Between two pods nothing is applied and nothing is over: what is asked for is asked of the pod that comes."""
    world = breached()
    world.unresponsive = {"hot-0"}
    found = world.workloads["hot-0"].pods if pods else ()
    change(world, "hot-0", replicas=replicas, pods=found)
    before = replace(window(world), acknowledged_at=None)
    world.state = replace(world.state, mitigations=(before,))
    world.step()
    assert [m.since for m in world.state.mitigations] == ([before.since] if kept else [])
    if kept and not pods:
        assert window(world).acknowledged_at is None


def test_a_pod_that_was_not_asked_yet_has_not_applied_what_is_tried() -> None:
    world = breached()
    world.unresponsive = {"hot-0"}
    pods = tuple(replace(pod, request=None) for pod in world.workloads["hot-0"].pods)
    change(world, "hot-0", pods=pods)
    world.state = replace(world.state, mitigations=(replace(window(world), acknowledged_at=None),))
    world.step()
    assert window(world).acknowledged_at is None


def test_an_investigation_asks_for_nothing_so_that_nothing_of_it_is_acknowledged() -> None:
    world = breached(values=SLOW)
    world.run(4)
    assert (window(world).rung, window(world).acknowledged_at, window(world).open) == (None, None, True)


def test_who_is_slow_again_after_an_investigation_gets_no_second_one() -> None:
    world = breached("literal", values=SLOW)
    world.bad = {}
    until(world, lambda w: not window(w, "literal").open, seconds=15.0, passes=10)
    world.bad = {"literal": SLOW}
    until(world, lambda w: w.state.held, seconds=15.0, passes=6)
    assert [h.reason for h in world.state.held] == ["TrainingSlow"]


class Fine(World):
    """A world in which clocks, and the times at which metrics are read, lie between two milliseconds."""

    def observe(self) -> Observation:
        seen = super().observe()
        assert seen.evaluation is not None
        return replace(seen, evaluation=replace(seen.evaluation, at=seen.evaluation.at + 0.00044))

    def decide(self) -> Decision:
        return decide(self.policy, self.state, self.observe(), self.now + 0.00044)


@pytest.mark.parametrize("rule", [QUICK, {"rollback": {"strategies": {"P2": "Canary"}}}])
def test_every_time_in_the_state_is_in_whole_milliseconds(rule: dict[str, object]) -> None:
    """Else it reads otherwise than it was written, and the state would be written again: the world compares them."""
    world = Fine(policy(**{**FAST, **rule}))
    for index in range(4):
        world.add(f"hot-{index}")
    world.run(30)
    assert world.state.phase is Phase.HEALTHY
    world.bad, world.cured_by = dict.fromkeys(world.workloads, MILD), {"hot-0": Rung.HALVE_SCALE}
    world.run(60)
    world.run(30, 120.0)
    world.now -= 1000.0  # the clock is set back
    world.run(2)
    assert world.state.phase is not Phase.HEALTHY


def test_nothing_is_tried_any_more_once_the_target_is_changed() -> None:
    world = breached()
    tried = replace(window(world), acknowledged_at=None)
    world.state = replace(world.state, mitigations=(tried,))
    pods = world.workloads["hot-0"].pods
    change(world, "hot-0", pods=tuple(replace(p, request=Request(tried.generation - 1, Mode.FP16)) for p in pods))
    asked = [a.workload.name for a in world.decide().actions if isinstance(a, RequestPod)]
    assert asked == ["hot-0"]
    respec(world, target=Mode.BF16)
    decision = world.decide()
    assert (decision.state.phase, decision.state.mitigations) == (Phase.PENDING, ())
    assert [action for action in decision.actions if isinstance(action, RequestPod)] == []


def test_nothing_is_remembered_of_what_was_tried_on_a_workload_that_is_gone() -> None:
    world = breached()
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    assert [m.name for m in world.state.mitigations] == ["hot-0"]
    world.drop("hot-0")
    world.run(1)
    assert world.state.mitigations == ()


@pytest.mark.parametrize(("helped", "goes_on"), [(1, True), (2, False)])
def test_a_canary_that_trains_in_bf16_as_a_whole_says_nothing_of_fp16_and_one_member_of_it_does(
    helped: int, goes_on: bool
) -> None:
    world = fleet(strategy={"steps": [{"setWeight": 40}, {"pause": {"duration": "30s"}}, {"setWeight": 100}]})
    world.run(2)
    assert len(world.state.members) == 2
    ended = (world.now, world.now + WINDOW_SECONDS)
    in_bf16 = [
        Mitigation(one, Signal.OVERFLOW, *ended, rung=Rung.BF16, result=MitigationResult.MITIGATED)
        for one in world.state.members[:helped]
    ]
    world.state = replace(world.state, mitigations=tuple(in_bf16))
    world.run(10)
    assert world.state.step_index == int(goes_on)
    assert (world.summary.reason == Reason.COHORT_IN_BF16) is not goes_on
