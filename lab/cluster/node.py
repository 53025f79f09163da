"""kubelet and kube-proxy: what turns a control plane into a cluster that runs pods."""

from __future__ import annotations

import json
from pathlib import Path

from lab import paths
from lab.cluster.control_plane import ControlPlane
from lab.cluster.network import NODE_ADDRESS, POD_RANGE
from lab.cluster.runtime import Runtime
from lab.process import Daemon
from lab.waiting import wait_for

NAME = "lab"
_NICE = -5


class Node:
    """One node on this machine."""

    def __init__(self, directory: Path, control_plane: ControlPlane, runtime: Runtime) -> None:
        self._directory = directory
        self._control_plane = control_plane
        self._runtime = runtime
        bin = paths.BIN
        kubelet: list[str | Path] = [
            bin / "kubelet",
            f"--config={directory / 'kubelet.json'}",
            f"--kubeconfig={control_plane.directory / f'system-node-{NAME}.kubeconfig'}",
            f"--root-dir={directory / 'kubelet'}",
            f"--cert-dir={directory / 'certificates'}",
            f"--hostname-override={NAME}",
            f"--node-ip={NODE_ADDRESS}",
        ]
        proxy: list[str | Path] = [
            bin / "kube-proxy",
            f"--config={directory / 'kube-proxy.json'}",
            f"--hostname-override={NAME}",
        ]
        dns: list[str | Path] = [
            bin / "lab-dns",
            f"--kubeconfig={control_plane.kubeconfig}",
            f"--listen={NODE_ADDRESS}:53",
        ]
        self.kubelet = Daemon("kubelet", kubelet, directory, detached=True, nice=_NICE)
        self.proxy = Daemon("kube-proxy", proxy, directory, detached=True, nice=_NICE)
        self.dns = Daemon("lab-dns", dns, directory, detached=True, nice=_NICE)

    def start(self) -> None:
        """Start what does not run, and wait until the node is ready for pods."""
        self._directory.mkdir(parents=True, exist_ok=True)
        plane = self._control_plane
        plane.user_kubeconfig(f"system:node:{NAME}", groups=["system:nodes"])
        proxy = plane.user_kubeconfig("system:kube-proxy")
        _write(self._directory / "kubelet.json", self._kubelet_configuration())
        _write(self._directory / "kube-proxy.json", _proxy_configuration(proxy))
        self.kubelet.start()
        self.proxy.start()
        self.dns.start()
        wait_for(self._registered, what="the node to register", seconds=60, found=lambda: self.kubelet.tail())
        plane.kubectl.wait_until("condition=Ready", f"node/{NAME}", seconds=60)

    def stop(self) -> None:
        """Stop the programs; containers go on."""
        for daemon in (self.dns, self.proxy, self.kubelet):
            daemon.stop()

    def _registered(self) -> bool:
        self.kubelet.require_running()
        return self._control_plane.kubectl.find("node", NAME) is not None

    def _kubelet_configuration(self) -> dict[str, object]:
        authority = self._control_plane.authority
        serving = authority.issue("kubelet", f"system:node:{NAME}", addresses=[NODE_ADDRESS, NAME])
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": NODE_ADDRESS,
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{self._runtime.socket}",
            "clusterDNS": [NODE_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "podLogsDir": str(self._directory / "logs"),
            # Any cgroup layout will do: limits of containers hold, those of whole pods and classes are not set.
            "cgroupDriver": "cgroupfs",
            "failCgroupV1": False,
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            # A full disk is the machine's business; evicting the lab's pods would only confuse.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "syncFrequency": "5s",
        }


def _proxy_configuration(kubeconfig: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",  # one table of its own, gone in one command
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": POD_RANGE,
        "conntrack": {"maxPerCore": 0},
        "healthzBindAddress": f"{NODE_ADDRESS}:10256",
        "metricsBindAddress": f"{NODE_ADDRESS}:10249",
        "nodePortAddresses": [f"{NODE_ADDRESS}/32"],
    }


def _write(path: Path, value: dict[str, object]) -> None:
    """Write a configuration where it differs: kube-proxy ends itself when its file is touched."""
    text = json.dumps(value, indent=1)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
