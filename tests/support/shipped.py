"""The shipped admission policies for new pods, as objects."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.support.bodies import Json

ADMISSION = Path(__file__).parents[2] / "manifests" / "admission"
V1 = "admissionregistration.k8s.io/v1"
BETA = "admissionregistration.k8s.io/v1beta1"


def assign_policy(version: str = V1) -> list[Json]:
    """The policy that gives pods their mode, and its binding, in a version of their API."""
    return _read("assign", version)


def inject_policy(version: str = V1) -> list[Json]:
    """The policy that writes the contract into pods, and its binding."""
    return _read("inject", version)


def _read(name: str, version: str) -> list[Json]:
    text = (ADMISSION / f"{name}.yaml").read_text()
    return list(yaml.safe_load_all(text.replace(f"apiVersion: {V1}\n", f"apiVersion: {version}\n")))
