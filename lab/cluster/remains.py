"""Remove what a container runtime leaves when it was not asked nicely, or cannot be asked any more."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from lab.process import run
from lab.waiting import wait_for

_LOG_LINKS = Path("/var/log/containers")
_NETWORK_RESULTS = Path("/var/lib/cni/results")
_CGROUPS = Path("/sys/fs/cgroup")


def remove_remains(directory: Path, socket: Path) -> None:
    """Kill the shims that serve `socket` with all they hold, and unmount everything under `directory`."""
    shims = _shims(socket)
    for pid in [child for shim in shims for child in _descendants(shim)] + shims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not _shims(socket), what="the containers' shims to end", seconds=10)
    for mount in sorted(mounts(directory), reverse=True):
        run(["umount", "--lazy", mount], check=False)
    _remove_notes(directory)
    for group in sorted(_CGROUPS.glob("*/k8s.io/*")) + sorted(_CGROUPS.glob("k8s.io/*")):
        with contextlib.suppress(OSError):
            group.rmdir()  # refuses where processes live: then it is not ours


def _remove_notes(directory: Path) -> None:
    """Remove what kubelet and network plugins note about our containers in places of the system's."""
    for link in _LOG_LINKS.glob("*.log"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{directory}/"):
            link.unlink()
    for sandbox in directory.glob("runtime/root/io.containerd.grpc.v1.cri/sandboxes/*"):
        for result in _NETWORK_RESULTS.glob(f"*-{sandbox.name}-*"):
            result.unlink()


def _shims(socket: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if words[0].endswith(b"containerd-shim-runc-v2") and str(socket).encode() in words:
                found.append(int(entry.parent.name))
    return found


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in file.read_text().split():
                found += [int(child), *_descendants(int(child))]
    return found


def mounts(directory: Path) -> list[str]:
    """Mount points under the folder, as the kernel spells them."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point.replace("\\040", " ") for point in points if point.replace("\\040", " ").startswith(f"{directory}/")]
