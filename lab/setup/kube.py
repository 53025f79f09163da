"""Compile Kubernetes: what keeps running in one binary; kubectl, helm and the pause program by themselves."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab import paths
from lab.digest import digest
from lab.locking import machine_lock
from lab.process import run
from lab.setup.go import compiled_once, find_go

VERSION = "v1.36.3"
COMMANDS = (
    "etcd",
    "kstatus",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubelet",
    "lab-dns",
)
"""Those of the one binary."""
ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}
"""Whatever the machine's own settings of Go are."""
_FLAGS = ("-trimpath", "-mod=readonly", "-gcflags=all=-dwarf=false")
"""-trimpath keeps the checkout's path out of Go's cache keys, so that any checkout reuses what another compiled. Nobody
debugs these programs, and what a debugger needs takes time to compile."""

_PROGRAMS = ("helm", "kube", "kubectl", "pause")
MODULE = paths.ROOT / "lab" / "kube"


def kube_binaries() -> Path:
    """Return the folder that holds the commands, compiling what changed: minutes once a machine, then nothing.

    The result is kept by the hash of the module: in the machine's cache, and from there in build/bin.
    """
    sources = digest([MODULE], [VERSION, *_FLAGS, *link_flags(VERSION)])
    stamp = paths.BIN / ".sources"
    if not _is(stamp, sources):
        with machine_lock("kube-binaries"):
            if not _is(stamp, sources):
                _install(sources, stamp)
    return paths.BIN


def test_command() -> list[str]:
    """Return the command that tests the module's own code, with the flags of the build, so that it compiles little
    anew.
    """
    return [str(find_go()), "test", *_FLAGS, "-buildvcs=false", "-vet=off", "./internal/..."]


def _is(stamp: Path, text: str) -> bool:
    return stamp.exists() and stamp.read_text() == text


def _install(sources: str, stamp: Path) -> None:
    title = f"compile Kubernetes {VERSION} (about 6 minutes on two cores the first time)"
    cached = compiled_once(f"kube-{sources}", title, _build)
    paths.BIN.mkdir(parents=True, exist_ok=True)
    for name in _PROGRAMS:
        _replace(cached / name, paths.BIN / name)
    for command in COMMANDS:
        link = paths.BIN / f".{command}"
        link.unlink(missing_ok=True)
        link.symlink_to("kube")
        link.replace(paths.BIN / command)
    stamp.write_text(sources)


def _build(go: Path, folder: Path) -> None:
    flags = [*_FLAGS, "-ldflags", " ".join(link_flags(VERSION))]
    packages = [f"./cmd/{name}" for name in _PROGRAMS]
    run([go, "build", *flags, "-o", folder, *packages], cwd=MODULE, env=ENVIRONMENT, timeout=2400)


def link_flags(version: str) -> list[str]:
    """Stamp the version: API server, kubelet and kubectl compare theirs, and refuse a skew that an unstamped build
    looks like.
    """
    major, minor, _ = version.removeprefix("v").split(".")
    stamps = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
        "buildDate": "2026-01-01T00:00:00Z",
    }
    return ["-s", "-w", *(f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamps.items())]


def _replace(source: Path, target: Path) -> None:
    """Put a copy in place at once: a running program keeps the file it has."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        os.link(source, fresh)
    except OSError:
        shutil.copy2(source, fresh)
    fresh.replace(target)
