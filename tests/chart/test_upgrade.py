"""From the chart that the first release packed to this one, on a real API server, while a fleet is rolled back."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.cluster.manifests import AS_OPERATOR, until_admitted
from lab.waiting import wait_for
from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.state import Phase, State
from tests.support.api import Api, Place
from tests.support.bodies import pod
from tests.support.charted import CHART, FIRST_CHART, run_helm
from tests.support.rendered import REGISTRY
from tests.support.users import PREFIX, assignment, policy

MODES = {"done": "fp32", "waiting": "fp16"}
"""Pods of the fleet, and what each is assigned half-way."""

pytestmark = pytest.mark.cluster


def half_way() -> State:
    return State(
        phase=Phase.ROLLING_BACK,
        reason="LossNotFinite",
        fallback=None,
        enforce=True,
        generation=2,
        selector=Selector((("app", "trainer"),)),
        modes={f"/Pod/{name}": Mode(mode) for name, mode in MODES.items()},
    )


def test_new_pods_keep_their_mode_at_every_moment_of_an_upgrade(tmp_path: Path) -> None:
    with ControlPlane(tmp_path) as cluster:
        kubectl, api = cluster.kubectl, Api(cluster.kubeconfig, tmp_path / "api")
        run_helm(cluster, "install", "precision-operator", FIRST_CHART, "--create-namespace")
        until_admitted(kubectl)
        kubectl("create", "-n", "default", "-f", "-", input=json.dumps(policy("fleet")))
        body = {**assignment("fleet"), **assignment_to_wire(half_way())}
        body.pop("default", None)
        kubectl("create", "-n", "default", "-f", "-", *AS_OPERATOR, input=json.dumps(body))
        place = Place(api, "default")

        def given() -> dict[str, str]:
            tried = {name: place.tried(pod(labels={"app": "trainer"}, metadata={"name": name})) for name in MODES}
            made = {name: found["metadata"].get("annotations", {}) for name, found in tried.items()}
            return {name: annotations.get(f"{PREFIX}mode", "") for name, annotations in made.items()}

        wait_for(lambda: given() == MODES, what="the assignment at admission", seconds=150, found=lambda: str(given()))
        seen, over = [given()], threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                seen.append(given())

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            run_helm(cluster, "upgrade", "precision-operator", CHART, "--reset-then-reuse-values", *REGISTRY)
            so_far = len(seen)
            wait_for(lambda: len(seen) > so_far + 150, what="more pods after the upgrade", seconds=150)
        finally:
            over.set()
            watching.join()
            api.close()
        assert [modes for modes in seen if modes != MODES] == []
        kept = kubectl.json("get", "precisionassignment", "fleet", "-n", "default")
        assert kept["metadata"]["generation"] == 1, "nothing wrote what the rollback stands on"
