"""Fleets in the world of values, brought to where a test begins, and what people and faults do to them."""

from collections.abc import Callable
from dataclasses import replace

from lab.model.policies import FAST, policy
from lab.model.world import NAN, SLOW, World
from precision_operator.api.conditions import Condition
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase

ROLLED_BACK = (Phase.ROLLING_BACK, Phase.HELD)


def fleet(**spec: object) -> World:
    """Five hot workloads and one that is moved by restart, none of them moved yet."""
    world = World(policy(**{**FAST, **spec}))
    for index in range(5):
        world.add(f"hot-{index}")
    world.add("literal", hot=False)
    return world


def promoted(**spec: object) -> World:
    """The same, promoted to the end and at rest."""
    world = fleet(**spec)
    world.run(30)
    assert world.state.phase is Phase.HEALTHY, (world.summary.reason, world.summary.message)
    return world


def restart_only(count: int = 4, *, pods: int = 1, **spec: object) -> World:
    """Workloads ``old-00``, … that only a restart moves; they were found in FP16, and are guarded in it."""
    world = World(policy(**{**FAST, "strategy": {"steps": [{"setWeight": 100}]}, **spec}))
    for index in range(count):
        world.add(f"old-{index:02}", hot=False, pods=pods, mode=Mode.FP16)
    world.run(3)
    assert (world.state.phase, world.restarts) == (Phase.HEALTHY, {})
    return world


def promoted_new_only() -> World:
    """All train in FP16, by pods that were made anew: ``delivery: NewOnly`` touches no running one."""
    world = fleet(delivery="NewOnly", strategy={"steps": [{"setWeight": 100}]})
    world.run(2)
    for name in world.workloads:
        world.replace_pods(name)
    until(world, lambda w: w.state.phase is Phase.HEALTHY)
    return world


def emergency(world: World) -> World:
    """The losses of all of them turn to NaN."""
    world.bad = dict.fromkeys(world.workloads, NAN)
    return world


def gradual(world: World) -> World:
    """All of them train at half the speed of FP32."""
    world.bad = dict.fromkeys(world.workloads, SLOW)
    return world


def until(world: World, done: Callable[[World], object], *, seconds: float = 1.0, passes: int = 300) -> None:
    """Passes until the world is so."""
    for _ in range(passes):
        if done(world):
            return
        world.step(seconds)
    raise AssertionError((world.state.phase, world.summary.reason, world.summary.message))


def answer(world: World, *commands: str) -> None:
    """A person's commands to the transition that stands now."""
    annotations = {f"precision.genesis.ai/{command}": str(world.state.transition_id) for command in commands}
    world.policy = replace(world.policy, annotations=annotations)


def change(world: World, name: str, **fields: object) -> None:
    """Change a workload from outside."""
    world.workloads[name] = replace(world.workloads[name], **fields)  # type: ignore[arg-type]


def respec(world: World, **fields: object) -> None:
    """An edit of the policy."""
    spec = replace(world.policy.spec, **fields)  # type: ignore[arg-type]
    world.policy = replace(world.policy, spec=spec, generation=world.policy.generation + 1)


def phase_of(world: World) -> Phase:
    """The phase now: a type checker takes ``world.state.phase`` for what an assertion before said of it."""
    return world.state.phase


def condition(world: World, kind: str) -> Condition:
    """A condition, as the policy's status shows it."""
    return next(c for c in world.summary.conditions if c.type == kind)


def incident_of(world: World) -> tuple[Severity, Strategy]:
    """How urgent the last incident is, and how it is answered."""
    assert world.state.incident is not None
    return world.state.incident.severity, world.state.incident.strategy


def member_names(world: World) -> set[str]:
    """The cohort, by name."""
    return {key.rpartition("/")[2] for key in world.state.members}


def held_names(world: World) -> set[str]:
    """The workloads that were rolled back by themselves."""
    return {h.name for h in world.state.held}


def moving() -> World:
    """In its first step."""
    world = fleet()
    world.run(2)
    return world


def waiting_for_a_person() -> World:
    """Half promoted, before ``pause: {}``."""
    world = fleet(strategy={"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]})
    until(world, lambda w: w.state.phase is Phase.PAUSED)
    return world


def rolling_back() -> World:
    """Decided, and nobody has acknowledged it: one that only a restart moves, and one that is unresponsive, are in it."""
    world = promoted()
    world.bad = dict.fromkeys(("hot-1", "hot-3"), NAN)
    world.unresponsive = {"hot-4"}
    world.step(1.0)
    assert world.state.phase is Phase.ROLLING_BACK
    return world


def held() -> World:
    """Rolled back at once, by a person."""
    world = promoted()
    answer(world, "abort")
    world.run(30)
    assert world.state.phase is Phase.HELD
    return world


def paused(world: World) -> World:
    """The fleet, once its rollout stands at a pause."""
    until(world, lambda w: w.state.phase is Phase.PAUSED)
    return world


def at_next_step(world: World, *, passes: int = 0) -> World:
    """A person promotes; the fleet at the step after that, and ``passes`` later."""
    index = world.state.step_index
    answer(world, "promote")
    until(world, lambda w: w.state.step_index > index)
    world.run(passes)
    return world
