"""Compile kwok, which plays nodes and the pods on them: a benchmark's fleet has more pods than a machine could run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab import paths
from lab.digest import digest
from lab.locking import machine_lock
from lab.process import run
from lab.progress import step
from lab.setup.go import find_go
from lab.setup.kube import ENVIRONMENT

MODULE = paths.ROOT / "lab" / "kwok"
"""A module of its own, which names kwok as its tool: in lab/kube it would have everybody compile Kubernetes anew."""

_MODULE = "sigs.k8s.io/kwok"
_STAGES = ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml")
"""kwok's own: nodes and pods are ready at once, and gone at once when deleted."""


def kwok() -> Path:
    """Return the folder with `kwok` and its `stages.yaml`, compiled once a machine (about two minutes)."""
    target = paths.shared_cache() / f"kwok-{digest([MODULE], _STAGES)}"
    if not target.is_dir():
        with machine_lock("kwok"):
            if not target.is_dir():
                _compile(target)
    return target


def _compile(target: Path) -> None:
    go = find_go()
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    scratch.mkdir(parents=True)
    build: list[str | Path] = [
        "build",
        "-trimpath",
        "-mod=readonly",
        "-ldflags",
        "-s -w",
        "-o",
        scratch / "kwok",
        f"{_MODULE}/cmd/kwok",
    ]
    try:
        with step("compile kwok (about two minutes the first time)"):
            run([go, *build], cwd=MODULE, env=ENVIRONMENT, timeout=1200)
            source = run([go, "list", "-m", "-f", "{{.Dir}}", _MODULE], cwd=MODULE, env=ENVIRONMENT).stdout.strip()
            stages = [(Path(source) / "kustomize" / "stage" / name).read_text() for name in _STAGES]
            (scratch / "stages.yaml").write_text("\n---\n".join(stages))
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
