"""What an assignment may take: a rollback is never refused for its size or its words, a fleet that would not fit is."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import BAD, NAN, World
from precision_operator.api.assignment import OBJECT_LIMIT_BYTES, RESERVE_BYTES, assignment_to_wire, fleet_bytes
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Fallback
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.api.summary import summary_to_wire
from precision_operator.api.text import MESSAGE_CHARACTERS
from precision_operator.contract import ABORT
from precision_operator.core.actions import Notify
from precision_operator.core.decide import Decision
from precision_operator.core.evidence.confirmation import FAILING_BYTES
from precision_operator.core.mitigation.ladder import MITIGATIONS_BYTES
from precision_operator.core.rollback.alone import HOLDS_LIMIT
from precision_operator.reasons import Reason
from tests.support.fleets import condition, fleet, held_names, member_names, phase_of, promoted, respec
from tests.support.views import key

pytestmark = pytest.mark.slow

ALL_AT_ONCE = {"maxConcurrentPods": 5000, "expectedRestart": "10m"}
NO_WINDOW = {"overflow": {"window": "0s"}, "speed": {"window": "0s"}}
RULES = {"gradual": {"sustain": "0s"}, "emergency": ALL_AT_ONCE, "mitigation": NO_WINDOW}
MILD_OVERFLOW = {Signal.OVERFLOW: 0.25}
AT_ONCE = {**FAST, "strategy": {"steps": [{"setWeight": 100}]}, "rollback": RULES}


def size(state: State) -> int:
    """Bytes of the object, as the API server gets it."""
    return len(json.dumps(assignment_to_wire(state), separators=(",", ":")))


def clone(world: World) -> World:
    other = copy.copy(world)
    for name in ("workloads", "modes", "restarts", "bad"):
        setattr(other, name, dict(getattr(world, name)))
    other.log, other.leaving = [], set(world.leaving)
    return other


def guarded(count: int, *, hot: bool, **spec: object) -> World:
    """A fleet with names of 60 characters that was found in FP16, and is guarded in it."""
    world = World(policy(**{**AT_ONCE, **spec}))
    for index in range(count):
        world.add(f"workload-{index:051d}", hot=hot, mode=Mode.FP16)
    world.run(2)
    assert (world.state.phase, len(world.state.members)) == (Phase.HEALTHY, count)
    return world


@pytest.fixture(scope="module")
def large() -> World:
    """Five thousand workloads that only a restart moves: those have the most to remember."""
    return guarded(5000, hot=False)


def held_in_all_phases(world: World) -> Iterator[tuple[str, State]]:
    """The states of a rollback of the fleet, through the deletion of its policy."""
    world.bad = dict.fromkeys(world.workloads, BAD)
    for _ in range(4):
        world.step()
        yield world.state.phase, world.state
    assert world.state.phase is Phase.HELD
    world.delete_policy()
    for _ in range(2):
        world.step()
        yield "deleted", world.state


def test_five_thousand_workloads_with_long_names_fit_in_a_rollback_and_after_the_deletion_of_their_policy(
    large: World,
) -> None:
    seen = {phase: size(state) for phase, state in held_in_all_phases(clone(large))}
    assert seen.keys() == {Phase.ROLLING_BACK, Phase.HELD, "deleted"}
    assert max(seen.values()) < OBJECT_LIMIT_BYTES, seen


def test_five_thousand_workloads_fit_before_and_during_their_rollout(large: World) -> None:
    assert size(large.state) < OBJECT_LIMIT_BYTES
    world = clone(large)
    world.state = replace(State(), generation=world.state.generation, transition_id=99)
    world.publish(world.state)
    sizes = {}
    world.unobservable = set(world.workloads)
    for unobservable in (world.unobservable, set[str]()):
        world.unobservable = unobservable
        world.step()
        sizes[world.state.phase] = size(world.state)
    assert sizes.keys() == {Phase.PENDING, Phase.PROGRESSING}
    assert max(sizes.values()) < OBJECT_LIMIT_BYTES, sizes


def test_thousands_that_are_held_one_by_one_fit_also_after_the_deletion_of_their_policy(large: World) -> None:
    world = clone(large)
    respec(world, rollback=replace(world.policy.spec.rollback, fleet_share=1.0))
    held, (last, *_) = list(world.state.members)[:4899], list(world.workloads)[4899:]
    since = (world.now - 60.0 * number for number in range(len(held)))
    alone = tuple(HeldWorkload(one, Reason.LOSS_NOT_FINITE, at) for one, at in zip(held, since, strict=True))
    world.state = replace(world.state, phase=Phase.DEGRADED, held=alone)
    world.bad = {last: BAD}
    world.step()
    assert (world.state.phase, len(world.state.held), len(world.state.restarts)) == (Phase.DEGRADED, 4900, 4900)
    assert len({hold.since for hold in world.state.held}) <= 2 * HOLDS_LIMIT
    sizes = [size(world.state)]
    world.delete_policy()
    for _ in range(2):
        world.step()
        sizes.append(size(world.state))
    assert len(world.state.held) == 4900
    assert max(sizes) < OBJECT_LIMIT_BYTES, sizes


def test_a_rollback_canary_of_thousands_fits(large: World) -> None:
    world = clone(large)
    by_canary = policy(**{**AT_ONCE, "rollback": {**RULES, "strategies": {"P2": "Canary"}, "canary": {"share": 0.5}}})
    world.policy = replace(by_canary, generation=2)
    world.bad = dict.fromkeys(world.workloads, MILD_OVERFLOW)
    world.step()
    assert (world.state.by_canary, len(world.state.canary)) == (True, 2500)
    assert size(world.state) < OBJECT_LIMIT_BYTES


@pytest.mark.parametrize("count", [1000, 5000])
def test_a_fleet_in_breach_of_every_signal_is_confirmed_across_passes_and_rolled_back_whole(
    count: int, large: World
) -> None:
    """Most of it is not listed: one entry stands for all others of a kind, and carries their count."""
    world = clone(large) if count == 5000 else guarded(count, hot=True)
    respec(world, evaluation=replace(world.policy.spec.evaluation, failure_limit=2))
    world.bad = dict.fromkeys(world.workloads, BAD)
    for _ in range(2):
        world.step()
        assert world.state.phase is Phase.HEALTHY
        rest = [found for found in world.state.failing if not found.key]
        assert {(found.signal, found.severity) for found in rest} <= {(f.signal, f.severity) for f in rest}
        assert 0 < len(rest) < len(world.state.failing) < count
        assert listed_bytes(world.state) < FAILING_BYTES + 4096
        assert size(world.state) < OBJECT_LIMIT_BYTES
    world.step()
    assert world.state.incident is not None
    assert (world.state.phase, world.state.incident.scope) == (Phase.ROLLING_BACK, Scope.FLEET)
    assert len(world.state.breached) == count
    assert len(world.state.incident.workloads) == 20
    world.run(4)
    assert world.state.phase is Phase.HELD
    assert len(world.really_in(Mode.FP32)) == count


def listed_bytes(state: State) -> int:
    wire: dict[str, object] = assignment_to_wire(state)["state"]  # type: ignore[assignment]
    return len(json.dumps(wire.get("failing", []), separators=(",", ":")))


def test_silence_ends_no_breach_of_those_that_are_not_listed() -> None:
    world = guarded(1000, hot=True)
    respec(world, evaluation=replace(world.policy.spec.evaluation, failure_limit=1))
    world.bad = dict.fromkeys(world.workloads, BAD)
    world.step()
    world.metrics_away = True
    world.run(2)
    world.metrics_away = False
    world.step()
    assert (world.state.phase, len(world.state.breached)) == (Phase.ROLLING_BACK, 1000)


def test_windows_of_mitigation_are_bounded_and_what_has_no_room_is_rolled_back_without_one() -> None:
    windows = {"gradual": {"sustain": "0s"}, "mitigation": {"overflow": {"window": "10m"}}}
    for breached, rolled_back in ((60, False), (1000, True)):
        world = guarded(1000, hot=True, rollback=windows)
        world.bad = dict.fromkeys(list(world.workloads)[:breached], MILD_OVERFLOW)
        world.run(2)
        wire: dict[str, object] = assignment_to_wire(world.state)["state"]  # type: ignore[assignment]
        assert 0 < len(json.dumps(wire["mitigations"])) <= MITIGATIONS_BYTES
        assert (len(world.state.mitigations) < breached) is rolled_back
        assert (world.state.phase is Phase.ROLLING_BACK) is rolled_back


def long_named(count: int) -> World:
    world = World(policy(**AT_ONCE))
    for index in range(count):
        world.add(f"w{index:0239d}", mode=Mode.FP16)
    return world


def test_a_fleet_that_would_not_fit_is_refused_before_anything_moves_and_says_what_would() -> None:
    limit = OBJECT_LIMIT_BYTES - RESERVE_BYTES
    world = long_named(limit // fleet_bytes([key(f"w{0:0239d}")]) + 1)
    world.run(3)
    assert (world.state.phase, world.state.enforce, world.writes) == (Phase.PENDING, False, 0)
    assert (condition(world, "Accepted").status, condition(world, "Accepted").reason) == ("False", "FleetTooLarge")
    assert str(limit) in condition(world, "Accepted").message
    assert world.summary.reason == "FleetTooLarge"
    world.drop(next(iter(world.workloads)))
    world.step()
    assert world.state.phase is Phase.PROGRESSING


def test_a_fleet_that_grows_beyond_what_fits_takes_in_no_more_and_is_still_rolled_back() -> None:
    limit = OBJECT_LIMIT_BYTES - RESERVE_BYTES
    world = long_named(limit // fleet_bytes([key(f"w{0:0239d}")]))
    world.run(3)
    assert phase_of(world) is Phase.HEALTHY
    world.add("late")
    world.add(f"x{0:0239d}")
    world.run(3)
    assert (world.state.phase, condition(world, "Accepted").reason) == (Phase.HEALTHY, "FleetTooLarge")
    assert "late" not in member_names(world)
    world.bad = dict.fromkeys(world.workloads, BAD)
    world.run(4)
    assert phase_of(world) is Phase.HELD
    assert size(world.state) < OBJECT_LIMIT_BYTES


def texts(value: object) -> Iterator[str]:
    """Every message in it."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "message":
                assert isinstance(inner, str)
                yield inner
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def bounded_everywhere(decision: Decision) -> bool:
    shown = [*texts(assignment_to_wire(decision.state)), *texts(summary_to_wire(decision.summary))]
    shown += [action.message for action in decision.actions if isinstance(action, Notify)]
    return all(len(text) <= MESSAGE_CHARACTERS and text.isprintable() for text in shown)


@pytest.mark.parametrize("reason", ["x" * 100_000, "\x00\x1b[31m\u202e\n\t" * 20_000, "é" * 100_000])
def test_an_abort_is_carried_out_whatever_its_reason_says(reason: str) -> None:
    world = promoted()
    number = world.state.transition_id
    given = {ABORT: f"{number}: {reason}", f"{ABORT}-by": reason}
    world.policy = replace(world.policy, annotations=given)
    decision = world.step()
    assert (decision.state.phase, decision.state.reason) == (Phase.ROLLING_BACK, "Aborted")
    assert bounded_everywhere(decision)
    assert all(bounded_everywhere(world.step()) for _ in range(4))
    retry = {"precision.genesis.ai/retry": str(world.state.transition_id), "precision.genesis.ai/retry-by": reason}
    world.policy = replace(world.policy, annotations=retry)
    decision = world.step()
    assert decision.state.reason == "Retried"
    assert bounded_everywhere(decision)


@pytest.mark.parametrize("values", [NAN, {Signal.MEMORY: 0.9}, MILD_OVERFLOW])
def test_messages_about_workloads_with_the_longest_names_are_bounded(values: dict[Signal, float]) -> None:
    world = World(policy(**FAST))
    for index in range(8):
        world.add(f"{index}" + "n" * 252)
    world.run(30)
    assert world.state.phase is Phase.HEALTHY
    world.bad = dict.fromkeys(list(world.workloads)[:7], values)
    decisions = [world.step() for _ in range(80)]
    assert all(map(bounded_everywhere, decisions))
    assert any("0nnn" in found.message for decision in decisions for found in decision.summary.conditions)
    assert len(json.dumps(summary_to_wire(world.summary))) < 16 * 1024


def test_a_summary_stays_small_whatever_the_size_of_the_fleet(large: World) -> None:
    world = clone(large)
    world.bad = dict.fromkeys(world.workloads, BAD)
    decision = world.step()
    assert len(json.dumps(summary_to_wire(decision.summary))) < 10 * 1024
    assert len(decision.summary.unacknowledged) == 20


def test_a_small_fleet_is_never_too_large() -> None:
    world = fleet()
    world.step()
    assert (condition(world, "Accepted").status, held_names(world)) == ("True", set())


def test_thousands_that_fall_silent_one_after_the_other_fit(large: World) -> None:
    world = clone(large)
    evaluation = replace(world.policy.spec.evaluation, on_no_data=Fallback.ROLLBACK, no_data_limit_seconds=86_400.0)
    respec(world, evaluation=evaluation)
    for part in range(60):
        world.unobservable |= set(list(world.workloads)[part * 84 : (part + 1) * 84])
        world.step()
    assert len(world.state.silent) == 5000
    assert size(world.state) < OBJECT_LIMIT_BYTES
