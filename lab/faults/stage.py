"""One control plane with everything around it, on which runs take place: several at once, each in its own namespace."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from lab.bench.api import Api, until
from lab.bench.operators import SYSTEM
from lab.bench.trainers import Report, Trainers
from lab.cluster import ControlPlane
from lab.cluster.manifests import apply_product, operator_access, until_admitted
from lab.cluster.webhook import WITHOUT_POLICIES, install
from lab.errors import LabError
from lab.faults.recorder import Recorder
from lab.faults.trace import Note
from lab.faults.workflows import Plane
from lab.prometheus import Prometheus

_LEASE = {"durationSeconds": 3, "renewSeconds": 2, "retrySeconds": 0.5}
_ADMISSION = {"port": 0, "refreshSeconds": 0.25}


@dataclass
class Stage:
    """What all batches on one control plane share."""

    kind: Plane
    plane: ControlPlane
    api: Api
    trainers: Trainers
    prometheus: Prometheus
    kubeconfig: Path
    """The operator's own rights."""
    listeners: list[Callable[[Report], None]] = field(default_factory=list)
    """Told of every process that trains in another mode, or at another generation."""
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def settings(self) -> dict[str, object]:
        """Of the operators here."""
        return {"lease": _LEASE, **({"admission": _ADMISSION} if self.kind is Plane.WEBHOOK else {})}

    @property
    def secrets(self) -> dict[str, str]:
        """What nobody may read: the operator's credentials."""
        users = yaml.safe_load(self.kubeconfig.read_text())["users"]
        return {f"the {key} of {user['name']}": str(user["user"][key]) for user in users for key in user["user"]}

    def system(self, namespace: str) -> str:
        """Where the operators' Lease is: a new one for each batch, where their rights allow it."""
        return SYSTEM if self.kind is Plane.WEBHOOK else namespace

    @contextmanager
    def reporting(self, recorder: Recorder, namespaces: Collection[str]) -> Iterator[None]:
        """Write down what every process of these namespaces says that it trains in, while `with` lasts."""

        def note(report: Report) -> None:
            if report.namespace in namespaces:
                where = {"namespace": report.namespace, "pod": report.pod}
                what = {"workload": f"apps/Deployment/{report.workload}", "mode": str(report.mode)}
                recorder.note(Note.REPORTED, {**where, **what, "generation": report.generation})

        self.listeners.append(note)
        try:
            yield
        finally:
            self.listeners.remove(note)

    def through(self, proxy_url: str, path: Path) -> Path:
        """A kubeconfig with the operator's credentials that leads through a proxy."""
        content = yaml.safe_load(self.kubeconfig.read_text())
        for cluster in content["clusters"]:
            cluster["cluster"] = {"server": proxy_url}
        path.write_text(yaml.safe_dump(content))
        path.chmod(0o600)
        return path

    async def add(self, name: str) -> None:
        """Make a namespace, ready for pods."""
        await self.api.post("/api/v1/namespaces", {"metadata": {"name": name}})

        async def ready() -> bool:
            accounts = await self.api.get(f"/api/v1/namespaces/{name}/serviceaccounts")
            return any(item["metadata"]["name"] == "default" for item in accounts["items"])

        await until(ready, what=f"the default account of {name}", seconds=60)
        self.trainers.follow(name)

    async def remove(self, name: str) -> None:
        """Delete a namespace without waiting."""
        await self.trainers.forget(name)
        await self.api.delete(f"/api/v1/namespaces/{name}")

    async def back_up(self) -> None:
        """Copy etcd as it is now."""
        await asyncio.to_thread(self._still, lambda: _copy(self._etcd, self._backup))

    async def restore(self, meanwhile: Callable[[], None]) -> None:
        """Bring etcd back to the copy; ``meanwhile`` is called while the API server is away."""

        def bring_back() -> None:
            _copy(self._backup, self._etcd)
            meanwhile()

        await asyncio.to_thread(self._still, bring_back)

    def _still(self, action: Callable[[], None]) -> None:
        self.plane.stop()
        action()
        self.plane.start()
        until_admitted(self.plane.kubectl)

    @property
    def _etcd(self) -> Path:
        return self.plane.directory / "etcd"

    @property
    def _backup(self) -> Path:
        return self.plane.directory / "etcd-backup"


@asynccontextmanager
async def staged(kind: Plane, directory: Path) -> AsyncIterator[Stage]:
    """A control plane with the product, trainers, and a Prometheus that scrapes them. No operator yet."""
    flags = WITHOUT_POLICIES if kind is Plane.WEBHOOK else ()
    with ControlPlane(directory, api_flags=flags) as plane:
        async with on(kind, plane) as stage:
            yield stage


@asynccontextmanager
async def on(kind: Plane, plane: ControlPlane) -> AsyncIterator[Stage]:
    """The same on a control plane that runs; the product is installed if it is not."""
    if kind is Plane.WEBHOOK:
        kubeconfig = await asyncio.to_thread(install, plane)
    else:
        await asyncio.to_thread(apply_product, plane.kubectl)
        kubeconfig = await asyncio.to_thread(operator_access, plane)
    listeners: list[Callable[[Report], None]] = []

    def report(report: Report) -> None:
        for listener in listeners:
            listener(report)

    async with Api(plane) as api, Trainers(api, running=True, report=report) as trainers:
        job = {"job_name": "trainers", "honor_labels": True, "static_configs": [{"targets": [trainers.target]}]}
        config = {"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}
        with Prometheus(plane.directory / "prometheus-faults", config) as prometheus:
            yield Stage(kind, plane, api, trainers, prometheus, kubeconfig, listeners)


def _copy(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise LabError("etcd's data", f"no folder {source}", "look how lab/cluster/control_plane.py starts etcd")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
