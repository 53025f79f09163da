"""Who may join a cohort: only what can be watched, by samples of its own."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from lab.model.cluster import Room
from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.core.model import Observation, PodSignals
from tests.support.fleets import at_next_step, change, condition, fleet, member_names, paused, promoted, until
from tests.support.views import key

HALF = {"strategy": {"steps": [{"setWeight": 50}, {"pause": {"duration": "60s"}}, {"setWeight": 100}]}}


def scaled_to_zero(world: World, *names: str) -> None:
    for name in names:
        change(world, name, replicas=0, pods=())


def of_pods(found: Observation, other: Callable[[PodSignals], PodSignals]) -> Observation:
    """The observation with other signals of every pod."""
    assert found.evaluation is not None
    seen = {name: other(signals) for name, signals in found.evaluation.pods.items()}
    return replace(found, evaluation=replace(found.evaluation, pods=seen))


def test_a_fleet_without_a_pod_begins_nothing_and_is_never_healthy() -> None:
    world = fleet()
    scaled_to_zero(world, *world.workloads)
    world.run(40)
    assert (world.state.phase, world.summary.reason) == (Phase.PENDING, "CohortNotRunning")


def test_a_fleet_that_is_scaled_to_zero_in_mid_rollout_is_not_promoted() -> None:
    world = fleet(**HALF)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    scaled_to_zero(world, *world.workloads)
    world.run(40)
    assert (world.state.phase, world.summary.reason) == (Phase.PROGRESSING, "CohortNotRunning")


def test_a_workload_that_is_scaled_to_zero_holds_no_rollout_back_and_joins_once_it_runs() -> None:
    world = fleet()
    scaled_to_zero(world, "hot-3")
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    assert member_names(world) == set(world.workloads) - {"hot-3"}
    world.scale("hot-3", 1)
    world.run(4)
    assert "hot-3" in world.really_in(Mode.FP16)


@pytest.mark.parametrize("unseen", ["no samples of it", "Prometheus is away"])
def test_a_workload_that_is_new_in_mid_rollout_joins_once_it_has_samples_of_its_own(unseen: str) -> None:
    world = fleet(**HALF)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    before = member_names(world)
    late = [f"late-{number}" for number in range(6)]
    for name in late:
        world.add(name)
    world.unobservable, world.metrics_away = set(late), unseen == "Prometheus is away"
    world.run(20)
    assert not member_names(world) & set(late)
    assert before <= member_names(world)
    world.unobservable, world.metrics_away = set(), False
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    assert set(late) <= member_names(world)


def test_a_step_waits_for_samples_of_those_that_would_fill_it() -> None:
    world = fleet(**HALF)
    world.unobservable = {"hot-1", "hot-3"}
    world.run(40)
    assert (world.state.phase, world.state.step_index, world.summary.reason) == (Phase.PROGRESSING, 1, "NoSamples")
    assert "hot-1, hot-3" in world.summary.message


def test_of_a_workload_that_moves_pod_by_pod_those_join_that_are_watched_though_another_is_not() -> None:
    steps = {"steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 50}, {"pause": {}}]}
    world = World(policy(**{**FAST, "unit": "Pod", "strategy": steps}))
    world.add("a", pods=10)
    world.world_sizes["a"] = 1
    paused(world)
    world.unobservable = {next(p.name for p in world.workloads["a"].pods if p.effective_mode is not Mode.FP16)}
    assert at_next_step(world).state.shares == {key("a"): 5}


@pytest.mark.parametrize("steps", [None, 3.0, float("nan")])
def test_a_workload_that_has_just_begun_joins_once_it_has_made_the_steps_of_a_baseline(steps: float | None) -> None:
    world = promoted()
    world.add("late")
    observe = world.observe

    def just_begun() -> Observation:
        return of_pods(observe(), lambda signals: replace(signals, steps=steps))

    world.observe = just_begun  # type: ignore[method-assign]
    world.run(20)
    assert "late" not in member_names(world)
    world.observe = observe  # type: ignore[method-assign]
    world.run(2)
    assert "late" in member_names(world)


def test_a_pod_made_anew_under_its_name_does_not_join_on_the_samples_of_the_one_before_it() -> None:
    world = promoted()
    world.add("late")
    pods = world.workloads["late"].pods
    change(world, "late", pods=tuple(replace(pod, created_at=world.now) for pod in pods))
    observe = world.observe

    def scraped_before() -> Observation:
        """The newest scrape is 20 s old."""
        return of_pods(observe(), lambda signals: replace(signals, sampled_at=world.now - 20.0))

    world.observe = scraped_before  # type: ignore[method-assign]
    world.run(2)
    assert "late" not in member_names(world)
    world.run(2)
    assert "late" in member_names(world)


def test_a_workload_whose_pods_get_the_contract_joins_on_the_samples_of_those_that_have_it() -> None:
    world = fleet(**HALF)
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    late = min(name for name in world.workloads if name.startswith("hot") and name not in member_names(world))
    old = replace(world.workloads[late].pods[0], hot=False)
    change(world, late, pods=(old,), replicas=2)
    world.room[late] = Room.NONE
    world.run(40)
    assert [pod.pending for pod in world.workloads[late].pods] == [False, True]
    assert late not in member_names(world)
    assert (world.state.phase, world.summary.reason) == (Phase.PROGRESSING, "NoSamples")
    assert f"some pods of {late} have the contract" in world.summary.message
    del world.room[late]
    change(world, late, pods=world.workloads[late].pods[1:], replicas=1)
    until(world, lambda w: late in w.really_in(Mode.FP16))
    assert "delete pod" not in {what for name, what in world.log if name == late}, "the pod that came began in FP32"


def test_a_workload_of_which_some_pods_lack_the_contract_joins_where_nothing_brings_it_to_them() -> None:
    world = fleet()
    world.add("mixed", pods=2)
    old, new = world.workloads["mixed"].pods
    change(world, "mixed", pods=(replace(old, hot=False), new), literal=True)
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    assert "mixed" in world.really_in(Mode.FP16)
    assert [pod.hot for pod in world.workloads["mixed"].pods] == [True, True]


def test_a_workload_waits_while_a_change_of_its_template_replaces_pods_that_lack_the_contract() -> None:
    world = fleet()
    world.add("mixed", pods=2)
    old, new = world.workloads["mixed"].pods
    change(world, "mixed", pods=(replace(old, hot=False), new), literal=True, pending_revision=True)
    world.run(40)
    assert "mixed" not in member_names(world)
    assert world.summary.message.startswith("some pods of mixed have the contract")


@pytest.mark.parametrize("passes", [0, 4, 30], ids=["before the first step", "in a rollout", "guarded"])
def test_nobody_joins_a_fleet_that_has_grown_too_large_for_one_assignment(
    monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    world = fleet()
    world.run(passes)
    members, step, phase = member_names(world), world.state.step_index, world.state.phase
    monkeypatch.setattr("precision_operator.core.facts.OBJECT_LIMIT_BYTES", 0)
    world.add("late")
    world.run(12)
    assert (member_names(world), world.state.step_index, world.state.phase) == (members, step, phase)
    assert condition(world, "Accepted").reason == "FleetTooLarge"


def test_a_workload_joins_though_the_api_servers_clock_is_far_ahead_of_ours() -> None:
    world = promoted()
    world.add("late")
    pods = world.workloads["late"].pods
    change(world, "late", pods=tuple(replace(pod, created_at=world.now + 86_400.0) for pod in pods))
    world.run(2)
    assert "late" in member_names(world)


def test_a_pod_with_samples_of_its_own_runs_whatever_its_kubelet_has_said_of_it() -> None:
    world = fleet()
    observe = world.observe

    def unsaid() -> Observation:
        found = observe()
        pending = [replace(w, pods=tuple(replace(p, pending=True) for p in w.pods)) for w in found.workloads]
        return replace(found, workloads=tuple(pending))

    world.observe = unsaid  # type: ignore[method-assign]
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    assert member_names(world)
