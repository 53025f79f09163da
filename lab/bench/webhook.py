"""``python -m lab.bench.webhook``: how long new pods wait for the operator's webhook while the same process rolls back a
large fleet, on a real API server that sends it every new pod.

Writes build/bench/webhook.json. One replica leads and serves: the worst case, since of two the other would take half of
the pods. Pods are created as a dry run, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from lab import paths
from lab.bench import many
from lab.bench.api import Api, Json, until
from lab.bench.fleet import pod_of, policy, replica_set
from lab.bench.operators import Operators
from lab.bench.scene import Scene
from lab.bench.trainers import Trainers
from lab.cluster import ControlPlane
from lab.cluster.webhook import WITHOUT_POLICIES, install, publish, serving_port
from lab.errors import LabError
from lab.progress import say, step
from lab.prometheus import Prometheus
from precision_operator.contract import ADMITTED

RESULT = paths.BUILD / "bench" / "webhook.json"
NAMESPACE = "bench-webhook"
FLEET = "fleet-0"
REST_SECONDS = 30.0
PROMOTION_SECONDS = 300.0


@dataclass(frozen=True)
class Tried:
    """One new pod."""

    began: float
    seconds: float
    admitted: bool
    """Whether the webhook gave it its mode; else the API server had waited 2 s for it, in vain."""


class Creations:
    """Dry runs of a pod's creation, one after the other, until the end of a ``with``."""

    def __init__(self, api: Api, body: Json) -> None:
        self._api = api
        self._body = body
        self.tried: list[Tried] = []

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Create them meanwhile."""
        task = asyncio.create_task(self._go_on())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _go_on(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?dryRun=All"
        while True:
            began = time.monotonic()
            made = await self._api.post(path, self._body)
            admitted = ADMITTED in made["metadata"].get("annotations", {})
            self.tried.append(Tried(began, time.monotonic() - began, admitted))

    def between(self, begun: float, ended: float) -> Json:
        """What they came to in a time, in milliseconds; the slowest that were begun in it included."""
        found = [one for one in self.tried if begun <= one.began < ended]
        took = sorted(one.seconds * 1000 for one in found)
        if len(took) < 2:
            raise LabError("at least two pods in a phase", f"{len(took)}", "raise -n: the phase was too short")
        cuts = statistics.quantiles(took, n=100, method="inclusive")
        return {
            "pods": len(took),
            "median_ms": round(statistics.median(took), 1),
            "p99_ms": round(cuts[98], 1),
            "max_ms": round(took[-1], 1),
            "missed": sum(not one.admitted for one in found),
        }


async def measure(plane: ControlPlane, api: Api, credentials: Path, *, n: int) -> Json:
    """A fleet that is promoted, at rest, and rolled back at once."""
    with step(f"{n} workloads, made as their controllers would leave them"):
        plane.stop_controllers()
        await many.populate(api, NAMESPACE, policies=1, workloads=n)
    (one,) = (await api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments?limit=1"))["items"]
    owner = replica_set(one)
    owner["metadata"]["uid"] = "none"
    body = pod_of(owner)
    body["metadata"]["name"] = "probe"
    creations = Creations(api, body)
    async with Trainers(api, NAMESPACE) as trainers:
        job = {"job_name": "trainers", "honor_labels": True, "static_configs": [{"targets": [trainers.target]}]}
        config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}
        with Prometheus(plane.directory / "prometheus", config) as prometheus:
            scene = Scene(api, NAMESPACE, trainers, prometheus, policy=FLEET)
            operators = Operators(
                plane,
                prometheus_url=prometheus.url,
                namespaces=[NAMESPACE],
                kubeconfig=credentials,
                settings={"admission": {"port": 0}},
            )
            try:
                return await _phases(plane, scene, operators, creations, n)
            finally:
                operators.stop()


async def _phases(plane: ControlPlane, scene: Scene, operators: Operators, creations: Creations, n: int) -> Json:
    async def scraped() -> bool:
        return scene.trainers.count == n

    await until(scraped, what=f"trainers for {n} pods", seconds=PROMOTION_SECONDS)
    with step("promote them all"):
        operator = await operators.start()
        port = serving_port(operator.log.read_text())
        assert port is not None, "an operator is ready once it serves"
        publish(plane.kubectl, operator.name, port)
        await scene.api.create(scene.policies_path, [policy(FLEET, labels={"fleet": FLEET})])
        await scene.wait_phase("Healthy", seconds=PROMOTION_SECONDS)
    async with creations.going_on():
        with step("at rest, with a pass every 5 s"):
            rested = time.monotonic()
            await asyncio.sleep(REST_SECONDS)
        with step("a rollback of all of them"):
            broken = time.monotonic()
            await scene.break_all()
            await scene.wait_phase("Held", seconds=PROMOTION_SECONDS)
            held = time.monotonic()
    return {
        "workloads": n,
        "at_rest": creations.between(rested, broken),
        "rollback": {"seconds": round(held - broken, 1), **creations.between(broken, held)},
    }


async def run(directory: Path, n: int) -> Json:
    """On a control plane of its own, in that folder."""
    with ControlPlane(directory / "plane", api_flags=WITHOUT_POLICIES) as plane:
        with step("the chart, in webhook mode"):
            credentials = install(plane)
            plane.kubectl("create", "namespace", NAMESPACE)
            plane.kubectl.wait_for_namespace(NAMESPACE)
        async with Api(plane) as api:
            return await measure(plane, api, credentials, n=n)


def main() -> int:
    """Measure, write, show; 1 where a pod was missed."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.bench.webhook", description="New pods' wait for the webhook while its process is busy."
    )
    parser.add_argument("-n", type=int, default=2000, help="workloads (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bench-webhook-"))
    try:
        found = asyncio.run(run(directory, arguments.n))
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if arguments.keep:
            say(f"logs in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 1 if found["at_rest"]["missed"] or found["rollback"]["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
