"""Histories that a review of ``decide`` found to end badly, each with the end that it must have."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase, State
from precision_operator.contract import FINALIZER, MAX_GENERATION
from precision_operator.core.actions import Notify, ReleasePolicy, Restore, SettleStage
from precision_operator.core.model import Observation, Request, SettleIntent, WorkloadView
from precision_operator.core.settle import next_settle
from tests.property.policies import FAST
from tests.property.test_story import fleet, promoted
from tests.property.world import World

DOWN = (Phase.ROLLING_BACK, Phase.HELD)
OVERFLOWS = {Signal.OVERFLOW: 0.6}
NAN = {Signal.NON_FINITE: 3.0}


def deafen(world: World, *names: str) -> None:
    """The trainers of these never apply a request again."""
    train = world.train

    def others(name: str | None = None) -> None:
        for found in [n for n in world.workloads if n not in names and name in (None, n)]:
            train(found)

    world.train = others  # type: ignore[method-assign]


def answer(world: World, command: str) -> None:
    """A person's command to the transition that stands now."""
    annotations = {f"precision.genesis.ai/{command}": str(world.state.transition_id)}
    world.policy = replace(world.policy, annotations=annotations)


def change(world: World, name: str, **fields: object) -> None:
    world.workloads[name] = replace(world.workloads[name], **fields)  # type: ignore[arg-type]


def crash(world: World, name: str) -> None:
    change(world, name, pods=tuple(replace(p, crashing=True, ready=False) for p in world.workloads[name].pods))


def until(world: World, done: Callable[[World], object], *, seconds: float = 1.0, passes: int = 300) -> None:
    for _ in range(passes):
        if done(world):
            return
        world.step(seconds)
    raise AssertionError((world.state.phase, world.state.reason, world.state.message))


def rolled_back() -> World:
    """A promoted fleet in the middle of the settles of its rollback."""
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    until(world, settling)
    return world


def settling(world: World) -> list[str]:
    return [w.name for w in world.workloads.values() if w.settle]


def paused(world: World) -> set[str]:
    return {w.name for w in world.workloads.values() if w.paused}


def test_held_workloads_poisoned_metrics_do_not_excuse_the_rest_of_the_fleet() -> None:
    world = promoted()
    world.bad["hot-2"] = NAN
    world.run(2)
    assert [h.name for h in world.state.held] == ["hot-2"]
    observe = world.observe

    def poisoned() -> Observation:
        seen = observe()
        assert seen.evaluation is not None
        pods = dict(seen.evaluation.pods)
        for pod in world.workloads["hot-2"].pods:
            pods[pod.name] = replace(pods[pod.name], values={**pods[pod.name].values, **NAN})
        return replace(seen, evaluation=replace(seen.evaluation, pods=pods))

    world.observe = poisoned  # type: ignore[method-assign]
    world.run(2)
    world.bad = dict.fromkeys(("hot-0", "hot-1", "hot-3", "hot-4"), NAN)
    world.run(15)
    assert world.state.phase in DOWN


def test_a_pod_that_a_later_generation_took_down_is_asked_under_one_that_outranks_it() -> None:
    world = promoted()
    (pod,) = world.workloads["hot-2"].pods
    change(world, "hot-2", pods=(replace(pod, request=Request(50, Mode.FP32)),))
    world.modes[pod.name] = (Mode.FP32, 50)
    world.step()
    assert (world.modes[pod.name], world.state.generation) == ((Mode.FP16, 51), 51)


def test_what_its_owner_trains_in_fp16_is_not_judged_before_we_have_moved_it() -> None:
    world = fleet(strategy={"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 100}]})
    world.add("theirs", mode=Mode.FP16)
    world.bad["theirs"] = NAN
    world.run(10)
    assert (world.state.phase, world.state.moved, world.state.failing) == (Phase.PAUSED, 1, ())
    assert not world.workloads["theirs"].touched


def test_one_crashing_fp32_workload_does_not_excuse_a_crashing_fleet() -> None:
    world = promoted(strategy={"steps": [{"setWeight": 90}]})
    for name in list(world.workloads):
        crash(world, name)
    world.run(5)
    assert world.state.phase in DOWN


def test_a_deaf_pod_is_restarted_even_where_its_template_says_fp32_already() -> None:
    world = fleet()
    world.run(2, 1.0)
    (canary,) = world.really_in(Mode.FP16)
    deafen(world, canary)
    world.bad[canary] = OVERFLOWS
    world.run(100)
    assert world.state.incident is not None
    assert world.state.incident.escalated
    assert world.restarts.get(canary) == 1
    assert world.state.phase is Phase.HELD


def test_a_pod_that_a_settle_kept_is_restarted_though_its_template_says_fp32_in_the_same_generation() -> None:
    rules = {"deadlines": {"P2": "5m"}, "gradual": {"sustain": "0s"}, "mitigation": {"overflow": {"window": "0s"}}}
    world = promoted(rollback=rules)
    world.bad["hot-2"] = {Signal.OVERFLOW: 0.25}
    until(world, settling)
    world._start_pods("hot-2")  # scaled to zero and back: it starts from a template that says FP16 still
    world.deaf = {"hot-2"}
    until(world, lambda w: w.workloads["hot-2"].template_mode is Mode.FP32)
    assert ("hot-2" in world.really_in(Mode.FP16), world.restarts.get("hot-2")) == (True, None)
    world.run(100)
    assert ("hot-2" in world.really_in(Mode.FP32), world.restarts.get("hot-2")) == (True, 1)


def test_a_single_held_workload_that_is_deaf_is_restarted_too() -> None:
    world = promoted()
    deafen(world, "hot-2")
    world.bad["hot-2"] = OVERFLOWS
    world.run(50)
    assert "hot-2" not in world.really_in(Mode.FP16)
    assert world.state.incident is not None
    assert world.state.incident.last_ack_at is not None


def test_lost_metrics_restart_no_hot_fleet_before_the_deadline() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.step(1.0)
    world.down = True
    until(world, lambda w: w.state.incident is not None and w.now > w.state.incident.deadline_at, seconds=15.0)
    assert {name: n for name, n in world.restarts.items() if name.startswith("hot")} == {}
    world.run(3)
    assert {name for name in world.restarts if name.startswith("hot")} == {f"hot-{i}" for i in range(5)}


def test_a_crash_looping_trainer_does_not_keep_the_rollback_open() -> None:
    world = fleet()
    world.run(2, 1.0)
    (canary,) = world.really_in(Mode.FP16)
    crash(world, canary)
    world.blind.add(canary)
    world.run(30)
    assert world.state.phase is Phase.HELD
    assert world.restarts == {}  # its container starts again by itself, in FP32


def test_a_deleted_canary_is_replaced_and_its_evidence_starts_anew() -> None:
    world = fleet()
    world.run(1)
    (gone,) = world.state.members
    del world.workloads[gone.name]
    joined = world.now
    world.step()
    (canary,) = world.state.members
    assert canary != gone
    until(world, lambda w: w.state.step_index == 1, seconds=5.0)
    assert world.now - joined >= 30.0


def test_a_canary_scaled_to_zero_promotes_nothing() -> None:
    world = fleet()
    world.run(1)
    (canary,) = world.state.members
    change(world, canary.name, replicas=0, updated_replicas=0, pods=())
    world.run(6)
    assert (world.state.step_index, world.state.reason) == (0, "CohortNotRunning")


def test_a_rollback_before_any_settle_leaves_a_latch() -> None:
    world = fleet()
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    world.run(10)
    assert world.state.phase is Phase.HELD
    assert [world.workloads[m.name].latch for m in world.state.members] == [Mode.FP32]
    before = world.writes
    world.run(10)
    assert world.writes == before
    world.state = State()  # deleted and created again
    world.run(3)
    assert world.state.phase is Phase.HELD
    assert not world.really_in(Mode.FP16)


def test_a_suspension_amid_the_settles_loses_no_latch() -> None:
    world = rolled_back()
    spec = world.policy.spec
    world.policy = replace(world.policy, spec=replace(spec, suspend=True))
    world.run(5)
    world.policy = replace(world.policy, spec=spec)
    world.run(10)
    assert {w.latch for w in world.workloads.values()} == {Mode.FP32}


def test_a_newcomer_that_another_rollback_holds_waits_for_a_person() -> None:
    world = promoted()
    world.add("late")
    change(world, "late", latch=Mode.FP32, generation_raw="99", has_original=True)
    world.run(10)
    assert "late" not in world.really_in(Mode.FP16)
    answer(world, "retry")
    world.run(10)
    assert "late" in world.really_in(Mode.FP16)


@pytest.mark.parametrize("steps", [FAST["strategy"], {"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 100}]}])
def test_a_retry_amid_the_settles_leaves_nothing_paused_and_nothing_in_fp16(steps: object) -> None:
    world = fleet(strategy=steps)
    until(world, lambda w: w.state.phase in (Phase.HEALTHY, Phase.PAUSED), seconds=15.0)
    answer(world, "promote")
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    until(world, lambda w: w.state.phase is Phase.HELD and settling(w))
    answer(world, "retry")
    world.bad = {}
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=60.0)
    world.run(6, 1.0)
    assert not paused(world)
    inside = {m.name for m in world.state.members}
    assert inside
    outside = [w for w in world.workloads.values() if w.name not in inside]
    assert {w.template_mode for w in outside} == {Mode.FP32}


def test_a_template_that_lost_the_contract_amid_a_settle_is_not_left_paused() -> None:
    world = fleet()
    until(world, settling)
    (name,) = settling(world)
    change(world, name, hot=False, literal=False)
    world.run(20)
    assert not world.workloads[name].paused


def test_a_settle_that_somebody_resumed_begins_again() -> None:
    intent = SettleIntent(7, Mode.FP16, was_paused=False)
    rolled_out = WorkloadView(
        "ns", "w", "u", hot=True, settle=intent, replicas=0, updated_replicas=0, generation_raw="7"
    )
    fp16 = frozenset({Mode.FP16})
    step = next_settle(rolled_out, Mode.FP16, accepted=fp16, generation=7, latch=None)
    assert step is not None
    assert step.stage is SettleStage.PAUSE
    rolling = replace(rolled_out, replicas=1)
    assert next_settle(rolling, Mode.FP16, accepted=fp16, generation=7, latch=None) is None


def test_running_pods_are_rolled_back_though_their_template_lost_the_contract() -> None:
    world = promoted()
    change(world, "hot-0", hot=False, literal=False, template_mode=Mode.FP32, template_request=None)
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.run(10)
    assert "hot-0" not in world.really_in(Mode.FP16)


def test_one_breach_and_then_silence_is_not_a_row_of_breaches() -> None:
    world = promoted(evaluation={"interval": "15s", "failureLimit": 3, "minSamples": 1})
    world.bad["hot-2"] = OVERFLOWS
    world.step()
    world.blind.add("hot-2")
    world.bad = {}
    world.run(6)
    assert world.state.phase is Phase.HEALTHY


@pytest.mark.parametrize("raw", ["²", "9" * 5000, str(2**63 - 1), "-1", "x"])
def test_a_generation_that_nobody_counted_to_is_overwritten(raw: str) -> None:
    world = promoted()
    change(world, "hot-0", generation_raw=raw)
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    assert world.step().state.phase is Phase.ROLLING_BACK
    assert world.state.generation < MAX_GENERATION
    world.run(20)
    assert world.workloads["hot-0"].template_mode is Mode.FP32


def test_evaluations_out_of_turn_do_not_shorten_the_row_that_a_rollback_needs() -> None:
    world = promoted(evaluation={"interval": "15s", "failureLimit": 1, "minSamples": 1})
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.run(10, 1.0)
    assert world.state.phase is Phase.HEALTHY
    world.run(2, 5.0)
    assert world.state.phase in DOWN


def test_a_leader_whose_clock_is_behind_counts_on() -> None:
    world = promoted(evaluation={"interval": "15s", "failureLimit": 1, "minSamples": 1})
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.step()
    world.now -= 600
    world.run(2)
    assert world.state.phase in DOWN


def test_a_held_workload_that_was_deleted_is_held_no_more() -> None:
    world = promoted()
    world.bad["hot-2"] = OVERFLOWS
    world.run(5)
    assert world.state.phase is Phase.DEGRADED
    del world.workloads["hot-2"]
    world.run(3)
    assert (world.state.phase, world.state.held, world.state.breached) == (Phase.HEALTHY, (), 0)


def test_another_target_amid_the_rollout_starts_with_its_own_canary() -> None:
    world = fleet()
    until(world, lambda w: w.state.step_index == 1, seconds=15.0)
    world.run(3, 1.0)
    world.policy = replace(world.policy, spec=replace(world.policy.spec, target=Mode.BF16))
    world.run(3, 1.0)
    assert len(world.really_in(Mode.BF16)) == 1


def test_what_the_old_target_moved_is_guarded_until_its_turn_comes() -> None:
    world = promoted()
    world.policy = replace(world.policy, spec=replace(world.policy.spec, target=Mode.BF16))
    world.run(3, 1.0)
    assert len(world.really_in(Mode.FP16)) == 5
    world.bad = dict.fromkeys(world.really_in(Mode.FP16), NAN)
    world.run(10)
    assert world.state.phase in DOWN
    assert not world.really_in(Mode.FP16)


def test_a_deletion_restores_within_the_budget_of_restarts() -> None:
    world = promoted(deletionPolicy="Restore")
    world.restart_slots = 1
    world.policy = replace(world.policy, deleted_at=world.now, finalizers=(FINALIZER,))
    assert sum(isinstance(action, Restore) for action in world.decide().actions) == 1
    world.now += 25.0
    late = world.decide().actions
    assert [type(action) for action in late] == [Notify, ReleasePolicy]


@pytest.mark.parametrize("value", [float("-inf"), float("inf"), float("nan")])
def test_a_divergence_that_is_no_number_is_a_breach(value: float) -> None:
    world = fleet()
    world.bad = {key: {Signal.DIVERGENCE: value} for key in world.workloads}
    world.run(5)
    assert world.state.phase in DOWN


@pytest.mark.parametrize("value", [float("-inf"), float("nan")])
def test_an_overflow_rate_that_is_no_number_promotes_nothing(value: float) -> None:
    world = fleet()
    world.bad = {key: {Signal.OVERFLOW: value} for key in world.workloads}
    world.run(30)
    assert (world.state.phase, world.state.step_index, world.state.reason) == (Phase.PROGRESSING, 0, "NotANumber")


def test_a_template_that_somebody_else_writes_back_is_not_fought_over() -> None:
    world = promoted()
    for _ in range(5):
        change(world, "literal", template_mode=Mode.FP32)
        world._start_pods("literal")
        world.run(3)
    assert world.restarts == {"literal": 1}
    accepted = {c.type: c for c in world.state.conditions}["Accepted"]
    assert (accepted.reason, "literal" in accepted.message) == ("ConflictedWriter", True)


def test_in_a_rollback_safety_is_worth_the_quarrel() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    until(world, lambda w: w.state.phase is Phase.HELD)
    change(world, "literal", template_mode=Mode.FP16)
    world._start_pods("literal")
    world.run(5)
    assert "literal" not in world.really_in(Mode.FP16)


def test_a_rollout_waits_until_every_template_follows_the_last_rollback() -> None:
    world = promoted()
    change(world, "hot-0", observed=False)  # its controller is behind: no settle may begin
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.run(5)
    answer(world, "retry")
    world.bad = {}
    world.run(20, 60.0)
    assert world.state.phase is Phase.HELD
    assert {c.type: c for c in world.state.conditions}["Progressing"].reason == "Settling"
    change(world, "hot-0", observed=True)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=60.0)
    assert world.workloads["hot-0"].template_mode is Mode.FP32


def test_a_newcomer_that_another_rollback_holds_joins_no_step_either() -> None:
    world = fleet()
    world.run(2, 1.0)
    world.add("late")
    change(world, "late", latch=Mode.FP32, generation_raw="99", has_original=True)
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)
    assert "late" not in world.really_in(Mode.FP16)


def test_a_rollback_cut_off_before_its_latches_still_holds_for_the_next_policy() -> None:
    world = fleet()
    world.run(2, 1.0)
    answer(world, "abort")
    world.step(1.0)
    assert not any(w.latch for w in world.workloads.values())
    world.policy, world.state = replace(world.policy, annotations={}, uid="another"), State()
    world.run(10)
    assert world.state.phase is Phase.HELD
    assert not world.really_in(Mode.FP16)


def test_what_an_earlier_policy_moved_is_latched_with_the_rest() -> None:
    world = fleet()
    world.run(2, 1.0)
    (first,) = world.really_in(Mode.FP16)
    world.policy, world.state = replace(world.policy, uid="another"), State()
    world.run(2, 1.0)
    answer(world, "abort")
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.run(5)
    assert world.workloads[first].latch is Mode.FP32


def test_who_was_away_past_the_deadline_lets_the_trainer_answer_first() -> None:
    world = promoted()
    world.bad["hot-2"] = OVERFLOWS
    decision = world.decide()
    world.commit(decision)  # and nothing is written: the operator dies
    world.now += 3600.0
    world.continuous_since = world.now
    world.run(3)
    assert world.restarts == {"literal": 1}
    assert "hot-2" not in world.really_in(Mode.FP16)


def test_a_canary_that_lost_the_contract_keeps_its_place() -> None:
    world = fleet()
    world.run(2, 1.0)
    before = world.state.members
    change(world, before[0].name, hot=False, literal=False)
    world.run(5)
    assert world.state.members == before
    assert world.state.reason == "Undeliverable"
    assert len(world.really_in(Mode.FP16)) == 1
    world.bad[before[0].name] = NAN
    world.run(3)
    assert not world.really_in(Mode.FP16), "a member without the contract was not judged"


def test_an_approval_holds_while_the_evidence_wavers() -> None:
    world = fleet(strategy={"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 100}]})
    until(world, lambda w: w.state.phase is Phase.PAUSED, seconds=15.0)
    answer(world, "promote")
    world.everywhere = {Signal.DIVERGENCE: 0.1}
    world.run(3)
    assert world.state.phase is Phase.PROGRESSING
    world.everywhere = {}
    until(world, lambda w: w.state.phase is Phase.HEALTHY, seconds=15.0)


def test_who_cannot_be_seen_is_not_restarted_before_the_deadline() -> None:
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.step(1.0)
    world.blind.add("hot-0")
    until(world, lambda w: w.state.incident is not None and w.now > w.state.incident.deadline_at, seconds=15.0)
    assert set(world.restarts) == {"literal"}
    world.run(3)
    assert set(world.restarts) == {"literal", "hot-0"}
