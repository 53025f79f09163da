"""Compile kwok, which plays nodes and the pods on them: a benchmark's fleet has more pods than a machine could run."""

from __future__ import annotations

from pathlib import Path

from lab import paths
from lab.digest import digest
from lab.process import run
from lab.setup.go import compiled_once
from lab.setup.kube import ENVIRONMENT

MODULE = paths.ROOT / "lab" / "kwok"
"""A module of its own, which names kwok as its tool: in lab/kube it would have everybody compile Kubernetes anew."""

_MODULE = "sigs.k8s.io/kwok"
_STAGES = ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml")
"""kwok's own: nodes and pods are ready at once, and gone at once when deleted."""


def kwok() -> Path:
    """Return the folder with `kwok` and its `stages.yaml`, compiled once a machine (about two minutes)."""
    name = f"kwok-{digest([MODULE], _STAGES)}"
    return compiled_once(name, "compile kwok (about two minutes the first time)", _build)


def _build(go: Path, folder: Path) -> None:
    flags = ["-trimpath", "-mod=readonly", "-ldflags", "-s -w"]
    run([go, "build", *flags, "-o", folder / "kwok", f"{_MODULE}/cmd/kwok"], cwd=MODULE, env=ENVIRONMENT, timeout=1200)
    source = run([go, "list", "-m", "-f", "{{.Dir}}", _MODULE], cwd=MODULE, env=ENVIRONMENT).stdout.strip()
    stages = [(Path(source) / "kustomize" / "stage" / name).read_text() for name in _STAGES]
    (folder / "stages.yaml").write_text("\n---\n".join(stages))
