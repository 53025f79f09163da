"""containerd and runc, with a root, a state and a socket of their own: a system's containerd is neither used nor
disturbed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from lab.errors import LabError
from lab.images.builder import Built, layout
from lab.images.catalogue import PAUSE
from lab.process import Daemon, run
from lab.progress import step
from lab.waiting import wait_for

_CONFIG = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt",
]
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # runc 1.1 dies where it may not lower its out-of-memory score; this keeps it from trying.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{configuration}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
"""
_SOCKET_LIMIT = 100
"""Linux allows 107 bytes for a socket's path."""


class Runtime:
    """The container runtime of the lab's node."""

    def __init__(self, directory: Path, *, plugins: Path, configuration: Path) -> None:
        self.socket = directory / "c.sock"
        self._directory = directory
        self._network = {"plugins": str(plugins), "configuration": str(configuration)}
        self._imported = directory / "imported.json"
        config = directory / "config.toml"
        self._config = config
        self.daemon = Daemon("containerd", ["containerd", "--config", config], directory, detached=True)

    def start(self) -> None:
        """Start containerd and wait until it answers."""
        if len(str(self.socket)) > _SOCKET_LIMIT:
            raise LabError(
                f"a checkout whose path leaves a socket's within {_SOCKET_LIMIT} bytes",
                str(self.socket),
                "move the checkout",
            )
        self._directory.mkdir(parents=True, exist_ok=True)
        values = {"root": str(self._directory / "root"), "state": str(self._directory / "state"), **self._network}
        runc = shutil.which("runc") or "/usr/sbin/runc"
        self._config.write_text(_CONFIG.format(socket=self.socket, pause=PAUSE.reference, runc=runc, **values))
        self.daemon.start()
        wait_for(
            self._answers,
            what="containerd to answer",
            seconds=30,
            found=lambda: self.daemon.tail(),
        )

    def _answers(self) -> bool:
        self.daemon.require_running()
        return "Server" in self._ctr("version", check=False)

    def import_images(self, built: list[Built]) -> list[str]:
        """Bring images into the runtime, sending only the layers it lacks; return the names of those that were new."""
        known: dict[str, str] = json.loads(self._imported.read_text()) if self._imported.exists() else {}
        fresh = [item for item in built if known.get(item.image.reference) != item.key]
        for item in fresh:
            with step(f"import {item.image.reference}"):
                archive = self._directory / "import.tar"
                present = set(self._ctr("content", "ls", "-q").split())
                layout().archive(item.layout_reference, item.image.reference, archive, without=present)
                self._ctr("images", "import", "--snapshotter", "overlayfs", str(archive))
                archive.unlink()
            known[item.image.reference] = item.key
            self._imported.write_text(json.dumps(known, indent=1))
        return [item.image.reference for item in fresh]

    def tasks(self) -> list[str]:
        """List the containers that run, the pods' sandboxes among them."""
        return self._ctr("tasks", "ls", "-q", check=False).split()

    def process(self, container: str) -> int:
        """The PID, on this machine, of a running container's first process.

        Raises:
            LabError: it does not run.
        """
        rows = (line.split() for line in self._ctr("tasks", "ls", check=False).splitlines())
        for row in rows:
            if len(row) == 3 and row[0] == container and row[2] == "RUNNING":
                return int(row[1])
        raise LabError(f"container {container} to run", "no process of it", "look at its pod's status")

    def _ctr(self, *arguments: str, check: bool = True) -> str:
        return run(["ctr", "--address", self.socket, "--namespace", "k8s.io", *arguments], check=check).stdout
