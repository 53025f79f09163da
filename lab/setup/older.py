"""Compile the control plane of an older minor of Kubernetes, for what must work where admission policies are not served."""

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
from lab.setup.kube import ENVIRONMENT, link_flags

VERSION = "v1.33.13"
"""The newest minor without MutatingAdmissionPolicy in any version that is served by default or by a beta switch."""

MODULE = paths.ROOT / "lab" / "older"
"""A module of its own: one build has one version of each Go module."""

COMMANDS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")


def older_control_plane() -> Path:
    """Return the folder that holds its commands, compiled once a machine: about five minutes on two cores."""
    target = paths.shared_cache() / f"kube-{VERSION}-{digest([MODULE], link_flags(VERSION))}"
    if not target.is_dir():
        with machine_lock("kube-older"):
            if not target.is_dir():
                _compile(target)
    return target


def _compile(target: Path) -> None:
    go = find_go()
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    scratch.mkdir(parents=True)
    flags = ["-trimpath", "-mod=readonly", "-ldflags", " ".join(link_flags(VERSION))]
    try:
        with step(f"compile the control plane of Kubernetes {VERSION} (about 5 minutes on two cores the first time)"):
            run([go, "build", *flags, "-o", scratch / "kube", "."], cwd=MODULE, env=ENVIRONMENT, timeout=2400)
        for command in COMMANDS:
            (scratch / command).symlink_to("kube")
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
