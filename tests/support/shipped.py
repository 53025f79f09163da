"""The shipped admission policy for new pods, as objects."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.support.bodies import Json

ASSIGN = Path(__file__).parents[2] / "manifests" / "admission" / "assign.yaml"
V1 = "admissionregistration.k8s.io/v1"
BETA = "admissionregistration.k8s.io/v1beta1"


def assign_policy(version: str = V1) -> list[Json]:
    """The policy and its binding, in a version of their API."""
    return list(yaml.safe_load_all(ASSIGN.read_text().replace(f"apiVersion: {V1}\n", f"apiVersion: {version}\n")))
