"""The laboratory's own promise: what it calls a control plane is a real, ready, restartable Kubernetes API."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl

WORKLOAD = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "audited"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "audited"}},
        "template": {
            "metadata": {"labels": {"app": "audited"}},
            "spec": {"containers": [{"name": "main", "image": "localhost/pause:1"}]},
        },
    },
}


def test_the_control_plane_is_ready_and_of_the_pinned_version(control_plane: ControlPlane) -> None:
    assert control_plane.kubectl("get", "--raw", "/readyz").stdout == "ok"
    assert control_plane.kubectl.json("version")["serverVersion"]["gitVersion"] == "v1.36.3"


def test_mutating_admission_policies_are_served_as_v1(kubectl: Kubectl) -> None:
    resources = kubectl("api-resources", "--api-group=admissionregistration.k8s.io", "-o", "name").stdout.split()
    assert "mutatingadmissionpolicies.admissionregistration.k8s.io" in resources
    assert kubectl.json("get", "mutatingadmissionpolicies")["apiVersion"] == "v1"


def test_etcd_answers_the_api_server_and_no_user_of_the_cluster(control_plane: ControlPlane) -> None:
    admin = control_plane.authority.issue("admin", "admin", groups=["system:masters"])
    for certificate in (None, admin):
        context = ssl.create_default_context(cafile=str(control_plane.directory / "etcd-pki" / "ca.crt"))
        if certificate is not None:
            context.load_cert_chain(certificate.certificate, certificate.key)
        with pytest.raises(OSError, match=r"(?i)alert|certificate|EOF"):
            urllib.request.urlopen(f"{control_plane.etcd}/health", context=context, timeout=10)


def test_the_audit_log_tells_who_sent_what(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("apply", "--server-side", "-n", namespace, "-f", "-", input=json.dumps(WORKLOAD))
    lines = control_plane.audit_log.read_text().splitlines(keepends=True)
    events = [
        json.loads(line) for line in lines if line.endswith("\n")
    ]  # the last one may be in the middle of its write
    writes = [
        event
        for event in events
        if event["verb"] == "patch"
        and event.get("objectRef", {}).get("resource") == "deployments"
        and event["objectRef"].get("namespace") == namespace
    ]
    assert [event["user"]["username"] for event in writes] == ["admin"]
    assert writes[0]["level"] == "RequestResponse"
    assert writes[0]["requestObject"]["metadata"]["name"] == "audited"
    assert not [event for event in events if event["stage"] == "RequestReceived"]


def test_a_service_account_has_the_rights_that_rbac_gives_and_no_more(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.kubectl("create", "serviceaccount", "nobody", "-n", namespace)
    kubeconfig = control_plane.service_account_kubeconfig(namespace, "nobody")
    refused = control_plane.kubectl("--kubeconfig", kubeconfig, "get", "secrets", "-A", check=False)
    assert refused.returncode != 0
    assert f"system:serviceaccount:{namespace}:nobody" in refused.stderr


def test_control_planes_run_side_by_side_and_keep_their_data_over_a_restart(tmp_path: Path, kubectl: Kubectl) -> None:
    with ControlPlane(tmp_path / "second") as second:
        second.kubectl("create", "configmap", "only-here", "-n", "default")
        second.stop_apiserver()
        gone = second.kubectl("get", "--raw", "/readyz", check=False)
        second.start_apiserver()
        assert gone.returncode != 0
        assert second.kubectl.find("configmap", "only-here", "-n", "default") is not None
        assert kubectl.find("configmap", "only-here", "-n", "default") is None
