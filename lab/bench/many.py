"""10,000 workloads under 100 policies in 20 namespaces: what they cost at rest, and how soon a breach in one is decided.

Controllers rest: Deployments, ReplicaSets and pods are made as they would leave them, because what is measured is the
operator's share. The policies have the product's default interval.
"""

from __future__ import annotations

from lab.bench.api import Api, Json, until
from lab.bench.fleet import deployment, pod_of, policy, replica_set
from lab.bench.operators import Operators
from lab.bench.rollbacks import rest
from lab.bench.scene import Scene
from lab.bench.trainers import Trainers
from lab.cluster import ControlPlane
from lab.cluster.audit import Audit
from lab.progress import say, step
from lab.prometheus import Prometheus
from precision_operator.api.wire import parse_time

INTERVAL_SECONDS = 15.0
WINDOW_SECONDS = 60.0
PROMOTION_SECONDS = 900.0
_APPS = "/apis/apps/v1/namespaces"


def namespaces(count: int) -> list[str]:
    """Their names."""
    return [f"bench-many-{i:02d}" for i in range(count)]


async def populate(api: Api, namespace: str, *, policies: int, workloads: int) -> None:
    """The Deployments of a namespace with a ReplicaSet and a pod each, under so many policies."""
    for number in range(policies):
        labels = {"fleet": f"fleet-{number}"}
        made = [deployment(f"fleet-{number}-{i:03d}", replicas=1, labels=labels) for i in range(workloads // policies)]
        await api.create(f"{_APPS}/{namespace}/deployments", made)
    stored = (await api.get(f"{_APPS}/{namespace}/deployments"))["items"]
    await api.create(f"{_APPS}/{namespace}/replicasets", [replica_set(item) for item in stored])
    sets = (await api.get(f"{_APPS}/{namespace}/replicasets"))["items"]
    await api.create(f"/api/v1/namespaces/{namespace}/pods", [pod_of(item) for item in sets])


async def measure(
    plane: ControlPlane, api: Api, *, workloads: int, policies: int, spaces: int, steady_seconds: float
) -> Json:
    """Make them, promote them, look at rest, then break one policy's fleet."""
    names = namespaces(spaces)
    with step(f"{workloads} workloads in {spaces} namespaces"):
        for name in names:
            await populate(api, name, policies=policies // spaces, workloads=workloads // spaces)
    async with Trainers(api, *names, running=True) as trainers:
        job = {"job_name": "trainers", "honor_labels": True, "static_configs": [{"targets": [trainers.target]}]}
        config = {"global": {"scrape_interval": "5s", "scrape_timeout": "5s"}, "scrape_configs": [job]}
        with Prometheus(plane.directory / "prometheus-many", config) as prometheus:
            operators = Operators(plane, prometheus_url=prometheus.url, namespaces=[])
            try:
                return await _measure(
                    api, trainers, prometheus, operators, plane, names, policies, workloads, steady_seconds
                )
            finally:
                operators.stop()


async def _measure(
    api: Api,
    trainers: Trainers,
    prometheus: Prometheus,
    operators: Operators,
    plane: ControlPlane,
    names: list[str],
    policies: int,
    workloads: int,
    steady_seconds: float,
) -> Json:
    scenes = [
        Scene(api, name, trainers, prometheus, policy=f"fleet-{i}", window_seconds=WINDOW_SECONDS)
        for name in names
        for i in range(policies // len(names))
    ]

    async def scraped() -> bool:
        return trainers.count == workloads

    await until(scraped, what=f"trainers for {workloads} pods", seconds=300)
    with step("promote them all"):
        await operators.start()
        for scene in scenes:
            labels = {"fleet": scene.policy}
            body = policy(scene.policy, interval_seconds=INTERVAL_SECONDS, labels=labels)
            body["spec"]["evaluation"]["window"] = f"{WINDOW_SECONDS:g}s"
            await api.create(scene.policies_path, [body])
        for scene in scenes:
            await scene.wait_phase("Healthy", seconds=PROMOTION_SECONDS)
    audit = Audit(plane.audit_log)
    with step("at rest"):
        steady = await rest(operators, audit, seconds=steady_seconds, interval_seconds=INTERVAL_SECONDS)
        say(str(steady))
    with step("a breach in one"):
        scene = scenes[len(scenes) // 2]
        visible = await scene.break_all()
        incident = (await scene.wait_phase("Held", seconds=300))["incident"]
        decided = parse_time(incident["decidedAt"])
        assert decided is not None
    return {
        "workloads": workloads,
        "policies": policies,
        "namespaces": len(names),
        "interval_seconds": INTERVAL_SECONDS,
        "idle_cores": round(steady.cores, 4),
        "rss_mib": round(steady.rss_mib, 1),
        "steady_writes": steady.writes,
        "breach_to_decided_seconds": round(decided - visible, 3),
    }
