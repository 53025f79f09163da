"""An emergency on a full node, with a pod that finds no room, an operator that is away, and an API server that restarts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from lab.cluster import Cluster
from lab.cluster.kubectl import Json
from lab.demo.fleet import ACCELERATOR, Trainer, deployment
from lab.demo.stage import advertise
from lab.images import TOOLS
from lab.trainers import PREFIX
from lab.waiting import wait_for
from precision_operator.api.state import Phase
from precision_operator.api.wire import parse_time
from tests.support.running_fleets import Fleet, side_by_side

CROWDED, STEADY = "crowded", "steady"
"""Two pods want the node's only accelerator, and can only be restarted; one pod is hot, and wants nothing."""


@dataclass
class Facts:
    """What the story left, read back from the cluster and the trainers."""

    healthy: Json = field(default_factory=dict)
    held: Json = field(default_factory=dict)
    templates: list[Json] = field(default_factory=list)
    first_pods: set[str] = field(default_factory=set)
    last_pods: dict[str, Json] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    phase_after_the_restart: str = ""
    phase_when_stopped: str = ""
    mode_without_operator: str = ""
    admitted_without_operator: str = ""


@pytest.fixture(scope="module")
def facts(cluster: Cluster, prometheus_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Facts]:
    """One emergency, disturbed in its middle."""
    advertise(cluster.kubectl, ACCELERATOR, 1)
    directory = tmp_path_factory.mktemp("disruptions")
    stories = [("disrupted", [Trainer(STEADY)])]
    try:
        with side_by_side(cluster.control_plane, prometheus_url, directory, stories) as (fleet,):
            yield _play(cluster, fleet)
    finally:
        advertise(cluster.kubectl, ACCELERATOR, None)


def _play(cluster: Cluster, fleet: Fleet) -> Facts:
    facts = Facts()
    fleet.kubectl.apply(_crowded(fleet.namespace))
    fleet.until_training(2)
    facts.templates.append(_template(fleet))
    # Its pods have no checkpoint that lasts, so a replacement has no losses of FP32 to be compared with.
    criteria = {"speed": {"enabled": False}, "divergence": {"enabled": False}}
    fleet.follow(strategy={"steps": [{"setWeight": 100}]}, criteria=criteria)
    facts.healthy = fleet.until_phase("Healthy")
    facts.first_pods = {pod["metadata"]["uid"] for pod in _pods(fleet, CROWDED)}
    fleet.annotate(f"{PREFIX}/abort={facts.healthy['transitionId']}: drill")
    wait_for(lambda: fleet.state().phase is Phase.ROLLING_BACK, what="the rollback", seconds=30, every=0.1)
    facts.phase_after_the_restart = _restart_the_api_server(cluster, fleet)
    fleet.operators.stop()
    facts.phase_when_stopped = fleet.state().phase.value
    _new_pod_without_operator(fleet, facts)
    fleet.operators.start("two")
    facts.held = fleet.until_phase("Held")
    facts.templates.append(_template(fleet))
    facts.last_pods = {pod["metadata"]["uid"]: pod for pod in _pods(fleet, CROWDED)}
    facts.modes = fleet.modes()
    return facts


def _restart_the_api_server(cluster: Cluster, fleet: Fleet) -> str:
    """Beside an operator that goes on; the phase once it leads again. One pod never fits: it is awaited for a while."""
    cluster.control_plane.stop_apiserver()
    cluster.control_plane.start_apiserver()
    back_at = time.time()

    def leads() -> bool:
        # As the kubelet would: a watch that cannot go on ends the process, at once or a while later.
        if fleet.operators.running["one"].poll() is not None:
            fleet.operators.start("one")
        lease = fleet.kubectl.json("get", "lease", "precision-operator", "-n", fleet.operators.system)["spec"]
        return bool(lease["holderIdentity"]) and (parse_time(lease["renewTime"]) or 0.0) > back_at

    wait_for(leads, what="the operator to lead again", seconds=60, found=fleet.logs)
    return fleet.state().phase.value


def _crowded(namespace: str) -> Json:
    made = deployment(Trainer(CROWDED, hot=False), image=TOOLS.reference, pull_policy="Never")
    made["metadata"]["namespace"] = namespace
    made["spec"]["replicas"] = 2
    made["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][ACCELERATOR] = "1"
    return made


def _pods(fleet: Fleet, workload: str) -> list[Json]:
    items = fleet.kubectl.json("get", "pods", "-n", fleet.namespace, "-l", f"app={workload}")["items"]
    return [item for item in items if "deletionTimestamp" not in item["metadata"]]


def _template(fleet: Fleet) -> Json:
    found = fleet.kubectl.json("get", "deployment", CROWDED, "-n", fleet.namespace)
    template: Json = found["spec"]["template"]
    return template


def _new_pod_without_operator(fleet: Fleet, facts: Facts) -> None:
    """The hot pod is deleted by hand; what its replacement is given, and what it trains in."""

    def enforcing() -> Json | None:
        """A pod that admission did not see is deleted again: an API server that was just started may let some through."""
        pods = _pods(fleet, STEADY)
        if (
            pods
            and f"{PREFIX}/admitted" in pods[0]["metadata"].get("annotations", {})
            and pods[0]["metadata"]["uid"] != old
        ):
            return pods[0]
        for pod in pods:
            fleet.kubectl("delete", "pod", pod["metadata"]["name"], "-n", fleet.namespace, check=False)
        return None

    old = _pods(fleet, STEADY)[0]["metadata"]["uid"]
    pod = wait_for(enforcing, what="a pod that admission saw", seconds=120, every=2.0)
    facts.admitted_without_operator = pod["metadata"]["annotations"][f"{PREFIX}/mode"]
    name = pod["metadata"]["name"]

    def reported() -> str | None:
        return fleet.metrics.modes(fleet.namespace).get(name, ("", 0))[0] or None

    facts.mode_without_operator = wait_for(reported, what=f"{name} to report its mode", seconds=120)


def test_a_pod_that_finds_no_room_does_not_hold_a_rollout_back(facts: Facts) -> None:
    assert facts.healthy["progress"] == "2/2"


def test_an_operator_goes_on_beside_a_restart_of_the_api_server_in_the_middle_of_the_rollback(facts: Facts) -> None:
    assert facts.phase_after_the_restart == Phase.ROLLING_BACK.value


def test_the_operator_was_stopped_in_the_middle_of_the_rollback(facts: Facts) -> None:
    assert facts.phase_when_stopped == Phase.ROLLING_BACK.value


def test_new_pods_start_in_the_fallback_with_the_operator_away_and_the_api_server_restarted(facts: Facts) -> None:
    assert (facts.admitted_without_operator, facts.mode_without_operator) == ("fp32", "fp32")


def test_the_next_operator_finishes_the_rollback(facts: Facts) -> None:
    assert facts.held["incident"]["reason"] == "Aborted"
    assert facts.modes == {CROWDED: "fp32", STEADY: "fp32"}


def test_restart_only_pods_are_replaced_on_a_full_node(facts: Facts) -> None:
    assert facts.first_pods.isdisjoint(facts.last_pods)
    (running,) = (pod for pod in facts.last_pods.values() if pod["status"]["phase"] == "Running")
    env = {entry["name"]: entry.get("value") for entry in running["spec"]["containers"][0]["env"]}
    assert env["ENABLE_FP16_TRAINING"] == "false"


def test_no_template_changes(facts: Facts) -> None:
    before, after = facts.templates
    assert before == after
