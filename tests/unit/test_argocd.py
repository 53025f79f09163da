"""What Argo CD shows of a policy and offers to do with it: its own Lua, on policies of a real API server, and on what the
operator's own code writes in further phases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lab.model.world import NAN, World
from precision_operator.api.commands import Command, answered
from precision_operator.api.spec import PolicyEnforcement
from precision_operator.api.state import Phase
from precision_operator.api.summary import summary_to_wire
from precision_operator.core.commands import allowed
from tests.support.argocd import actions, clicked, definitions, health, offered, unclicked
from tests.support.fleets import answer, fleet, held, moving, promoted, respec, waiting_for_a_person
from tests.support.recorded_policies import NAMES, recorded

COMMANDS = {
    "promote": Command.PROMOTE,
    "retry": Command.RETRY,
    "rollback": Command.ROLLBACK,
    "rollback-now": Command.ABORT,
}

Json = dict[str, Any]


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


@pytest.mark.parametrize(("stands", "shown"), STANDS, ids=lambda value: getattr(value, "__name__", value))
def test_the_health_of_a_policy_with_the_operators_own_words(stands: Callable[[], World], shown: str) -> None:
    world = stands()
    found = health(body(world))
    assert found["status"] == shown
    assert found["message"]


def test_what_the_operator_has_not_seen_is_progressing() -> None:
    assert health({"metadata": {"generation": 1}, "spec": {}})["status"] == "Progressing"
    seen = body(promoted())
    seen["metadata"]["generation"] += 1
    assert health(seen)["status"] == "Progressing"
    new = {"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": -1}}
    assert health(new)["status"] == "Progressing"


@pytest.mark.parametrize("stands", [stands for stands, _ in STANDS], ids=lambda stands: stands.__name__)
def test_an_action_that_is_offered_is_one_that_the_operator_carries_out(stands: Callable[[], World]) -> None:
    world = stands()
    policy = body(world)
    assert set(actions(policy)) == set(COMMANDS) == definitions()
    assert all(allowed(COMMANDS[name], world.policy, world.state) for name in offered(policy))


@pytest.mark.parametrize(
    ("stands", "name"),
    [(waiting_for_a_person, "promote"), (held, "retry"), (promoted, "rollback"), (going_back, "rollback-now")],
)
def test_what_a_person_may_do_next_is_offered(stands: Callable[[], World], name: str) -> None:
    assert name in offered(body(stands()))


RECORDED: dict[str, tuple[str, set[str]]] = {
    "unseen": ("Progressing", set()),
    "paused": ("Suspended", {"promote", "rollback", "rollback-now"}),
    "healthy": ("Healthy", {"rollback", "rollback-now"}),
    "degraded": ("Degraded", {"retry", "rollback", "rollback-now"}),
    "held": ("Degraded", {"retry"}),
}
"""Policy of a real API server → its health, and the actions that can be clicked."""


def test_every_policy_that_was_recorded_is_judged() -> None:
    assert set(NAMES) == set(RECORDED)


@pytest.mark.parametrize("name", NAMES)
def test_the_health_and_the_actions_of_a_policy_of_a_real_api_server(name: str) -> None:
    policy = recorded(name)
    assert (health(policy)["status"], offered(policy)) == RECORDED[name]
    assert health(policy)["message"]


@pytest.mark.parametrize(("name", "action"), [(name, action) for name in NAMES for action in sorted(RECORDED[name][1])])
def test_an_action_answers_the_transition_that_stands_and_changes_nothing_else(name: str, action: str) -> None:
    before = recorded(name)
    after = clicked(action, before)
    annotations = after["metadata"].pop("annotations")
    had = before["metadata"].pop("annotations", {})
    given = {key: value for key, value in annotations.items() if key not in had}
    assert annotations == had | given
    assert len(given) == 1
    assert answered(given, COMMANDS[action], before["status"]["transitionId"]) is not None
    assert after == unclicked(before)
