"""Prometheus inside the cluster, where the operator expects one."""

from __future__ import annotations

from pathlib import Path

import yaml

from lab import paths
from lab.cluster.kubectl import Kubectl
from lab.images.catalogue import PROMETHEUS

RULES = paths.ROOT / "manifests" / "monitoring" / "alerts.yaml"
MANIFEST = Path(__file__).parent.parent / "manifests" / "prometheus.yaml"
NAMESPACE = "monitoring"
URL = f"http://prometheus.{NAMESPACE}.svc:9090"
"""As pods reach it."""


def apply_prometheus(
    kubectl: Kubectl, *, image: str = PROMETHEUS.reference, pull_policy: str = "Never", seconds: float = 120
) -> str:
    """Apply Prometheus and the rules that ship, wait until it answers; its address, which the node's host reaches too."""
    for item in yaml.safe_load_all(MANIFEST.read_text()):
        if item["kind"] == "ConfigMap":
            item["data"]["rules.yaml"] = RULES.read_text()
        if item["kind"] == "Deployment":
            container = item["spec"]["template"]["spec"]["containers"][0]
            container.update({"image": image, "imagePullPolicy": pull_policy})
        kubectl.apply(item)
    kubectl(
        "rollout", "status", "deployment/prometheus", "-n", NAMESPACE, f"--timeout={seconds:g}s", timeout=seconds + 30
    )
    address = kubectl.json("get", "service", "prometheus", "-n", NAMESPACE)["spec"]["clusterIP"]
    return f"http://{address}:9090"
