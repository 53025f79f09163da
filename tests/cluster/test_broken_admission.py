"""Admission that is not as it should be: pods that it missed, a fence that is gone, an API server just started.

On a control plane of its own, because everybody else needs these policies.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.cluster.manifests import ADMISSION, AS_OPERATOR, apply_product, operator_access, until_admitted
from lab.waiting import wait_for
from precision_operator.contract import ADMITTED, REQUEST
from tests.support.cluster_acting import pod as pod_body
from tests.support.cluster_fleet import deployment, policy
from tests.support.cluster_scene import (
    HOT,
    NO_SPEED,
    PATIENCE_SECONDS,
    Scene,
    assert_all_in_fallback,
    break_two,
    staged,
)
from tests.support.shadow_trainers import ShadowTrainers

LITERAL = "literal"
ASSIGN = "precision-assign.precision.genesis.ai"
FENCE = "precision-fence-deletions.precision.genesis.ai"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("broken")) as cluster:
        apply_product(cluster.kubectl)
        yield cluster


@pytest.fixture
def scene(plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    """Five trainers that have trained in FP16 from the start: what no admission sees starts in it too."""
    kubectl, name = plane.kubectl, f"test-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl.wait_for_namespace(name)
    with staged(kubectl, ShadowTrainers(kubectl, name), tmp_path, operator=operator_access(plane)) as scene:
        scene.apply(*(deployment(hot, enabled="true") for hot in HOT), deployment(LITERAL, hot=False, enabled="true"))
        wait_for(lambda: scene.in_mode("fp16") == {*HOT, LITERAL}, what="pods of all five", seconds=PATIENCE_SECONDS)
        scene.operators.start("one")
        scene.apply(policy(criteria=NO_SPEED))
        scene.wait_phase("Healthy")
        yield scene


def roll_back_half(scene: Scene) -> None:
    """Into mid-rollback, and no further: the one that is restarted does not come back."""
    scene.shadow.capacity = {LITERAL: 0}
    break_two(scene)
    wait_for(
        lambda: scene.status().get("phase") == "RollingBack" and scene.in_mode("fp32") >= set(HOT),
        what="the hot ones in the fallback, in mid-rollback",
        seconds=PATIENCE_SECONDS,
        found=scene.operators.logs,
    )


def unadmitted(scene: Scene, *, of: Collection[str] = (*HOT, LITERAL)) -> dict[str, str]:
    """Pods of these workloads that no admission saw → the mode that they were asked for; empty where nobody asked."""
    found = {}
    for pod in (pod for workload, pod in scene.pods().items() if workload in of):
        annotations = pod["metadata"].get("annotations", {})
        if ADMITTED not in annotations:
            found[pod["metadata"]["name"]] = json.loads(annotations.get(REQUEST, "{}")).get("mode", "")
    return found


def kill(scene: Scene, name: str) -> None:
    scene.operators.running[name].kill()
    scene.operators.running[name].wait(timeout=10)


def until_missed(scene: Scene, before: set[str]) -> None:
    """Make new pods of the hot ones until no admission has seen any of them. ``before``: names of their old ones."""

    def missed() -> bool:
        hot = [pod["metadata"] for name, pod in scene.pods().items() if name in HOT]
        # Some may come before the API server knows that the binding is gone.
        seen = [m["name"] for m in hot if m["name"] in before or ADMITTED in m["annotations"]]
        if seen:
            scene.kubectl("delete", "pods", "-n", scene.namespace, "--timeout=60s", *seen)
        return len(hot) == len(HOT) and not seen

    wait_for(missed, what="pods that no admission saw", seconds=PATIENCE_SECONDS, every=1.0)


def test_pods_that_admission_missed_are_put_right_and_the_gap_shows(scene: Scene) -> None:
    roll_back_half(scene)
    kill(scene, "one")
    before = {pod["metadata"]["name"] for pod in scene.pods().values()}
    scene.kubectl("delete", "mutatingadmissionpolicybinding", ASSIGN)
    try:
        until_missed(scene, before)
        wait_for(lambda: scene.in_mode("fp16") == set(HOT), what="them to train in FP16", seconds=PATIENCE_SECONDS)
        scene.operators.start("two")
        assert scene.condition("AdmissionEnforced", "AdmissionNotInstalled")["status"] == "False"
        wait_for(
            lambda: scene.in_mode("fp32") >= set(HOT),
            what="them to be put right",
            seconds=PATIENCE_SECONDS,
            found=scene.operators.logs,
        )
    finally:
        scene.kubectl.apply(ADMISSION)
    scene.shadow.capacity = {}
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    scene.condition("AdmissionEnforced", "Enforcing")


def test_pods_that_admission_misses_beside_an_operator_that_restarts_others_are_noticed_and_put_right(
    scene: Scene,
) -> None:
    roll_back_half(scene)
    scene.condition("AdmissionEnforced", "Enforcing")
    wait_for(lambda: scene.state().restarts, what="a restart under way", seconds=PATIENCE_SECONDS)
    before = {pod["metadata"]["name"] for pod in scene.pods().values()}
    scene.kubectl("delete", "mutatingadmissionpolicybinding", ASSIGN)
    try:
        until_missed(scene, before)
        wait_for(
            lambda: scene.in_mode("fp32") >= set(HOT),
            what="them to be put right",
            seconds=PATIENCE_SECONDS,
            found=scene.operators.logs,
        )
        # The one that is restarted may have lost its pod after these were named: its new one is missed too, and not asked.
        asked = {name: mode for name, mode in unadmitted(scene, of=HOT).items() if name not in before}
        assert list(asked.values()) == ["fp32"] * len(HOT)
        # What is installed is compared once a minute.
        assert scene.condition("AdmissionEnforced", "AdmissionNotInstalled")["status"] == "False"
    finally:
        scene.kubectl.apply(ADMISSION)
    scene.condition("AdmissionEnforced", "Enforcing")
    scene.shadow.capacity = {}
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)


def test_an_api_server_that_was_just_started_lets_no_pod_stay_in_the_old_mode(
    scene: Scene, plane: ControlPlane
) -> None:
    roll_back_half(scene)
    plane.stop_apiserver()
    plane.start_apiserver()
    # Their controllers make new ones as soon as they can, with admission or without it.
    scene.kubectl("delete", "pods", "--all", "-n", scene.namespace, "--timeout=60s")
    wait_for(lambda: set(scene.pods()) == {*HOT, LITERAL}, what="new pods of all five", seconds=PATIENCE_SECONDS)
    missed = unadmitted(scene)
    scene.shadow.capacity = {}
    scene.wait_phase_through_a_restart("Held")
    assert_all_in_fallback(scene)
    # There may be none: that a live operator notices them is shown above.
    # Whatever slipped through was noticed, one by one: what can be asked was asked, the other was taken away.
    left = {name: asked for name, asked in unadmitted(scene).items() if name in missed}
    assert set(left.values()) <= {"fp32"}, (missed, left)
    assert set(scene.shadow.modes()) == {*HOT, LITERAL}
    scene.condition("AdmissionEnforced", "Enforcing")
    scene.operators.stop()  # the probe of admission is a policy too
    until_admitted(scene.kubectl)


def test_an_operator_without_its_fence_writes_to_no_pod_and_shows_it(scene: Scene) -> None:
    def versions() -> set[str]:
        return {pod["metadata"]["resourceVersion"] for name, pod in scene.pods().items() if name in {*HOT, LITERAL}}

    kill(scene, "one")
    before = versions()  # and its trials of the fence are no writes either
    scene.kubectl("delete", "validatingadmissionpolicybinding", FENCE)
    system, log = scene.operators.system, scene.operators.directory / "two.log"
    try:
        scene.kubectl.apply(
            {**pod_body("two"), "metadata": {"name": "two", "namespace": system, "labels": {"app": "two"}}}
        )
        # The API server goes by its policies of a moment ago, and the operator tries them as soon as it starts.
        deletion = ("delete", "pod", "two", "-n", system, "--dry-run=server", "--wait=false", *AS_OPERATOR)
        wait_for(
            lambda: scene.kubectl(*deletion, check=False).returncode == 0,
            what="the fence to be gone",
            seconds=PATIENCE_SECONDS,
        )
        scene.operators.start("two")
        said = "the operator could delete a pod without its uid"
        wait_for(lambda: said in log.read_text(), what="the trial at the start", seconds=PATIENCE_SECONDS)
        break_two(scene)
        scene.wait_phase("RollingBack")  # before it, the breach that is seen first may roll back its workload alone
        shown = scene.condition("WritesAccepted", "Unfenced")
        assert shown["status"] == "False"
        assert "delete a pod without its uid" in shown["message"], "no pod runs here: none can be killed without grace"
        assert scene.status()["phase"] == "RollingBack"
        begun = time.monotonic()
        wait_for(lambda: time.monotonic() - begun > 3, what="the next passes", seconds=20)
        assert versions() == before
    finally:
        scene.kubectl.apply(ADMISSION)
        scene.kubectl("delete", "pod", "two", "-n", system, "--ignore-not-found", "--grace-period=0", "--force")
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    scene.condition("WritesAccepted", "WritesAccepted")
