"""Before a rollout starts: torch, device and the way back of each workload; and what CUDA could gain, afterwards."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.conditions import Condition
from precision_operator.api.signals import Signal
from precision_operator.api.state import HeldWorkload, Phase
from precision_operator.core.actions import Notify
from precision_operator.core.calling import calls
from precision_operator.core.model import Observation, RunsOn
from tests.support.fleets import answer, condition, phase_of
from tests.support.views import key, keys

GOOD = RunsOn("2.6.0+cu124", "cuda", "9.0")


def fleet(
    on: Mapping[str, RunsOn | None] | None = None, way_back: Mapping[str, str] | None = None, **spec: object
) -> World:
    """Two workloads, w-0 and w-1, of which these processes say something else than the other, and dry runs this."""
    world = World(policy(**{**FAST, **spec}))
    for index in range(2):
        world.add(f"w-{index}")
    observe, said = world.observe, on or {}
    proven = dict.fromkeys(map(key, world.workloads), "") if way_back is None else way_back

    def seen() -> Observation:
        found = observe()
        assert found.evaluation is not None
        pods = {
            pod.name: replace(found.evaluation.pods[pod.name], runs_on=said.get(pod.name, said.get(name, GOOD)))
            for name, workload in world.workloads.items()
            for pod in workload.pods
        }
        return replace(found, evaluation=replace(found.evaluation, pods=pods), way_back=proven)

    world.observe = seen  # type: ignore[method-assign]
    return world


def first(world: World) -> Condition:
    """The condition after the first pass."""
    world.step()
    return condition(world, "PreflightPassed")


@pytest.mark.parametrize(
    ("on", "target", "why"),
    [
        (RunsOn("1.13.1", "cuda", "9.0"), "fp16", "torch 1.13.1, expected 2.0 or later"),
        (RunsOn("2.6.0", "cuda", "7.5"), "bf16", "capability 7.5, bf16 needs 8.0: set spec.target: fp16, or select"),
        (RunsOn("2.6.0", "cuda", "5.3"), "bf16", "capability 5.3, bf16 needs 8.0: set spec.target: fp16, or select"),
        (RunsOn("2.6.0", "cuda", "5.0"), "bf16", "capability 5.0, bf16 needs 8.0: select only workloads on newer GPUs"),
        (RunsOn("2.6.0", "cuda", "5.2"), "fp16", "capability 5.2, fp16 needs 5.3"),
    ],
)
def test_a_workload_that_cannot_train_in_the_target_is_named_and_nothing_begins(
    on: RunsOn, target: str, why: str
) -> None:
    world = fleet({"w-1": on}, target=target)
    found = first(world)
    assert (found.status, found.reason) == ("False", "PreflightFailed")
    assert found.message.startswith(f"w-1: {'a device of ' if 'capability' in why else ''}{why}")
    world.run(10)
    assert (world.state.phase, world.summary.reason, world.writes) == (Phase.PENDING, "PreflightFailed", 0)


def test_a_workload_that_is_held_in_the_fallback_keeps_nobody_from_the_target() -> None:
    world = fleet({"w-1": RunsOn("1.13.1", "cuda", "9.0")})
    world.state = replace(world.state, held=(HeldWorkload(key("w-1"), "LossNotFinite", world.now),))
    assert first(world).status == "True"


@pytest.mark.parametrize(("count", "shown"), [(3, "w-2: "), (4, "; and 1 more")])
def test_of_many_that_cannot_train_in_the_target_three_are_shown(count: int, shown: str) -> None:
    names = [f"w-{number}" for number in range(count)]
    world = fleet(way_back={key(name): "Forbidden" for name in names})
    for name in names[2:]:
        world.add(name)
    found = first(world).message
    assert shown in found
    assert ("w-3" in found, "more" in found) == (False, count > 3)


@pytest.mark.parametrize(
    "on",
    [
        RunsOn("2.0.0", "cuda", "5.3"),
        RunsOn("10.1.0a0", "cuda", "10.0"),
        RunsOn("2.6.0", "cpu", ""),
        RunsOn("2.6.0", "npu", "3.0"),
    ],
    ids=["the least", "versions are numbers", "a CPU: its process decides", "a device with other capabilities"],
)
def test_what_is_new_enough_begins(on: RunsOn) -> None:
    world = fleet(dict.fromkeys(("w-0", "w-1"), on))
    world.run(2)
    assert world.state.phase is Phase.PROGRESSING


def test_a_way_back_that_would_be_refused_is_named_and_nothing_begins() -> None:
    world = fleet(way_back={key("w-0"): "", key("w-1"): "Forbidden: webhook of another"})
    found = first(world)
    assert found.message == "w-1: the way back would be refused (Forbidden: webhook of another)"
    world.run(30)
    assert world.state.phase is Phase.PENDING
    assert [(call.kind, call.reason) for call in calls(world.state, world.now)] == [("RolloutHeld", "PreflightFailed")]


def test_a_way_back_that_is_being_tried_is_waited_for() -> None:
    world = fleet(way_back={})
    observe, opened = world.observe, {key("w-1")}
    world.observe = lambda: replace(observe(), way_back_open=frozenset(opened))  # type: ignore[method-assign]
    assert (first(world).status, world.summary.reason) == ("Unknown", "NotReported")
    assert world.summary.message == "the way back of w-1 is being tried"
    world.run(5)
    assert (world.state.phase, world.writes) == (Phase.PENDING, 0)
    opened.clear()
    world.run(2)
    assert world.state.phase is Phase.PROGRESSING


@pytest.mark.parametrize(
    "world",
    [
        lambda: fleet({"w-1": None}),
        lambda: fleet({"w-1": RunsOn("", "cuda", "9.0")}),
        lambda: fleet({"w-1": RunsOn("2.6.0", "", "")}),
        lambda: fleet({"w-1": RunsOn("nightly", "cuda", "new")}, way_back={key("w-0"): ""}),
        lambda: fleet(way_back={key("w-0"): ""}),
    ],
    ids=["nothing said", "no torch", "no device", "versions that are none", "way back not tried"],
)
def test_what_nobody_says_is_unknown_and_holds_nothing(world: Callable[[], World]) -> None:
    seen = world()
    found = _in_pending(seen)
    assert (found.status, found.reason, "w-1" in found.message) == ("Unknown", "NotReported", True)
    seen.run(2)
    assert seen.state.phase is Phase.PROGRESSING


def test_one_pod_that_says_nothing_leaves_its_workload_unknown() -> None:
    world = fleet({"pair-4": None}, way_back=dict.fromkeys(keys("w-0", "w-1", "pair"), ""))
    world.add("pair", pods=2)
    found = _in_pending(world)
    assert (found.status, "pair" in found.message) == ("Unknown", True)


def _in_pending(world: World) -> Condition:
    """As the pass tells it that begins."""
    return next(c for c in world.decide().summary.conditions if c.type == "PreflightPassed")


def test_what_has_failed_stays_as_it_was_while_nothing_has_been_read() -> None:
    world = fleet({"w-1": RunsOn("1.13.1", "cuda", "9.0")})
    before, observe = first(world), world.observe
    world.observe = lambda: replace(observe(), evaluation=None)  # type: ignore[method-assign]
    after = first(world)
    assert (after.status, after.reason) == (before.status, before.reason) == ("False", "PreflightFailed")


def test_what_passes_says_so() -> None:
    world = fleet()
    assert _in_pending(world).status == "True"
    world.run(20)
    assert condition(world, "PreflightPassed").status == "True", "it stays as it was"


def events(world: World, passes: int) -> list[str]:
    """Reasons of the Events that these passes send."""
    found: list[str] = []
    for _ in range(passes):
        found += [action.reason for action in world.step().actions if isinstance(action, Notify)]
    return found


def gaining(speed: float, on: RunsOn = GOOD, criteria: Mapping[str, object] | None = None) -> World:
    world = fleet({"w-0": on, "w-1": on}, criteria=criteria or {})
    world.bad = {name: {Signal.SPEED: speed} for name in world.workloads}
    world.run(20)
    assert world.state.phase is Phase.HEALTHY
    return world


def test_less_than_half_as_fast_again_on_cuda_is_told_once_and_is_no_breach() -> None:
    world = fleet()
    world.bad = {name: {Signal.SPEED: 1.2} for name in world.workloads}
    assert events(world, 60).count("SpeedupLow") == 1
    found = condition(world, "SpeedupLow")
    assert (found.status, world.state.phase) == ("True", Phase.HEALTHY)
    assert "w-0, w-1" in found.message
    before = world.commits
    world.run(50)
    assert world.commits == before


def test_it_ends_with_some_distance_so_that_noise_tells_nothing_twice() -> None:
    world = gaining(1.2)
    for speed, status in ((1.55, "True"), (1.7, "False"), (1.55, "False"), (1.4, "True")):
        world.bad = {name: {Signal.SPEED: speed} for name in world.workloads}
        world.run(2)
        assert condition(world, "SpeedupLow").status == status


@pytest.mark.parametrize(
    "world",
    [
        lambda: gaining(1.6),
        lambda: gaining(1.5),
        lambda: gaining(1.2, RunsOn("2.6.0", "cpu", "")),
        lambda: gaining(1.2, RunsOn()),
        lambda: gaining(1.2, criteria={"speed": {"expected": 0}}),
        lambda: gaining(1.2, criteria={"speed": {"enabled": False}}),
    ],
    ids=["gained", "as expected", "a CPU", "a device that is not known", "not expected", "not asked for"],
)
def test_elsewhere_nothing_is_told(world: Callable[[], World]) -> None:
    assert condition(world(), "SpeedupLow").status == "False"


def test_one_pod_on_cuda_is_enough_to_be_told_of() -> None:
    world = fleet({"pair-4": None})
    world.add("pair", pods=2)
    world.everywhere, world.bad = {Signal.SPEED: 1.7}, {"pair": {Signal.SPEED: 1.2}}
    world.run(20)
    assert [pod.name for pod in world.workloads["pair"].pods] == ["pair-3", "pair-4"]
    assert "on CUDA in pair:" in condition(world, "SpeedupLow").message


def test_of_what_is_rolled_back_it_says_nothing_from_the_decision_on() -> None:
    world = gaining(1.2)
    assert condition(world, "SpeedupLow").status == "True"
    answer(world, "abort")
    world.step()
    assert (phase_of(world), condition(world, "SpeedupLow").status) == (Phase.ROLLING_BACK, "False")
