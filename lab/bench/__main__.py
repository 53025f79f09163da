"""``python -m lab.bench``: the operator at scale on a real API server with a real Prometheus, against its budgets.

Writes build/bench/operator.json (medians) and build/bench/operator-rounds.json (everything that they are medians of).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from lab import paths
from lab.bench.api import Api, Json
from lab.bench.audit import Audit
from lab.bench.fleet import policy
from lab.bench.operators import SYSTEM, Operators
from lab.bench.report import show, summary
from lab.bench.scene import Scene
from lab.bench.trainers import Trainers
from lab.bench.with_pods import PODS, kubelets, populate, settled
from lab.bench.with_pods import roll_back as roll_back_pods
from lab.bench.zero_pods import BARE, FLEET, WITNESSES, Bare, kill_leader, make, rest, roll_back
from lab.cluster import ControlPlane
from lab.cluster.manifests import apply_product
from lab.errors import LabError
from lab.progress import say, step
from lab.prometheus import Prometheus

OUT = paths.BUILD / "bench"
SCRAPE = "1s"
STEADY_SECONDS = 30.0


@asynccontextmanager
async def scene(
    plane: ControlPlane, api: Api, namespace: str, *, strangers: int, fleet_minimum: int
) -> AsyncIterator[Scene]:
    """A namespace's trainers and their Prometheus."""
    async with Trainers(api, namespace, strangers=strangers) as trainers:
        job = {"job_name": "trainers", "honor_labels": True, "static_configs": [{"targets": [trainers.target]}]}
        config = {"global": {"scrape_interval": SCRAPE}, "scrape_configs": [job]}
        with Prometheus(plane.directory / f"prometheus-{namespace}", config) as prometheus:
            yield Scene(api, namespace, trainers, prometheus, fleet_minimum)


async def zero_pods(
    plane: ControlPlane, api: Api, *, n: int, rounds: int, kills: int, steady_seconds: float = STEADY_SECONDS
) -> Json:
    """The part without pods."""
    plane.stop_controllers()
    audit, bare = Audit(plane.audit_log), Bare(plane)
    async with scene(plane, api, FLEET, strangers=n, fleet_minimum=WITNESSES) as stage:
        operators = Operators(plane, prometheus_url=stage.prometheus.url, namespaces=[FLEET])
        try:
            with step(f"{n} Deployments of 0 replicas, twice"):
                await make(api, n)
            with step("promote them all"):
                await operators.start()
                await api.create(stage.policies_path, [policy(fleet_minimum=WITNESSES)])
                await stage.wait_phase("Healthy")
            measured = []
            for number in range(rounds):
                with step(f"rollback {number + 1} of {rounds}"):
                    measured.append(await roll_back(stage, operators, audit, bare, phase=number / rounds))
                    say(str(measured[-1]))
                    await stage.retry()
            with step("at rest"):
                steady = await rest(operators, audit, seconds=steady_seconds)
                say(str(steady))
            takeovers = []
            for number in range(kills):
                with step(f"leader killed {number + 1} of {kills}"):
                    takeovers.append(await kill_leader(stage, operators, audit))
                    say(f"{takeovers[-1]:.2f} s to the standby's first patch")
                    if number + 1 < kills:
                        await stage.retry()
        finally:
            operators.stop()
    return {"n": n, "rounds": [asdict(m) for m in measured], "steady": asdict(steady), "takeover_seconds": takeovers}


async def with_pods(plane: ControlPlane, api: Api, *, n: int, rounds: int) -> Json:
    """The part with running pods; the controllers work again."""
    with step("controllers, and kwok"):
        for namespace in (FLEET, BARE):
            await api.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments")
        plane.start()
    audit = Audit(plane.audit_log)
    with kubelets(plane):
        async with scene(plane, api, PODS, strangers=0, fleet_minimum=2) as stage:
            operators = Operators(plane, prometheus_url=stage.prometheus.url, namespaces=[PODS])
            try:
                with step(f"{n} Deployments with a pod each"):
                    await populate(api, stage, n)
                measured = []
                for number in range(rounds):
                    with step("promote and settle them all"):
                        if number == 0:
                            await operators.start()
                            await api.create(stage.policies_path, [policy(fleet_minimum=2)])
                            await stage.wait_phase("Healthy")
                        else:
                            await stage.retry()
                        await settled(stage)
                    with step(f"hot rollback {number + 1} of {rounds}"):
                        measured.append(await roll_back_pods(stage, operators, audit))
                        say(str(measured[-1]))
                pods = stage.trainers.count
            finally:
                operators.stop()
    return {"n": n, "pods": pods, "rounds": [asdict(m) for m in measured]}


async def run(arguments: argparse.Namespace, directory: Path) -> Json:
    """All parts on one control plane."""
    with ControlPlane(directory) as plane:
        with step("the product's CRDs and admission policies"):
            apply_product(plane.kubectl)
            for namespace in (SYSTEM, FLEET, BARE, PODS):
                plane.kubectl("create", "namespace", namespace)
                plane.kubectl.wait_for_namespace(namespace)
        async with Api(plane) as api:
            raw = {
                "zero_pods": await zero_pods(plane, api, n=arguments.n, rounds=arguments.rounds, kills=arguments.kills)
            }
            if arguments.pod_rounds:
                raw["with_pods"] = await with_pods(plane, api, n=arguments.pods, rounds=arguments.pod_rounds)
            return raw


def main() -> int:
    """Measure, write, show; 1 where a budget is missed."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench", description="The operator at scale.")
    parser.add_argument("-n", type=int, default=1000, help="Deployments of 0 replicas (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="rollbacks, over as many phases of the interval")
    parser.add_argument("--kills", type=int, default=5, help="leaders killed")
    parser.add_argument("--pods", type=int, default=200, help="Deployments with a pod each (default %(default)s)")
    parser.add_argument("--pod-rounds", type=int, default=1, help="rollbacks of those; 0 leaves them out")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bench-operator-"))
    try:
        raw = asyncio.run(run(arguments, directory))
    except LabError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if arguments.keep:
            say(f"logs in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "operator-rounds.json").write_text(json.dumps(raw, indent=1) + "\n")
    figures = summary(raw)
    (OUT / "operator.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if show(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
