"""What Argo CD shows of a policy and offers to do with it: its own Lua, on what the operator writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from lupa import lua51

from lab.model.world import World
from precision_operator.api.commands import Command, answered
from precision_operator.api.spec import PolicyEnforcement
from precision_operator.api.state import Phase
from precision_operator.api.summary import summary_to_wire
from precision_operator.core.commands import allowed
from tests.support.fleets import NAN, answer, fleet, held, moving, promoted, respec, waiting_for_a_person

CONFIG = Path(__file__).parents[2] / "manifests" / "argocd" / "argocd-cm.yaml"
DATA = yaml.safe_load(CONFIG.read_text())["data"]
HEALTH = DATA["resource.customizations.health.precision.genesis.ai_PrecisionPolicy"]
ACTIONS = yaml.safe_load(DATA["resource.customizations.actions.precision.genesis.ai_PrecisionPolicy"])
COMMANDS = {
    "promote": Command.PROMOTE,
    "retry": Command.RETRY,
    "rollback": Command.ROLLBACK,
    "rollback-now": Command.ABORT,
}

Json = dict[str, Any]


def lua(code: str, body: Json) -> Json:
    """What a script of Argo CD returns for an object."""
    runtime = lua51.LuaRuntime(unpack_returned_tuples=True)
    runtime.globals().obj = runtime.table_from(body, recursive=True)
    found: Json = _plain(runtime.execute(code))
    return found


def _plain(value: Any) -> Any:  # noqa: ANN401  whatever Lua returns
    if lua51.lua_type(value) != "table":
        return value
    return {key: _plain(found) for key, found in value.items()}


def body(world: World) -> Json:
    spec: Json = {"suspend": world.policy.spec.suspend, "enforcement": str(world.policy.spec.enforcement)}
    return {
        "metadata": {"name": "fleet", "generation": world.policy.generation},
        "spec": spec,
        "status": summary_to_wire(world.summary),
    }


def pending() -> World:
    world = fleet()
    world.metrics_away = True
    world.step()
    return world


def going_back() -> World:
    world = promoted(rollback={"gradual": {"sustain": "0s", "batchShare": 0.1}})
    world.unresponsive = set(world.workloads)
    answer(world, "rollback")
    world.run(2)
    assert world.state.phase is Phase.ROLLING_BACK
    return world


def one_held() -> World:
    world = promoted()
    world.bad = {"hot-2": NAN}
    world.run(2)
    world.bad = {}
    world.run(30)
    assert world.state.phase is Phase.DEGRADED
    return world


def suspended() -> World:
    world = held()
    respec(world, suspend=True)
    world.step()
    return world


def observing() -> World:
    world = promoted()
    respec(world, enforcement=PolicyEnforcement.OBSERVE)
    world.step()
    return world


STANDS: list[tuple[Callable[[], World], str]] = [
    (pending, "Progressing"),
    (moving, "Progressing"),
    (waiting_for_a_person, "Suspended"),
    (promoted, "Healthy"),
    (going_back, "Progressing"),
    (held, "Degraded"),
    (one_held, "Degraded"),
    (suspended, "Suspended"),
    (observing, "Suspended"),
]


@pytest.mark.parametrize(("stands", "health"), STANDS, ids=lambda value: getattr(value, "__name__", value))
def test_the_health_of_a_policy_with_the_operators_own_words(stands: Callable[[], World], health: str) -> None:
    world = stands()
    found = lua(HEALTH, body(world))
    assert found["status"] == health
    assert found["message"]


def test_what_the_operator_has_not_seen_is_progressing() -> None:
    assert lua(HEALTH, {"metadata": {"generation": 1}, "spec": {}})["status"] == "Progressing"
    seen = body(promoted())
    seen["metadata"]["generation"] += 1
    assert lua(HEALTH, seen)["status"] == "Progressing"
    new = {"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": -1}}
    assert lua(HEALTH, new)["status"] == "Progressing"


@pytest.mark.parametrize("stands", [stands for stands, _ in STANDS], ids=lambda stands: stands.__name__)
def test_an_action_that_is_offered_is_one_that_the_operator_carries_out(stands: Callable[[], World]) -> None:
    world = stands()
    found = lua(ACTIONS["discovery.lua"], body(world))
    assert set(found) == set(COMMANDS) == {made["name"] for made in ACTIONS["definitions"]}
    offered = {name for name, action in found.items() if not action["disabled"]}
    assert all(allowed(COMMANDS[name], world.policy, world.state) for name in offered)


@pytest.mark.parametrize(
    ("stands", "name"),
    [(waiting_for_a_person, "promote"), (held, "retry"), (promoted, "rollback"), (going_back, "rollback-now")],
)
def test_what_a_person_may_do_next_is_offered(stands: Callable[[], World], name: str) -> None:
    assert lua(ACTIONS["discovery.lua"], body(stands()))[name]["disabled"] is False


@pytest.mark.parametrize("name", COMMANDS)
def test_an_action_answers_the_transition_that_stands_and_changes_nothing_else(name: str) -> None:
    world = held()
    before = body(world)
    (code,) = (made["action.lua"] for made in ACTIONS["definitions"] if made["name"] == name)
    after = lua(code, before)
    annotations = after["metadata"].pop("annotations")
    given = answered(annotations, COMMANDS[name], world.state.transition_id)
    assert (len(annotations), given is not None) == (1, True)
    assert after["metadata"] == before["metadata"]
    assert after["spec"] == before["spec"]
