"""Writes that the API server refuses: it shows, nothing else stops, and the rollback goes on once they are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lab.cluster.manifests import OPERATOR
from lab.waiting import wait_for
from precision_operator.contract import MODE
from tests.support.cluster_fleet import Json
from tests.support.cluster_scene import HOT, PATIENCE_SECONDS, Scene, assert_all_in_fallback, break_two, promoted

REGISTRATION = {"apiVersion": "admissionregistration.k8s.io/v1"}


def denial(scene: Scene) -> list[Json]:
    """Nobody but administrators changes a pod of this namespace."""
    name = f"deny-{scene.namespace}"
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE", "DELETE"], "resources": ["pods"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}}
    return [
        {
            **REGISTRATION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [pods], "namespaceSelector": here},
                "validations": [
                    {
                        "expression": f"request.userInfo.username != '{OPERATOR}'",
                        "reason": "Forbidden",
                        "message": "this namespace is frozen",
                    }
                ],
            },
        },
        {
            **REGISTRATION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


@contextmanager
def frozen(scene: Scene) -> Iterator[None]:
    """The operator's writes to pods are denied while the block runs."""
    objects = denial(scene)
    scene.kubectl.apply(*objects)
    pod = scene.pods()[HOT[0]]["metadata"]["name"]
    trial = (
        "annotate",
        "pod",
        pod,
        "-n",
        scene.namespace,
        "--dry-run=server",
        f"--as={OPERATOR}",
        "--overwrite",
        f"{MODE}=fp32",
    )
    try:
        wait_for(
            lambda: "this namespace is frozen" in scene.kubectl(*trial, check=False).stderr,
            what="the denial to be in force",
            seconds=PATIENCE_SECONDS,
        )
        yield
    finally:
        for item in objects:
            scene.kubectl("delete", item["kind"], item["metadata"]["name"])


def test_refused_writes_show_and_are_made_once_they_are_accepted(scene: Scene) -> None:
    promoted(scene)
    assert {c["type"]: c["status"] for c in scene.status()["conditions"]}["WritesAccepted"] == "True"
    with frozen(scene):
        break_two(scene)
        scene.wait_phase("RollingBack")  # before it, the breach that is seen first may roll back its workload alone
        refused = scene.condition("WritesAccepted", "Forbidden")
        assert refused["status"] == "False"
        assert "Pod" in refused["message"]
        assert scene.status()["phase"] == "RollingBack"
        # What new pods become is no write to a pod.
        assignment = scene.assignment()
        assert (assignment["default"], assignment["modes"]) == ("fp32", {})
        assert scene.in_mode("fp32") == set()
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    scene.condition("WritesAccepted", "WritesAccepted")
