"""1,000 Deployments with one pod each, run by kwok: rolled back at once, against bare; idle cost; leaders killed.

The API server, the controllers and the scheduler are real, the kubelets are kwok's. The pods of a second namespace are
for the bare client: it sends the same patches with nothing around them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.bench.api import Api, until
from lab.bench.fleet import INTERVAL_SECONDS, deployment, node
from lab.bench.operators import Operators
from lab.bench.scene import Scene
from lab.cluster import ControlPlane
from lab.cluster.audit import Audit, Write
from lab.errors import LabError
from lab.process import Daemon
from lab.setup.kwok import kwok
from precision_operator.api.wire import parse_time

FLEET, BARE = "bench-fleet", "bench-bare"
IN_FLIGHT = (16, 32, 64)
PODS_PER_NODE = 110
READY_SECONDS = 600.0


@dataclass(frozen=True)
class Rollback:
    """One rollback, by Prometheus' answer, the assignment's state and the audit log."""

    phase: float
    """Where in the interval the fleet was broken: 0..1 after an evaluation."""
    breach_to_decided_seconds: float
    decided_to_last_patch_seconds: float
    api_writes: int
    bare_seconds: dict[int, float]
    """By patches in flight, measured right after, with the operator's account: its fence judges them too."""
    unfenced_seconds: dict[int, float]
    """The same with an administrator's."""


@dataclass(frozen=True)
class Steady:
    """A promoted fleet at rest."""

    seconds: float
    cores: float
    rss_mib: float
    queries_per_interval: float
    metrics: int
    writes: int


class Bare:
    """The bare client, in a process of its own as the operator is."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._command = [sys.executable, "-m", "lab.bench.bare", str(kubeconfig), namespace]

    async def seconds(self) -> dict[int, float]:
        """One rollback for each number of patches in flight."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        answer, _ = await process.communicate("".join(f"{n}\n" for n in IN_FLIGHT).encode())
        if process.returncode != 0:
            raise LabError("the bare client to succeed", f"exit code {process.returncode}", "read what it said above")
        return dict(zip(IN_FLIGHT, map(float, answer.split()), strict=True))


@contextmanager
def kubelets(plane: ControlPlane) -> Iterator[None]:
    """kwok, playing every node there is."""
    folder = kwok()
    flags = [f"--kubeconfig={plane.kubeconfig}", "--manage-all-nodes=true", f"--config={folder / 'stages.yaml'}"]
    flags += ["--node-lease-duration-seconds=40"]  # or the node controller takes all of them for dead within a minute
    daemon = Daemon("kwok", [folder / "kwok", *flags], plane.directory)
    daemon.start()
    try:
        yield
    finally:
        daemon.stop()


async def nodes(api: Api, *, pods: int) -> None:
    """Nodes with room for so many pods."""
    count = pods // PODS_PER_NODE + 1
    await api.create("/api/v1/nodes", [node(f"kwok-{i}", pods=PODS_PER_NODE) for i in range(count)])


async def populate(api: Api, namespace: str, *, deployments: int, replicas: int = 1) -> None:
    """Deployments, and wait until all their pods run."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    await api.create(path, [deployment(f"trainer-{i:04d}", replicas=replicas) for i in range(deployments)])

    async def running() -> bool:
        items = (await api.get(path))["items"]
        return all(item.get("status", {}).get("readyReplicas") == replicas for item in items)

    await until(running, what=f"{deployments} ready Deployments in {namespace}", seconds=READY_SECONDS, every=2.0)


async def known(scene: Scene, *, pods: int) -> None:
    """Wait until the trainers' exporter answers for all pods."""

    async def all_there() -> bool:
        return scene.trainers.count == pods

    await until(all_there, what=f"trainers for {pods} pods", seconds=60)


async def roll_back(
    scene: Scene, operators: Operators, audit: Audit, peers: Sequence[Bare], *, pods: int, phase: float
) -> Rollback:
    """Break the promoted fleet at a phase of the interval, and see all of it requested; then measure the peers.

    ``peers``: bare and unfenced, or none.
    """
    since = parse_time((await scene.state())["phaseSince"])
    assert since is not None
    late = (time.time() - since - phase * INTERVAL_SECONDS) % INTERVAL_SECONDS
    await asyncio.sleep(INTERVAL_SECONDS - late)
    mark = audit.mark()
    visible = await scene.break_all()
    incident = (await scene.wait_held())["incident"]
    decided = parse_time(incident["decidedAt"])
    assert decided is not None
    bare_seconds, unfenced_seconds = [await peer.seconds() for peer in peers] or [{}, {}]
    writes = [write for write in audit.writes(operators.users, since=mark) if write.namespace != BARE]
    return Rollback(
        phase=phase,
        breach_to_decided_seconds=decided - visible,
        decided_to_last_patch_seconds=last_requested(writes, pods=pods) - decided,
        api_writes=len(writes),
        bare_seconds=bare_seconds,
        unfenced_seconds=unfenced_seconds,
    )


async def kill_leader(scene: Scene, operators: Operators, audit: Audit) -> float:
    """Kill the leader as soon as the breach can be seen; seconds until the standby's first write on a pod."""
    await operators.start()
    leader = await operators.leader()
    mark = audit.mark()
    await scene.break_all()
    killed = operators.kill(leader)
    await scene.wait_held()
    by_the_standby = [write for write in audit.writes(operators.users, since=mark) if write.at > killed]
    return min(requested(by_the_standby).values()) - killed


async def rest(operators: Operators, audit: Audit, *, seconds: float, interval_seconds: float) -> Steady:
    """What the leader uses while nothing happens."""
    leader = await operators.leader()
    mark, before = audit.mark(), leader.usage()
    await asyncio.sleep(seconds)
    after = leader.usage()
    seconds = after.at - before.at
    return Steady(
        seconds=seconds,
        cores=(after.cpu_seconds - before.cpu_seconds) / seconds,
        rss_mib=after.rss_mib,
        queries_per_interval=(after.queries - before.queries) / seconds * interval_seconds,
        metrics=len(leader.query_names()),
        writes=len(audit.writes(operators.users, since=mark)),
    )


def requested(writes: Iterable[Write]) -> dict[str, float]:
    """Pod → when it was first asked for its mode, or taken away."""
    found: dict[str, float] = {}
    for write in writes:
        if write.resource == "pods" and write.verb in ("patch", "delete") and write.code == 200:
            found.setdefault(write.name, write.at)
    return found


def last_requested(writes: Iterable[Write], *, pods: int) -> float:
    """When the last of ``pods`` pods was asked for its mode; seconds since the epoch."""
    found = requested(writes)
    if len(found) != pods:
        raise LabError(f"all of {pods} pods asked", f"{len(found)}", "run with --keep and read the operators' logs")
    return max(found.values())
