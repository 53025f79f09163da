"""Before a rollout: what it waits for, what it finds running, what is done meanwhile."""

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import NAN, OVERFLOWS, World
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity
from precision_operator.api.state import HeldWorkload, Phase
from precision_operator.api.workload import name_of
from precision_operator.core.actions import Notify
from precision_operator.core.model import Admission
from precision_operator.reasons import Reason
from tests.support.fleets import answer, change, condition, fleet, held_names, member_names, promoted, respec, until
from tests.support.views import key, keys

STEPS = {"steps": [{"setWeight": 20}, {"pause": {"duration": "10m"}}, {"setWeight": 100}]}
PAUSED = {"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 100}]}


def canary() -> str:
    """The workload that goes first."""
    (first,) = fleet().step().state.members
    return name_of(first)


def ended(at: float) -> Incident:
    """A rollback of which the last acknowledgement came then."""
    return Incident(
        id="fleet-5",
        severity=Severity.P1,
        scope=Scope.FLEET,
        reason="OverflowRateHigh",
        message="",
        workloads=(),
        detected_at=at,
        decided_at=at,
        deadline_at=at + 300.0,
        last_ack_at=at,
    )


def test_a_rollout_waits_until_the_metrics_show_nothing_of_the_last_rollback() -> None:
    world = fleet()
    window_seconds = world.policy.spec.evaluation.window_seconds
    world.state = replace(world.state, incident=ended(world.now - window_seconds + 30.0))
    world.run(2)
    assert (world.state.phase, world.summary.reason) == (Phase.PENDING, "WindowNotClear")
    assert world.step().state.phase is Phase.PROGRESSING


def test_a_rollout_that_waits_for_samples_begins_with_a_canary_that_has_them() -> None:
    world = fleet()
    world.unobservable = set(world.workloads)
    world.run(3)
    assert (world.state.phase, world.summary.reason) == (Phase.PENDING, "NoSamples")
    assert canary() in world.summary.message
    world.unobservable = {canary()}
    assert world.step().state.phase is Phase.PROGRESSING
    assert not member_names(world) & {canary()}


@pytest.mark.parametrize("enforced", [None, False])
def test_a_rollout_does_not_begin_before_admission_is_enforced_and_says_why(enforced: bool | None) -> None:
    world = fleet()
    observe, found = (
        world.observe,
        Admission(enforced, Reason.ADMISSION_NOT_INSTALLED, "it serves no such policy"),
    )
    world.observe = lambda: replace(observe(), admission=found)  # type: ignore[method-assign]
    world.run(3)
    assert (world.state.phase, world.state.enforce, world.writes) == (Phase.PENDING, False, 0)
    assert (world.summary.reason, world.summary.message) == (found.reason, found.message)
    world.observe = observe  # type: ignore[method-assign]
    assert world.step().state.phase is Phase.PROGRESSING
    assert condition(world, "AdmissionEnforced").status == "True"


def test_what_a_canary_has_proved_for_one_target_counts_for_no_other() -> None:
    """There and back again: it trains in the target all the while, and its evidence is older than the pause."""
    world = World(policy(**{**FAST, "strategy": STEPS}))
    for index in range(5):
        world.add(f"hot-{index}")
    world.run(30)
    assert (world.state.step_index, world.state.evidence_since is not None) == (0, True)
    spec = world.policy.spec
    for target in (Mode.BF16, Mode.FP16):
        world.policy = replace(world.policy, spec=replace(spec, target=target))
        assert world.step().state.phase is Phase.PENDING
        assert world.step().state.reason == "RolloutStarted"
        assert world.state.evidence_since is None
        assert world.state.step_since == world.now - 15.0
    world.run(30)
    assert world.state.step_index == 0
    world.run(20)
    assert world.state.step_index == 1


@pytest.mark.parametrize("command", ["abort", "rollback"])
def test_a_person_can_roll_back_before_anything_was_moved(command: str) -> None:
    """What somebody starts in FP16 by hand is started in FP32, until a person asks for another attempt."""
    world = fleet()
    world.unobservable = {canary()}
    world.run(2)
    answer(world, command)
    world.step(1.0)
    assert (world.state.phase, world.state.enforce) == (Phase.ROLLING_BACK, True)
    world.unobservable = set()
    world.run(3, 1.0)
    assert (world.state.phase, world.state.modes) == (Phase.HELD, {})
    world.add("by-hand", mode=Mode.FP16)
    assert "by-hand" in world.really_in(Mode.FP32)


def test_a_rollout_that_begins_says_what_new_pods_start_in() -> None:
    world = fleet(fallback="bf16")
    world.state = replace(world.state, step_index=2, transition_id=7)
    state = world.step().state
    assert (state.phase, state.step_index) == (Phase.PROGRESSING, 0)
    assert (state.enforce, state.precision, state.fallback) == (True, Mode.FP16, Mode.BF16)


def test_a_rollout_outranks_every_generation_that_a_pod_carries() -> None:
    world = fleet()
    (pod,) = world.workloads["hot-3"].pods
    world.workloads["hot-3"] = replace(world.workloads["hot-3"], pods=(replace(pod, admitted=(("fleet", 41),)),))
    world.step()
    assert world.state.generation > 41


def test_nothing_is_enforced_before_the_modes_of_the_whole_fleet_were_observed() -> None:
    world = fleet()
    world.add_referencing("theirs", Mode.FP16)
    world.unobservable = {"theirs"}
    world.run(4)
    assert (world.state.phase, world.state.enforce, world.writes) == (Phase.PENDING, False, 0)
    assert world.summary.reason == "NoSamples"
    assert "theirs" in world.summary.message
    assert condition(world, "AdmissionEnforced").reason == "NotEnforcing"
    world.unobservable = set()
    world.step()
    assert (world.state.phase, world.state.enforce) == (Phase.PROGRESSING, True)
    assert world.state.assigned(key("theirs")) is Mode.FP16


def found_in(mode: Mode, *names: str, **spec: object) -> World:
    """A fleet of which these train in ``mode`` already when the policy is applied."""
    world = World(policy(**{**FAST, **spec}))
    for index in range(5):
        world.add(f"hot-{index}", mode=mode if f"hot-{index}" in names else Mode.FP32)
    return world


def test_a_fleet_that_trains_in_the_target_already_is_adopted_and_nothing_of_it_is_touched() -> None:
    names = [f"hot-{index}" for index in range(5)]
    world = found_in(Mode.FP16, *names)
    world.step()
    assert (world.state.enforce, member_names(world)) == (True, set(names))
    assert world.state.modes == dict.fromkeys(keys(*names), Mode.FP16)
    world.run(20)
    assert (world.state.phase, world.writes, world.restarts) == (Phase.HEALTHY, 0, {})
    world.replace_pods("hot-0")
    world.run(2)
    assert "hot-0" in world.really_in(Mode.FP16)


def test_of_a_fleet_of_which_some_train_in_the_target_those_are_the_canary() -> None:
    world = found_in(Mode.FP16, "hot-1", "hot-4")
    world.step()
    assert member_names(world) == {"hot-1", "hot-4"}
    assert world.writes == 0
    world.run(30)
    assert world.really_in(Mode.FP16) == set(world.workloads)


def test_one_in_breach_is_never_adopted_it_is_assigned_the_fallback_by_the_commit_that_enforces() -> None:
    world = found_in(Mode.FP16, "hot-1", "hot-4")
    world.bad = {"hot-4": NAN}
    world.step()
    assert (member_names(world), world.state.enforce) == ({"hot-1"}, True)
    assert world.state.assigned(key("hot-4")) is Mode.FP32
    world.run(2)
    assert "hot-4" in world.really_in(Mode.FP32)


def test_one_of_which_not_enough_is_known_is_neither_adopted_nor_moved_and_is_watched() -> None:
    """Its environment says FP16, and nothing else is known: Unknown never promotes and never rolls back by itself."""
    world = found_in(Mode.FP16, "hot-1", "hot-4", strategy=STEPS)
    world.unobservable = {"hot-4"}
    world.run(3)
    assert (member_names(world), world.writes) == ({"hot-1"}, 0)
    assert world.state.assigned(key("hot-4")) is Mode.FP16
    assert "hot-4" in world.really_in(Mode.FP16)
    world.unobservable, world.bad = set(), {"hot-4": NAN}
    world.run(3)
    assert world.state.phase is Phase.ROLLING_BACK or world.state.phase is Phase.HELD


@pytest.mark.parametrize("retried", [False, True])
def test_one_that_is_held_is_adopted_only_once_a_person_retries(retried: bool) -> None:
    world = found_in(Mode.FP16, "hot-1", "hot-4")
    world.state = replace(world.state, held=(HeldWorkload(key("hot-4"), "LossNotFinite", 900.0),))
    if retried:
        answer(world, "retry")
    world.run(3)
    assert ("hot-4" in member_names(world), world.writes == 0) == (retried, retried)
    assert (held_names(world) == set(), "hot-4" in world.really_in(Mode.FP16)) == (retried, retried)


def test_what_trains_in_another_reduced_precision_stays_listed_in_it_until_its_turn() -> None:
    world = found_in(Mode.BF16, "hot-1", "hot-4", strategy=PAUSED)
    world.run(8)
    assert world.state.phase is Phase.PAUSED
    listed = {name_of(found) for found, mode in world.state.modes.items() if mode is Mode.BF16}
    assert listed == {"hot-1", "hot-4"} - member_names(world)
    assert listed <= world.really_in(Mode.BF16)
    answer(world, "promote")
    world.run(10)
    assert world.really_in(Mode.FP16) == set(world.workloads)


def test_a_rollout_to_another_target_counts_its_breaches_anew() -> None:
    world = promoted(evaluation={**FAST["evaluation"], "failureLimit": 3})
    world.bad = {"hot-1": OVERFLOWS}
    respec(world, target=Mode.BF16)
    until(world, lambda w: w.state.phase is Phase.PENDING)
    assert [found.count for found in world.state.failing] == [1]
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=15.0)
    assert world.state.failing == ()


def test_while_another_rollout_waits_what_is_enforced_is_kept_up() -> None:
    """A pod that slipped past admission is asked, in a fleet that waits for Prometheus."""
    world = fleet()
    world.run(30)
    world.bad = dict.fromkeys(("hot-1", "hot-3"), OVERFLOWS)
    world.run(8)
    answer(world, "retry")
    world.metrics_away = True
    world.run(2)
    assert (world.state.phase, world.state.enforce) == (Phase.PENDING, True)
    world.bypassed, world.templates["hot-2"] = True, Mode.FP16
    world.replace_pods("hot-2")
    assert "hot-2" not in world.really_in(Mode.FP32)
    world.bypassed = False
    world.run(3)
    assert "hot-2" in world.really_in(Mode.FP32)


def test_an_edit_of_the_fallback_reaches_new_pods_with_the_next_commit() -> None:
    world = fleet()
    world.run(30)
    before = world.state.generation
    respec(world, fallback=Mode.BF16)
    world.step()
    assert (world.state.fallback, world.state.generation > before) == (Mode.BF16, True)


@pytest.mark.parametrize("ago", [0, 1], ids=["this transition", "the one before"])
def test_what_an_older_policy_held_joins_the_next_rollout_by_a_retry_of_this_very_transition(ago: int) -> None:
    world = promoted()
    world.bad["hot-2"] = NAN
    until(world, lambda w: held_names(w) == {"hot-2"})
    world.bad.clear()
    respec(world, target=Mode.BF16)
    until(world, lambda w: w.state.phase is Phase.PENDING)
    retry = {"precision.genesis.ai/retry": str(world.state.transition_id - ago)}
    world.policy = replace(world.policy, annotations=retry)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=15.0)
    assert held_names(world) == ({"hot-2"} if ago else set())


def held_while_pending(**spec: object) -> World:
    """One is held alone when another target begins another rollout."""
    world = promoted(**spec)
    world.bad["hot-2"] = OVERFLOWS
    until(world, lambda w: held_names(w) == {"hot-2"})
    world.bad.clear()
    respec(world, target=Mode.BF16)
    until(world, lambda w: w.state.phase is Phase.PENDING)
    return world


def test_a_retry_before_a_rollout_takes_in_nobody_whose_rollback_was_not_acknowledged_by_a_person() -> None:
    world = held_while_pending(reenable={"prerequisites": ["fix"]})
    answer(world, "retry")
    until(world, lambda w: w.state.phase is Phase.PROGRESSING, seconds=15.0)
    assert held_names(world) == {"hot-2"}


def test_a_retry_before_a_rollout_forgets_who_was_in_breach_and_whose_weights_were_poisoned() -> None:
    world = held_while_pending()
    while world.decide().state.phase is Phase.PENDING:
        world.step()
    world.state = replace(world.state, poisoned=keys("hot-2"))
    answer(world, "retry")
    world.step()
    assert (world.state.phase, world.state.held, world.state.poisoned) == (Phase.PROGRESSING, (), ())
    assert world.state.breached == ()


@pytest.mark.parametrize(
    ("held", "missing", "retried", "reason"),
    [
        (("hot-1", "hot-4"), [], {}, Reason.AWAITING_RETRY),
        (("hot-1", "hot-4"), ["fix"], {}, Reason.AWAITING_PREREQUISITES),
        (("hot-1", "hot-4"), [], {"precision.genesis.ai/retry": "77"}, Reason.AWAITING_RETRY),
        (("hot-1",), [], {}, Reason.NO_SAMPLES),
    ],
    ids=["all of them", "all, and more is asked for", "all, and a retry of another transition", "one of them"],
)
def test_what_nobody_joins_says_what_a_rollback_that_holds_all_of_it_waits_for(
    held: tuple[str, ...], missing: list[str], retried: dict[str, str], reason: Reason
) -> None:
    reenable = {**FAST["reenable"], "prerequisites": missing}
    world = World(policy(annotations=retried, **{**FAST, "reenable": reenable}))
    for name in ("hot-1", "hot-4"):
        world.add(name)
    world.unobservable = set(world.workloads)
    world.state = replace(world.state, held=tuple(HeldWorkload(key(n), "LossNotFinite", 900.0) for n in held))
    world.run(2)
    assert (world.state.phase, world.summary.reason) == (Phase.PENDING, reason)


def test_a_step_is_paused_for_an_approval_also_while_one_is_held_alone() -> None:
    world = held_while_pending()
    respec(world, stages=fleet(strategy=PAUSED).policy.spec.stages)
    until(world, lambda w: w.state.phase is Phase.PAUSED, seconds=15.0)
    world.run(30)
    assert (world.state.phase, held_names(world)) == (Phase.PAUSED, {"hot-2"})
    world.scale("hot-2", 0)
    change(world, "hot-2", pods=())
    answer(world, "retry")
    said = [action.reason for action in world.step().actions if isinstance(action, Notify)]
    assert (held_names(world), said) == (set(), []), "a pause that goes on is not told of again"
    assert world.state.phase is Phase.PAUSED
