"""What must be on the machine before anything else can be built, and Debian's packages that bring it."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.errors import CommandFailed, LabError
from lab.locking import machine_lock
from lab.process import run
from lab.progress import step

_SYSTEM_PATH = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where some shells do not look, and administrators' programs are."""


@dataclass(frozen=True)
class Program:
    """A program (or a file) and the Debian package that brings it."""

    name: str
    package: str

    def present(self) -> bool:
        """Tell whether it is there."""
        if self.name.startswith("/"):
            return Path(self.name).exists()
        return shutil.which(self.name) is not None


CONTROL_PLANE = (Program("openssl", "openssl"), Program("setpriv", "util-linux"))
NODE = (
    Program("containerd", "containerd"),
    Program("runc", "runc"),
    Program("/usr/lib/cni/bridge", "containernetworking-plugins"),
    Program("iptables", "iptables"),
    Program("nft", "nftables"),
    Program("ip", "iproute2"),
    Program("buildah", "buildah"),
    Program("mmdebstrap", "mmdebstrap"),
    Program("/usr/share/keyrings/debian-archive-trixie-stable.gpg", "debian-archive-keyring"),
)
BROWSER = Program("chromium", "chromium")


def require_control_plane_programs() -> None:
    """Install what the control plane needs."""
    _require(CONTROL_PLANE)


def require_node_programs() -> None:
    """Install what images and the node need, and refuse a machine that cannot run them."""
    if sys.platform != "linux":
        raise LabError(
            "Linux, whose containers these are",
            sys.platform,
            "use a Linux machine; from there CONTEXT=name reaches a cluster you have",
        )
    if os.geteuid() != 0:
        raise LabError(
            "to run as root: containers need mounts and a network of their own",
            f"user {os.geteuid()}",
            "run the same command with sudo",
        )
    _require((*CONTROL_PLANE, *NODE))


def browser_program() -> str:
    """The browser in which the dashboard is tested; installed where the machine has none."""
    with machine_lock("browser"):
        _require((BROWSER,))
    return shutil.which(BROWSER.name) or BROWSER.name


def _require(programs: tuple[Program, ...]) -> None:
    extend_path()
    missing = [program for program in programs if not program.present()]
    if not missing:
        return
    packages = sorted({program.package for program in missing})
    names = ", ".join(program.name for program in missing)
    by_hand = f"install what provides them (Debian's packages: {' '.join(packages)})"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise LabError(f"the programs {names}", "they are missing, and here is no apt-get that we may use", by_hand)
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    with step(f"Debian packages {' '.join(packages)}"):
        try:
            run(["apt-get", "update", "-q"], env=environment)
            run(["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages], env=environment, timeout=1200)
        except CommandFailed as error:
            raise LabError(f"to install {' '.join(packages)}", error.output[-2000:], by_hand) from error
    still = [program.name for program in programs if not program.present()]
    if still:
        raise LabError(
            f"the programs {', '.join(still)} after installing {' '.join(packages)}", "they are missing", by_hand
        )


def extend_path() -> None:
    """Look for programs where administrators' are, too."""
    known = os.environ.get("PATH", "").split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join([*known, *(folder for folder in _SYSTEM_PATH if folder not in known)])
