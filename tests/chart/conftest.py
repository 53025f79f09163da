"""The chart and what it renders to, with the laboratory's helm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.setup.kube import kube_binaries
from tests.support.rendered import REGISTRY

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "precision-operator"
Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[Json]]


@pytest.fixture(scope="session")
def helm() -> Helm:
    program = kube_binaries() / "helm"

    def run(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def render(helm: Helm) -> Render:
    """Objects that the chart gives: `render("replicaCount=1")`, `render(mutating=["v1beta1"])`.

    `mutating`: the versions of MutatingAdmissionPolicy that the cluster serves; None: there is no cluster. `monitoring`: the
    kinds of the Prometheus operator that it serves.
    """

    def objects(
        *values: str,
        mutating: Sequence[str] | None = ("v1",),
        monitoring: Sequence[str] = (),
        namespace: str = "precision-system",
    ) -> list[Json]:
        settings = [
            part for value in values for part in ("--set-json" if "=[" in value or "={" in value else "--set", value)
        ]
        served = [f"{version}/MutatingAdmissionPolicy" for version in mutating or ()]
        served += ["v1/MutatingWebhookConfiguration"] if mutating is not None else []
        known = [f"admissionregistration.k8s.io/{api}" for api in served]
        known += [f"monitoring.coreos.com/v1/{kind}" for kind in monitoring]
        apis = [part for api in known for part in ("--api-versions", api)]
        done = helm("template", "precision-operator", CHART, "--namespace", namespace, *apis, *REGISTRY, *settings)
        return [document for document in yaml.safe_load_all(done.stdout) if document]

    return objects
