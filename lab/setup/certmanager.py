"""Compile cert-manager, which may keep the webhook's certificates."""

from __future__ import annotations

from pathlib import Path

import yaml

from lab import paths
from lab.digest import digest
from lab.process import run
from lab.setup.go import compiled_once
from lab.setup.kube import ENVIRONMENT

MODULE = paths.ROOT / "lab" / "certmanager"
"""A module of its own. 1.11 is the last minor whose commands belong to the published Go module."""

_MODULE = "github.com/cert-manager/cert-manager"
COMMANDS = ("controller", "cainjector")
_KINDS = ("certificaterequests", "certificates", "challenges", "clusterissuers", "issuers", "orders")


def cert_manager() -> Path:
    """Return the folder with `controller`, `cainjector` and `crds.yaml`, compiled once a machine (about three minutes)."""
    name = f"cert-manager-{digest([MODULE], (*COMMANDS, *_KINDS))}"
    return compiled_once(name, "compile cert-manager (about three minutes on two cores the first time)", _build)


def _build(go: Path, folder: Path) -> None:
    flags = ["-trimpath", "-mod=readonly", "-ldflags", "-s -w", "-o", f"{folder}/"]
    packages = [f"{_MODULE}/cmd/{name}" for name in COMMANDS]
    run([go, "build", *flags, *packages], cwd=MODULE, env=ENVIRONMENT, timeout=2400)
    source = run([go, "list", "-m", "-f", "{{.Dir}}", _MODULE], cwd=MODULE, env=ENVIRONMENT).stdout.strip()
    (folder / "crds.yaml").write_text("\n---\n".join(_crd(Path(source), kind) for kind in _KINDS))


def _crd(source: Path, kind: str) -> str:
    """A CRD without its labels, which only Helm can fill in."""
    body = yaml.safe_load((source / "deploy" / "crds" / f"crd-{kind}.yaml").read_text())
    body["metadata"] = {"name": body["metadata"]["name"]}
    return str(yaml.safe_dump(body))
