"""The cluster of a soak: the chart's operator as pods, Prometheus, and a small fleet of real trainers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.cluster import Cluster
from lab.cluster.kubectl import Json
from lab.cluster.monitoring import NAMESPACE as MONITORING
from lab.cluster.monitoring import apply_prometheus
from lab.cluster.node import NAME as NODE
from lab.demo.fleet import Trainer
from lab.demo.metrics import Metrics
from lab.demo.stage import RELEASE, SYSTEM, Images, helm_of, install_operator, workload_of
from lab.errors import LabError
from lab.faults.soak.steps import StepWatch
from lab.images import OPERATOR, PROMETHEUS, TOOLS
from lab.trainers import COMMON, Fleet
from precision_operator.api.wire import parse_time

NAMESPACE = "soak"
TRAINERS = (*(Trainer(f"soak-{index}") for index in range(3)), Trainer("soak-ddp", ranks=2))
"""Of one pod each, and hot: nothing that dies may cost them a step. The two ranks of one talk within their pod, which no cut
reaches; ranks in several pods would wait for one another while the network is away.
"""
VICTIMS = ("soak-1", "soak-ddp")
"""As many as make it the fleet's rollback."""
_POLICY: Json = {
    "strategy": {"steps": [{"setWeight": 34}, {"pause": {"duration": "2s"}}, {"setWeight": 100}]},
    "reenable": {**COMMON["reenable"], "backoff": "0s"},
}
_REPLICAS = 2
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"


@dataclass
class Scene:
    """What runs."""

    cluster: Cluster
    fleet: Fleet
    steps: StepWatch

    def pods(self, namespace: str) -> list[Json]:
        """A namespace's pods that are not on their way out."""
        items = self.cluster.kubectl.json("get", "pods", "-n", namespace)["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def leader(self) -> str:
        """The operator's pod that holds the Lease; empty: none does."""
        lease = self.cluster.kubectl.find("lease", RELEASE, "-n", SYSTEM) or {}
        return str(lease.get("spec", {}).get("holderIdentity") or "").rpartition("_")[0]

    def secrets(self) -> dict[str, str]:
        """What nobody may read: the credentials of the operator's pods as they are now.

        Raises:
            LabError: a pod does not show them, or has none.
        """
        names = [pod["metadata"]["name"] for pod in self.pods(SYSTEM)]
        read = ("--", "python3", "-c", f"print(open({_TOKEN!r}).read())")
        found = {name: self.cluster.kubectl("exec", name, "-n", SYSTEM, *read).stdout.strip() for name in names}
        if not found or not all(found.values()):
            raise LabError("a token in each pod of the operator", f"pods {names}", f"look where {_TOKEN} is mounted")
        return {f"the token of {name}": token for name, token in found.items()}

    def missing(self, since: float, *, gone: str = "", kubelet: bool = False) -> list[str]:
        """What is not whole again, counted from a time (seconds since the epoch); empty: all is.

        Args:
            since: only what was renewed, scraped or trained after it counts.
            gone: a container that was killed: who still names it has not noticed.
            kubelet: whether the kubelet must have reported since.
        """
        try:
            wrong = self._programs() + self._pods(gone) + self._leases(since, kubelet=kubelet)
        except (LabError, subprocess.TimeoutExpired) as error:
            return [f"the API server does not answer: {str(error)[-200:]}"]
        wrong += [f"{name} is not scraped" for name in self._unscraped(since)]
        return wrong + [f"{name} does not train" for name in self.steps.still_since(since)]

    def _programs(self) -> list[str]:
        return [] if self.cluster.running() else ["a program of the cluster does not run"]

    def _pods(self, gone: str) -> list[str]:
        wrong = []
        wanted = {SYSTEM: _REPLICAS, MONITORING: 1, NAMESPACE: len(TRAINERS)}
        for namespace, count in wanted.items():
            statuses = [s for pod in self.pods(namespace) for s in pod["status"].get("containerStatuses", [])]
            ready = [status for status in statuses if status["ready"] and status.get("containerID") != gone]
            if len(ready) != count or len(statuses) != count:
                wrong.append(f"{len(ready)} of {count} pods are ready in {namespace}")
        return wrong

    def _leases(self, since: float, *, kubelet: bool) -> list[str]:
        wanted = [(RELEASE, SYSTEM), *([(NODE, "kube-node-lease")] if kubelet else [])]
        found = [(name, self.cluster.kubectl.find("lease", name, "-n", namespace) or {}) for name, namespace in wanted]
        return [f"the Lease {name} is not renewed" for name, lease in found if _renewed(lease) <= since]

    def _unscraped(self, since: float) -> list[str]:
        stamps = self.fleet.metrics.by_pod(f'timestamp(genesis_training_step{{namespace="{NAMESPACE}"}})')
        scraped = {workload_of(pod) for pod, stamp in stamps.items() if stamp > since}
        return [trainer.name for trainer in TRAINERS if trainer.name not in scraped]


def _renewed(lease: Json) -> float:
    return parse_time(lease.get("spec", {}).get("renewTime")) or 0.0


def require_no_cluster() -> None:
    """Refuse to soak a cluster that is somebody else's.

    Raises:
        LabError: one runs.
    """
    if Cluster().running():
        raise LabError("no full cluster on this machine: the soak kills parts of its own", "one", "python -m lab down")


@contextmanager
def soaking() -> Iterator[Scene]:
    """A cluster of the soak's own, with a fleet that is promoted to FP16; nothing of it is left afterwards.

    Raises:
        LabError: a cluster runs already: what is killed here must be nobody else's.
    """
    require_no_cluster()
    cluster = Cluster()
    with ExitStack() as stack:
        stack.callback(cluster.down)
        cluster.up()
        kubectl = cluster.kubectl
        address = apply_prometheus(kubectl)
        install_operator(
            kubectl, helm_of(kubectl), Images(OPERATOR.reference, TOOLS.reference, PROMETHEUS.reference, "Never")
        )
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        kubectl.wait_for_namespace(NAMESPACE)
        metrics = Metrics(api_server="", prometheus=address, record=Path(os.devnull))
        fleet = Fleet(kubectl, NAMESPACE, metrics)
        fleet.start(TRAINERS)
        fleet.until_training(len(TRAINERS))
        scene = Scene(cluster, fleet, stack.enter_context(StepWatch()))
        scene.steps.follow({name: pod["status"]["podIP"] for name, pod in fleet.pods().items()})
        yield scene


def follow_policy(scene: Scene) -> None:
    """Make the policy, and wait until the fleet is promoted."""
    scene.fleet.follow(**_POLICY)
    scene.fleet.until_phase("Healthy", seconds=300)
