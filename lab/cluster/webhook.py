"""The operator's webhook on a control plane without MutatingAdmissionPolicy.

No kubelet runs the operator's pods, so the endpoints of its Service are kept here, as their controller would. The API server
resolves the Service to them. They need an address of the machine: an EndpointSlice takes no loopback address.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path

import yaml

from lab import paths
from lab.cluster.control_plane import ControlPlane
from lab.cluster.kubectl import Json, Kubectl
from lab.cluster.manifests import AS_OPERATOR, CRDS
from lab.errors import LabError
from lab.process import run
from lab.setup.kube import kube_binaries
from lab.waiting import wait_for
from precision_operator.settings import AdmissionSettings

CHART = paths.ROOT / "helm" / "precision-operator"
SYSTEM = "precision-system"
SERVICE = AdmissionSettings().service
CONFIGURATION = "precision-webhook.precision.genesis.ai"

_KINDS = ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings")
ROUTING = "--enable-aggregator-routing=true"
"""Services are resolved to endpoints: no kube-proxy runs here."""
WITHOUT_POLICIES = (
    f"--runtime-config={','.join(f'admissionregistration.k8s.io/v1/{kind}=false' for kind in _KINDS)}",
    "--disable-admission-plugins=MutatingAdmissionPolicy",  # it would wait for policies that are not served
    ROUTING,
)

_LEFT_OUT = ("Deployment", "PodDisruptionBudget", "ConfigMap", "CustomResourceDefinition")


def install(plane: ControlPlane, *values: str) -> Path:
    """What the chart installs in webhook mode with these values, but for the operator's pods; its credentials."""
    kubectl = plane.kubectl
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    kubectl.wait_for_namespace(SYSTEM)
    kubectl.apply(CRDS)
    kubectl.wait_until("condition=Established", "crd/precisionassignments.precision.genesis.ai", seconds=30)
    kubectl.apply(*(body for body in manifests(version(plane), *values) if body["kind"] not in _LEFT_OUT))
    wait_for(lambda: "the operator may change nothing" in refusal(kubectl), what="the fence", seconds=60)
    return plane.service_account_kubeconfig(SYSTEM, "precision-operator")


def version(plane: ControlPlane) -> str:
    """What the API server says that it is."""
    return str(plane.kubectl.json("version")["serverVersion"]["gitVersion"])


def manifests(kubernetes: str, *values: str) -> list[Json]:
    """What the chart gives in webhook mode with these values, on that version of Kubernetes."""
    served = ("--api-versions", "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration")
    command: list[str | Path] = [kube_binaries() / "helm", "template", "precision-operator", CHART]
    command += ["--namespace", SYSTEM, "--kube-version", kubernetes, *served]
    command += [word for value in ("image.registry=localhost", *values) for word in ("--set", value)]
    found = [body for body in yaml.safe_load_all(run(command, timeout=60).stdout) if body]
    for body in found:
        if body["kind"] == "Service":
            del body["spec"]["selector"]  # nothing but the test keeps its endpoints
    return found


LABELLED = {"op": "add", "path": "/metadata/labels/mine", "value": "yes"}


def refusal(kubectl: Kubectl, change: Json = LABELLED) -> str:
    """What the API server says to the operator's own change of its configuration; nothing where it allows it."""
    command = ("patch", "mutatingwebhookconfiguration", CONFIGURATION, "--dry-run=server", "--type=json")
    return kubectl(*command, "-p", json.dumps([change]), *AS_OPERATOR, check=False).stderr


def machine_address() -> str:
    """An address of this machine that is no loopback address; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError as error:
            raise LabError(
                "an address of the machine beside the loopback one",
                str(error),
                "ip address add 198.18.254.1/32 dev lo && ip route add default dev lo",
            ) from error
        return str(probe.getsockname()[0])


def publish(kubectl: Kubectl, replica: str, port: int) -> None:
    """That replica is ready, and serves admission there.

    An API server of 1.33 looks endpoints up in the Service's Endpoints object, so that is kept beside the slices.
    """
    labels = {"kubernetes.io/service-name": SERVICE}
    kubectl.apply(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{SERVICE}-{replica}", "namespace": SYSTEM, "labels": labels},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [machine_address()], "conditions": {"ready": True}}],
            "ports": [{"name": "webhook", "port": port, "protocol": "TCP"}],
        }
    )
    _sum_up(kubectl)


def withdraw(kubectl: Kubectl, replica: str) -> None:
    """That replica is ready no more; harmless where it never was."""
    kubectl("delete", "endpointslice", f"{SERVICE}-{replica}", "-n", SYSTEM, "--ignore-not-found")
    _sum_up(kubectl)


def _sum_up(kubectl: Kubectl) -> None:
    selected = ("-n", SYSTEM, "-l", f"kubernetes.io/service-name={SERVICE}")
    slices = kubectl.json("get", "endpointslices", *selected)["items"]
    subsets = [{"addresses": [{"ip": machine_address()}], "ports": item["ports"]} for item in slices]
    # The slices are ours already: a second set of them would make every replica two.
    labels = {"endpointslice.kubernetes.io/skip-mirror": "true"}
    metadata = {"name": SERVICE, "namespace": SYSTEM, "labels": labels}
    kubectl.apply({"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": subsets})


def serving_port(log: str) -> int | None:
    """Where an operator says in its log that it serves admission; None before it does."""
    said = [json.loads(line) for line in log.splitlines(keepends=True) if line.startswith("{") and line.endswith("\n")]
    return next((int(line["webhookPort"]) for line in reversed(said) if "webhookPort" in line), None)
