"""An upgrade of chart and operator, from those of the first release, while a fleet is half-way through a rollback."""

from __future__ import annotations

from pathlib import Path

import yaml

from lab.cluster import ControlPlane
from lab.cluster.manifests import until_admitted
from lab.waiting import wait_for
from precision_operator.api.state import Phase
from tests.support.charted import CHART, FIRST_CHART, FIRST_OPERATOR, NAMESPACE, run_helm
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import (
    HOT,
    NO_SPEED,
    PATIENCE_SECONDS,
    ROOT,
    Scene,
    break_two,
    mode_of_a_new_pod,
    staged,
)
from tests.support.rendered import REGISTRY
from tests.support.shadow_trainers import ShadowTrainers

FLEET, LITERAL, STEADY = "fleet", "literal", "steady"
OWN_WRITES = 150
OWN = ("--set", f"config.writesPerSecond={OWN_WRITES}")
"""A value of the user's."""
ANSWERED, UNRESPONSIVE = set(HOT[:3]), HOT[3]
STEADY_LABELS = {"fleet": STEADY}
PATIENT: Json = {"criteria": NO_SPEED, "rollback": {"ackTimeout": "10m"}}
"""Who does not acknowledge is not restarted for it while the test looks on."""


def configure(scene: Scene) -> Json:
    """Give operators what the chart rendered for them, but for what differs outside of a pod; the chart's configuration."""
    data = scene.kubectl.json("get", "configmap", "precision-operator", "-n", NAMESPACE)["data"]
    rendered: Json = yaml.safe_load(data["config.yaml"])
    prometheus = {"default": {**rendered["prometheus"]["default"], "url": scene.operators.prometheus_url}}
    scene.operators.settings = {**rendered, "httpPort": 0, "prometheus": prometheus}
    return rendered


def steady() -> list[Json]:
    """A fleet of one workload that stays promoted, and its policy."""
    workload = deployment(STEADY)
    workload["spec"]["template"]["metadata"]["labels"] = {**STEADY_LABELS, "app": STEADY}
    return [workload, policy(STEADY, **PATIENT, selector={"matchLabels": STEADY_LABELS})]


def until_phase(scene: Scene, phases: dict[str, str]) -> None:
    """Wait for the phases of policies."""
    wait_for(
        lambda: {name: scene.status(name).get("phase") for name in phases} == phases,
        what=str(phases),
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{[scene.status(name) for name in phases]}\n{scene.operators.logs()}",
    )


def roll_back_half_way(scene: Scene) -> None:
    """The first release's operator begins a rollback that two workloads do not acknowledge, and is killed."""
    scene.operators.system, scene.operators.source = NAMESPACE, FIRST_OPERATOR
    scene.apply(*(deployment(name) for name in HOT), deployment(LITERAL, hot=False), *steady(), policy(**PATIENT))
    scene.operators.start("one")
    until_phase(scene, {FLEET: "Healthy", STEADY: "Healthy"})
    scene.shadow.unresponsive, scene.shadow.capacity = {UNRESPONSIVE}, {LITERAL: 0}
    break_two(scene)
    wait_for(
        lambda: scene.in_mode("fp32") == ANSWERED and LITERAL not in scene.shadow.modes(),
        what="the rollback to come half-way",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{scene.shadow.modes()}\n{scene.operators.logs()}",
    )
    wait_for(lambda: reports(scene), what="the incident's report", seconds=PATIENCE_SECONDS)
    one = scene.operators.running["one"]
    one.kill()
    one.wait(timeout=10)
    assert scene.state().phase is Phase.ROLLING_BACK


def assigned(scene: Scene) -> dict[str, Json]:
    """Policy → what its new pods get."""
    found = {name: scene.assignment(name) for name in (FLEET, STEADY)}
    kept = ("generation", "default", "modes", "enforce")
    return {name: {"uid": body["metadata"]["uid"], **{key: body[key] for key in kept}} for name, body in found.items()}


def decided(scene: Scene) -> Json:
    """What was decided of the fleet's incident."""
    incident = scene.status()["incident"]
    return {name: incident[name] for name in ("id", "scope", "reason", "workloads", "decidedAt", "deadlineAt")}


def reports(scene: Scene) -> dict[str, Json]:
    """UID → report, of the fleet's incident."""
    items = scene.kubectl.json("get", "precisionincidents", "-n", scene.namespace)["items"]
    incident = scene.status()["incident"]["id"]
    return {item["metadata"]["uid"]: item["report"] for item in items if item["report"]["id"] == incident}


def confirmed(report: Json) -> bool:
    """The report says that the fleet's processes confirmed their fallback."""
    results: dict[str, object] = {line["name"]: line.get("result") for line in report["checklist"]}
    return results["Fallback confirmed by the processes"] == "Passed"


def leader(scene: Scene) -> str:
    spec = scene.kubectl.json("get", "lease", "precision-operator", "-n", NAMESPACE)["spec"]
    return str(spec.get("holderIdentity", ""))


def assert_new_pods_get_their_mode(scene: Scene) -> None:
    assert (mode_of_a_new_pod(scene, HOT[0]), mode_of_a_new_pod(scene, STEADY)) == ("fp32", "fp16")


def test_todays_operator_ends_the_rollback_that_the_first_release_began(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as cluster:
        kubectl = cluster.kubectl
        run_helm(cluster, "install", "precision-operator", FIRST_CHART, "--create-namespace", *OWN)
        until_admitted(kubectl)
        kubectl("create", "namespace", "training")
        kubectl.wait_for_namespace("training")
        access = cluster.service_account_kubeconfig(NAMESPACE, "precision-operator")
        with staged(kubectl, ShadowTrainers(kubectl, "training"), tmp_path, operator=access) as scene:
            first = configure(scene)
            roll_back_half_way(scene)
            before, incident, (uid,) = assigned(scene), decided(scene), reports(scene)
            assert before[FLEET]["default"] == "fp32"
            run_helm(cluster, "upgrade", "precision-operator", CHART, "--reset-then-reuse-values", *REGISTRY)
            until_admitted(kubectl)
            second = configure(scene)
            assert second.keys() > first.keys(), "the new chart renders names that the first one did not know"
            assert (first["writesPerSecond"], second["writesPerSecond"]) == (OWN_WRITES, OWN_WRITES), "a value is kept"
            assert_new_pods_get_their_mode(scene)
            restarted = scene.pods()[LITERAL]["metadata"]["uid"]
            scene.operators.source = ROOT / "operator"
            scene.operators.start("two")
            wait_for(
                lambda: leader(scene).startswith("two"),
                what="today's operator to lead",
                seconds=PATIENCE_SECONDS,
                found=scene.operators.logs,
            )
            assert (scene.state().phase, scene.in_mode("fp32")) == (Phase.ROLLING_BACK, ANSWERED)
            assert_new_pods_get_their_mode(scene)
            scene.shadow.unresponsive, scene.shadow.capacity = set(), {}
            until_phase(scene, {FLEET: "Held", STEADY: "Healthy"})
            assert (assigned(scene), decided(scene)) == (before, incident)
            assert (scene.in_mode("fp32"), scene.in_mode("fp16")) == ({*HOT, LITERAL}, {STEADY})
            assert scene.pods()[LITERAL]["metadata"]["uid"] == restarted, "it is not restarted a second time"
            wait_for(
                lambda: confirmed(reports(scene)[uid]),
                what="the report to go on",
                seconds=PATIENCE_SECONDS,
                found=lambda: str(reports(scene)),
            )
            assert set(reports(scene)) == {uid}
