"""What GitOps tools make of a policy: kstatus itself, and Argo CD's actions, on what the API server returns."""

from __future__ import annotations

import json

import pytest

from lab.process import run
from lab.setup.kube import kube_binaries
from lab.waiting import wait_for
from tests.support.argocd import clicked
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import HOT, NO_SPEED, PATIENCE_SECONDS, Scene
from tests.support.recorded_policies import record, recorded

WHOLE: Json = {"criteria": NO_SPEED, "strategy": {"steps": [{"setWeight": 100}]}}
APPROVED: Json = {"criteria": NO_SPEED, "strategy": {"steps": [{"setWeight": 25}, {"pause": {}}, {"setWeight": 100}]}}


def body_of(scene: Scene) -> Json:
    """The policy as the API server returns it."""
    return scene.kubectl.json("get", "ppol", "fleet", "-n", scene.namespace)


def kstatus(body: Json) -> str:
    """Where a policy stands, by kstatus."""
    said = run([kube_binaries() / "kstatus"], input=json.dumps(body)).stdout
    return str(json.loads(said)["status"])


def stands(scene: Scene, phase: str, word: str) -> Json:
    """Wait for a phase and what kstatus says of it; the policy then."""

    def found() -> Json | None:
        body = body_of(scene)
        return body if (body.get("status", {}).get("phase"), kstatus(body)) == (phase, word) else None

    return wait_for(
        found,
        what=f"{phase}, and kstatus {word}",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{kstatus(body_of(scene))} {scene.status()}\n{scene.operators.logs()}",
    )


def for_tools(body: Json) -> Json:
    """What tools read of a policy."""
    status = body.get("status", {})
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    return {name: conditions.get(name) for name in ("Ready", "Reconciling", "Stalled")} | {"phase": status.get("phase")}


def test_a_policy_is_current_once_it_is_promoted_and_failed_once_a_person_is_needed(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    def seen(name: str, body: Json) -> None:
        if request.config.getoption("--record-policies"):
            record(name, body)
        assert for_tools(body) == for_tools(recorded(name)), "record it anew: --record-policies"

    scene.apply(policy(**APPROVED))
    unseen = body_of(scene)
    assert kstatus(unseen) == "InProgress", "nobody has seen it yet"
    seen("unseen", unseen)
    scene.operators.start("one")
    paused = stands(scene, "Paused", "InProgress")
    seen("paused", paused)
    scene.kubectl("patch", "ppol/fleet", "-n", scene.namespace, "--type=merge", "-p", promotion(paused))
    seen("healthy", stands(scene, "Healthy", "Current"))
    scene.kubectl("wait", "ppol/fleet", "-n", scene.namespace, "--for=condition=Ready", "--timeout=60s")
    scene.shadow.overflow = {HOT[0]: 0.8}
    seen("degraded", stands(scene, "Degraded", "Failed"))
    scene.shadow.overflow = dict.fromkeys(HOT[1:3], 0.8)
    seen("held", stands(scene, "Held", "Failed"))


def promotion(paused: Json) -> str:
    """What Argo CD's action changes, as a patch."""
    return json.dumps({"metadata": {"annotations": clicked("promote", paused)["metadata"]["annotations"]}})


def test_an_edit_is_in_progress_until_the_operator_has_seen_it(scene: Scene) -> None:
    scene.operators.start("one")
    scene.apply(policy(**WHOLE))
    stands(scene, "Healthy", "Current")
    scene.operators.stop()
    scene.apply(policy(**WHOLE, rollback={"fleetMinimum": 3}))
    assert kstatus(body_of(scene)) == "InProgress"
