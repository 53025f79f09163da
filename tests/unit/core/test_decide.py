"""What a decision says around its phase: counts, times, conditions, when to look again; deletion; generations."""

from dataclasses import replace

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase, State
from precision_operator.contract import FINALIZER
from precision_operator.core.actions import GuardPolicy, Notify, ReleasePolicy, RequestPod, Restore
from precision_operator.core.decide import IDLE_SECONDS, RELEASE_AFTER_SECONDS
from tests.property.policies import FAST, policy
from tests.property.test_story import fleet, promoted
from tests.property.world import World

INTERVAL = 15.0


def condition(state: State, kind: str) -> tuple[str, str]:
    (found,) = [c for c in state.conditions if c.type == kind]
    return found.state, found.reason


def deleted(world: World, *, after: float = 0.0) -> World:
    world.policy = replace(world.policy, deleted_at=world.now - after, finalizers=(FINALIZER,))
    return world


def test_pending_shows_no_step_and_counts_the_fleet() -> None:
    world = fleet(suspend=True)
    state = world.step().state
    assert (state.step, state.weight, state.total, state.moved) == ("", 0, 6, 0)
    assert condition(state, "Progressing") == ("False", "Suspended")
    assert condition(state, "GateClosed")[0] == "False"


def test_an_edge_is_looked_after_at_once_and_a_wait_at_the_interval() -> None:
    world = fleet()
    started = world.step()
    assert started.state.phase is Phase.PROGRESSING
    assert started.wake_at == 1000.0
    waiting = world.step()
    assert waiting.state.transition_id == started.state.transition_id
    assert waiting.wake_at == 1000.0 + INTERVAL + INTERVAL


def test_suspended_and_settled_fleets_are_looked_at_rarely() -> None:
    assert fleet(suspend=True).decide().wake_at == 1000.0 + IDLE_SECONDS
    world = promoted()
    world.bad = {name: {Signal.OVERFLOW: 0.6} for name in world.workloads}
    while (decision := world.step()).state.incident is None or decision.state.incident.settled_at is None:
        assert decision.wake_at <= world.now
    assert decision.wake_at == world.now - INTERVAL + IDLE_SECONDS


def test_steps_say_where_the_rollout_is_and_edges_are_counted_and_dated() -> None:
    world = fleet()
    seen = {}
    for _ in range(30):
        before = world.state
        world.step()
        state = world.state
        if (state.phase, state.step_index) != (before.phase, before.step_index):
            assert state.transition_id == before.transition_id + 1
            seen[state.step] = state.weight
        else:
            assert state.transition_id == before.transition_id
        changed = state.phase is not before.phase
        assert state.phase_since == (world.now - INTERVAL if changed else before.phase_since)
    assert seen == {"1/3 20%": 20, "2/3 60%": 60, "3/3 100%": 100}
    assert world.state.observed_generation == 1


def test_moved_counts_acknowledgements_on_the_way_and_orders_at_rest() -> None:
    world = fleet()
    world.step()
    assert (world.state.moved, world.state.total) == (0, 6)
    world.run(2)
    assert world.state.moved == 1
    world.run(30)
    assert world.state.moved == 6
    world.down = True
    world.step()
    assert world.state.moved == 6
    world.down = False
    world.bad["hot-2"] = {Signal.OVERFLOW: 0.6}
    world.run(3)
    assert (world.state.moved, world.state.breached) == (5, 1)
    world.bad["hot-3"] = {Signal.OVERFLOW: 0.6}
    world.run(10)
    assert world.state.phase is Phase.HELD
    assert (world.state.moved, world.state.weight, world.state.step) == (6, 0, "")


def test_silence_is_dated_from_its_beginning_and_forgotten_at_its_end() -> None:
    world = promoted()
    assert world.state.no_data_since is None
    world.blind.add("hot-1")
    world.step()
    began = world.now - INTERVAL
    world.run(4)
    assert (world.state.no_data_since, world.state.unknown) == (began, 1)
    assert condition(world.state, "MetricsAvailable") == ("False", "NoSamples")
    world.blind.clear()
    world.step()
    assert (world.state.no_data_since, world.state.unknown) == (None, 0)
    assert condition(world.state, "MetricsAvailable")[0] == "True"
    world.down = True
    world.step()
    assert world.state.no_data_since == world.now - INTERVAL
    assert condition(world.state, "MetricsAvailable") == ("False", "MetricsUnavailable")


def test_no_data_rolls_back_past_its_limit_only_where_the_policy_says_so() -> None:
    rules = {"interval": "15s", "failureLimit": 0, "minSamples": 1, "noDataLimit": "60s"}
    for choice, phase in (("Hold", Phase.HEALTHY), ("Rollback", Phase.ROLLING_BACK)):
        world = promoted(evaluation={**rules, "onNoData": choice})
        world.down = True
        world.run(4)
        assert world.state.phase is Phase.HEALTHY
        world.step()
        assert world.state.phase is phase
    assert world.state.incident is not None
    assert (world.state.reason, world.state.incident.detected_at) == ("NoData", world.now - 5 * INTERVAL)


def test_suspend_is_said_while_it_lasts_and_no_longer() -> None:
    world = promoted()
    spec = world.policy.spec
    world.policy = replace(world.policy, spec=replace(spec, suspend=True))
    assert world.step().state.reason == "Suspended"
    assert world.state.phase is Phase.HEALTHY
    world.policy = replace(world.policy, spec=spec)
    assert world.step().state.reason == "Resumed"


def test_events_tell_an_edge_once() -> None:
    world = fleet()
    assert [a.reason for a in world.step().actions if isinstance(a, Notify)] == ["RolloutStarted"]
    assert [a for a in world.step().actions if isinstance(a, Notify)] == []


def test_who_decided_is_written_only_with_a_decision() -> None:
    world = promoted()
    writer, epoch = world.state.writer, world.state.epoch
    assert (writer, epoch) == ("test", 1)
    observed = replace(world.observe(), writer="next", epoch=2)
    world.observe = lambda: observed  # type: ignore[method-assign]
    assert (world.decide().state.writer, world.decide().state.epoch) == (writer, epoch)


def test_a_request_outranks_what_an_earlier_policy_wrote() -> None:
    world = fleet()
    generations = {"hot-0": "41"}
    for name, raw in generations.items():
        world.workloads[name] = replace(world.workloads[name], generation_raw=raw, has_original=True)
    world.run(3)
    assert world.state.generation > 41
    world = promoted()
    world.state = replace(world.state, generation=0)  # a state that was lost and is not believed
    world.bad = {name: {Signal.OVERFLOW: 0.6} for name in world.workloads}
    decision = world.decide()
    for action in decision.actions:
        if isinstance(action, RequestPod) and action.pod.request is not None:
            assert action.generation > action.pod.request.generation
    assert decision.state.generation > 0


@pytest.mark.parametrize(
    ("deletion", "finalizers", "expected"),
    [
        ("Restore", (), [GuardPolicy()]),
        ("Restore", (FINALIZER,), []),
        ("Leave", (), []),
        ("Leave", (FINALIZER,), [ReleasePolicy()]),
    ],
)
def test_the_finalizer_stands_only_where_a_deletion_must_restore(
    deletion: str, finalizers: tuple[str, ...], expected: list[object]
) -> None:
    world = fleet(suspend=True, deletionPolicy=deletion)
    world.policy = replace(world.policy, finalizers=finalizers)
    assert [a for a in world.decide().actions if isinstance(a, GuardPolicy | ReleasePolicy)] == expected


def test_a_deleted_policy_of_which_nothing_is_asked_is_left_alone() -> None:
    world = deleted(promoted(**{**FAST, "deletionPolicy": "Restore"}))
    world.policy = replace(world.policy, finalizers=())
    decision = world.decide()
    assert (decision.actions, decision.state) == ((), world.state)


def test_a_deletion_restores_what_was_changed_then_lets_go() -> None:
    world = deleted(promoted(deletionPolicy="Restore"))
    world.down = True
    first = world.decide()
    assert {a.workload.name for a in first.actions if isinstance(a, Restore)} <= set(world.workloads)
    assert first.wake_at == world.now + 1.0
    world.run(5, 1.0)
    assert world.policy.finalizers == ()
    assert not [w for w in world.workloads.values() if w.has_original]
    assert all(w.template_mode is Mode.FP32 for w in world.workloads.values())


def test_a_deletion_restores_within_the_budget_and_idle_workloads_at_once() -> None:
    world = promoted(deletionPolicy="Restore")
    world.restart_slots = 1
    world.workloads["hot-4"] = replace(world.workloads["hot-4"], replicas=0, pods=())
    names = [a.workload.name for a in deleted(world).decide().actions if isinstance(a, Restore)]
    assert names == ["hot-0", "hot-4"]


def test_a_deletion_does_not_wait_for_ever() -> None:
    world = promoted(deletionPolicy="Restore")
    world.restart_slots = 0
    assert deleted(world, after=RELEASE_AFTER_SECONDS).decide().actions == ()
    late = deleted(world, after=RELEASE_AFTER_SECONDS + 1).decide().actions
    assert [getattr(action, "reason", "") for action in late] == ["RestoreIncomplete", ""]
    assert late[-1] == ReleasePolicy()


def test_a_policy_that_leaves_is_let_go_at_once() -> None:
    assert deleted(promoted()).decide().actions == (ReleasePolicy(),)


def test_policies_of_nothing_wait_and_say_what_is_missing() -> None:
    world = World(policy(**FAST))
    assert world.step().state.reason == "NoWorkloads"
    world.add("plain", hot=False)
    world.workloads["plain"] = replace(world.workloads["plain"], literal=False)
    state = world.step().state
    assert (state.phase, state.reason) == (Phase.PENDING, "Undeliverable")
    assert condition(state, "Accepted") == ("False", "Undeliverable")
    world.down = True
    world.add("hot")
    assert world.step().state.reason == "MetricsUnavailable"
    world.down = False
    world.blind.add("hot")
    assert world.step().state.reason == "NoSamples"
    world.blind.clear()
    state = world.step().state
    assert state.phase is Phase.PROGRESSING
    assert condition(state, "Accepted") == ("True", "Undeliverable")
