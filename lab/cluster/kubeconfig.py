"""Kubeconfig files: who one is, towards which cluster."""

from __future__ import annotations

import json
from pathlib import Path

from lab.cluster.pki import Certificate, encoded


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    authority: Path,
    name: str,
    certificate: Certificate | None = None,
    token: str | None = None,
    namespace: str = "default",
) -> Path:
    """Write a kubeconfig (as JSON, which is YAML) for a client certificate or a token, readable by its owner only."""
    user: dict[str, str] = {}
    if certificate is not None:
        user = {
            "client-certificate-data": encoded(certificate.certificate),
            "client-key-data": encoded(certificate.key),
        }
    if token is not None:
        user["token"] = token
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority-data": encoded(authority)}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": name, "namespace": namespace}}],
        "current-context": "lab",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
