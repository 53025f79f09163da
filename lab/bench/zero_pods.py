"""1,000 Deployments of 0 replicas, rolled back at once: latency against bare, idle cost, and leaders killed.

A Deployment without pods has no process that could breach. A few *witnesses* beside them have one pod each (made through the
API: the controllers rest, so that their own writes are in no figure); they breach, and the policy rolls all back. The
exporter answers for as many strangers' pods as there are Deployments, so that Prometheus' answers are as long as a fleet's.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass

from lab.bench.api import Api
from lab.bench.audit import Audit, last_moved, moves
from lab.bench.fleet import INTERVAL_SECONDS, deployment, pod_of
from lab.bench.operators import Operators
from lab.bench.scene import Scene
from lab.cluster import ControlPlane
from lab.errors import LabError
from precision_operator.api.wire import parse_time

FLEET, BARE = "bench-fleet", "bench-bare"
WITNESSES = 4
IN_FLIGHT = (16, 32, 64)


@dataclass(frozen=True)
class Rollback:
    """One rollback, by Prometheus' answer, the policy's status and the audit log."""

    phase: float
    """Where in the interval the fleet was broken: 0..1 after an evaluation."""
    breach_to_decided_seconds: float
    decided_to_last_patch_seconds: float
    api_writes: int
    bare_seconds: dict[int, float]
    """By patches in flight, measured right after."""


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

    def __init__(self, plane: ControlPlane) -> None:
        admin = plane.authority.issue("admin", "admin", groups=["system:masters"])
        files = (plane.authority.certificate, admin.certificate, admin.key)
        self._command = [sys.executable, "-m", "lab.bench.bare", plane.server, *map(str, files), BARE]

    async def seconds(self) -> dict[int, float]:
        """One rollback for each number of patches in flight."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        answer, _ = await process.communicate("".join(f"{n}\n" for n in IN_FLIGHT).encode())
        if process.returncode != 0:
            raise LabError("the bare client to succeed", f"exit code {process.returncode}", "read what it said above")
        return dict(zip(IN_FLIGHT, map(float, answer.split()), strict=True))


async def make(api: Api, count: int) -> None:
    """The fleet and its double for the bare client. The controllers must have given the namespaces their accounts."""
    names = [f"trainer-{i:04d}" for i in range(count)]
    witnesses = [f"witness-{i}" for i in range(WITNESSES)]
    for namespace, members in ((FLEET, [*names, *witnesses]), (BARE, names)):
        path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
        await api.create(path, [deployment(name, replicas=0) for name in members])
    await api.create(f"/api/v1/namespaces/{FLEET}/pods", [pod_of(name) for name in witnesses])


async def roll_back(scene: Scene, operators: Operators, audit: Audit, bare: Bare, *, phase: float) -> Rollback:
    """Break the promoted fleet at a phase of the interval, and see all of it patched; then measure bare."""
    since = parse_time((await scene.status())["phaseSince"])
    assert since is not None
    late = (time.time() - since - phase * INTERVAL_SECONDS) % INTERVAL_SECONDS
    await asyncio.sleep(INTERVAL_SECONDS - late)
    mark = audit.mark()
    visible = await scene.break_all()
    incident = (await scene.wait_held())["incident"]
    decided = parse_time(incident["decidedAt"])
    assert decided is not None
    bare_seconds = await bare.seconds()
    writes = audit.writes(mark, operators.users)
    return Rollback(
        phase=phase,
        breach_to_decided_seconds=decided - visible,
        decided_to_last_patch_seconds=last_moved(writes, size=await scene.size()) - decided,
        api_writes=len(writes),
        bare_seconds=bare_seconds,
    )


async def kill_leader(scene: Scene, operators: Operators, audit: Audit) -> float:
    """Kill the leader as soon as the breach can be seen; seconds until the standby's first patch of a workload."""
    await operators.start()
    leader = await operators.leader()
    mark = audit.mark()
    await scene.break_all()
    killed = operators.kill(leader)
    await scene.wait_held()
    return min(moves(audit.writes(mark, operators.users)).values()) - killed


async def rest(operators: Operators, audit: Audit, *, seconds: float) -> Steady:
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
        queries_per_interval=(after.queries - before.queries) / seconds * INTERVAL_SECONDS,
        metrics=len(leader.query_names()),
        writes=len(audit.writes(mark, operators.users)),
    )
