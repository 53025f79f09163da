"""Prometheus inside the cluster, where the operator expects one."""

from __future__ import annotations

from pathlib import Path

from lab.cluster.kubectl import Kubectl

MANIFEST = Path(__file__).parent.parent / "manifests" / "prometheus.yaml"
NAMESPACE = "monitoring"
URL = f"http://prometheus.{NAMESPACE}.svc:9090"
"""As pods reach it."""


def apply_prometheus(kubectl: Kubectl, *, seconds: float = 120) -> str:
    """Apply Prometheus, wait until it answers, and return its address, which the node's host reaches too."""
    kubectl.apply(MANIFEST)
    kubectl(
        "rollout", "status", "deployment/prometheus", "-n", NAMESPACE, f"--timeout={seconds:g}s", timeout=seconds + 30
    )
    address = kubectl.json("get", "service", "prometheus", "-n", NAMESPACE)["spec"]["clusterIP"]
    return f"http://{address}:9090"
