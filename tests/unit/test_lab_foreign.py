"""The laboratory keeps off machines that are nodes of another cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab import paths
from lab.cluster import Cluster, foreign, full, network
from lab.cluster.foreign import signs
from lab.errors import LabError


def process(root: Path, pid: int, *words: str) -> None:
    entry = root / "proc" / str(pid)
    entry.mkdir(parents=True)
    (entry / "cmdline").write_bytes("\0".join(words).encode() + b"\0")


def test_a_machine_without_a_cluster_shows_no_sign(tmp_path: Path) -> None:
    process(tmp_path, 1, "/sbin/init")
    process(tmp_path, 7, "/usr/bin/vi", "kubelet")
    process(tmp_path, 9)
    assert signs(tmp_path) == []


@pytest.mark.parametrize("program", ["/usr/bin/kubelet", "kubelet", "/usr/local/bin/k3s"])
def test_a_nodes_agent_is_a_sign_wherever_it_lies(tmp_path: Path, program: str) -> None:
    process(tmp_path, 812, program, "--config=/var/lib/kubelet/config.yaml")
    assert signs(tmp_path) == [f"the process {Path(program).name}"]


def test_what_a_node_keeps_on_disk_is_a_sign_while_nothing_runs(tmp_path: Path) -> None:
    (tmp_path / "etc/kubernetes").mkdir(parents=True)
    (tmp_path / "etc/kubernetes/kubelet.conf").touch()
    assert signs(tmp_path) == ["/etc/kubernetes/kubelet.conf"]


class Machine:
    """A machine that is a node of another cluster: what is run on it, and answers as its nftables would."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owner = folder / "run" / "cluster"
        self.interfaces = folder / "net"
        self.commands: list[tuple[str, ...]] = []
        self.installed = 0
        monkeypatch.setattr(paths, "MACHINE", self.owner.parent)
        monkeypatch.setattr(full, "_OWNER", self.owner)
        monkeypatch.setattr(full, "remove_remains", lambda directory, socket: None)
        monkeypatch.setattr(full, "require_node_programs", self._install)
        monkeypatch.setattr(network, "_INTERFACES", self.interfaces)
        monkeypatch.setattr(subprocess, "run", self._run)
        monkeypatch.setattr("shutil.which", lambda program: f"/usr/sbin/{program}")

    def _install(self) -> None:
        self.installed += 1

    def _run(self, command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(tuple(command))
        return subprocess.CompletedProcess(command, int(command[1] == "-w" and "-D" in command), "", "")


TABLE = ("nft", "delete", "table", "ip", "kube-proxy")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_node_is_refused_before_anything_is_installed_or_changed(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(LabError, match="signs of another cluster"):
        Cluster(tmp_path / "cluster").up()
    assert machine.installed == 0
    assert {" ".join(command[:2]) for command in machine.commands} == {"nft list", "iptables -w"}
    assert all("-S" in command or "list" in command for command in machine.commands)
    assert not machine.owner.exists()


def test_what_takes_down_a_refused_cluster_runs_no_command(machine: Machine, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    with pytest.raises(LabError):
        cluster.up()
    machine.commands.clear()
    cluster.down()
    assert machine.commands == []
    assert not cluster.directory.exists()


def test_a_checkout_does_not_take_down_the_cluster_of_another(machine: Machine, tmp_path: Path) -> None:
    machine.owner.parent.mkdir()
    machine.owner.write_text(f"{tmp_path / 'other'}\n")
    (machine.interfaces / network.BRIDGE).mkdir(parents=True)
    Cluster(tmp_path / "cluster").down()
    assert machine.commands == []
    assert machine.owner.exists()


def test_what_this_checkout_made_is_taken_down(machine: Machine, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    machine.owner.parent.mkdir()
    machine.owner.write_text(f"{cluster.directory}\n")
    (machine.interfaces / network.BRIDGE).mkdir(parents=True)
    cluster.down()
    assert TABLE in machine.commands
    assert not machine.owner.exists()


def test_a_cluster_that_failed_before_it_had_a_network_deletes_no_table(machine: Machine, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    machine.owner.parent.mkdir()
    machine.owner.write_text(f"{cluster.directory}\n")
    cluster.down()
    assert TABLE not in machine.commands


def test_a_cluster_whose_record_was_lost_is_taken_down_by_its_bridge(machine: Machine, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    (cluster.directory / "network").mkdir()
    (cluster.directory / "network" / "sysctl.json").write_text("{}")
    (machine.interfaces / network.BRIDGE).mkdir(parents=True)
    cluster.down()
    assert TABLE in machine.commands


def test_a_node_is_not_sent_to_another_context_which_builds_on_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "signs", lambda _: ["the process kubelet"])
    monkeypatch.setattr(foreign, "_holds", lambda _: False)
    with pytest.raises(LabError) as refused:
        foreign.require_no_node()
    assert "use another machine: images are built where the command runs, also with CONTEXT=name" in (
        refused.value.next_step
    )
