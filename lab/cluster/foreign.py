"""Whether the machine is a node of another cluster. Its network and its containers are then not ours to touch."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from lab.errors import LabError
from lab.process import run
from lab.setup.prerequisites import extend_path

_AGENTS = frozenset({"kubelet", "k3s", "k3s-agent", "k3s-server", "k0s", "rke2", "kubelite"})
_FILES = (
    "etc/kubernetes/kubelet.conf",
    "var/lib/kubelet/config.yaml",
    "etc/rancher/k3s",
    "etc/rancher/rke2",
    "etc/k0s",
    "var/snap/microk8s",
)
_RULES = (
    ("nft", "list", "table", "ip", "kube-proxy"),
    ("nft", "list", "table", "ip6", "kube-proxy"),
    ("iptables", "-w", "-t", "nat", "-S", "KUBE-SERVICES"),
)


def require_no_node() -> None:
    """Call it while no cluster of the lab is recorded on this machine.

    Raises:
        LabError: the machine is a node, or was one.
    """
    extend_path()  # nft and iptables are where some shells do not look
    found = [*signs(Path("/")), *(" ".join(rule) for rule in _RULES if _holds(rule))]
    if found:
        raise LabError(
            "a machine that is no Kubernetes node",
            "signs of another cluster: " + ", ".join(found),
            "use another machine: images are built where the command runs, also with CONTEXT=name; "
            "if these are leftovers of a cluster that is gone, remove them first",
        )


def _holds(rule: tuple[str, ...]) -> bool:
    """Where the program is not there, nothing of it is."""
    return shutil.which(rule[0]) is not None and run(rule, check=False).returncode == 0


def signs(root: Path) -> list[str]:
    """Programs and files under ``root`` that only a node has."""
    programs = set()
    for entry in (root / "proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            programs.add(Path(entry.read_bytes().split(b"\0")[0].decode(errors="replace")).name)
    running = [f"the process {name}" for name in sorted(programs & _AGENTS)]
    return running + [f"/{name}" for name in _FILES if (root / name).exists()]
