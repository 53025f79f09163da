"""200 Deployments whose pods kwok runs: the API server, the controllers and the scheduler are real, the kubelets are not.

Rolled back hot, settle included: each pod is told by its annotation, and each template follows without a rollout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lab.bench.api import Api, until
from lab.bench.audit import Audit, last_moved
from lab.bench.fleet import deployment, node
from lab.bench.operators import Operators
from lab.bench.scene import Scene
from lab.cluster import ControlPlane
from lab.process import Daemon
from lab.setup.kwok import kwok
from precision_operator.api.wire import parse_time

PODS = "bench-pods"
PODS_PER_NODE = 100
SETTLE_SECONDS = 240.0


@dataclass(frozen=True)
class HotRollback:
    """One rollback of running pods."""

    decided_to_last_patch_seconds: float
    """Until the last pod was told."""
    api_writes: int
    """The settle of every template included."""


@contextmanager
def kubelets(plane: ControlPlane) -> Iterator[None]:
    """kwok, playing every node there is."""
    folder = kwok()
    flags = [f"--kubeconfig={plane.kubeconfig}", "--manage-all-nodes=true", f"--config={folder / 'stages.yaml'}"]
    daemon = Daemon("kwok", [folder / "kwok", *flags], plane.directory)
    daemon.start()
    try:
        yield
    finally:
        daemon.stop()


async def populate(api: Api, scene: Scene, count: int) -> None:
    """Nodes, and the fleet's Deployments with all their pods running."""
    await api.create(
        "/api/v1/nodes", [node(f"kwok-{i}", pods=PODS_PER_NODE) for i in range(count // PODS_PER_NODE + 1)]
    )
    names = [f"trainer-{i:04d}" for i in range(count)]
    path = f"/apis/apps/v1/namespaces/{PODS}/deployments"
    await api.create(path, [deployment(name, replicas=1) for name in names])

    async def running() -> bool:
        items = (await api.get(path))["items"]
        return all(item.get("status", {}).get("readyReplicas") == 1 for item in items)

    await until(running, what=f"{count} ready Deployments", seconds=SETTLE_SECONDS, every=1.0)

    async def known() -> bool:
        return scene.trainers.count == count

    await until(known, what=f"trainers for {count} pods", seconds=30)


async def roll_back(scene: Scene, operators: Operators, audit: Audit) -> HotRollback:
    """Break the promoted and settled fleet, and see all of it told, acknowledged and settled."""
    mark = audit.mark()
    await scene.break_all()
    incident = (await scene.wait_held())["incident"]
    decided = parse_time(incident["decidedAt"])
    assert decided is not None
    await settled(scene)
    writes = audit.writes(mark, operators.users)
    return HotRollback(
        decided_to_last_patch_seconds=last_moved(writes, size=await scene.size()) - decided, api_writes=len(writes)
    )


async def settled(scene: Scene) -> None:
    """Wait until every template agrees with its pods."""
    await until(scene.settled, what="all settled", seconds=SETTLE_SECONDS, every=1.0)
