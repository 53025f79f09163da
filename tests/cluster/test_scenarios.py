"""Divergence, NaN losses, a retry after a rollback, and the guard after the last step, on a real API server with real
Prometheus data. Time is short by the policies' own settings. What begins with a mitigation: test_mitigation.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.waiting import wait_for
from precision_operator.api.commands import Prerequisite
from precision_operator.api.wire import parse_time
from precision_operator.incidents.document import from_body
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import HOT, NO_SPEED, PATIENCE_SECONDS, Scene
from tests.support.shadow_trainers import Fault
from tests.support.side_by_side import LITERAL, requested, side_by_side

PREFIX = "precision.genesis.ai"
FLEET = 5
"""Four hot ones and a literal one."""
CANARY_FIRST: Json = {"steps": [{"setWeight": 20}, {"pause": {"duration": "2s"}}, {"setWeight": 100}]}
AT_ONCE: Json = {"steps": [{"setWeight": 100}]}

POLICIES: dict[str, Json] = {
    "table": {"criteria": NO_SPEED, "strategy": CANARY_FIRST},
    "text": {"criteria": {**NO_SPEED, "divergence": {"enter": 0.14, "leave": 0.1}}, "strategy": CANARY_FIRST},
    "nan": {"criteria": NO_SPEED, "strategy": AT_ONCE},
    "guard": {"criteria": NO_SPEED, "strategy": AT_ONCE},
    "again": {
        "criteria": NO_SPEED,
        "strategy": AT_ONCE,
        "evaluation": {"interval": "500ms", "window": "4s", "failureLimit": 4, "maxSampleAge": "5s"},
        "reenable": {"backoff": "10m", "backoffLimit": "1h", **CANARY_FIRST},
    },
}


@pytest.fixture(scope="module")
def fleets(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Scene]]:
    """A fleet for each scenario under its policy; some diverge from their first step in FP16."""
    directory = tmp_path_factory.mktemp("scenarios")
    with side_by_side(control_plane, directory, POLICIES, operator=operator_kubeconfig, hot=FLEET - 1) as scenes:
        for name in ("table", "text"):
            scenes[name].shadow.faults = dict.fromkeys([*HOT, LITERAL], Fault(divergence=0.15))
        # A run without the contract cannot be asked to rewind, and any workload may be the canary.
        scenes["text"].kubectl("delete", "deployment", LITERAL, "-n", scenes["text"].namespace, "--cascade=foreground")
        for name, scene in scenes.items():
            scene.apply(policy(**POLICIES[name]))
        yield scenes


def annotate(scene: Scene, commands: dict[str, str], *, as_user: str) -> None:
    """Give commands by kubectl alone, as a user."""
    given = [f"{PREFIX}/{command}={value}" for command, value in commands.items()]
    scene.kubectl(
        "annotate",
        "ppol",
        "fleet",
        "-n",
        scene.namespace,
        "--overwrite",
        f"--as={as_user}",
        "--as-group=system:masters",
        *given,
    )


def until(scene: Scene, condition: Callable[[Json], bool], *, what: str) -> Json:
    """Wait until the status meets a condition; returns it."""

    def probe() -> Json | None:
        status = scene.status()
        return status if status and condition(status) else None

    return wait_for(
        probe, what=what, seconds=PATIENCE_SECONDS, found=lambda: f"{scene.status()}\n{scene.operators.logs()}"
    )


def decided(status: Json) -> float:
    """When the incident's rollback was decided."""
    return parse_time(status["incident"]["decidedAt"]) or 0.0


def rewound(scene: Scene) -> set[str]:
    """Hot workloads that were asked to go back to a checkpoint."""
    return {workload for workload, request in requested(scene).items() if request.get("rewind")}


def ask_again(scene: Scene) -> Json:
    """Acknowledge every prerequisite and ask for a retry; returns the status that was answered."""
    status = scene.status()
    number = status["transitionId"]
    annotate(scene, {f"ack-{item}": f"{number}: drill" for item in Prerequisite}, as_user="ada@example.org")
    annotate(scene, {"retry": f"{number}: fixed, we think"}, as_user="ben@example.org")
    return status


def back_off(scene: Scene, backoff: str) -> None:
    """Change how long the policy waits after its second rollback."""
    patch = json.dumps({"spec": {"reenable": {"backoff": backoff}}})
    scene.kubectl("patch", "ppol", "fleet", "-n", scene.namespace, "--type=merge", "-p", patch)


def test_divergence_of_15_percent_holds_the_promotion_by_default(fleets: dict[str, Scene]) -> None:
    scene = fleets["table"]
    condition = scene.condition("Progressing", "EvidenceInsufficient")
    assert "divergence" in condition["message"]
    status = scene.status()
    assert status["weight"] == 20
    assert "incident" not in status
    assert sum(modes == {"fp16"} for modes in scene.shadow.modes().values()) == 1


def test_divergence_of_15_percent_is_an_emergency_where_the_policy_says_so(
    fleets: dict[str, Scene],
) -> None:
    scene = fleets["text"]
    incident = scene.wait_phase("Held")["incident"]
    assert (incident["reason"], incident["severity"], incident["strategy"]) == ("LossDiverged", "P1", "Emergency")
    # It is all that was moved.
    assert incident["scope"] == "Fleet"
    assert len(incident["workloads"]) == 1
    assert rewound(scene) == set(incident["workloads"])


def test_failures_with_nan_losses_are_one_emergency_that_rewinds(fleets: dict[str, Scene]) -> None:
    scene = fleets["nan"]
    scene.wait_phase("Healthy")
    scene.shadow.faults = dict.fromkeys(HOT[:3], Fault(failures=0.9, non_finite=0.3))
    status = scene.wait_phase("Held")
    incident = status["incident"]
    assert (incident["severity"], incident["strategy"], incident["scope"]) == ("P0", "Emergency", "Fleet")
    assert incident["reason"] in ("LossNotFinite", "TrainingFailing")
    assert (parse_time(incident["deadlineAt"]) or 0.0) - (parse_time(incident["detectedAt"]) or 0.0) == pytest.approx(
        300
    )
    assert rewound(scene)
    assert rewound(scene) <= set(HOT[:3])
    assert scene.state().poisoned == (), "who was asked to rewind has done it"
    assert all(modes == {"fp32"} for modes in scene.shadow.modes().values())


def test_a_retry_is_staged_rolled_back_at_once_and_backed_off(
    fleets: dict[str, Scene],
) -> None:
    scene = fleets["again"]
    scene.wait_phase("Healthy")
    scene.shadow.faults = dict.fromkeys(HOT[:2], Fault(overflow=0.8))
    first = scene.wait_phase("Held")
    assert first["attempts"] == 1

    # Not without the prerequisites, each in its giver's name.
    annotate(scene, {"retry": str(first["transitionId"])}, as_user="ben@example.org")
    missing = scene.condition("Progressing", "AwaitingPrerequisites")
    assert all(item in missing["message"] for item in Prerequisite)
    # The fault is still there, in all of them: the first step of the retry finds it at its first evaluation. That is
    # seen before it has a trainer in FP16.
    scene.shadow.faults = dict.fromkeys([*HOT, LITERAL], Fault(overflow=0.8))
    scene.shadow.unresponsive, scene.shadow.capacity = set(HOT), {LITERAL: 0}
    ask_again(scene)
    annotations = scene.kubectl.json("get", "ppol", "fleet", "-n", scene.namespace)["metadata"]["annotations"]
    assert {annotations[f"{PREFIX}/ack-{item}-by"] for item in Prerequisite} == {"ada@example.org"}
    assert annotations[f"{PREFIX}/retry-by"] == "ben@example.org"
    staged = until(scene, lambda s: s["phase"] == "Progressing", what="the retry")
    assert (staged["weight"], len(scene.members())) == (20, 1)
    scene.shadow.unresponsive, scene.shadow.capacity = set(), {}
    second = until(scene, lambda s: s["phase"] == "Held" and s["attempts"] == 2, what="the second rollback")
    assert second["incident"]["scope"] == "Fleet"
    assert len(second["incident"]["workloads"]) == 1

    # From the second failure on time has to pass, twice as much each time. Ten minutes do not end before they are seen.
    ask_again(scene)
    assert " 600 s" in scene.condition("Progressing", "BackingOff")["message"]
    back_off(scene, "20s")
    third = until(scene, lambda s: s["phase"] == "Held" and s["attempts"] == 3, what="the third rollback")
    assert decided(third) - decided(second) >= 20.0
    back_off(scene, "10m")
    ask_again(scene)
    assert " 1200 s" in scene.condition("Progressing", "BackingOff")["message"]


def test_healthy_workload_is_drilled_by_a_person_goes_back_by_itself_and_is_kept(fleets: dict[str, Scene]) -> None:
    scene = fleets["guard"]
    scene.wait_phase("Healthy")

    def asked() -> bool:
        """A refusal, as where the last restart is not over yet, uses the command up: it is given anew."""
        status = scene.status()
        if "lastDrill" not in status:
            value = f"{status['transitionId']}: apps/Deployment/{HOT[1]}: quarterly"
            annotate(scene, {"drill": value}, as_user="ada@example.org")
        return "lastDrill" in status

    wait_for(
        asked, what="the drill to begin", seconds=PATIENCE_SECONDS, every=1.0, found=lambda: scene.operators.logs()
    )
    status = until(scene, lambda now: now["lastDrill"]["result"] != "Running", what="the drill to end")
    assert status["lastDrill"]["result"] == "Passed"
    drill = status["lastDrill"]
    assert (status["phase"], drill["by"], drill["why"], drill["workloads"]) == (
        "Healthy",
        "ada@example.org",
        "quarterly",
        1,
    )
    wait_for(lambda: scene.shadow.modes()[HOT[1]] == {"fp16"}, what="it to train in FP16", seconds=PATIENCE_SECONDS)
    assert requested(scene)[HOT[1]]["generation"] > requested(scene)[HOT[0]]["generation"]

    def kept() -> list[Json]:
        found = scene.kubectl.json("get", "precisionincidents", "-n", scene.namespace)["items"]
        return [body for body in found if body["report"].get("kind") == "Drill"]

    wait_for(kept, what="the drill's PrecisionIncident", seconds=PATIENCE_SECONDS)
    reports = [from_body(body) for body in kept()]
    assert [(report.workloads, report.reason) for report in reports] == [((HOT[1],), "DrillPassed")]


def test_promoted_fleet_is_guarded_and_one_breached_workload_is_rolled_back_by_itself(fleets: dict[str, Scene]) -> None:
    scene = fleets["guard"]
    scene.wait_phase("Healthy")
    scene.shadow.faults = {HOT[2]: Fault(overflow=0.8)}
    alone = scene.wait_phase("Degraded")
    assert (alone["incident"]["scope"], alone["incident"]["strategy"]) == ("Workload", "Emergency")
    assert [held.name for held in scene.state().held] == [HOT[2]]
    wait_for(lambda: scene.shadow.modes()[HOT[2]] == {"fp32"}, what="it to train in FP32", seconds=PATIENCE_SECONDS)
    assert all(modes == {"fp16"} for name, modes in scene.shadow.modes().items() if name != HOT[2])

    # Two in breach concern the whole fleet.
    scene.shadow.faults = dict.fromkeys(HOT[1:3], Fault(overflow=0.8))
    status = scene.wait_phase("Held")
    assert status["incident"]["scope"] == "Fleet"
    assert all(modes == {"fp32"} for modes in scene.shadow.modes().values())
