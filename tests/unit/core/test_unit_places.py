"""``unit: Pod``: which pods take the places of a step, and who keeps them."""

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.api.workload import name_of
from precision_operator.core.cohorts.units import Cohort, extend_units, moved_pods
from precision_operator.core.derive import derive_facts
from precision_operator.core.model import PodSignals
from tests.support.fleets import at_next_step, paused, phase_of, respec, until
from tests.support.unit_pods import asked, pods, replicas
from tests.support.views import key, pod, reported, workload


def test_a_workload_that_has_moved_as_a_whole_and_is_deleted_leaves_its_place_to_another() -> None:
    world = World(policy(**{**FAST, "unit": "Pod", "strategy": {"steps": [{"setWeight": 50}, {"pause": {}}]}}))
    for name in ("x", "y"):
        world.add(name, hot=False)
    world.run(4)
    world.drop(name_of(*world.state.members))
    world.run(3)
    assert world.state.members == tuple(map(key, world.workloads))


def test_what_is_held_keeps_its_places_and_is_not_among_those_that_were_not_moved() -> None:
    world = replicas(6, evaluation={**FAST["evaluation"], "onNoData": "Rollback", "noDataLimit": "30s"})
    for name in ("b", "c", "d"):
        world.add(name, pods=6)
        world.world_sizes[name] = 1
    at_next_step(paused(world))
    paused(world)
    shares = dict(world.state.shares)
    (first, *_) = (name_of(found) for found, share in shares.items() if share)
    world.unobservable |= {pod.name for pod in pods(world, first)}
    until(world, lambda w: w.state.held_keys)
    world.unobservable.clear()
    world.run(4)
    assert (world.state.shares[key(first)], asked(world, first)) == (shares[key(first)], set())
    facts = derive_facts(world.policy, world.state, world.observe(), world.now)
    assert first not in {w.name for w in facts.fleet.unmoved}


def test_the_next_step_takes_no_more_pods_of_what_is_held() -> None:
    world = replicas(6, evaluation={**FAST["evaluation"], "onNoData": "Rollback", "noDataLimit": "30s"})
    world.add("b", pods=6)
    world.world_sizes["b"] = 1
    paused(world)
    held = next(name for name in ("a", "b") if asked(world, name))
    share = world.state.shares[key(held)]
    world.unobservable |= {pod.name for pod in pods(world, held)}
    until(world, lambda w: w.state.held_keys)
    world.unobservable.clear()
    at_next_step(paused(world))
    assert (world.state.shares[key(held)], asked(world, held)) == (share, set())


def test_pods_that_were_not_asked_yet_keep_their_places() -> None:
    world = replicas()
    world.add("b", pods=10)
    world.world_sizes["b"] = 1
    first = world.decide()
    world.commit(first)
    second = world.decide()
    assert first.state.shares == second.state.shares


def test_what_was_found_in_the_target_joins_as_a_whole_once_it_is_watched_and_no_pod_of_it_is_put_back() -> None:
    world = replicas(6)
    world.add("found", pods=4, mode=Mode.FP16)
    world.world_sizes["found"], world.unobservable = 1, {"found"}
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    world.unobservable = set()
    at_next_step(paused(world), passes=3)
    assert key("found") in world.state.members
    assert (len(asked(world, "found")), key("found") in world.state.shares) == (4, False)


def test_a_guarded_fleet_keeps_to_its_last_step_as_pods_come() -> None:
    world = replicas(4, strategy={"steps": [{"setWeight": 50}]})
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    assert len(asked(world)) == 2
    world.scale("a", 8)
    world.run(4)
    assert (phase_of(world), world.state.shares, len(asked(world))) == (Phase.HEALTHY, {key("a"): 4}, 4)


@pytest.mark.parametrize("name", ["p0", "p1", "p2"])
def test_a_pod_that_only_reports_the_target_takes_a_place_before_those_that_may_join(name: str) -> None:
    view = workload(pods=tuple(pod(f"p{number}") for number in range(3)))
    seen = reported(**{name: PodSignals(Mode.FP16)})
    found = moved_pods("uid", view, 1, fallback=Mode.FP32, evaluation=seen, may_join=lambda _: True)
    assert [one.name for one in found] == [name]


def test_of_the_pods_that_have_not_moved_a_share_takes_only_those_that_may_join() -> None:
    view = workload(pods=tuple(pod(f"p{number}") for number in range(3)))
    seen = reported(p0=PodSignals(Mode.FP32), p2=PodSignals(Mode.FP16))
    found = moved_pods("uid", view, 3, fallback=Mode.FP32, evaluation=seen, may_join=lambda one: one.name == "p1")
    assert [one.name for one in found] == ["p2", "p1"]


@pytest.mark.parametrize("first", ["a", "b", "c"])
def test_who_is_to_join_first_takes_the_last_place(first: str) -> None:
    whole, parts = dict.fromkeys(("a", "b", "c"), 1), {"d": ("d-0", "d-1")}
    found = extend_units("uid", Cohort(()), parts=parts, whole=whole, places=1, first={first})
    assert found == Cohort((first,))


@pytest.mark.parametrize("name", ["p0", "p1", "p2"])
def test_a_pod_that_was_asked_for_the_target_keeps_its_place_before_those_that_only_report_it(name: str) -> None:
    view = workload(
        pods=tuple(pod(f"p{n}", started_mode=Mode.FP16 if name == f"p{n}" else Mode.FP32) for n in range(3))
    )
    seen = reported(**dict.fromkeys({"p0", "p1", "p2"} - {name}, PodSignals(Mode.FP16)))
    found = moved_pods("uid", view, 1, fallback=Mode.FP32, evaluation=seen, may_join=lambda _: True)
    assert [one.name for one in found] == [name]


@pytest.mark.parametrize("passes", [6, 40], ids=["in a rollout", "guarded"])
def test_in_a_fleet_that_has_grown_too_large_shares_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, passes: int
) -> None:
    world = replicas(6, strategy={"steps": [{"setWeight": 50}, {"pause": {"duration": "5m"}}]})
    world.run(passes)
    shares, phase = world.state.shares, phase_of(world)
    monkeypatch.setattr("precision_operator.core.facts.OBJECT_LIMIT_BYTES", 0)
    respec(world, stages=policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}}).spec.stages)
    world.replace_pods("a")
    world.run(4)
    assert (world.state.shares, phase_of(world)) == (shares, phase) == ({key("a"): 3}, phase)
