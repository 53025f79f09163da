"""What a promotion waits for, to the second and to the value; how far a breach reaches, to the workload."""

from dataclasses import replace

import pytest

from lab.model.policies import policy
from lab.model.world import OVERFLOWS, World
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.api.workload import name_of
from precision_operator.contract import PROMOTE
from precision_operator.core.cohorts.order import canary_order, cohort_size, extend_cohort
from precision_operator.core.model import PodView, WorkloadView
from tests.support.fleets import promoted
from tests.support.views import key


def one_step(*, soak: str = "30s", samples: int = 1, pods: int = 1, **spec: object) -> World:
    """Four hot workloads, one in the canary, which has taken the request in the last pass."""
    steps = {"steps": [{"setWeight": 25}, {"pause": {"duration": soak}}, {"setWeight": 100}]}
    rules = {"interval": "10s", "failureLimit": 0, "minSamples": samples}
    world = World(policy(annotations={}, uid="policy", **{"strategy": steps, "evaluation": rules, **spec}))
    for index in range(4):
        world.add(f"w-{index}", pods=pods)
    world.step(10.0)
    assert len(world.state.members) == 1
    return world


def canary(world: World) -> str:
    return name_of(world.state.members[0])


@pytest.mark.parametrize(("soak", "samples", "needed"), [("30s", 1, 30.0), ("0s", 4, 30.0), ("30s", 2, 30.0)])
def test_the_evidence_must_be_as_old_as_the_pause_and_the_samples(soak: str, samples: int, needed: float) -> None:
    world = one_step(soak=soak, samples=samples)
    world.step(needed - 0.5)
    assert world.step(0.5).summary.reason == "Soaking"
    assert world.state.step_index == 0
    assert world.step(1.0).summary.reason == "StepPromoted"
    assert (world.state.step_index, len(world.state.members), world.state.evidence_since) == (1, 4, None)


def test_evidence_that_this_process_did_not_watch_does_not_count() -> None:
    world = one_step()
    world.step(29.0)
    world.continuous_since = world.now
    world.step(29.0)
    assert world.state.step_index == 0
    world.step(1.0)
    assert world.step(1.0).state.step_index == 1


def test_evidence_begins_again_where_it_was_interrupted() -> None:
    world = one_step()
    world.step(20.0)
    began = world.state.evidence_since
    assert began is not None
    world.unobservable.add(canary(world))
    assert world.step(1.0).summary.reason == "AwaitingAcknowledgement"
    assert world.state.evidence_since is None
    world.unobservable.clear()
    world.step(29.0)
    assert world.step(1.0).state.step_index == 0
    assert world.step(1.0).state.step_index == 1


@pytest.mark.parametrize(("value", "promotes"), [(0.049, True), (0.05, False), (0.2, False)])
def test_a_value_must_be_below_its_promotion_level(value: float, promotes: bool) -> None:
    world = one_step()
    world.bad[canary(world)] = {Signal.OVERFLOW: value}
    world.run(5, 10.0)
    assert (world.state.step_index == 1) is promotes
    assert promotes or world.summary.reason == "EvidenceInsufficient"


def test_a_canary_that_does_not_acknowledge_is_waited_for_and_then_named() -> None:
    world = one_step(progressDeadlineSeconds=60)
    world.unresponsive = set(world.workloads)
    began = world.state.step_since
    world.modes = dict.fromkeys(world.modes, (Mode.FP32, 0))
    world.step(50.0)
    assert world.step(0.5).summary.reason == "AwaitingAcknowledgement"
    late = world.step(1.0).summary
    assert began is not None
    assert (late.reason, canary(world) in late.message) == ("ProgressDeadlineExceeded", True)
    assert world.state.step_index == 0


def test_one_pod_without_samples_holds_the_whole_canary() -> None:
    world = one_step(pods=2)
    whole, silent = world.observe, world.workloads[canary(world)].pods[1].name

    def observe() -> object:
        seen = whole()
        assert seen.evaluation is not None
        pods = {name: said for name, said in seen.evaluation.pods.items() if name != silent}
        return replace(seen, evaluation=replace(seen.evaluation, pods=pods))

    world.observe = observe  # type: ignore[method-assign, assignment]
    world.run(6, 10.0)
    assert world.state.step_index == 0


def test_an_approval_answers_one_transition_and_no_other() -> None:
    world = one_step(strategy={"steps": [{"setWeight": 25}, {"pause": {}}, {"setWeight": 100}]})
    world.step(10.0)
    assert (world.summary.phase, world.summary.reason) == (Phase.PAUSED, "AwaitingApproval")
    for answer in (world.state.transition_id - 1, world.state.transition_id + 1):
        world.policy = replace(world.policy, annotations={PROMOTE: str(answer)})
        assert world.step(10.0).state.phase is Phase.PAUSED
    world.policy = replace(world.policy, annotations={PROMOTE: str(world.state.transition_id)})
    assert world.step(10.0).state.step_index == 1


@pytest.mark.parametrize(
    ("breached", "share", "minimum", "scope"),
    [
        (1, 0.25, 2, Scope.WORKLOAD),
        (2, 0.25, 2, Scope.FLEET),
        (2, 0.5, 2, Scope.WORKLOAD),
        (3, 0.5, 2, Scope.FLEET),
        (1, 0.1, 1, Scope.FLEET),
    ],
)
def test_a_share_of_the_moved_fleet_makes_a_breach_the_fleets(
    breached: int, share: float, minimum: int, scope: Scope
) -> None:
    world = promoted(rollback={"fleetShare": share, "fleetMinimum": minimum})
    world.bad = {f"hot-{index}": OVERFLOWS for index in range(breached)}
    world.step(1.0)
    assert world.state.incident is not None
    assert world.state.incident.scope is scope
    assert (world.state.phase is Phase.ROLLING_BACK) is (scope is Scope.FLEET)
    assert (world.state.modes == {}) is (scope is Scope.FLEET)


def test_the_gravest_breach_names_the_rollback() -> None:
    world = promoted()
    world.bad = {"hot-0": OVERFLOWS, "hot-3": {Signal.NON_FINITE: 2.0}}
    world.step(1.0)
    assert world.state.incident is not None
    assert (world.summary.reason, world.state.incident.severity) == ("LossNotFinite", "P0")
    assert world.state.incident.workloads == ("hot-0", "hot-3")


@pytest.mark.parametrize(("fp32_broken", "held_back"), [(0, False), (1, False), (2, True)])
def test_the_same_fault_on_two_fp32_workloads_is_not_the_precisions(fp32_broken: int, held_back: bool) -> None:
    world = one_step()
    outside = [name for name in world.workloads if name != canary(world)]
    world.poisoned = {canary(world), *outside[:fp32_broken]}
    world.step(10.0)
    assert (world.summary.reason == "CauseNotPrecision") is held_back
    assert (world.state.phase is Phase.ROLLING_BACK) is not held_back


def test_others_that_train_in_the_target_are_no_evidence_that_a_fault_is_not_the_precisions() -> None:
    world = one_step()
    (first, *others) = {canary(world): None, **world.workloads}
    world.unresponsive = set(others)  # they train in it though nobody asked for that, and stay there
    for name in others:
        (pod,) = world.workloads[name].pods
        world.modes[pod.name] = (Mode.FP16, 0)
    world.poisoned = {first, *others}
    world.step(10.0)
    assert world.state.phase is Phase.ROLLING_BACK


def test_a_fault_that_fp32_cannot_have_is_the_precisions_whatever_share_of_the_others_would_count() -> None:
    world = one_step(rollback={"fleetMinimum": 0})  # as it may stand in the record of another version
    world.bad = {canary(world): OVERFLOWS}
    world.step(10.0)
    assert world.state.phase is Phase.ROLLING_BACK


@pytest.mark.parametrize(
    ("weight", "total", "size"), [(10, 0, 0), (10, 5, 1), (10, 19, 1), (10, 20, 2), (99, 3, 2), (100, 3, 3)]
)
def test_a_weight_is_rounded_down_but_never_to_nobody(weight: int, total: int, size: int) -> None:
    assert cohort_size(weight, total) == size


def test_a_cohort_keeps_who_is_in_it_and_spreads_over_nodes() -> None:
    def on(name: str, *nodes: str) -> WorkloadView:
        pods = tuple(PodView(f"{name}-{node}", f"{name}-{node}", node=node) for node in nodes)
        return WorkloadView("ns", key(name), f"uid-{name}", pods=pods)

    fleet = [*(on(f"a{i}", "node-a") for i in range(6)), *(on(f"b{i}", "node-b") for i in range(2))]
    first = canary_order("policy", fleet)
    assert {w.pods[0].node for w in first[:2]} == {w.pods[0].node for w in first[2:4]} == {"node-a", "node-b"}
    assert sorted(w.name for w in first) == sorted(w.name for w in fleet)
    small = extend_cohort("policy", (), fleet, size=2)
    large = extend_cohort("policy", small, fleet, size=5)
    assert set(small) < set(large)
    assert len(large) == 5
    assert extend_cohort("policy", large, fleet, size=2) == large
    gone = [w for w in fleet if w.key != large[0]]
    assert large[0] not in extend_cohort("policy", large, gone, size=5)


def test_a_pod_that_waits_for_a_node_makes_its_workload_none_of_another_node() -> None:
    here = PodView("here", "here", node="node-a")
    waits = PodView("waits", "waits", pending=True)
    fleet = [WorkloadView("ns", key(f"a{i}"), f"uid-{i}", pods=(here,)) for i in range(6)]
    scaled = [replace(w, pods=(here, waits)) if n % 2 else w for n, w in enumerate(fleet)]
    assert [w.name for w in canary_order("policy", scaled)] == [w.name for w in canary_order("policy", fleet)]


def test_a_canary_whose_sentinel_has_left_the_target_has_not_acknowledged_it() -> None:
    world = one_step()
    (pod,) = world.workloads[canary(world)].pods
    world.modes[pod.name] = (Mode.FP32, world.modes[pod.name][1])
    world.run(2, 15.0)
    assert (world.state.phase, world.summary.reason) == (Phase.PROGRESSING, "AwaitingAcknowledgement")
