"""What a rollback holds stays in the fallback, whatever becomes of its policy, its record and its operator; real API server.

The templates of these fleets start in FP16, so it shows where a hold is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.state import Phase
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import HOT, NO_SPEED, PATIENCE_SECONDS, Scene
from tests.support.lifecycle import (
    delete_assignment,
    delete_policy,
    operator_away,
    remade,
    restorable,
    restore,
    until,
)
from tests.support.side_by_side import LITERAL, fleet, side_by_side

HOT_COUNT = 2
POLICY = policy(criteria=NO_SPEED, strategy={"steps": [{"setWeight": 100}]})
RELEASED = "released"

Backup = tuple[Json, Json]
"""The assignment and the policy, as a backup keeps them."""


def deleted(scene: Scene) -> None:
    delete_policy(scene)
    until(scene, Phase.HELD, deletable=True)


def deleted_with_the_operator_away(scene: Scene) -> None:
    with operator_away(scene):
        delete_policy(scene)
        assert_held(scene)
    until(scene, Phase.HELD, deletable=True)


def recreated_at_once(scene: Scene) -> None:
    before = scene.state().policy_uid
    delete_policy(scene)
    scene.apply(POLICY)
    wait_for_takeover(scene, before)


def recreated_later(scene: Scene) -> None:
    before = scene.state().policy_uid
    deleted(scene)
    scene.apply(POLICY)
    wait_for_takeover(scene, before)


def recreated_with_the_operator_away(scene: Scene) -> None:
    before = scene.state().policy_uid
    with operator_away(scene):
        delete_policy(scene)
        scene.apply(POLICY)
        assert_held(scene)
    wait_for_takeover(scene, before)


def selector_edited(scene: Scene) -> None:
    edit_selector(scene)
    scene.condition("Accepted", "SelectorPending")


def selector_edited_with_the_operator_away(scene: Scene) -> None:
    with operator_away(scene):
        edit_selector(scene)
        assert_held(scene)
    scene.condition("Accepted", "SelectorPending")


def selector_edited_and_policy_deleted(scene: Scene) -> None:
    selector_edited(scene)
    deleted(scene)


def record_lost(scene: Scene) -> None:
    """Only the operator's account can delete it: it stands for a restored cluster that lacks the assignment."""
    operator = Kubectl(scene.kubectl.command[0], scene.operators.kubeconfig)
    assert "deleted" in delete_assignment(scene, operator)
    wait_for(
        lambda: scene.status().get("reason") == "StateLost",
        what="the loss to be noticed",
        seconds=PATIENCE_SECONDS,
        found=scene.operators.logs,
    )


def restored(scene: Scene) -> None:
    assignment, given = removed(scene)
    restore(scene, assignment, given)
    wait_for_takeover(scene, parse_assignment(assignment).policy_uid)


def restored_with_the_operator_away(scene: Scene) -> None:
    assignment, given = removed(scene)
    with operator_away(scene):
        restore(scene, assignment, given)
        assert_held(scene)
    wait_for_takeover(scene, parse_assignment(assignment).policy_uid)


def restored_policy_first_with_the_operator_away(scene: Scene) -> None:
    assignment, given = removed(scene)
    with operator_away(scene):
        restore(scene, given, assignment)
    wait_for_takeover(scene, parse_assignment(assignment).policy_uid)


def namespace_restored(scene: Scene) -> None:
    assignment, given = removed(scene)
    scene.kubectl("delete", "namespace", scene.namespace, "--timeout=120s")
    scene.kubectl("create", "namespace", scene.namespace)
    scene.kubectl.wait_for_namespace(scene.namespace)
    restore(scene, assignment, given)
    scene.apply(*fleet(hot=HOT_COUNT, enabled="true"))
    wait_for_pods(scene)


SCENARIOS: dict[str, Callable[[Scene], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        deleted,
        deleted_with_the_operator_away,
        recreated_at_once,
        recreated_later,
        recreated_with_the_operator_away,
        selector_edited,
        selector_edited_with_the_operator_away,
        selector_edited_and_policy_deleted,
        record_lost,
        restored,
        restored_with_the_operator_away,
        restored_policy_first_with_the_operator_away,
        namespace_restored,
    )
}


def edit_selector(scene: Scene) -> None:
    """The policy is about others from now on."""
    scene.apply({**POLICY, "spec": {**POLICY["spec"], "selector": {"matchLabels": {"fleet": "another"}}}})


def removed(scene: Scene) -> Backup:
    """Policy and assignment go, after a backup was made of both."""
    saved = (restorable(scene, "precisionassignment"), restorable(scene, "precisionpolicy"))
    deleted(scene)
    assert "deleted" in delete_assignment(scene)
    return saved


def wait_for_takeover(scene: Scene, before: str | None) -> None:
    """Until the operator has the new policy in its record."""
    wait_for(
        lambda: scene.state().policy_uid not in ("", None, before),
        what="the new policy to be taken over",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{scene.assignment()}\n{scene.status()}\n{scene.operators.logs()}",
    )


def wait_for_pods(scene: Scene) -> None:
    """Until each workload has a pod whose mode is known."""
    wait_for(
        lambda: len(scene.pods()) == HOT_COUNT + 1 == len(scene.shadow.modes()),
        what="a pod of each workload",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{scene.shadow.modes()}",
    )


def assert_held(scene: Scene) -> None:
    """New pods start in the fallback, hot or not."""
    assert {workload: remade(scene, workload) for workload in (HOT[0], LITERAL)} == {HOT[0]: "fp32", LITERAL: "fp32"}


@pytest.fixture(scope="module")
def fleets(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Scene]]:
    """A fleet for each scenario, adopted in FP16 and rolled back in an emergency."""
    directory, names = tmp_path_factory.mktemp("holds"), [*SCENARIOS, RELEASED]
    stage = side_by_side(control_plane, directory, names, operator=operator_kubeconfig, hot=HOT_COUNT, enabled="true")
    with stage as scenes:
        for scene in scenes.values():
            scene.apply(POLICY)
        for scene in scenes.values():
            scene.wait_phase("Healthy")
            scene.shadow.overflow = dict.fromkeys(HOT[:HOT_COUNT], 0.8)
        for scene in scenes.values():
            scene.wait_phase("Held")
        yield scenes


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_held_still_starts_in_the_fallback(
    fleets: dict[str, Scene], name: str, record_property: Callable[[str, object], None]
) -> None:
    record_property("hold", name)
    SCENARIOS[name](fleets[name])
    assert_held(fleets[name])


def test_what_a_person_releases_starts_as_its_template_says(fleets: dict[str, Scene]) -> None:
    scene = fleets[RELEASED]
    assert_held(scene)
    removed(scene)
    assert {remade(scene, workload) for workload in (HOT[0], LITERAL)} == {"fp16"}
