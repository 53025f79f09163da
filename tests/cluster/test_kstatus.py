"""What GitOps tools make of a policy: kstatus itself, on what the API server returns."""

from __future__ import annotations

import json

from lab.process import run
from lab.setup.kube import kube_binaries
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, Scene, break_two

WHOLE: Json = {"criteria": NO_SPEED, "strategy": {"steps": [{"setWeight": 100}]}}


def current(scene: Scene) -> str:
    """Where the policy stands, by kstatus."""
    body = scene.kubectl.json("get", "ppol", "fleet", "-n", scene.namespace)
    said = run([kube_binaries() / "kstatus"], input=json.dumps(body)).stdout
    return str(json.loads(said)["status"])


def stands(scene: Scene, word: str) -> None:
    wait_for(
        lambda: current(scene) == word,
        what=f"kstatus {word}",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{current(scene)} {scene.status()}\n{scene.operators.logs()}",
    )


def test_a_policy_is_current_once_it_is_promoted_and_failed_once_a_person_is_needed(scene: Scene) -> None:
    scene.apply(policy(**WHOLE))
    assert current(scene) == "InProgress", "nobody has seen it yet"
    scene.operators.start("one")
    scene.wait_phase("Healthy")
    stands(scene, "Current")
    scene.kubectl("wait", "ppol/fleet", "-n", scene.namespace, "--for=condition=Ready", "--timeout=60s")
    break_two(scene)
    scene.wait_phase("Held")
    stands(scene, "Failed")


def test_an_edit_is_in_progress_until_the_operator_has_seen_it(scene: Scene) -> None:
    scene.operators.start("one")
    scene.apply(policy(**WHOLE))
    scene.wait_phase("Healthy")
    stands(scene, "Current")
    scene.operators.stop()
    scene.apply(policy(**WHOLE, rollback={"fleetMinimum": 3}))
    assert current(scene) == "InProgress"
