"""``python -m lab.bench``: the operator at scale on a real API server with a real Prometheus, against its budgets.

Writes build/bench/operator.json (medians) and build/bench/operator-rounds.json (everything that they are medians of), with
the parts that this run measured and no others.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from lab import paths
from lab.bench import creations, large, many
from lab.bench.api import Api, Json
from lab.bench.fleet import policy
from lab.bench.operators import SYSTEM, Operators
from lab.bench.report import show, summary
from lab.bench.rollbacks import (
    BARE,
    FLEET,
    Bare,
    Rollback,
    kill_leader,
    known,
    kubelets,
    nodes,
    populate,
    rest,
    roll_back,
)
from lab.bench.scene import WINDOW_INTERVALS, Scene
from lab.bench.trainers import Trainers
from lab.cluster import ControlPlane
from lab.cluster.audit import Audit
from lab.cluster.manifests import apply_product, operator_access
from lab.errors import LabError
from lab.interrupts import take_sigterm_as_interrupt
from lab.progress import say, step
from lab.prometheus import Prometheus

OUT = paths.BUILD / "bench"
PARTS = ("creations", "large", "rollbacks", "with_pods", "many")
SCRAPE = "1s"
STEADY_SECONDS = 60.0
PODS = "bench-pods"
IDLE_INTERVAL_SECONDS = 15.0
"""The product's default: what an idle fleet costs is measured with it."""


@asynccontextmanager
async def scene(plane: ControlPlane, api: Api, namespace: str, *others: str) -> AsyncIterator[Scene]:
    """A namespace's trainers and their Prometheus. Those of other namespaces export too, so that the same is watched."""
    async with Trainers(api, namespace, *others) as trainers:
        job = {"job_name": "trainers", "honor_labels": True, "static_configs": [{"targets": [trainers.target]}]}
        config = {"global": {"scrape_interval": SCRAPE}, "scrape_configs": [job]}
        with Prometheus(plane.directory / f"prometheus-{namespace}", config) as prometheus:
            yield Scene(api, namespace, trainers, prometheus)


async def _promote(stage: Scene, operators: Operators) -> None:
    with step("promote them all"):
        await operators.start()
        await stage.api.create(stage.policies_path, [policy()])
        await stage.wait_phase("Healthy", seconds=300)


def _administrator(plane: ControlPlane) -> Path:
    """A kubeconfig of a ServiceAccount that may do everything."""
    plane.kubectl("create", "serviceaccount", "administrator", "-n", BARE)
    account = f"--serviceaccount={BARE}:administrator"
    plane.kubectl("create", "clusterrolebinding", "bench-administrator", "--clusterrole=cluster-admin", account)
    return plane.service_account_kubeconfig(BARE, "administrator")


async def _rollbacks(
    stage: Scene, operators: Operators, audit: Audit, peers: Sequence[Bare], *, pods: int, rounds: int
) -> list[Rollback]:
    measured = []
    for number in range(rounds):
        with step(f"rollback {number + 1} of {rounds}"):
            measured.append(await roll_back(stage, operators, audit, peers, pods=pods, phase=number / rounds))
            say(str(measured[-1]))
            await stage.retry()
    return measured


async def rollbacks(
    plane: ControlPlane, api: Api, *, n: int, rounds: int, kills: int, steady_seconds: float = STEADY_SECONDS
) -> Json:
    """One pod a workload: rollbacks against bare, at rest, and leaders killed."""
    with step(f"{n} Deployments with a pod each, twice"):
        await nodes(api, pods=2 * n)
        for namespace in (FLEET, BARE):
            await populate(api, namespace, deployments=n)
    audit = Audit(plane.audit_log)
    peers = [Bare(account, BARE) for account in (operator_access(plane), _administrator(plane))]
    async with scene(plane, api, FLEET, BARE) as stage:
        operators = Operators(plane, prometheus_url=stage.prometheus.url, namespaces=[FLEET])
        try:
            await known(stage, pods=2 * n)
            await _promote(stage, operators)
            measured = await _rollbacks(stage, operators, audit, peers, pods=n, rounds=rounds)
            takeovers = []
            for number in range(kills):
                with step(f"leader killed {number + 1} of {kills}"):
                    takeovers.append(await kill_leader(stage, operators, audit))
                    say(f"{takeovers[-1]:.2f} s to the standby's first write")
                    await stage.retry()
            with step("at rest"):
                # Or the longer window reaches into the last fault.
                await asyncio.sleep(WINDOW_INTERVALS * IDLE_INTERVAL_SECONDS)
                await stage.set_interval(IDLE_INTERVAL_SECONDS)
                await asyncio.sleep(IDLE_INTERVAL_SECONDS)
                steady = await rest(operators, audit, seconds=steady_seconds, interval_seconds=IDLE_INTERVAL_SECONDS)
                say(str(steady))
        finally:
            operators.stop()
            for namespace in (FLEET, BARE):
                await api.delete(f"/apis/apps/v1/namespaces/{namespace}/deployments")
    return {"n": n, "rounds": [asdict(m) for m in measured], "steady": asdict(steady), "takeover_seconds": takeovers}


async def with_pods(plane: ControlPlane, api: Api, *, n: int, replicas: int, rounds: int) -> Json:
    """Several pods a workload."""
    audit = Audit(plane.audit_log)
    with step(f"{n} Deployments of {replicas} pods"):
        await populate(api, PODS, deployments=n, replicas=replicas)
    async with scene(plane, api, PODS) as stage:
        operators = Operators(plane, prometheus_url=stage.prometheus.url, namespaces=[PODS])
        try:
            await known(stage, pods=n * replicas)
            await _promote(stage, operators)
            measured = await _rollbacks(stage, operators, audit, (), pods=n * replicas, rounds=rounds)
        finally:
            operators.stop()
            await api.delete(f"/apis/apps/v1/namespaces/{PODS}/deployments")
    return {"n": n, "pods": n * replicas, "rounds": [asdict(m) for m in measured]}


async def run(arguments: argparse.Namespace, directory: Path) -> Json:
    """The parts that are asked for, on two control planes: the fleets of the first are gone when the second begins."""
    raw: Json = {}
    wanted = frozenset(arguments.parts)
    if wanted - {"many"}:
        with ControlPlane(directory / "rollbacks") as plane:
            async with Api(plane) as api:
                await _on_one_plane(plane, api, wanted, arguments, raw)
    if "many" in wanted:
        with ControlPlane(directory / "many") as plane:
            with step("the product's CRDs and admission policies"):
                apply_product(plane.kubectl)
                for name in many.namespaces(20):
                    plane.kubectl("create", "namespace", name)
                    plane.kubectl.wait_for_namespace(name)
            plane.stop_controllers()
            async with Api(plane) as api:
                raw["many"] = await many.measure(
                    plane, api, workloads=arguments.many, policies=100, spaces=20, steady_seconds=STEADY_SECONDS
                )
    return raw


async def _on_one_plane(
    plane: ControlPlane, api: Api, wanted: frozenset[str], arguments: argparse.Namespace, raw: Json
) -> None:
    if "creations" in wanted:
        raw["pod_creations_per_second"] = await creations.measure(plane, api)
    else:
        apply_product(plane.kubectl)
    for namespace in (SYSTEM, FLEET, BARE, PODS):
        plane.kubectl("create", "namespace", namespace)
        plane.kubectl.wait_for_namespace(namespace)
    if "large" in wanted:
        with step("5,000 workloads in one policy"):
            raw["large"] = large.mid_rollback(plane.kubectl, count=5000, name_length=60)
    with kubelets(plane):
        if "rollbacks" in wanted:
            raw["rollbacks"] = await rollbacks(
                plane, api, n=arguments.n, rounds=arguments.rounds, kills=arguments.kills
            )
        if "with_pods" in wanted:
            raw["with_pods"] = await with_pods(plane, api, n=arguments.pods, replicas=2, rounds=arguments.pod_rounds)


def main() -> int:
    """Measure, write, show; 1 where a budget is missed."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench", description="The operator at scale.")
    parser.add_argument("parts", nargs="*", help=f"which to measure; all where none is named: {', '.join(PARTS)}")
    parser.add_argument("-n", type=int, default=1000, help="Deployments with a pod each (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="rollbacks, over as many phases of the interval")
    parser.add_argument("--kills", type=int, default=5, help="leaders killed")
    parser.add_argument("--pods", type=int, default=100, help="Deployments with two pods each (default %(default)s)")
    parser.add_argument("--pod-rounds", type=int, default=1, help="rollbacks of those")
    parser.add_argument("--many", type=int, default=10000, help="workloads under 100 policies")
    parser.add_argument("--keep", action="store_true", help="keep the folder with all logs")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts or list(PARTS)
    if unknown := sorted(set(arguments.parts) - set(PARTS)):
        parser.error(f"expected parts of {', '.join(PARTS)}; found {', '.join(unknown)}")
    take_sigterm_as_interrupt()
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
