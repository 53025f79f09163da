"""Mild breaches: what is tried before they are rolled back, for how long, and what ends it early."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.model.policies import FAST, policy
from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.mitigation import MitigationResult, Rung
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase
from precision_operator.core.actions import Notify, RequestPod, Tuning
from precision_operator.core.decide import Decision
from tests.support.fleets import ROLLED_BACK, answer, condition, fleet, member_names, promoted, until
from tests.support.histories import Checked, heal, play
from tests.support.histories import events as histories
from tests.support.mitigations import HOT, MILD, QUICK, RULES, SLOW, WINDOWS, breached, window


def overflow(**settings: object) -> dict[str, Any]:
    """QUICK with other settings of the overflow window."""
    return {**QUICK, "rollback": {**RULES, "mitigation": {**WINDOWS, "overflow": {**WINDOWS["overflow"], **settings}}}}


def waits_for(world: World) -> str:
    return condition(world, "Progressing").reason


def tried(world: World, name: str = "hot-0") -> list[str]:
    return [what for who, what in world.log if who == name and what in tuple(Rung)]


def reasons(world: World, *, passes: int) -> list[str]:
    """The reasons of the Events of so many passes."""
    return [a.reason for _ in range(passes) for a in world.step().actions if isinstance(a, Notify)]


def test_halving_the_loss_scale_that_helps_ends_the_window_without_a_rollback() -> None:
    world = breached(cured_by=Rung.HALVE_SCALE)
    assert (world.state.phase, waits_for(world)) == (Phase.HEALTHY, "Mitigating")
    assert "Mitigated" in reasons(world, passes=10)
    assert (window(world).result, window(world).rung) == (MitigationResult.MITIGATED, Rung.HALVE_SCALE)
    assert world.state.phase is Phase.HEALTHY
    assert world.state.incident is None
    assert world.really_in(Mode.FP16) == {*HOT, "literal"}
    assert not world.restarts.get("hot-0")


def test_each_rung_is_one_request_of_one_generation_and_waiting_costs_no_write() -> None:
    world = breached("hot-0", "hot-1")
    requests = [a for a in world.step().actions if isinstance(a, RequestPod)]
    assert not requests, "asked in the pass that opened the window"
    assert tried(world) == tried(world, "hot-1") == [Rung.HALVE_SCALE]
    assert {m.generation for m in world.state.mitigations} == {world.state.generation}
    until(world, lambda w: window(w).acknowledged_at, seconds=15.0, passes=3)
    world.step()
    before = (world.writes, world.commits)
    world.run(2)
    assert (world.writes, world.commits) == before


def test_the_ladder_is_climbed_to_bf16_which_stays_and_is_made_to_last() -> None:
    world = breached(cured_by=Rung.BF16)
    until(world, lambda w: window(w).result is MitigationResult.MITIGATED, seconds=15.0, passes=40)
    assert tried(world) == [Rung.HALVE_SCALE, Rung.GROWTH_INTERVAL]
    assert window(world).found == ("HalveScale: 0.25", "GrowthInterval: 0.25")
    world.run(10)
    assert world.really_in(Mode.BF16) == {"hot-0"}
    assert world.state.assigned("apps/Deployment/hot-0") is Mode.BF16
    assert (world.state.phase, world.summary.moved) == (Phase.HEALTHY, 6)
    assert set(world.restarts) == {"literal"}
    before = (world.writes, world.commits)
    world.run(30)
    assert (world.writes, world.commits) == before


def test_a_retry_gives_what_stayed_in_bf16_another_attempt() -> None:
    world = breached(cured_by=Rung.BF16)
    until(world, lambda w: window(w).result is MitigationResult.MITIGATED, seconds=15.0, passes=40)
    world.bad = {}
    answer(world, "retry")
    world.run(10)
    assert len(world.really_in(Mode.FP16)) == 6


def test_what_nothing_helps_against_is_rolled_back_gradually_with_a_deadline_from_the_windows_end() -> None:
    world = breached("hot-0", "hot-1", "hot-2")
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0, passes=60)
    incident = world.state.incident
    assert incident is not None
    assert (incident.severity, incident.strategy) == (Severity.P2, Strategy.GRADUAL)
    assert "HalveScale: 0.25, GrowthInterval: 0.25, BF16: 0.25" in incident.message
    assert incident.detected_at == max(m.until for m in world.state.mitigations)
    assert incident.deadline_at - incident.detected_at == world.policy.spec.rollback.deadlines_seconds[Severity.P2]
    assert {m.result for m in world.state.mitigations} == {MitigationResult.FAILED}
    until(world, lambda w: w.state.phase is Phase.HELD, seconds=15.0)
    assert not world.really_in(Mode.FP16) | world.really_in(Mode.BF16)


def test_one_workload_that_nothing_helps_is_rolled_back_by_itself() -> None:
    world = breached()
    until(world, lambda w: w.state.held, seconds=15.0, passes=60)
    world.run(5)
    assert world.state.phase is Phase.DEGRADED
    assert len(world.really_in(Mode.FP16)) == 5


@pytest.mark.parametrize("worse", [OVERFLOWS, NAN])
def test_a_severe_breach_ends_the_window_at_once(worse: dict[Signal, float]) -> None:
    world = breached("hot-0", "hot-1")
    world.step()
    world.bad = dict.fromkeys(("hot-0", "hot-1"), worse)
    world.run(2, 1.0)
    assert world.state.incident is not None
    assert (world.state.incident.severity < Severity.P2, world.state.incident.strategy) == (True, Strategy.EMERGENCY)
    assert not world.really_in(Mode.FP16) & set(HOT)
    assert {m.result for m in world.state.mitigations} == {MitigationResult.FAILED}


def test_the_window_of_one_workload_does_not_spare_another() -> None:
    world = breached()
    world.bad["hot-1"] = NAN
    world.run(2)
    assert {h.name for h in world.state.held} == {"hot-1"}
    assert window(world).open


def test_a_persons_abort_goes_past_the_window() -> None:
    world = breached()
    answer(world, "abort")
    world.run(2, 1.0)
    assert world.state.phase in ROLLED_BACK


def test_silence_neither_helps_nor_climbs_nor_rolls_back() -> None:
    world = breached()
    world.step()
    world.metrics_away = True
    world.run(100)
    assert (window(world).rung, window(world).result) == (Rung.HALVE_SCALE, MitigationResult.OPEN)
    assert (world.state.phase, waits_for(world)) == (Phase.HEALTHY, "MitigationExhausted")
    world.metrics_away = False
    world.run(3)
    assert {h.name for h in world.state.held} == {"hot-0"}


def test_good_evidence_counts_only_while_this_process_has_watched_it() -> None:
    world = breached(cured_by=Rung.HALVE_SCALE)
    until(world, lambda w: window(w).good_since, seconds=15.0, passes=5)
    world.now += 600.0
    world.continuous_since = world.now
    world.step()
    assert window(world).open
    world.run(5)
    assert window(world).result is MitigationResult.MITIGATED


def test_a_rung_outranks_what_the_fleet_has_come_to_though_its_pods_were_asked_long_ago() -> None:
    world = promoted(**QUICK)
    world.bad["hot-3"] = NAN
    world.run(10)  # held by itself, under a generation of its own
    world.bad = {"hot-0": MILD}
    until(world, lambda w: any(m.acknowledged_at for m in w.state.mitigations), seconds=15.0, passes=10)
    assert window(world).generation == world.state.generation > 2


def test_a_rung_is_applied_when_every_pod_says_so() -> None:
    world = promoted(**QUICK)
    world.add("pair", pods=2)
    world.run(10)
    world.bad, world.unresponsive = {"pair": MILD}, {"pair"}
    until(world, lambda w: w.state.mitigations, seconds=15.0, passes=10)
    for number, pod in enumerate(world.workloads["pair"].pods, start=1):
        assert window(world, "pair").acknowledged_at is None
        world.modes[pod.name] = (Mode.FP16, window(world, "pair").generation)
        world.step()
        assert (window(world, "pair").acknowledged_at is None) is (number == 1)


def test_the_rollback_of_one_workload_ends_its_own_window_and_no_other() -> None:
    world = breached("hot-0", "hot-1")
    world.bad["hot-0"] = NAN
    until(world, lambda w: w.state.held, seconds=15.0, passes=3)
    assert (window(world).result, window(world, "hot-1").result) == (MitigationResult.FAILED, MitigationResult.OPEN)


def test_a_rung_that_is_not_taken_is_passed_over_and_silence_is_not_that() -> None:
    world = promoted(**QUICK)
    world.bad, world.unresponsive = {"hot-0": MILD}, {"hot-0"}
    until(world, lambda w: w.state.mitigations, seconds=15.0, passes=10)
    world.unobservable = {"hot-0"}
    world.run(10)
    assert window(world).rung is Rung.HALVE_SCALE
    world.unobservable = set()
    until(world, lambda w: window(w).rung is Rung.GROWTH_INTERVAL, seconds=15.0, passes=5)
    assert window(world).found == ("HalveScale: NotAcknowledged",)


def test_a_crash_between_commit_and_patch_loses_no_rung() -> None:
    world = promoted(**QUICK)
    world.bad = {"hot-0": MILD}
    while not world.state.mitigations:
        decision = world.decide()
        world.commit(decision)
        world.now += 15.0
    assert not tried(world)
    asked = window(world).generation
    world.run(2)
    assert tried(world) == [Rung.HALVE_SCALE]
    assert window(world).generation == asked
    assert window(world).acknowledged_at is not None


def test_a_pod_that_comes_later_is_not_tuned_again() -> None:
    world = breached()
    until(world, lambda w: window(w).acknowledged_at, seconds=15.0, passes=3)
    world.replace_pods("hot-0")
    world.run(2)
    assert tried(world) == [Rung.HALVE_SCALE]


def test_slow_training_may_be_investigated_and_is_then_rolled_back_gradually() -> None:
    world = breached("hot-0", "hot-1", values=SLOW)
    opened = world.now
    assert waits_for(world) == "Investigating"
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0, passes=40)
    assert world.now - opened >= 270.0
    incident = world.state.incident
    assert incident is not None
    assert (incident.strategy, incident.reason) == (Strategy.GRADUAL, "TrainingSlow")
    assert incident.detected_at >= opened + 270.0


def test_slow_training_that_recovers_is_not_rolled_back() -> None:
    world = breached("hot-0", "literal", values=SLOW)
    world.bad = {}
    world.run(8)
    assert {(m.name, m.result) for m in world.state.mitigations} == {
        ("hot-0", MitigationResult.MITIGATED),
        ("literal", MitigationResult.MITIGATED),
    }
    assert world.state.phase is Phase.HEALTHY


def test_overflow_of_a_workload_that_takes_no_request_has_no_window() -> None:
    world = promoted(**QUICK)
    world.bad = {"literal": MILD}
    until(world, lambda w: w.state.held, seconds=15.0, passes=6)
    assert not world.state.mitigations


def test_nothing_is_promoted_while_a_window_is_open() -> None:
    steps = {"steps": [{"setWeight": 40}, {"pause": {"duration": "30s"}}, {"setWeight": 100}]}
    world = fleet(**QUICK, strategy=steps)
    until(world, lambda w: w.really_in(Mode.FP16) & set(HOT), seconds=15.0)
    name = min(world.really_in(Mode.FP16) & set(HOT))
    world.bad, world.cured_by = {name: MILD}, {name: Rung.HALVE_SCALE}
    until(world, lambda w: w.state.mitigations, seconds=15.0, passes=20)
    while window(world, name).open:
        assert (world.state.step_index, waits_for(world)) == (0, "Mitigating")
        world.step()
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)


def test_another_attempt_has_no_window() -> None:
    world = fleet(**QUICK)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=15.0)
    world.state = replace(world.state, attempts=1)
    world.run(2)
    world.bad = dict.fromkeys(HOT, MILD)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0, passes=6)


@pytest.mark.parametrize("off", [{"window": "0s"}, {"ladder": []}])
def test_without_a_window_or_anything_to_try_it_is_rolled_back_at_once(off: dict[str, object]) -> None:
    world = promoted(**overflow(**off))
    world.bad = dict.fromkeys(HOT, MILD)
    until(world, lambda w: w.state.phase is Phase.ROLLING_BACK, seconds=15.0, passes=6)


def test_past_the_window_a_little_overflow_is_said_and_more_is_rolled_back() -> None:
    world = breached(values={Signal.OVERFLOW: 0.15}, **overflow(ladder=["HalveScale"]))
    world.run(60)
    assert (world.state.phase, waits_for(world)) == (Phase.HEALTHY, "MitigationExhausted")
    before = (world.writes, world.commits)
    world.run(10)
    assert (world.writes, world.commits) == before
    world.bad = {"hot-0": MILD}
    world.run(2)
    assert {h.name for h in world.state.held} == {"hot-0"}


def test_what_comes_back_goes_on_from_the_next_rung() -> None:
    world = breached(cured_by=Rung.HALVE_SCALE)
    until(world, lambda w: window(w).result is MitigationResult.MITIGATED, seconds=15.0, passes=15)
    world.bad = {"hot-0": MILD}
    until(world, lambda w: window(w).open, seconds=15.0, passes=10)
    assert (window(world).rung, window(world).found) == (Rung.GROWTH_INTERVAL, ("HalveScale: Mitigated",))


def test_what_helped_is_forgotten_once_the_workload_has_proved_itself() -> None:
    world = breached(cured_by=Rung.HALVE_SCALE, reenable={"prerequisites": [], "stable": "1h"})
    until(world, lambda w: window(w).result is MitigationResult.MITIGATED, seconds=15.0, passes=15)
    good_since = window(world).good_since
    assert good_since is not None
    world.now = good_since + 3600.0 - 16.0
    world.run(2)
    assert world.state.mitigations
    world.step()
    assert world.state.mitigations == ()


def test_bf16_is_no_rung_where_it_is_the_fallback() -> None:
    world = breached(fallback="bf16")
    until(world, lambda w: w.state.held, seconds=15.0, passes=60)
    assert window(world).found == ("HalveScale: 0.25", "GrowthInterval: 0.25")
    world.run(3)
    assert world.state.assigned("apps/Deployment/hot-0") is Mode.BF16


def test_a_workload_that_is_deleted_takes_its_window_with_it() -> None:
    world = breached()
    world.drop("hot-0")
    world.run(2)
    assert world.state.mitigations == ()
    assert waits_for(world) == "Promoted"


def test_the_second_rung_asks_for_a_growth_interval_and_nothing_else() -> None:
    world = breached()
    asked = []
    for _ in range(10):
        asked += [a.tuning for a in world.step().actions if isinstance(a, RequestPod)]
    assert asked == [Tuning(growth_interval=4000), None]


def test_an_edit_may_end_an_open_window_and_suspend_stops_its_ladder() -> None:
    world = breached()
    world.policy = replace(world.policy, spec=replace(world.policy.spec, suspend=True))
    world.run(40)
    assert tried(world) == [Rung.HALVE_SCALE]
    rollback = world.policy.spec.rollback
    off = replace(rollback, mitigation=replace(rollback.mitigation, overflow_window_seconds=0.0))
    world.policy = replace(world.policy, spec=replace(world.policy.spec, suspend=False, rollback=off))
    world.run(2)
    assert {h.name for h in world.state.held} == {"hot-0"}


def test_another_target_ends_every_window() -> None:
    world = breached()
    world.policy = replace(world.policy, spec=replace(world.policy.spec, target=Mode.BF16))
    world.bad = {}
    world.step()
    assert (world.state.phase, world.state.mitigations) == (Phase.PENDING, ())
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    assert len(world.really_in(Mode.BF16)) == 6


def test_a_cohort_that_only_bf16_could_help_promotes_nothing() -> None:
    steps = {"steps": [{"setWeight": 20}, {"pause": {"duration": "30s"}}, {"setWeight": 100}]}
    world = fleet(**QUICK, strategy=steps)
    until(world, lambda w: w.state.members, seconds=15.0)
    (name,) = member_names(world)
    world.bad, world.cured_by = {name: MILD}, {name: Rung.BF16}
    world.run(60)
    assert (world.really_in(Mode.BF16), len(world.state.members)) == ({name}, 1)
    assert (world.state.phase, waits_for(world)) == (Phase.PROGRESSING, "CohortInBF16")


class Windowed(Checked):
    """A world that checks what every decision makes of the windows."""

    def decide(self) -> Decision:
        before, decision = self.state, super().decide()
        after, known = decision.state, {(m.key, m.signal, m.since): m for m in before.mitigations}
        held = {h.key for h in after.held}
        for found in after.mitigations:
            old = known.get((found.key, found.signal, found.since))
            if old is not None and old.rung is not found.rung:
                assert list(Rung).index(found.rung or Rung.BF16) > list(Rung).index(old.rung or Rung.HALVE_SCALE)
                assert found.generation > old.generation
            assert old is None or found.until <= old.until, "a window grew"
            if found.open:
                assert after.phase not in ROLLED_BACK
                assert found.key not in held
            if old is not None and not old.open:
                assert found == old, "a window that had ended changed"
            if found.result is MitigationResult.MITIGATED and (old is None or old.open):
                assert not self.metrics_away, "mitigated without data"
                assert found.name not in self.unobservable, "mitigated without data"
                lifted = found.rung is Rung.BF16 and self.cured_by.get(found.name) is Rung.BF16
                assert lifted or found.signal not in self.bad.get(found.name, {}), "mitigated with a breach"
            over = found.open and self.now >= found.until and found.name in self.bad and not self.metrics_away
            if over and found.name not in self.unobservable and (found.signal is not Signal.OVERFLOW):
                assert self.bad[found.name].get(Signal.SPEED, 1.0) >= 0.8, "a window that is over spares a breach"
        tuned = [a for a in decision.actions if isinstance(a, RequestPod) and a.tuning is not None]
        assert all(a.mode is Mode.FP16 and a.generation >= after.generation for a in tuned)
        return decision


HAPPENINGS = st.one_of(
    *[st.tuples(st.just("pass"), st.just(31.0))] * 8,
    st.tuples(st.just("mild"), st.sampled_from(HOT), st.sampled_from([MILD, SLOW])),
    st.tuples(st.just("cure"), st.sampled_from(HOT), st.sampled_from(list(Rung))),
    histories,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(HAPPENINGS, min_size=15, max_size=50))
def test_windows_keep_their_promises_whatever_happens_and_come_to_rest(history: list[tuple[object, ...]]) -> None:
    world = Windowed(policy(**{**FAST, **QUICK}))
    for name in (*HOT, "literal"):
        world.add(name, hot=name != "literal")
    world.run(30)
    world.bad, world.breached = {"hot-0": MILD, "hot-1": SLOW}, {"hot-0", "hot-1"}
    world.run(4)
    assert len(world.state.mitigations) == 2
    for event, *args in history:
        match event, args:
            case "mild", [str(name), dict(values)]:
                world.bad[name] = dict(values)
                world.breached.add(name)
            case "cure", [str(name), Rung() as rung]:
                world.cured_by[name] = rung
            case _:
                play(world, [(event, *args)])
    heal(world)
    world.run(120)
    assert not [m for m in world.state.mitigations if m.open]
    before = (world.writes, world.commits)
    world.run(10)
    assert (world.writes, world.commits) == before
