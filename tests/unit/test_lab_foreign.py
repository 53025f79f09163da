"""The laboratory keeps off machines that are nodes of another cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.cluster.foreign import signs


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
