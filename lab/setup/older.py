"""Compile the control plane of an older minor of Kubernetes, for what must work where admission policies are not served."""

from __future__ import annotations

from pathlib import Path

from lab import paths
from lab.digest import digest
from lab.process import run
from lab.setup.go import compiled_once
from lab.setup.kube import ENVIRONMENT, link_flags

VERSION = "v1.33.13"
"""The newest minor without MutatingAdmissionPolicy in any version that is served by default or by a beta switch."""

MODULE = paths.ROOT / "lab" / "older"
"""A module of its own: one build has one version of each Go module."""

COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


def older_control_plane() -> Path:
    """Return the folder that holds its commands, compiled once a machine: about five minutes on two cores."""
    name = f"kube-{VERSION}-{digest([MODULE], link_flags(VERSION))}"
    title = f"compile the control plane of Kubernetes {VERSION} (about 5 minutes on two cores the first time)"
    return compiled_once(name, title, _build)


def _build(go: Path, folder: Path) -> None:
    flags = ["-trimpath", "-mod=readonly", "-ldflags", " ".join(link_flags(VERSION))]
    run([go, "build", *flags, "-o", folder / "kube", "."], cwd=MODULE, env=ENVIRONMENT, timeout=2400)
    for command in COMMANDS:
        (folder / command).symlink_to("kube")
