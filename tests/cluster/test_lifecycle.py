"""What becomes of a rollback when its operator, its policy, its record or its namespace goes; on a real API server."""

from __future__ import annotations

from pathlib import Path

from lab.cluster.kubectl import Kubectl
from lab.waiting import wait_for
from precision_operator.api.state import Phase
from precision_operator.contract import ADMITTED
from tests.support.cluster_fleet import deployment, policy
from tests.support.cluster_scene import (
    HOT,
    PATIENCE_SECONDS,
    Scene,
    assert_all_in_fallback,
    break_two,
    promoted,
)
from tests.support.lifecycle import delete_assignment, remade, until

LITERAL = "literal"
KEYS = [f"apps/Deployment/{name}" for name in [*HOT, LITERAL]]


def test_a_rollback_outlives_its_operator_and_its_policy_and_is_held_until_a_person_releases_it(scene: Scene) -> None:
    promoted(scene)
    assert "still lives" in delete_assignment(scene, scene.kubectl)
    scene.shadow.capacity = {LITERAL: 0}  # the one that is restarted does not come back: the rollback goes on
    break_two(scene)
    wait_for(
        lambda: scene.state().phase is Phase.ROLLING_BACK and scene.in_mode("fp32") >= set(HOT),
        what="the hot ones in the fallback, in mid-rollback",
        seconds=PATIENCE_SECONDS,
        found=scene.operators.logs,
    )
    transition, generation = scene.state().transition_id, scene.state().generation
    assert finalizers(scene) == []
    scene.operators.running["one"].kill()
    scene.operators.running["one"].wait(timeout=10)
    # Nobody but admission is there.
    assert remade(scene, HOT[3]) == "fp32"
    scene.kubectl("delete", "ppol", "fleet", "-n", scene.namespace, "--timeout=30s")
    assert scene.state().phase is Phase.ROLLING_BACK
    assert "not finished" in delete_assignment(scene, scene.kubectl)

    scene.operators.start("two")
    scene.shadow.capacity = {}
    held = until(scene, Phase.HELD, deletable=True)
    assert_all_in_fallback_of(scene)
    assert (held.reason, held.fallback, held.enforce) == ("PolicyDeleted", None, True)
    assert sorted(held.modes) == sorted(KEYS)
    assert {str(mode) for mode in held.modes.values()} == {"fp32"}
    assert held.generation > generation
    assert remade(scene, LITERAL) == "fp32"
    scene.apply(deployment("other", hot=False, enabled="true"))
    wait_for(lambda: scene.in_mode("fp16") == {"other"}, what="a workload that is not held", seconds=PATIENCE_SECONDS)
    scene.kubectl("delete", "deployment", "other", "-n", scene.namespace, "--cascade=foreground", "--timeout=60s")

    scene.apply(policy())
    again = until(scene, Phase.PENDING)
    assert sorted(again.held_keys) == sorted(KEYS)
    assert (again.generation >= held.generation, again.transition_id > transition) == (True, True)
    wait_for(
        lambda: scene.status().get("held") == len(KEYS),  # the summary follows the record by a write
        what="the summary counts what is held",
        seconds=PATIENCE_SECONDS,
        found=scene.operators.logs,
    )
    assert scene.in_mode("fp32") == {*HOT, LITERAL}

    scene.kubectl("delete", "ppol", "fleet", "-n", scene.namespace, "--timeout=30s")
    until(scene, Phase.HELD, deletable=True)
    assert "deleted" in delete_assignment(scene, scene.kubectl)
    remade(scene, HOT[3])
    assert ADMITTED not in scene.pods()[HOT[3]]["metadata"].get("annotations", {})


def finalizers(scene: Scene) -> list[str]:
    """Of all that the operator makes, writes to or reads."""
    kinds = "precisionpolicies,precisionassignments,precisionincidents,deployments,replicasets,pods"
    items = scene.kubectl.json("get", kinds, "-n", scene.namespace)["items"]
    assert {item["kind"] for item in items} >= {"PrecisionPolicy", "PrecisionAssignment", "Pod"}
    return [finalizer for item in items for finalizer in item["metadata"].get("finalizers", [])]


def assert_all_in_fallback_of(scene: Scene) -> None:
    """Of this fleet, whatever the assignment has as its default."""
    wait_for(
        lambda: scene.in_mode("fp32") == {*HOT, LITERAL},
        what="all in FP32",
        seconds=PATIENCE_SECONDS,
        found=scene.operators.logs,
    )


def test_a_lost_assignment_is_made_anew_with_everything_in_the_fallback_and_a_namespace_takes_it_along(
    scene: Scene, operator_kubeconfig: Path
) -> None:
    promoted(scene)
    transition = scene.status()["transitionId"]
    # Only the operator's account can: the deletion stands for a backup that lacks it.
    operator = Kubectl(scene.kubectl.command[0], operator_kubeconfig)
    assert "deleted" in delete_assignment(scene, operator)
    status = scene.wait_phase("Held")
    assert status["reason"] == "StateLost"
    assert status["transitionId"] > transition
    assert_all_in_fallback(scene)
    assert {c["type"]: c["reason"] for c in status["conditions"]}["RolledBack"] == "StateLost"

    scene.kubectl("delete", "namespace", scene.namespace, "--timeout=120s")
    assert scene.kubectl.find("namespace", scene.namespace) is None
