"""How soon a breach is decided while neighbours are in trouble: on an endpoint that hangs, in a namespace under 429."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
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

WATCHED, THROTTLED = "isolation-watched", "isolation-throttled"
HUNG = [f"isolation-hung-{i}" for i in range(4)]
THROTTLED_POLICIES = 20
WORKLOADS = 20


@contextmanager
def hanging() -> Iterator[str]:
    """The URL of an endpoint that accepts connections and never answers."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as server:

        def accept() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return  # closed: the measurement is over

        threading.Thread(target=accept, daemon=True, name="hanging endpoint").start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for connection in kept:
                connection.close()


def decided_seconds(directory: Path, *, hung_policies: int, throttled: bool) -> float:
    """From when a poll of Prometheus shows the breach to when the operator decided on it, with these neighbours."""
    with ControlPlane(directory / "plane") as plane, hanging() as hung_url:
        with step("the product, and the namespaces"):
            apply_product(plane.kubectl)
            names = [WATCHED, THROTTLED, *HUNG]
            for name in names:
                plane.kubectl("create", "namespace", name)
                plane.kubectl.wait_for_namespace(name)
            kubeconfig = operator_access(plane)
        plane.stop_controllers()
        return asyncio.run(_measure(plane, kubeconfig, hung_url, hung_policies, throttled))


async def _measure(plane: ControlPlane, kubeconfig: Path, hung_url: str, hung_policies: int, throttled: bool) -> float:
    async with Api(plane) as api:
        await populate(api, WATCHED, policies=1, workloads=WORKLOADS)
        await populate(api, THROTTLED, policies=THROTTLED_POLICIES, workloads=THROTTLED_POLICIES)
        async with Trainers(api, WATCHED, THROTTLED) as trainers:
            job = {"job_name": "trainers", "honor_labels": True, "static_configs": [{"targets": [trainers.target]}]}
            config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
            with Prometheus(plane.directory / "prometheus", config) as prometheus:
                endpoints = {"default": {"url": prometheus.url}, "hung": {"url": hung_url}}
                operators = Operators(
                    plane,
                    prometheus_url=prometheus.url,
                    namespaces=[],
                    kubeconfig=kubeconfig,
                    settings={"prometheus": endpoints},
                )
                scene = Scene(api, WATCHED, trainers, prometheus, policy="fleet-0")
                try:
                    await operators.start()
                    async with throttling(plane, api, THROTTLED) if throttled else nullcontext():
                        return await _breach(scene, hung_policies=hung_policies, throttled=throttled)
                finally:
                    operators.stop()


async def _breach(scene: Scene, *, hung_policies: int, throttled: bool) -> float:
    api = scene.api
    with step("promote the watched fleet"):
        await api.create(scene.policies_path, [policy("fleet-0", labels={"fleet": "fleet-0"})])
        await scene.wait_phase("Healthy")
    with step("neighbours in trouble"):
        if throttled:
            bodies = [policy(f"fleet-{i}", labels={"fleet": f"fleet-{i}"}) for i in range(THROTTLED_POLICIES)]
            await api.create(_policies(THROTTLED), bodies)
        for name in HUNG if hung_policies else ():
            await api.create(_policies(name), [_hung(i) for i in range(hung_policies // len(HUNG))])

        async def troubled() -> bool:
            found = [item for name in HUNG for item in (await api.get(_policies(name)))["items"]]
            return all("conditions" in item.get("status", {}) for item in found)

        await until(troubled, what="a status of each policy on the hung endpoint", seconds=120, every=1.0)
        await asyncio.sleep(3 * INTERVAL_SECONDS)  # several rounds of time-outs
        written = (await api.get(_policies(THROTTLED).replace("policies", "assignments")))["items"]
        if throttled and written:
            raise LabError("429 to each write there", f"{len(written)} assignments", "see lab/isolation/throttle.py")
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
