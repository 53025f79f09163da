"""A rollback from its decision to its end: what is dated, who is waited for, when it is hurried, what it leaves."""

from dataclasses import replace

from lab.model.world import OVERFLOWS, World
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase, State
from precision_operator.contract import RETRY
from precision_operator.core.actions import DeletePod, Notify, RequestPod
from precision_operator.core.decide import decide
from precision_operator.core.derive import derive_facts
from precision_operator.core.progress import live_pods
from tests.support.fleets import answer, fleet, member_names, promoted, until
from tests.support.views import key, keys


def incident(world: World) -> Incident:
    assert world.state.incident is not None
    return world.state.incident


def broken(**spec: object) -> World:
    """A promoted fleet in the pass in which its rollback is decided; its trainers have not taken the request yet."""
    world = promoted(**spec)
    world.unresponsive = set(world.workloads)
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-3")}
    world.step(1.0)
    assert world.state.phase is Phase.ROLLING_BACK
    return world


def events(world: World, seconds: float) -> list[str]:
    return [action.reason for action in world.step(seconds).actions if isinstance(action, Notify)]


def test_an_incident_says_what_was_decided_when_and_until_when() -> None:
    world = broken()
    found = incident(world)
    began = world.now - 1.0
    assert (found.severity, found.scope, found.reason) == (Severity.P0, Scope.FLEET, "LossNotFinite")
    assert found.workloads == ("hot-1", "hot-3")
    assert (found.detected_at, found.decided_at, found.deadline_at) == (began, began, began + 300.0)
    assert found.id == f"fleet-{world.state.transition_id}"
    assert (found.last_patch_at, found.last_ack_at, found.escalated) == (None, None, False)
    assert (world.state.canary, world.state.comparison) == ((), None)


def test_stages_are_dated_when_they_happen_and_not_again() -> None:
    world = broken()
    world.step(1.0)
    patched = incident(world).last_patch_at
    assert patched == world.now - 1.0
    world.step(1.0)
    assert (incident(world).last_patch_at, incident(world).last_ack_at) == (patched, None)
    world.unresponsive = set()
    world.step(1.0)  # the request stands: they take it now
    world.step(1.0)
    assert world.state.phase is Phase.HELD
    acknowledged = incident(world).last_ack_at
    assert acknowledged == world.now - 1.0
    world.run(10, 1.0)
    done = incident(world)
    assert (done.last_patch_at, done.last_ack_at) == (patched, acknowledged)


def test_what_was_good_for_the_next_step_is_no_evidence_once_the_cohort_goes_back() -> None:
    world = fleet()
    until(world, lambda w: w.state.evidence_since is not None)
    answer(world, "rollback")
    world.step()
    assert (world.state.phase, world.state.evidence_since) == (Phase.ROLLING_BACK, None)


def test_nobody_is_restarted_before_the_timeout_and_the_unresponsive_ones_once_after_it() -> None:
    world = broken()
    assert world.restarts == {"literal": 2}, "once for each change of its mode"
    world.run(3, 29.0)
    assert (world.restarts, incident(world).escalated) == ({"literal": 2}, False)
    world.step(4.0)
    assert not incident(world).escalated
    assert events(world, 1.0) == ["RollbackEscalated"]
    assert incident(world).escalated
    assert events(world, 1.0) == []
    assert events(world, 1.0) == ["RolledBack"]
    world.run(5, 1.0)
    assert world.restarts == {**{f"hot-{index}": 1 for index in range(5)}, "literal": 2}
    assert world.state.phase is Phase.HELD


def test_past_its_deadline_it_says_so_and_goes_on() -> None:
    world = broken()
    world.unobservable = set(world.workloads)
    world.run(10, 29.0)
    assert world.state.reason == "LossNotFinite"
    world.run(2, 29.0)
    assert (world.state.phase, world.state.reason) == (Phase.ROLLING_BACK, "DeadlineExceeded")


def test_silence_of_prometheus_restarts_nobody_until_the_deadline() -> None:
    world = broken()
    world.metrics_away = True
    world.run(9, 29.0)
    assert not incident(world).escalated
    assert {name for name in world.restarts if name.startswith("hot")} == set()
    world.run(3, 29.0)
    assert incident(world).escalated


def test_a_cohort_is_rolled_back_without_touching_the_rest() -> None:
    world = fleet()
    while world.state.step_index < 1 or world.really_in(Mode.FP16) < member_names(world):
        world.step()
    members = member_names(world)
    world.bad = dict.fromkeys(sorted(members)[:1], OVERFLOWS)
    before = len(world.log)
    world.step(1.0)
    assert incident(world).scope is Scope.COHORT
    world.run(10, 1.0)
    assert world.state.phase is Phase.HELD
    assert {name for name, _ in world.log[before:]} == members


def test_a_held_workload_joins_again_when_a_person_retries_and_its_window_is_clear() -> None:
    world = promoted()
    world.bad["hot-2"] = OVERFLOWS
    world.run(3, 1.0)
    world.bad = {}
    world.policy = replace(world.policy, annotations={RETRY: str(world.state.transition_id)})
    world.run(5, 1.0)
    assert [h.name for h in world.state.held] == ["hot-2"]
    world.run(30, 30.0)
    assert (world.state.phase, world.state.held) == (Phase.HEALTHY, ())
    assert "hot-2" in world.really_in(Mode.FP16)


def test_in_an_emergency_running_pods_are_asked_and_the_others_taken_away_in_the_pass_that_decides_it() -> None:
    world = promoted()
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-3")}
    decision = world.decide()
    asked = {action.workload.name for action in decision.actions if isinstance(action, RequestPod)}
    assert asked == {f"hot-{index}" for index in range(5)}
    assert [a.workload.name for a in decision.actions if isinstance(a, DeletePod)] == ["literal"]
    assert (decision.state.modes, decision.state.enforce) == ({}, True)
    assert (decision.state.precision, decision.state.fallback) == (Mode.FP32, Mode.FP32)


def test_a_rollback_to_bf16_asks_for_bf16_and_leaves_what_is_safer() -> None:
    world = promoted(fallback="bf16")
    world.bypassed = True
    world.add("safe")
    world.bypassed = False
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-3")}
    world.run(1, 1.0)
    assert {what for who, what in world.log if who == "hot-0"} == {"request fp16 2", "request bf16 4"}
    world.bad = {}
    world.run(12, 1.0)
    assert world.state.phase is Phase.HELD
    assert "safe" in world.really_in(Mode.FP32)
    assert world.state.assigned(key("hot-0")) is Mode.BF16


def test_a_breach_that_ends_in_a_rollback_costs_no_write_and_one_that_begins_is_recorded() -> None:
    world = broken()
    world.run(2, 1.0)
    commits = world.commits
    ended = world.bad.pop("hot-1")
    world.step(1.0)
    assert world.commits == commits
    world.bad["hot-2"] = ended
    world.step(1.0)
    assert {failing.name for failing in world.state.failing} >= {"hot-2", "hot-3"}


def test_workloads_that_were_rolled_back_are_no_evidence_that_the_rest_is_not_the_precisions_fault() -> None:
    world = promoted(rollback={"fleetShare": 0.6, "fleetMinimum": 2})
    world.poisoned = {"hot-0", "hot-1"}
    world.run(4, 1.0)
    assert {h.name for h in world.state.held} == {"hot-0", "hot-1"}
    world.poisoned |= {"hot-2", "hot-3"}
    world.step(1.0)
    assert (world.state.phase, world.state.reason) == (Phase.ROLLING_BACK, "LossNotFinite")


def test_a_gradual_rollback_is_hurried_three_timeouts_before_its_deadline_and_not_sooner() -> None:
    world = promoted(rollback={"gradual": {"sustain": "0s"}, "mitigation": {"speed": {"window": "0s"}}})
    world.unresponsive = set(world.workloads)
    world.bad = {name: {Signal.SPEED: 0.5} for name in ("hot-1", "hot-3")}
    world.step(1.0)
    found, timeout = incident(world), world.policy.spec.rollback.ack_timeout_seconds
    world.now = found.deadline_at - 3 * timeout - 1.0
    world.step(1.0)
    assert len(asked_for_fp32(world)) < 6
    world.step(1.0)
    assert len(asked_for_fp32(world)) == 6


def asked_for_fp32(world: World) -> set[str]:
    """Workloads whose pods, if not their processes, are in the fallback."""
    return {w.name for w in world.workloads.values() if all(pod.effective_mode is Mode.FP32 for pod in live_pods(w))}


def test_an_emergency_whose_writes_were_lost_has_no_batches_though_the_clock_was_set_back() -> None:
    world = promoted()
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-3")}
    world.commit(world.decide())
    world.now -= 100.0
    world.step(1.0)
    assert len(asked_for_fp32(world)) == 6


def test_acknowledgements_are_looked_for_every_five_seconds_however_long_the_interval_is() -> None:
    world = broken()
    assert world.decide().wake_at - world.now == 5.0
    world.unresponsive = set()
    world.run(20, 5.0)
    assert (world.state.phase, world.decide().wake_at - world.now) == (Phase.HELD, 60.0)


def test_a_graver_breach_brings_its_deadline_though_the_answer_is_an_emergency_already() -> None:
    world = promoted()
    world.unresponsive = set(world.workloads)
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.step(1.0)
    began = world.now
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-4")}
    world.step(15.0)
    world.step(1.0)
    assert (incident(world).severity, incident(world).reason) == (Severity.P0, "LossNotFinite")
    assert incident(world).workloads == ("hot-1", "hot-3", "hot-4")
    assert world.state.breached == keys("hot-1", "hot-3", "hot-4")
    assert incident(world).deadline_at <= began + 315.0


def test_only_a_fleet_that_was_guarded_for_long_has_proved_itself() -> None:
    world = promoted(reenable={"prerequisites": [], "stable": "1h"})
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-3")}
    before = replace(world.state, attempts=2, step_since=world.now - 7200.0)
    for phase, attempts in ((Phase.PROGRESSING, 3), (Phase.HEALTHY, 1)):
        world.state = replace(before, phase=phase)
        assert world.decide().state.attempts == attempts
    world.state = replace(before, phase=Phase.HEALTHY, step_since=world.now - 3599.0)
    assert world.decide().state.attempts == 3


def test_another_attempt_tolerates_no_breach_until_it_is_guarded() -> None:
    world = promoted(evaluation={"interval": "15s", "failureLimit": 3, "minSamples": 1})
    for phase, limit in ((Phase.PROGRESSING, 0), (Phase.PAUSED, 0), (Phase.HEALTHY, 3)):
        state = replace(world.state, attempts=1, phase=phase)
        assert derive_facts(world.policy, state, world.observe(), world.now).attempt.failure_limit == limit


def test_nothing_begins_before_the_metrics_have_been_read() -> None:
    world = fleet()
    decision = decide(world.policy, State(), replace(world.observe(), evaluation=None), world.now)
    assert (decision.state.phase, decision.summary.reason) == (Phase.PENDING, "AwaitingEvaluation")


def test_a_gradual_rollback_asks_for_a_share_of_the_fleet_at_a_time() -> None:
    rules = {"gradual": {"sustain": "0s", "batchShare": 0.5}, "mitigation": {"speed": {"window": "0s"}}}
    world = promoted(rollback=rules)
    world.unresponsive = set(world.workloads)
    world.bad = {name: {Signal.SPEED: 0.5} for name in ("hot-1", "hot-3")}
    world.step(1.0)
    assert asked_for_fp32(world) == {"hot-0", "hot-1", "hot-3"}


def test_an_escalation_is_one_event_however_long_nobody_acknowledges() -> None:
    world = broken()
    world.unobservable = set(world.workloads)
    said = [reason for _ in range(20) for reason in events(world, 15.0)]
    assert said.count("RollbackEscalated") == 1


def test_a_crash_loop_excuses_from_an_acknowledgement_only_who_was_asked() -> None:
    """What crashes in FP32 trains in nothing; what crashes in FP16 is in FP16 when it recovers."""
    world = promoted()
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-3")}
    world.crash("hot-4")
    world.run(4)
    assert (world.state.phase, world.summary.unacknowledged) == (Phase.ROLLING_BACK, ("hot-4",))
    world.run(8)
    assert world.state.phase is Phase.HELD
    world = promoted()
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-3")}
    world.crash("literal")
    world.bypassed = True  # admission is not certain yet: its pods are not taken away
    world.run(2, 10.0)
    assert world.state.phase is Phase.ROLLING_BACK
    world.bypassed = False
    world.run(12)
    assert (world.state.phase, world.workloads["literal"].pods[0].started_mode) == (Phase.HELD, Mode.FP32)


def test_with_one_that_is_held_already_a_second_breach_is_the_fleets() -> None:
    world = promoted()
    world.bad["hot-2"] = OVERFLOWS
    world.step(1.0)
    (held,) = world.state.held
    assert (held.name, held.reason, held.since) == ("hot-2", "OverflowRateHigh", world.now - 1.0)
    assert incident(world).scope is Scope.WORKLOAD
    world.run(8, 1.0)
    assert incident(world).last_ack_at is not None
    world.bad["hot-4"] = OVERFLOWS
    world.step(1.0)
    assert incident(world).scope is Scope.FLEET
