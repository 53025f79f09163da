"""The machine's one full cluster: control plane, node, images and Prometheus, made by one call and unmade by another."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from lab import paths
from lab.cluster.control_plane import ControlPlane
from lab.cluster.foreign import require_no_node
from lab.cluster.network import NODE_ADDRESS, Network
from lab.cluster.node import Node
from lab.cluster.remains import mounts, remove_remains
from lab.cluster.runtime import Runtime
from lab.errors import DeadlineExceeded
from lab.images import ALL, Image, build_images
from lab.locking import machine_lock
from lab.process import Daemon
from lab.progress import say, step
from lab.setup.prerequisites import require_node_programs
from lab.waiting import wait_for

_OWNER = paths.MACHINE / "cluster"
"""Holds the folder of the cluster that this machine runs: it has one bridge, so it has one cluster."""


class Cluster:
    """A Kubernetes cluster with one node that runs real containers. Needs root, and the machine to itself in this one
    respect.
    """

    def __init__(self, directory: Path = paths.CLUSTER) -> None:
        self.directory = directory
        self.control_plane = ControlPlane(directory / "control-plane", address=NODE_ADDRESS, detached=True)
        self._network = Network(directory / "network")
        self.runtime = Runtime(
            directory / "runtime", plugins=self._network.plugins, configuration=self._network.configuration
        )
        self.node = Node(directory / "node", self.control_plane, self.runtime)
        self.kubectl = self.control_plane.kubectl
        self.kubeconfig = self.control_plane.kubeconfig

    def up(self, images: Iterable[Image] = ALL) -> list[str]:
        """Bring everything up; what is up stays as it is. Return the names of the images that are new in the cluster."""
        with machine_lock("cluster"):
            require_machine()
            self._displace_other()
            with step("images"):
                built = build_images(images)
            with step("network"):
                self._network.up()
            with step("container runtime"):
                self.runtime.start()
                fresh = self.runtime.import_images(built)
            with step("control plane"):
                self.control_plane.start()
            with step("node"):
                self.node.start()
            self._require_running()
        return fresh

    def down(self) -> None:
        """Remove every trace: pods, programs, mounts, network, and the folder. Safe to repeat, and after a crash.

        What this cluster did not make stays, whoever's it is: an `up` that was refused left a folder and no more.
        """
        with machine_lock("cluster"):
            if self._made():
                self._down()
            elif not mounts(self.directory):
                shutil.rmtree(self.directory, ignore_errors=True)  # a reboot took everything else

    def running(self) -> bool:
        """Tell whether all programs of the cluster run."""
        return self.control_plane.running() and all(daemon.running() for daemon in self._daemons)

    def status(self) -> list[tuple[str, bool, Path]]:
        """Name each program, say whether it runs, and where its log is."""
        plane = [(log.stem, self.control_plane.running(), log) for log in self.control_plane.logs]
        return plane + [(daemon.name, daemon.running(), daemon.log) for daemon in self._daemons]

    def _made(self) -> bool:
        owner = _owner()
        return owner == self.directory or (owner is None and self._network.stands())

    def _require_running(self) -> None:
        for daemon in self._daemons:
            daemon.require_running()

    @property
    def _daemons(self) -> list[Daemon]:
        return [self.runtime.daemon, self.node.kubelet, self.node.proxy, self.node.dns]

    def _displace_other(self) -> None:
        owner = _owner()
        if owner is not None and owner != self.directory:
            say(f"this machine runs the cluster of {owner}: taking that one down first")
            Cluster(owner)._down()
        _OWNER.parent.mkdir(parents=True, exist_ok=True)
        _OWNER.write_text(f"{self.directory}\n")

    def _down(self) -> None:
        if self.running():
            with step("delete pods"):
                self._delete_pods()
        with step("stop programs"):
            self.node.stop()
            self.runtime.daemon.stop()
            self.control_plane.stop()
        with step("remove containers, mounts and network"):
            remove_remains(self.directory, self.runtime.socket)
            self._network.down()
            shutil.rmtree(self.directory, ignore_errors=True)
            _OWNER.unlink(missing_ok=True)

    def _delete_pods(self) -> None:
        """Let the kubelet take the pods down in order. What it leaves (a crashed one leaves all) is removed by force
        after.
        """
        self.control_plane.stop_controllers()
        try:
            self.kubectl(
                "delete", "pods", "-A", "--all", "--grace-period=0", "--force", "--wait=false", check=False, timeout=30
            )
            wait_for(lambda: not self.runtime.tasks(), what="the containers to end", seconds=20)
        except (DeadlineExceeded, subprocess.TimeoutExpired) as error:
            say(f"pods did not go in order ({type(error).__name__}): removing them by force")


def require_machine() -> None:
    """Refuse a machine that is a node of another cluster, before anything is touched; then install what is missing.

    Raises:
        LabError: it is a node, or cannot run images and a node.
    """
    if _owner() is None:
        require_no_node()
    require_node_programs()


def _owner() -> Path | None:
    return Path(_OWNER.read_text().strip()) if _OWNER.exists() else None
