"""Prometheus inside the cluster, where the operator expects one."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import yaml

from lab import paths
from lab.cluster.kubectl import Kubectl
from lab.images.catalogue import PROMETHEUS
from lab.waiting import wait_for

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
    url = f"http://{address}:9090"
    # A pod that is ready may still not be reached: its Service comes a moment later.
    wait_for(lambda: _answers(url), what="Prometheus at its address", seconds=seconds)
    return url


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False
