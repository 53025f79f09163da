"""What becomes of a rollback when its operator, its policy, its record or its namespace goes; on a real API server."""

from __future__ import annotations

import json
from pathlib import Path

from lab.cluster.kubectl import Kubectl
from lab.waiting import wait_for
from precision_operator.api.state import Phase, State
from precision_operator.contract import ADMITTED
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import (
    HOT,
    PATIENCE_SECONDS,
    Scene,
    assert_all_in_fallback,
    break_two,
    promoted,
)

LITERAL = "literal"
KEYS = [f"apps/Deployment/{name}" for name in [*HOT, LITERAL]]


def until(scene: Scene, phase: Phase, *, deletable: bool = False) -> State:
    """Wait for what the assignment records; the policy may be gone."""

    def probe() -> State | None:
        state = scene.state()
        return state if (state.phase, state.deletable) == (phase, deletable) else None

    return wait_for(
        probe,
        what=f"{phase} in the assignment",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{scene.assignment()}\n{scene.operators.logs()}",
    )


def remade(scene: Scene, workload: str) -> str:
    """Delete a workload's pod; the mode of the one that its controller makes instead."""
    before = scene.pods()[workload]["metadata"]["uid"]
    scene.kubectl("delete", "pod", "-n", scene.namespace, "-l", f"app={workload}", "--timeout=60s")

    def there() -> str | None:
        pod = scene.pods().get(workload)
        known = scene.shadow.modes().get(workload, set())
        return next(iter(known), None) if pod and pod["metadata"]["uid"] != before and len(known) == 1 else None

    return wait_for(there, what=f"another pod of {workload}", seconds=PATIENCE_SECONDS)


def delete_assignment(scene: Scene, kubectl: Kubectl) -> str:
    """Try to; what the API server answers."""
    done = kubectl("delete", "precisionassignment", "fleet", "-n", scene.namespace, "--timeout=60s", check=False)
    return done.stdout + done.stderr


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
    scene.operators.running["one"].kill()
    scene.operators.running["one"].wait(timeout=10)
    # Nobody but admission is there.
    assert remade(scene, HOT[3]) == "fp32"
    scene.kubectl("delete", "pp", "fleet", "-n", scene.namespace, "--timeout=30s")
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
    assert scene.status()["held"] == len(KEYS)
    assert scene.in_mode("fp32") == {*HOT, LITERAL}

    scene.kubectl("delete", "pp", "fleet", "-n", scene.namespace, "--timeout=30s")
    until(scene, Phase.HELD, deletable=True)
    assert "deleted" in delete_assignment(scene, scene.kubectl)
    remade(scene, HOT[3])
    assert ADMITTED not in scene.pods()[HOT[3]]["metadata"].get("annotations", {})


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


def test_a_backup_brings_back_what_a_rollback_holds_under_other_uids(scene: Scene) -> None:
    promoted(scene)
    break_two(scene)
    before = until(scene, Phase.HELD)
    saved = [restorable(scene, kind) for kind in ("precisionassignment", "precisionpolicy")]
    scene.kubectl("delete", "pp", "fleet", "-n", scene.namespace, "--timeout=30s")
    until(scene, Phase.HELD, deletable=True)
    delete_assignment(scene, scene.kubectl)
    scene.operators.running["one"].kill()
    scene.operators.running["one"].wait(timeout=10)
    for body in saved:
        scene.kubectl("create", "-f", "-", input=json.dumps(body))

    assert remade(scene, HOT[0]) == "fp32", "with the operator away"
    scene.operators.start("two")
    wait_for(
        lambda: scene.state().policy_uid != before.policy_uid,
        what="the restored policy to be taken over",
        seconds=PATIENCE_SECONDS,
        found=scene.operators.logs,
    )
    after = scene.state()
    assert (after.phase, after.held_keys) == (before.phase, before.held_keys)
    assert after.generation >= before.generation
    assert_all_in_fallback(scene)


def restorable(scene: Scene, kind: str) -> Json:
    """An object as a backup creates it again: without what the API server gives, status included."""
    body = scene.kubectl.json("get", kind, "fleet", "-n", scene.namespace)
    body.pop("status", None)
    for field in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        body["metadata"].pop(field, None)
    return body
