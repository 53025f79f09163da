"""Operator processes under test, each with an identity of its own, and what they use of the machine."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from lab import paths
from lab.bench.api import until
from lab.cluster import ControlPlane
from lab.cluster.manifests import OPERATOR, operator_access
from lab.cluster.ports import free_ports
from lab.errors import LabError
from lab.process import dies_with_us
from lab.waiting import answers, wait_for

SYSTEM = "precision-system"
_WRITES = "precision_operator_api_writes_total"
_QUERIES = "precision_operator_prometheus_queries_total"


@dataclass(frozen=True)
class Usage:
    """What a process has used, at a moment."""

    at: float
    """By the monotonic clock."""
    cpu_seconds: float
    rss_mib: float
    queries: float
    """Queries sent to Prometheus."""


def allocator() -> dict[str, str]:
    """How the operator's image sets the C library's."""
    return dict(re.findall(r"\b(MALLOC_\w+)=(\w+)", (paths.ROOT / "operator" / "Dockerfile").read_text()))


class Operator:
    """One operator process, with the rights of an installed one."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        *,
        kubeconfig: Path,
        prometheus_url: str,
        namespaces: Sequence[str],
        settings: Mapping[str, object],
        system: str = SYSTEM,
    ) -> None:
        """``system``: the namespace of its Lease."""
        self.name = name
        self.log = plane.directory / f"{name}.log"
        self._port = free_ports(1)[0]
        config = plane.directory / f"{name}.yaml"
        document = {
            "httpPort": self._port,
            "prometheus": {"default": {"url": prometheus_url}},
            "watchNamespaces": list(namespaces),
            **settings,
        }
        config.write_text(yaml.safe_dump(document))
        command: list[str | Path] = [*dies_with_us(), sys.executable, "-m", "precision_operator"]
        command += ["--config", config, "--kubeconfig", kubeconfig]
        environment = {
            **os.environ,
            **allocator(),
            "PYTHONPATH": str(paths.ROOT / "operator"),
            "POD_NAME": name,
            "POD_NAMESPACE": system,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        """Wait until its caches are full."""
        wait_for(self._ready, what=f"{self.name} to be ready", seconds=60, found=lambda: self.log.read_text()[-3000:])

    def exit_code(self) -> int | None:
        """How it ended; None: it runs."""
        return self._process.poll()

    def kill(self) -> float:
        """SIGKILL; returns when, in seconds since the epoch."""
        at = time.time()
        self._process.kill()
        self._process.wait(timeout=60)
        return at

    @property
    def port(self) -> int:
        """Where it serves /livez, /readyz and /metrics."""
        return self._port

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    @property
    def leads(self) -> bool:
        """Whether it says that it leads. One that does not answer, because it has ended, does not."""
        try:
            return self._total("precision_operator_leader") == 1.0
        except OSError:
            return False

    def usage(self) -> Usage:
        """What it has used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        rss_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
        return Usage(time.monotonic(), cpu_seconds, rss_kib / 1024, self._total(_QUERIES))

    def failed_writes(self) -> int:
        """Writes that the API server refused for what they said: a conflict, or what has gone, is none."""
        passing = ("Success", "Conflict", "NotFound", "PreconditionFailed", "TooManyRequests", "Unavailable")
        return int(sum(s.value for s in self._samples() if s.name == _WRITES and s.labels["result"] not in passing))

    def query_names(self) -> frozenset[str]:
        """The metrics that it has asked Prometheus for."""
        return frozenset(sample.labels["query"] for sample in self._samples() if sample.name == _QUERIES)

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise LabError(f"{self.name} to keep running", f"exit code {self._process.returncode}", f"read {self.log}")
        return answers(f"http://127.0.0.1:{self._port}/readyz")

    def _samples(self) -> list[Sample]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def _total(self, name: str) -> float:
        return sum(sample.value for sample in self._samples() if sample.name == name)


class Operators:
    """The operator processes of a run, one of which leads."""

    def __init__(
        self,
        plane: ControlPlane,
        *,
        prometheus_url: str,
        namespaces: list[str],
        kubeconfig: Path | None = None,
        settings: Mapping[str, object] | None = None,
        system: str = SYSTEM,
        label: str = "operator",
    ) -> None:
        """``kubeconfig``: of an operator that is installed already; else its account is made. ``settings``: more of them.

        ``system``: the namespace of their Lease. ``label``: what their names begin with.
        """
        self._plane = plane
        self._prometheus_url = prometheus_url
        self._namespaces = namespaces
        self._kubeconfig = kubeconfig or operator_access(plane)
        self._settings = settings or {}
        self._system = system
        self._label = label
        self._numbers = itertools.count(1)
        self.running: list[Operator] = []

    users = (OPERATOR,)
    """Who they all are, to the API server."""

    async def start(self) -> Operator:
        """One more, with full caches."""
        name = f"{self._label}-{next(self._numbers)}"
        operator = Operator(
            self._plane,
            name,
            kubeconfig=self._kubeconfig,
            prometheus_url=self._prometheus_url,
            namespaces=self._namespaces,
            settings=self._settings,
            system=self._system,
        )
        self.running.append(operator)
        await asyncio.to_thread(operator.wait_ready)
        return operator

    async def leader(self) -> Operator:
        """The one that leads."""

        async def probe() -> Operator | None:
            return next((operator for operator in self.running if operator.leads), None)

        return await until(probe, what="a leader", seconds=30)

    def kill(self, operator: Operator) -> float:
        """SIGKILL; returns when (epoch)."""
        self.running.remove(operator)
        return operator.kill()

    def stop(self) -> None:
        """End all of them."""
        while self.running:
            self.kill(self.running[-1])
