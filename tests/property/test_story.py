"""The main job on values: staged up, guarded, rolled back, settled, retried."""

from dataclasses import replace

from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from tests.property.policies import FAST, policy
from tests.property.world import World


def fleet(**spec: object) -> World:
    world = World(policy(**{**FAST, **spec}))
    for index in range(5):
        world.add(f"hot-{index}")
    world.add("literal", hot=False)
    return world


def promoted(**spec: object) -> World:
    world = fleet(**spec)
    world.run(30)
    assert world.state.phase is Phase.HEALTHY, (world.state.reason, world.state.message)
    return world


def test_rolls_out_by_steps_until_healthy() -> None:
    world = fleet()
    seen = set()
    for _ in range(30):
        world.step()
        seen.add(len(world.really_in(Mode.FP16)))
    assert world.state.phase is Phase.HEALTHY
    assert {1, 3, 6} <= seen
    assert world.restarts == {"literal": 1}
    assert world.state.moved == 6


def test_settles_hot_workloads_without_a_restart() -> None:
    world = promoted()
    assert all(w.template_mode is Mode.FP16 and w.settle is None and not w.paused for w in world.workloads.values())
    assert set(world.restarts) == {"literal"}


def test_a_steady_fleet_costs_no_write() -> None:
    world = promoted()
    before = (world.writes, world.status_writes)
    world.run(50)
    assert (world.writes, world.status_writes) == before


def test_share_of_breached_workloads_makes_a_fleet_emergency() -> None:
    world = promoted()
    for name in ("hot-1", "hot-3"):
        world.bad[name] = {Signal.OVERFLOW: 0.6}
    decision = world.step(1.0)
    assert decision.state.phase is Phase.ROLLING_BACK
    assert decision.state.incident is not None
    assert decision.state.incident.scope is Scope.FLEET
    assert decision.state.gate_closed
    world.run(10, 1.0)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP32) == set(world.workloads)
    assert all(w.template_mode is Mode.FP32 and w.latch is Mode.FP32 for w in world.workloads.values())
    assert world.restarts == {"literal": 2}


def test_one_breached_workload_is_rolled_back_by_itself() -> None:
    world = promoted()
    world.bad["hot-2"] = {Signal.OVERFLOW: 0.6}
    world.run(10)
    assert world.state.phase is Phase.DEGRADED
    assert [h.name for h in world.state.held] == ["hot-2"]
    assert world.really_in(Mode.FP32) == {"hot-2"}
    assert not world.state.gate_closed


def test_breach_in_a_step_rolls_back_its_cohort() -> None:
    world = fleet()
    world.bad = {name: {Signal.OVERFLOW: 0.6} for name in world.workloads}
    world.run(10)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP32) == set(world.workloads)


def test_held_leaves_only_by_retry_of_this_transition() -> None:
    world = promoted()
    world.bad = {name: {Signal.NON_FINITE: 3.0} for name in ("hot-1", "hot-3")}
    world.run(10)
    world.bad = {}
    stale = str(world.state.transition_id - 1)
    world.policy = replace(world.policy, annotations={"precision.genesis.ai/retry": stale})
    world.run(20)
    assert world.state.phase is Phase.HELD
    answer = str(world.state.transition_id)
    world.policy = replace(world.policy, annotations={"precision.genesis.ai/retry": answer})
    world.run(40)
    assert world.state.phase is Phase.HEALTHY
    assert world.really_in(Mode.FP16) == set(world.workloads)


def test_retry_waits_until_the_window_no_longer_shows_the_old_breach() -> None:
    world = promoted()
    world.bad = {name: {Signal.OVERFLOW: 0.6} for name in ("hot-1", "hot-3")}
    world.run(10, 1.0)
    assert world.state.phase is Phase.HELD
    world.policy = replace(world.policy, annotations={"precision.genesis.ai/retry": str(world.state.transition_id)})
    world.run(10, 1.0)
    assert world.state.phase is Phase.PENDING
    assert world.state.reason == "WindowNotClear"
    world.bad = {}
    world.run(40, 30.0)
    assert world.state.phase is Phase.HEALTHY


def test_monitoring_lost_holds_and_recovers() -> None:
    world = fleet()
    world.run(3)
    world.down = True
    moved = world.really_in(Mode.FP16)
    world.run(100)
    assert world.state.phase is Phase.PROGRESSING
    assert world.really_in(Mode.FP16) == moved
    world.down = False
    world.run(40)
    assert world.state.phase is Phase.HEALTHY


def test_same_breach_on_fp32_is_not_blamed_on_the_precision() -> None:
    world = fleet()
    world.everywhere = {Signal.NON_FINITE: 2.0}
    world.run(8)
    assert world.state.phase is Phase.PROGRESSING
    assert world.state.reason == "CauseNotPrecision"


def test_hot_workload_that_does_not_acknowledge_is_restarted() -> None:
    world = promoted()
    world.bad = {name: {Signal.OVERFLOW: 0.6} for name in ("hot-1", "hot-3")}
    deaf = {pod.name for pod in world.workloads["hot-4"].pods}
    train = world.train
    world.train = lambda name=None: [train(n) for n, w in world.workloads.items() if not deaf & {p.name for p in w.pods}]  # type: ignore[method-assign, assignment]  # fmt: skip
    world.run(20, 10.0)
    assert world.state.phase is Phase.HELD
    assert world.restarts["hot-4"] == 1
    assert world.state.incident is not None
    assert world.state.incident.escalated


def test_abort_rolls_back_whatever_the_metrics_say() -> None:
    world = promoted()
    answer = str(world.state.transition_id)
    world.policy = replace(world.policy, annotations={"precision.genesis.ai/abort": answer})
    world.run(10)
    assert world.state.phase is Phase.HELD
    assert world.really_in(Mode.FP32) == set(world.workloads)


def test_policy_created_again_over_latched_workloads_starts_held_and_outranks() -> None:
    world = promoted()
    world.bad = {name: {Signal.OVERFLOW: 0.6} for name in ("hot-1", "hot-3")}
    world.run(10)
    generation = world.state.generation
    world.state = type(world.state)()
    world.policy = policy(uid="another", **FAST)
    world.run(5)
    assert world.state.phase is Phase.HELD
    assert world.state.generation > generation


def test_approval_step_waits_for_a_person() -> None:
    steps = {"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]}
    world = fleet(strategy=steps)
    world.run(20)
    assert world.state.phase is Phase.PAUSED
    answer = str(world.state.transition_id)
    world.policy = replace(world.policy, annotations={"precision.genesis.ai/promote": answer})
    world.run(20)
    assert world.state.phase is Phase.HEALTHY


def test_suspended_policy_decides_nothing() -> None:
    world = fleet(suspend=True)
    world.run(10)
    assert world.writes == 0
    assert world.state.reason == "Suspended"


def test_crash_looping_canary_is_a_breach_not_silence() -> None:
    world = fleet()
    world.run(2, 1.0)
    moved = next(iter(world.really_in(Mode.FP16)))
    workload = world.workloads[moved]
    world.workloads[moved] = replace(
        workload, pods=tuple(replace(p, crashing=True, ready=False) for p in workload.pods)
    )
    world.blind.add(moved)
    world.step()
    assert world.state.phase is Phase.ROLLING_BACK
    assert world.state.reason == "TrainingFailing"
