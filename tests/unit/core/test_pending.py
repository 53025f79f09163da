"""Before a rollout: what it waits for, what is done meanwhile, and what it takes over from the one before."""

from dataclasses import replace

import pytest

from precision_operator.api.incident import Incident, Scope
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase, State
from precision_operator.core.actions import Settle
from tests.property.policies import FAST, policy
from tests.property.test_awkward_histories import NAN, answer, change
from tests.property.test_story import fleet, promoted
from tests.property.world import World

STEPS = {"steps": [{"setWeight": 20}, {"pause": {"duration": "10m"}}, {"setWeight": 100}]}


def canary() -> str:
    """The workload that goes first."""
    (first,) = fleet().step().state.members
    return first.name


def pending(*lagging: str) -> World:
    """A fleet after a retry; the templates of these workloads still say FP16, though their pods were rolled back."""
    world = fleet()
    world.state = replace(world.state, transition_id=7, generation=3)
    for name in lagging:
        change(world, name, template_mode=Mode.FP16, has_original=True)
    return world


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


def others(count: int) -> list[str]:
    return sorted({f"hot-{index}" for index in range(5)} - {canary()})[:count]


@pytest.mark.parametrize(("crashing", "reason"), [(0, "Settling"), (1, "RolloutStarted"), (2, "RolloutStarted")])
def test_a_template_that_follows_the_last_rollback_is_waited_for_unless_a_pod_crashes(
    crashing: int, reason: str
) -> None:
    """A template is settled once all its pods have answered: who crashes never does, and would hold the fleet for ever."""
    (name,) = others(1)
    world = pending()
    change(world, name, replicas=2)
    world._start_pods(name)
    (*pods,) = world.workloads[name].pods
    pods[:crashing] = [replace(pod, crashing=True, ready=False) for pod in pods[:crashing]]
    change(world, name, template_mode=Mode.FP16, has_original=True, pods=tuple(pods))
    decision = world.step()
    assert decision.state.reason == reason
    assert any(isinstance(action, Settle) for action in decision.actions) is (crashing == 0)


def test_templates_follow_their_pods_while_the_metrics_still_show_the_last_rollback() -> None:
    """New pods of the template would start in FP16, and the wait may be long."""
    (name,) = others(1)
    world = pending(name)
    window_seconds = world.policy.spec.evaluation.window_seconds
    world.state = replace(world.state, incident=ended(world.now - window_seconds + 60.0))
    decision = world.step()
    assert (decision.state.phase, decision.state.reason) == (Phase.PENDING, "WindowNotClear")
    assert [a.workload.name for a in decision.actions if isinstance(a, Settle)] == [name]
    world.run(3)
    assert (world.state.reason, world.workloads[name].template_mode) == ("WindowNotClear", Mode.FP32)
    world.run(2)
    assert world.state.phase is Phase.PROGRESSING


def test_a_rollout_that_waits_for_samples_of_its_canary_begins_with_them() -> None:
    world = fleet()
    world.blind = {canary()}
    world.run(3)
    assert (world.state.phase, world.state.reason) == (Phase.PENDING, "NoSamples")
    assert canary() in world.state.message
    world.blind = {name for name in world.workloads if name != canary()}
    assert world.step().state.phase is Phase.PROGRESSING


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
    """The gate closes: what somebody starts in FP16 by hand is started in FP32, until a person asks for another attempt."""
    world = fleet()
    world.blind = {canary()}
    world.run(2)
    answer(world, command)
    world.step(1.0)
    assert (world.state.phase, world.state.gate_closed) == (Phase.ROLLING_BACK, True)
    world.blind = set()
    world.run(3, 1.0)
    assert (world.state.phase, world.state.gate_closed) == (Phase.HELD, True)


def made_again() -> World:
    """A policy that was deleted in the middle of its rollback, and made again; one trainer has not listened to it."""
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.deaf = {"hot-4"}
    world.step(1.0)
    world.step(1.0)
    assert "hot-4" in world.really_in(Mode.FP16)
    world.state, world.bad = State(), {}
    return world


def test_a_rollback_that_a_deleted_policy_left_half_done_is_finished_first() -> None:
    world = made_again()
    world.add("own", mode=Mode.FP16)
    world.step(1.0)
    found = world.state.incident
    assert found is not None
    assert (world.state.phase, found.reason, found.workloads) == (Phase.ROLLING_BACK, "LatchedWorkloads", ("hot-4",))
    world.deaf = set()
    world.run(10, 1.0)
    assert (world.state.phase, world.really_in(Mode.FP32)) == (Phase.HELD, set(world.workloads))


def test_a_rollback_that_was_finished_before_its_policy_was_made_again_is_kept_and_moves_nobody() -> None:
    """What somebody else trains in FP16, and no policy ever wrote to, is no rollback's business until one is decided."""
    world = made_again()
    world.deaf = set()
    world.train()
    world.add("own", mode=Mode.FP16)
    world.step(1.0)
    assert (world.state.phase, world.state.incident, world.state.gate_closed) == (Phase.HELD, None, True)
    assert world.state.reason == "LatchedWorkloads"
    assert "hot-4" in world.state.message


def test_a_rollout_that_begins_tells_the_gate_what_new_pods_may_start_in() -> None:
    world = fleet(fallback="bf16")
    world.state = replace(world.state, gate_closed=True, fallback=Mode.FP32, step_index=2, transition_id=7)
    state = world.step().state
    assert (state.phase, state.step_index) == (Phase.PROGRESSING, 0)
    assert (state.gate_closed, state.precision, state.fallback) == (False, Mode.FP16, Mode.BF16)


def test_nothing_is_begun_on_a_fleet_of_which_every_workload_was_latched_by_another() -> None:
    world = pending()
    for name in world.workloads:
        change(world, name, latch=Mode.FP32, has_original=True)
    world.run(3)
    assert (world.state.phase, world.state.reason) == (Phase.PENDING, "LatchedWorkloads")
    assert (world.state.generation, world.log) == (3, [])
