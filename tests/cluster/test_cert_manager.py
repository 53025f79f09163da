"""The webhook with certificates that cert-manager makes, on a real API server: the operator reads them and writes none."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.cluster.certmanager import certificates
from lab.cluster.webhook import CONFIGURATION, SERVICE, SYSTEM, WITHOUT_POLICIES, install
from lab.waiting import wait_for
from tests.support.api import Api, Place
from tests.support.bodies import Json, found, pod
from tests.support.cluster_scene import PATIENCE_SECONDS, Operators
from tests.support.comparison import MARKER, MARKING, wait_for_marker
from tests.support.webhooks import Endpoints

pytestmark = pytest.mark.cert_manager

SETTINGS: Json = {"admission": {"port": 0, "refreshSeconds": 0.25, "certManager": True}}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    directory = tmp_path_factory.mktemp("cert-manager")
    with ControlPlane(directory, api_flags=WITHOUT_POLICIES) as cluster, certificates(cluster):
        yield cluster


@pytest.fixture
def operators(plane: ControlPlane, tmp_path: Path) -> Iterator[Operators]:
    credentials = install(plane, "admission.certManager.enabled=true")
    # It leads in no namespace of the test's, where it would delete an assignment that has no policy.
    settings = {**SETTINGS, "watchNamespaces": ["default"]}
    found = Operators(credentials, tmp_path, "http://127.0.0.1:9", SYSTEM, settings=settings)
    endpoints = Endpoints(plane.kubectl, found)
    found.start("leader")
    endpoints.port("leader")
    found.settings = SETTINGS
    found.start("follower")
    endpoints.add("follower")
    yield found
    found.stop()
    endpoints.clear()


def secret(plane: ControlPlane) -> Json:
    found = plane.kubectl.find("secret", SERVICE, "-n", SYSTEM, "--show-managed-fields")
    return found or {"data": {}}


def trusted(plane: ControlPlane) -> set[str]:
    webhooks = plane.kubectl.json("get", "mutatingwebhookconfiguration", CONFIGURATION)["webhooks"]
    return {webhook["clientConfig"].get("caBundle", "") for webhook in webhooks}


def writers(body: Json) -> set[str]:
    return {entry["manager"] for entry in body["metadata"]["managedFields"]}


def test_new_pods_get_their_mode_over_certificates_of_cert_manager_and_over_the_next_ones(
    plane: ControlPlane, operators: Operators, tmp_path: Path
) -> None:
    api = Api(plane.kubeconfig, tmp_path)
    place = Place(api)
    place.assign(MARKING)
    wait_for_marker(place)
    first = secret(plane)
    assert trusted(plane) == {first["data"]["ca.crt"]}

    plane.kubectl("delete", "secret", SERVICE, "-n", SYSTEM)

    def admitted_over_the_next() -> bool:
        now = secret(plane)["data"].get("tls.crt")
        made = place.tried(pod(labels=MARKER))
        return now not in (None, first["data"]["tls.crt"]) and "marker/" in found(made).get("admitted", "")

    def state() -> str:
        return f"{sorted(secret(plane)['data'])}, {len(trusted(plane))} bundles\n{operators.logs()}"

    wait_for(
        admitted_over_the_next,
        what="a pod admitted over new certificates",
        seconds=PATIENCE_SECONDS,
        found=state,
    )
    second = secret(plane)
    assert trusted(plane) == {second["data"]["ca.crt"]}
    assert b"BEGIN CERTIFICATE" in base64.b64decode(second["data"]["tls.crt"])
    assert not any("precision" in writer for writer in writers(second)), "the operator wrote none"
    place.leave()
    api.close()
