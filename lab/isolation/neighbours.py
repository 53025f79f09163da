"""How soon a breach is decided while neighbours are in trouble: on an endpoint that hangs, in a namespace under 429.

It falls anywhere between two evaluations: three namespaces are broken one after the other, and the slowest counts.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from lab.bench.api import Api, Json, until
from lab.bench.fleet import INTERVAL_SECONDS, WINDOW_SECONDS, policy
from lab.bench.many import populate
from lab.bench.operators import Operators
from lab.bench.scene import Scene
from lab.bench.trainers import Trainers
from lab.cluster import ControlPlane
from lab.cluster.manifests import apply_product, operator_access
from lab.errors import LabError
from lab.isolation.throttle import throttling
from lab.progress import step
from lab.prometheus import Prometheus
from precision_operator.api.wire import parse_time
from precision_operator.reasons import Reason
from precision_operator.signals.endpoint import FAILURE_LIMIT

WATCHED = [f"isolation-watched-{i}" for i in range(3)]
THROTTLED = "isolation-throttled"
HUNG = [f"isolation-hung-{i}" for i in range(4)]
THROTTLED_POLICIES = 20
WORKLOADS = 20


@dataclass
class Hanging:
    """An endpoint that accepts connections and never answers."""

    url: str
    accepted: list[socket.socket] = field(default_factory=list)


@contextmanager
def hanging() -> Iterator[Hanging]:
    """Serve one."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:
        endpoint = Hanging(f"http://127.0.0.1:{server.getsockname()[1]}")

        def accept() -> None:
            while True:
                try:
                    endpoint.accepted.append(server.accept()[0])
                except OSError:
                    return  # closed: the measurement is over

        threading.Thread(target=accept, daemon=True, name="hanging endpoint").start()
        try:
            yield endpoint
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for connection in endpoint.accepted:
                connection.close()


def decided_seconds(directory: Path, *, hung_policies: int, throttled: bool) -> float:
    """From when a poll of Prometheus shows the breach to when the operator decided on it, with these neighbours."""
    with ControlPlane(directory / "plane") as plane, hanging() as hung:
        with step("the product, and the namespaces"):
            apply_product(plane.kubectl)
            names = [*WATCHED, THROTTLED, *HUNG]
            for name in names:
                plane.kubectl("create", "namespace", name)
                plane.kubectl.wait_for_namespace(name)
            kubeconfig = operator_access(plane)
        plane.stop_controllers()
        return asyncio.run(_measure(plane, kubeconfig, hung, hung_policies, throttled))


async def _measure(plane: ControlPlane, kubeconfig: Path, hung: Hanging, hung_policies: int, throttled: bool) -> float:
    async with Api(plane) as api:
        for name in WATCHED:
            await populate(api, name, policies=1, workloads=WORKLOADS)
        await populate(api, THROTTLED, policies=THROTTLED_POLICIES, workloads=THROTTLED_POLICIES)
        async with Trainers(api, *WATCHED, THROTTLED) as trainers:
            job = {"job_name": "trainers", "honor_labels": True, "static_configs": [{"targets": [trainers.target]}]}
            config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
            with Prometheus(plane.directory / "prometheus", config) as prometheus:
                endpoints = {"default": {"url": prometheus.url}, "hung": {"url": hung.url}}
                operators = Operators(
                    plane,
                    prometheus_url=prometheus.url,
                    namespaces=[],
                    kubeconfig=kubeconfig,
                    settings={"prometheus": endpoints},
                )
                scenes = [Scene(api, name, trainers, prometheus, policy="fleet-0") for name in WATCHED]
                try:
                    await operators.start()
                    async with throttling(plane, api, THROTTLED) if throttled else nullcontext():
                        await _trouble(api, scenes, hung, hung_policies=hung_policies, throttled=throttled)
                        return max([await _breach(scene) for scene in scenes])
                finally:
                    operators.stop()


async def _trouble(api: Api, scenes: Sequence[Scene], hung: Hanging, *, hung_policies: int, throttled: bool) -> None:
    with step("promote the watched fleets"):
        for scene in scenes:
            await api.create(scene.policies_path, [policy("fleet-0", labels={"fleet": "fleet-0"})])
        for scene in scenes:
            await scene.wait_phase("Healthy")
    with step("neighbours in trouble"):
        if throttled:
            bodies = [policy(f"fleet-{i}", labels={"fleet": f"fleet-{i}"}) for i in range(THROTTLED_POLICIES)]
            await api.create(_policies(THROTTLED), bodies)
        for name in HUNG if hung_policies else ():
            await api.create(_policies(name), [_hung(i) for i in range(hung_policies // len(HUNG))])

        async def troubled() -> bool:
            found = [item for name in HUNG for item in (await api.get(_policies(name)))["items"]]
            # The first status says only that an evaluation is awaited.
            return all(item.get("status", {}).get("reason") not in (None, Reason.AWAITING_EVALUATION) for item in found)

        await until(troubled, what="each policy on the hung endpoint to be evaluated", seconds=120, every=1.0)
        await asyncio.sleep(3 * INTERVAL_SECONDS)  # several rounds of time-outs
        if hung_policies and len(hung.accepted) < FAILURE_LIMIT:
            found = f"{len(hung.accepted)} connections"
            raise LabError("questions to the hung endpoint until its circuit opens", found, "read the operator's log")
        written = (await api.get(_policies(THROTTLED).replace("policies", "assignments")))["items"]
        if throttled and written:
            raise LabError("429 to each write there", f"{len(written)} assignments", "see lab/isolation/throttle.py")


async def _breach(scene: Scene) -> float:
    with step("a breach"):
        visible = await scene.break_all(diverged=True)

        async def incident() -> Json | None:
            found: Json | None = (await scene.status()).get("incident")
            return found

        found = await until(incident, what="an incident", seconds=120)
        if found["severity"] != "P0":
            raise LabError("an incident of P0", str(found["severity"]), "see lab/bench/trainers.py")
        decided = parse_time(found["decidedAt"])
    assert decided is not None
    return round(decided - visible, 3)


def _policies(namespace: str) -> str:
    return f"/apis/precision.genesis.ai/v1alpha1/namespaces/{namespace}/precisionpolicies"


def _hung(number: int) -> Json:
    """A policy that asks the hung endpoint something that no other one asks."""
    body = policy(f"hung-{number}", labels={"fleet": f"hung-{number}"})
    body["spec"]["prometheusRef"] = {"name": "hung"}
    body["spec"]["evaluation"]["window"] = f"{WINDOW_SECONDS + number:g}s"
    return body
