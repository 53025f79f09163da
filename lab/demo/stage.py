"""What the story plays on: a cluster, ours or the user's, with Prometheus, images and somewhere to keep evidence."""

import json
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from lab import paths
from lab.cluster.kubectl import Json, Kubectl
from lab.demo.fleet import NAMESPACE
from lab.errors import LabError
from lab.process import run
from lab.waiting import wait_for

SYSTEM = "precision-system"
RELEASE = "precision-operator"
CHART = paths.ROOT / "helm" / "precision-operator"
OPERATOR_USER = f"system:serviceaccount:{SYSTEM}:{RELEASE}"


Helm = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Images:
    """Image references as the cluster's nodes know them."""

    operator: str
    trainer: str
    prometheus: str
    pull_policy: str


@dataclass(frozen=True)
class Stage:
    """Where the demo runs."""

    kubectl: Kubectl
    helm: Helm
    images: Images
    audit_log: Path | None
    """None where the cluster gives us none."""
    volume_path: Path | None
    """A folder on the node for the literal trainer's checkpoints; None: the cluster's default storage class."""
    evidence: Path
    """Folder for everything that the report is computed from."""

    def pods(self, namespace: str = NAMESPACE) -> list[Json]:
        """All pods of a namespace, as they stand."""
        items: list[Json] = self.kubectl.json("get", "pods", "-n", namespace)["items"]
        return items

    def policy_status(self) -> Json:
        """The policy's status; empty where there is none yet."""
        found = self.kubectl.find("precisionpolicy", "fleet", "-n", NAMESPACE) or {}
        status: Json = found.get("status", {})
        return status


def helm_of(kubectl: Kubectl) -> Helm:
    """Helm as a function, bound to the same cluster."""

    def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        context = ["--kube-context", kubectl.context] if kubectl.context else []
        return run([paths.BIN / "helm", "--kubeconfig", kubectl.kubeconfig, *context, *arguments])

    return helm


def install_operator(kubectl: Kubectl, helm: Helm, images: Images) -> None:
    """``helm install``, 2 replicas, and wait for both to be ready. Prometheus must be there."""
    prometheus = kubectl.json("get", "service", "prometheus", "-n", "monitoring")
    address = prometheus["spec"]["clusterIP"]
    name, _, tag = images.operator.rpartition(":")
    registry, _, repository = name.rpartition("/")
    helm(
        "upgrade",
        "--install", RELEASE, CHART, "--namespace", SYSTEM, "--create-namespace", "--wait",
        "--timeout", "180s",
        "--set", f"image.registry={registry}",
        "--set", f"image.repository={repository}",
        "--set", f"image.tag={tag}",
        "--set", f"image.pullPolicy={images.pull_policy}",
        "--set", f"config.prometheus.default.url=http://{address}:9090",
    )  # fmt: skip


_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"
"""What Kubernetes makes random parts of names of."""
_OWN_PART = re.compile(rf"-(?:{_SAFE}{{6,10}}-{_SAFE}{{5}}|{_SAFE}{{5}}|\d+)$")
"""What a Deployment, a Job and a StatefulSet append to their own name."""


def workload_of(pod: str) -> str:
    """``trainer-0-7d9c…-x2k4p``, ``trainer-0-x2k4p``, ``trainer-0-0`` → ``trainer-0``: metrics have a pod's name only."""
    return _OWN_PART.sub("", pod)


class ApiProxy:
    """``kubectl proxy``: plain HTTP on loopback to the API server, and through it to Prometheus."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._process = subprocess.Popen(
            [*kubectl.command, "proxy", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "Starting to serve on" not in line:
            raise LabError("kubectl proxy serving on a free port", line.strip() or "nothing", "look at the kubeconfig")
        self.url = f"http://{line.rsplit(' ', 1)[1].strip()}"

    def __enter__(self) -> "ApiProxy":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)
        if self._process.stdout is not None:
            self._process.stdout.close()


class Reapplier:
    """What GitOps does: applies the original manifests by server-side apply, with force, once a second."""

    MANAGER = "gitops"

    def __init__(self, api_server: str, manifests: Sequence[Json]) -> None:
        """``api_server``: a plain HTTP address of it. ``manifests``: workloads of any kind."""
        self._urls = [f"{api_server}{path_of(m)}?fieldManager={self.MANAGER}&force=true" for m in manifests]
        self._bodies = [json.dumps(m).encode() for m in manifests]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="re-applier", daemon=True)
        self.errors: list[str] = []
        """Of each application that failed."""

    def __enter__(self) -> "Reapplier":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            for url, body in zip(self._urls, self._bodies, strict=True):
                headers = {"Content-Type": "application/apply-patch+yaml"}
                request = urllib.request.Request(url, data=body, method="PATCH", headers=headers)
                try:
                    urllib.request.urlopen(request, timeout=10).close()
                except OSError as error:
                    self.errors.append(str(error))


class LogFollower:
    """Follows the logs of every pod of the fleet from its first line, into files, so that nothing goes with a pod."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._folder = stage.evidence / "logs"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log follower", daemon=True)
        self._followed: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def folder(self) -> Path:
        """One file a pod: ``<workload>@<pod>.log``."""
        return self._folder

    def __enter__(self) -> "LogFollower":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        for process in self._followed.values():
            process.terminate()
            process.wait(timeout=10)

    def _run(self) -> None:
        with ExitStack() as files:
            while not self._stop.is_set():
                for pod in self._stage.pods():
                    self._follow(pod, files)
                self._stop.wait(1.0)

    def _follow(self, pod: Json, files: ExitStack) -> None:
        name = pod["metadata"]["name"]
        state = [s.get("state", {}) for s in pod.get("status", {}).get("containerStatuses", [])]
        if name in self._followed or not any("running" in s or "terminated" in s for s in state):
            return
        out = files.enter_context((self._folder / f"{workload_of(name)}@{name}.log").open("wb"))
        command = [*self._stage.kubectl.command, "logs", "-f", name, "-n", NAMESPACE]
        self._followed[name] = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)


def advertise(kubectl: Kubectl, resource: str, count: int | None) -> None:
    """Give one node an extended resource, an untainted one if there is any; None takes it away from all."""
    nodes = kubectl.json("get", "nodes")["items"]
    path = f"/status/capacity/{resource.replace('/', '~1')}"
    if count is None:
        chosen = [node for node in nodes if resource in node["status"]["capacity"]]
        operation: Json = {"op": "remove", "path": path}
    else:
        chosen = [min(nodes, key=_tainted)]
        operation = {"op": "add", "path": path, "value": str(count)}
    for node in chosen:
        name = node["metadata"]["name"]
        kubectl("patch", "node", name, "--subresource=status", "--type=json", "-p", json.dumps([operation]))


def _tainted(node: Json) -> bool:
    return any(taint["effect"] != "PreferNoSchedule" for taint in node["spec"].get("taints", []))


def path_of(manifest: Json) -> str:
    """Where the API server keeps the object of a manifest."""
    metadata = manifest["metadata"]
    plural = f"{manifest['kind'].lower()}s"
    return f"/apis/{manifest['apiVersion']}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"


def workloads(stage: Stage) -> dict[str, Json]:
    """``Kind/name`` → each workload of the namespace, as it stands."""
    items = stage.kubectl.json("get", "deployments,statefulsets,jobs", "-n", NAMESPACE)["items"]
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in items}


def templates(stage: Stage) -> dict[str, str]:
    """``Kind/name`` → its pod template, as it stands."""
    return {key: json.dumps(item["spec"]["template"], sort_keys=True) for key, item in workloads(stage).items()}


def rollout_state(stage: Stage) -> dict[str, tuple[str, str, str]]:
    """``Kind/name`` → (revision, ReplicaSets, pods): equal before and after means that nothing was rolled out."""
    sets = stage.kubectl.json("get", "replicasets", "-n", NAMESPACE)["items"]
    pods = stage.pods()
    state = {}
    for key, item in workloads(stage).items():
        name, uid = item["metadata"]["name"], item["metadata"]["uid"]
        owned = sorted(s["metadata"]["uid"] for s in sets if s["metadata"]["ownerReferences"][0]["uid"] == uid)
        running = sorted(
            p["metadata"]["uid"] + str([c["restartCount"] for c in p["status"].get("containerStatuses", [])])
            for p in pods
            if workload_of(p["metadata"]["name"]) == name and "deletionTimestamp" not in p["metadata"]
        )
        state[key] = (revision_of(item), " ".join(owned), " ".join(running))
    return state


def revision_of(workload: Json) -> str:
    """What changes with each rollout; of a Job, which has none, with each change of its spec, a suspension among them."""
    metadata = workload["metadata"]
    if workload["kind"] == "Deployment":
        return str(metadata.get("annotations", {}).get("deployment.kubernetes.io/revision", ""))
    if workload["kind"] == "StatefulSet":
        return f"{metadata['generation']} {workload['status'].get('updateRevision', '')}"
    return str(metadata["generation"])


def settle_metrics(probe: Callable[[], bool], *, what: str, seconds: float) -> float:
    """Wait for a condition of the fleet; returns how long it took."""
    begun = time.monotonic()
    wait_for(probe, what=what, seconds=seconds, every=0.5)
    return time.monotonic() - begun
