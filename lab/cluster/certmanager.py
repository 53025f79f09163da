"""cert-manager's controller and CA injector, as processes beside a control plane."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lab.cluster.control_plane import ControlPlane
from lab.process import Daemon
from lab.setup.certmanager import COMMANDS, cert_manager


@contextmanager
def certificates(plane: ControlPlane) -> Iterator[list[Daemon]]:
    """Install the CRDs, and run both programs with an administrator's rights."""
    folder, kubectl = cert_manager(), plane.kubectl
    kubectl.apply(folder / "crds.yaml")
    for kind in ("certificates", "certificaterequests", "issuers"):
        kubectl.wait_until("condition=Established", f"crd/{kind}.cert-manager.io", seconds=30)
    flags = ("--kubeconfig", str(plane.kubeconfig), "--leader-elect=false")
    own = {"controller": ("--metrics-listen-address=127.0.0.1:0",), "cainjector": ()}
    daemons = [Daemon(name, [folder / name, *flags, *own[name]], plane.directory) for name in COMMANDS]
    try:
        for daemon in daemons:
            daemon.start()
        yield daemons
    finally:
        for daemon in daemons:
            daemon.stop()
