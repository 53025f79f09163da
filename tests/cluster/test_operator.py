"""The operator as a process of its own, on a real API server with a real Prometheus."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from lab.cluster import ControlPlane
from lab.cluster.audit import Audit
from lab.cluster.manifests import OPERATOR, until_admitted
from lab.waiting import wait_for
from precision_operator.api.commands import Prerequisite
from precision_operator.api.wire import parse_time
from precision_operator.contract import ADMITTED
from tests.support.cluster_fleet import Json, policy
from tests.support.cluster_scene import (
    HOT,
    NO_SPEED,
    PATIENCE_SECONDS,
    Scene,
    assert_all_in_fallback,
    break_two,
    promoted,
)

OWN = {"precisionpolicies/status", "precisionassignments", "events"}


def writes_from_now(scene: Scene, control_plane: ControlPlane) -> Callable[[], set[str]]:
    """Tells what the operator has written in the scene's namespace since: schedulers and controllers write there too."""
    audit, now = Audit(control_plane.audit_log), time.time()
    mark = audit.mark()

    def written() -> set[str]:
        writes = audit.writes([OPERATOR], since=mark)
        return {write.resource for write in writes if write.namespace == scene.namespace and write.asked_at >= now}

    return written


def test_rolls_out_by_evidence_and_rolls_back_on_a_fleet_breach(scene: Scene) -> None:
    promoted(scene)
    assert all(modes == {"fp16"} for modes in scene.shadow.modes().values())
    before, pods = scene.revisions(), scene.pods()
    break_two(scene)
    status = scene.wait_phase("Held")
    assert status["incident"]["scope"] == "Fleet"
    assert status["incident"]["reason"] == "OverflowRateHigh"
    assert_all_in_fallback(scene)
    assert scene.revisions() == before
    kept = {name: pod["metadata"]["uid"] == pods[name]["metadata"]["uid"] for name, pod in scene.pods().items()}
    assert kept == {**dict.fromkeys(HOT, True), "literal": False}


def test_steady_fleet_costs_no_write(scene: Scene, control_plane: ControlPlane) -> None:
    # A window and an age that no late scrape of a busy machine falls out of, and a deadline that no query of one
    # misses: that would be news, and worth a write.
    endpoint = {"url": scene.prometheus.url, "timeoutSeconds": 30}
    scene.operators.settings = {"prometheus": {"default": endpoint}}
    promoted(scene, evaluation={"interval": "500ms", "window": "20s", "failureLimit": 0, "maxSampleAge": "30s"})
    written, modes = writes_from_now(scene, control_plane), scene.shadow.modes()
    begun = time.monotonic()
    wait_for(lambda: time.monotonic() - begun > 6, what="a dozen evaluations", seconds=20)
    assert written() - {"events"} == set(), "the promotion's Event may be late"
    assert scene.shadow.modes() == modes


def test_leader_killed_in_mid_breach_is_replaced_and_the_rollback_goes_on(scene: Scene) -> None:
    promoted(scene)
    scene.operators.start("two")
    log = scene.operators.directory / "two.log"
    wait_for(lambda: "serving" in log.read_text(), what="the standby", seconds=PATIENCE_SECONDS)
    scene.operators.running["one"].kill()
    break_two(scene)
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    assert scene.state().writer.startswith("two")


def test_frozen_leader_that_wakes_up_writes_nothing_wrong(scene: Scene) -> None:
    promoted(scene)
    scene.operators.start("two")
    log = scene.operators.directory / "two.log"
    wait_for(lambda: "serving" in log.read_text(), what="the standby", seconds=PATIENCE_SECONDS)
    zombie = scene.operators.running["one"]
    zombie.send_signal(signal.SIGSTOP)
    break_two(scene)
    scene.wait_phase("Held")
    zombie.send_signal(signal.SIGCONT)
    assert_all_in_fallback(scene)
    transition = scene.status()["transitionId"]
    begun = time.monotonic()
    wait_for(lambda: time.monotonic() - begun > 3, what="the zombie's next passes", seconds=20)
    assert scene.status()["transitionId"] == transition
    assert scene.status()["phase"] == "Held"


def test_fleet_without_metrics_is_not_touched_until_they_are_there(scene: Scene) -> None:
    scene.operators.start("one")
    scene.shadow.silent = True
    scene.apply(policy(criteria=NO_SPEED))
    scene.condition("Progressing", "NoSamples")
    assert all(modes == {"fp32"} for modes in scene.shadow.modes().values())
    scene.shadow.silent = False
    scene.wait_phase("Healthy")


def test_metrics_lost_in_mid_rollout_hold_it_until_they_are_back(scene: Scene) -> None:
    scene.operators.start("one")

    def apply(pause: str) -> None:
        steps = {"steps": [{"setWeight": 25}, {"pause": {"duration": pause}}, {"setWeight": 100}]}
        scene.apply(policy(strategy=steps, criteria=NO_SPEED))

    apply("10m")
    scene.condition("Progressing", "Soaking")
    scene.shadow.silent = True
    scene.condition("MetricsAvailable", "NoSamples")
    apply("1s")  # it is long over
    wait_for(lambda: scene.status().get("observedGeneration") == 2, what="the shorter pause", seconds=PATIENCE_SECONDS)
    assert (scene.status()["phase"], scene.status()["weight"]) == ("Progressing", 25)
    scene.shadow.silent = False
    scene.wait_phase("Healthy")


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"prometheusRef": {"name": "elsewhere"}}, "UnknownEndpoint", "elsewhere"),
        ({"criteria": {"overflow": {"query": "absent"}}}, "UnknownQuery", "absent"),
        ({"criteria": {"overflow": {"query": "broken"}}}, "QueryInvalid", "broken"),
        ({"selector": {"matchLabels": {"fleet": "nobody"}}}, "NoWorkloads", "spec.selector"),
        ({"delivery": "Hot", "selector": {"matchLabels": {"app": "literal"}}}, "Undeliverable", "literal"),
    ],
)
def test_policy_that_cannot_be_carried_out_says_so_and_touches_nothing(
    scene: Scene, control_plane: ControlPlane, spec: Json, reason: str, words: str
) -> None:
    scene.operators.settings = {"queries": {"broken": "sum(("}}
    scene.operators.start("one")
    written = writes_from_now(scene, control_plane)
    scene.apply(policy(**spec))
    condition = scene.condition("Accepted", reason)
    assert condition["status"] == "False"
    assert words in condition["message"]
    wait_for(lambda: "precisionpolicies/status" in written(), what="the write in the log", seconds=PATIENCE_SECONDS)
    assert written() <= OWN


def test_mild_overflow_that_lasts_is_rolled_back_in_batches(scene: Scene) -> None:
    quick = {
        "gradual": {"sustain": "2s", "inFlight": "3s", "batchShare": 0.4},
        "mitigation": {"overflow": {"window": "0s"}},
    }
    promoted(scene, rollback=quick)
    scene.shadow.overflow = dict.fromkeys(("hot-0", "hot-1", "hot-2"), 0.2)
    status = scene.wait_phase("Held")
    incident = status["incident"]
    assert (incident["severity"], incident["strategy"]) == ("P2", "Gradual")
    assert incident["lastAckAt"] <= incident["deadlineAt"]
    assert_all_in_fallback(scene)
    # Batches of two: the last request of the five came at least two acknowledgements after the first.
    assert parse_time(incident["lastPatchAt"]) - parse_time(incident["decidedAt"]) > 1.0  # type: ignore[operator]


def test_retry_starts_again_once_a_person_asks(scene: Scene) -> None:
    promoted(scene)
    break_two(scene)
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    scene.shadow.overflow = {}
    number = scene.status()["transitionId"]
    scene.kubectl("annotate", "ppol", "fleet", "-n", scene.namespace, f"precision.genesis.ai/retry={number}")
    scene.condition("Progressing", "AwaitingPrerequisites")
    given = [f"precision.genesis.ai/ack-{item}={number}: drill" for item in Prerequisite]
    scene.kubectl("annotate", "ppol", "fleet", "-n", scene.namespace, *given)
    scene.wait_phase("Healthy")
    assert all(modes == {"fp16"} for modes in scene.shadow.modes().values())


def test_survives_a_restart_of_the_api_server(scene: Scene, control_plane: ControlPlane) -> None:
    promoted(scene)
    control_plane.stop_apiserver()
    control_plane.start_apiserver()
    break_two(scene)
    scene.wait_phase_through_a_restart("Held")
    assert_all_in_fallback(scene)
    scene.operators.stop()  # the probe of admission is a policy too
    until_admitted(scene.kubectl)  # the next test finds admission as it was


def test_workload_of_two_policies_belongs_to_the_older_and_the_younger_says_so(scene: Scene) -> None:
    promoted(scene)
    scene.apply(policy("younger", target="bf16"))
    wait_for(
        lambda: any(c["reason"] == "PolicyConflict" for c in scene.status("younger").get("conditions", [])),
        what="the younger policy to say PolicyConflict",
        seconds=PATIENCE_SECONDS,
        found=lambda: str(scene.status("younger")),
    )
    assert not scene.state("younger").enforce
    assert not any("younger/" in pod["metadata"]["annotations"].get(ADMITTED, "") for pod in scene.pods().values())
    assert all(modes == {"fp16"} for modes in scene.shadow.modes().values())
    assert scene.status()["phase"] == "Healthy"
