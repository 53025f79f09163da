"""Programs of Debian's packages: the machine's own where it has them, else unpacked and not installed, so that no service
starts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab import paths
from lab.errors import LabError
from lab.locking import machine_lock
from lab.process import run
from lab.progress import step


def program_of(package: str, name: str) -> Path:
    """The program ``name`` of a package."""
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    unpacked = paths.shared_cache() / f"{package}-package"
    if not unpacked.is_dir():
        with machine_lock(f"{package}-package"):
            if not unpacked.is_dir():
                _unpack(package, unpacked)
    program = unpacked / "usr" / "bin" / name
    if not program.exists():
        raise LabError(
            f"the program {name}", f"none on PATH, none in {unpacked}", f"install Debian's package {package}"
        )
    return program


def _unpack(package: str, target: Path) -> None:
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    scratch.mkdir(parents=True)
    try:
        with step(f"Debian's package {package}, unpacked and not installed"):
            if run(["apt-cache", "policy", package], check=False).stdout.find("Candidate: ") < 0:
                run(["apt-get", "update", "-q"])
            # As root, apt would hand the download to its own user, which may not write here.
            run(["apt-get", "-o", "APT::Sandbox::User=root", "download", "-q", package], cwd=scratch)
            run(["dpkg", "-x", next(scratch.glob("*.deb")), scratch])
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
