"""An operator with the rights that the chart gives it for single namespaces, on an API server where it has no others."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.cluster import ControlPlane
from lab.cluster.manifests import OPERATOR, apply_product
from lab.setup.kube import kube_binaries
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, Scene, assert_all_in_fallback, staged
from tests.support.rendered import REGISTRY, config
from tests.support.shadow_trainers import ShadowTrainers

_, _, SYSTEM, ACCOUNT = OPERATOR.split(":")
TEAM, OTHERS = "team", "others"
CHART = Path(__file__).parents[2] / "helm" / "precision-operator"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")


def rendered() -> list[Json]:
    """The chart for one namespace."""
    served = ("--api-versions", "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy")
    where = ("--namespace", SYSTEM, "--set", f"namespaces={{{TEAM}}}")
    command = (kube_binaries() / "helm", "template", ACCOUNT, CHART, *where, *served, *REGISTRY)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Of its own: on the session's the operator's account has rights in all namespaces."""
    with ControlPlane(tmp_path_factory.mktemp("namespaced")) as cluster:
        apply_product(cluster.kubectl)
        for namespace in (SYSTEM, TEAM, OTHERS):
            cluster.kubectl("create", "namespace", namespace)
            cluster.kubectl.wait_for_namespace(namespace)
        yield cluster


@pytest.fixture
def scene(plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    """A hot trainer and one that is restarted, in the operator's namespace."""
    objects = rendered()
    plane.kubectl.apply(*(body for body in objects if body["kind"] in RIGHTS))
    access = plane.service_account_kubeconfig(SYSTEM, ACCOUNT)
    settings = {"watchNamespaces": config(objects)["watchNamespaces"]}
    shadow = ShadowTrainers(plane.kubectl, TEAM)
    with staged(plane.kubectl, shadow, tmp_path, operator=access, settings=settings) as scene:
        scene.operators.system = SYSTEM
        scene.apply(deployment("hot"), deployment("literal", hot=False))
        wait_for(lambda: len(scene.shadow.modes()) == 2, what="both pods", seconds=PATIENCE_SECONDS)
        yield scene


def test_the_roles_of_one_namespace_are_enough_for_a_rollout_and_a_rollback_there(scene: Scene) -> None:
    for namespace, answer in ((TEAM, "yes"), (OTHERS, "no")):
        may = scene.kubectl("auth", "can-i", "list", "pods", "-n", namespace, "--as", OPERATOR, check=False)
        assert may.stdout.strip() == answer, namespace
    scene.operators.start("one")
    scene.apply(policy(criteria=NO_SPEED))
    scene.wait_phase("Healthy")
    assert scene.in_mode("fp16") == {"hot", "literal"}
    scene.condition("AdmissionEnforced", "Enforcing")
    scene.shadow.overflow = {"hot": 0.8, "literal": 0.8}
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    scene.condition("WritesAccepted", "WritesAccepted")
