"""What the tests of the chart share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from lab.cluster import ControlPlane
from lab.process import run
from lab.setup.kube import kube_binaries
from tests.support.rendered import Json

Render = Callable[..., list[Json]]


Helm = Callable[..., subprocess.CompletedProcess[str]]


ROOT = Path(__file__).parents[2]


CHART = ROOT / "helm" / "precision-operator"


NAMESPACE = "precision-system"


FIRST_CHART = ROOT / "tests" / "support" / "charts" / "precision-operator-0.1.0.tgz"
"""As `make release` packed it from commit d8f5cc38."""


FIRST_OPERATOR = ROOT / "tests" / "support" / "charts" / "precision_operator-0.1.0.zip"
"""The package of the same commit: `git archive --format=zip -9 d8f5cc38:operator precision_operator`."""


def run_helm(cluster: ControlPlane, *arguments: str | Path) -> None:
    """Helm, on a control plane."""
    environment = {"KUBECONFIG": str(cluster.kubeconfig), "HELM_CACHE_HOME": str(cluster.directory / "helm")}
    run([kube_binaries() / "helm", *arguments, "-n", NAMESPACE], env={**os.environ, **environment}, timeout=120)
