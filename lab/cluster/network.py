"""The pods' network: one bridge, whose own address is the node's, so that nothing depends on what network the machine
has.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from lab.errors import LabError
from lab.process import run

BRIDGE = "precision-lab0"
# Of 198.18.0.0/15, which is set aside for tests of networks (RFC 2544): no cluster and no office uses it.
NODE_ADDRESS = "198.18.77.1"
POD_RANGE = "198.18.77.0/24"
SERVICE_RANGE = "198.19.0.0/16"
_POD_PREFIX = "198.18.77."
_PLUGINS = Path("/usr/lib/cni")
_INTERFACES = Path("/sys/class/net")
_SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    # Two pods on one bridge talk past the kernel's address translation otherwise, and a Service between them never answers.
    "net/bridge/bridge-nf-call-iptables": "1",
}
_ACCEPT = (["-i", BRIDGE, "-j", "ACCEPT"], ["-o", BRIDGE, "-j", "ACCEPT"])
_PROXY_TABLE = "kube-proxy"
"""Kube-proxy gives its table no other name; so there must be none before ours runs (`lab.cluster.foreign`)."""


class Network:
    """The bridge, the forwarding rules and the plugin configuration, made and unmade."""

    def __init__(self, directory: Path) -> None:
        self.configuration = directory / "net.d"
        self.plugins = _PLUGINS
        self._directory = directory
        self._previous = directory / "sysctl.json"

    def up(self) -> None:
        """Make what is missing."""
        self.configuration.mkdir(parents=True, exist_ok=True)
        (self.configuration / "lab.conflist").write_text(json.dumps(self._conflist(), indent=1))
        self._set_sysctls()
        if run(["ip", "link", "show", BRIDGE], check=False).returncode != 0:
            run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "address", "replace", f"{NODE_ADDRESS}/24", "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])
        # Addresses of Services are translated after the kernel chose a way out: a machine without a default one needs this.
        run(["ip", "route", "replace", SERVICE_RANGE, "dev", BRIDGE, "src", NODE_ADDRESS])
        for rule in _ACCEPT:  # a machine whose firewall drops what it forwards would cut the pods off
            if run(["iptables", "-w", "-C", "FORWARD", *rule], check=False).returncode != 0:
                run(["iptables", "-w", "-I", "FORWARD", *rule])

    def down(self) -> None:
        """Remove all of it, and what kube-proxy left; each part may be missing already."""
        for name in pod_namespaces():
            run(["ip", "netns", "delete", name], check=False)
        for rule in _ACCEPT:
            while run(["iptables", "-w", "-D", "FORWARD", *rule], check=False).returncode == 0:
                pass
        if self._previous.exists() or _bridge_stands():  # else the table is another cluster's
            for family in ("ip", "ip6"):
                run(["nft", "delete", "table", family, _PROXY_TABLE], check=False)
        run(["ip", "link", "delete", BRIDGE], check=False)
        self._restore_sysctls()

    def stands(self) -> bool:
        """Tell whether the bridge is there, and was made from this folder."""
        return self._previous.exists() and _bridge_stands()

    def _set_sysctls(self) -> None:
        previous = json.loads(self._previous.read_text()) if self._previous.exists() else {}
        for name, wanted in _SYSCTLS.items():
            file = Path("/proc/sys") / name
            if not file.exists():
                raise LabError(
                    f"the kernel setting {name}", "no such setting", "run `modprobe br_netfilter`, then again"
                )
            found = file.read_text().strip()
            previous.setdefault(name, found)
            if found != wanted:
                file.write_text(wanted)
        self._previous.write_text(json.dumps(previous))

    def _restore_sysctls(self) -> None:
        if not self._previous.exists():
            return
        for name, value in json.loads(self._previous.read_text()).items():
            with contextlib.suppress(OSError):
                (Path("/proc/sys") / name).write_text(value)
        self._previous.unlink()

    def _conflist(self) -> dict[str, object]:
        bridge = {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(self._directory / "addresses"),
                "ranges": [[{"subnet": POD_RANGE}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        return {"cniVersion": "0.4.0", "name": "lab", "plugins": [bridge]}


def _bridge_stands() -> bool:
    return (_INTERFACES / BRIDGE).exists()


def pod_namespaces() -> list[str]:
    """Name the network namespaces that the lab's pods have, or had. The machine's own is none of them."""
    words = [line.split() for line in run(["ip", "netns", "list"], check=False).stdout.splitlines()]
    names = [line[0] for line in words if line and line[0].startswith("cni-")]
    return [name for name in names if f"inet {_POD_PREFIX}" in run(["ip", "-n", name, "address"], check=False).stdout]
