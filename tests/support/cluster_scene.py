"""A fleet of shadow trainers with their metrics in a real Prometheus, and operators as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import urllib3
import yaml
from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from lab.cluster import Kubectl
from lab.cluster.manifests import OPERATOR
from lab.process import dies_with_us
from lab.prometheus import Prometheus
from lab.waiting import wait_for
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.state import State
from precision_operator.api.workload import name_of
from precision_operator.kube.port import ASSIGNMENTS, POLICIES
from tests.support.cluster_fleet import Json, policy
from tests.support.shadow_trainers import ShadowTrainers

ROOT = Path(__file__).parents[2]
HOT = [f"hot-{i}" for i in range(4)]
PATIENCE_SECONDS = 150.0
"""A condition that comes, comes in seconds; how long a machine that does much else is waited for."""


@dataclass
class Operators:
    """Operator processes that end with the test."""

    kubeconfig: Path
    directory: Path
    prometheus_url: str
    system: str
    settings: Json = field(default_factory=dict)
    source: Path = ROOT / "operator"
    """Where the package is: of another version, in some tests."""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """One more process."""
        config = self.directory / f"{name}.yaml"
        endpoints = {"default": {"url": self.prometheus_url, "timeoutSeconds": 2}}
        lease = {"durationSeconds": 3, "renewSeconds": 2, "retrySeconds": 0.5}
        config.write_text(yaml.safe_dump({"httpPort": 0, "prometheus": endpoints, "lease": lease, **self.settings}))
        log = (self.directory / f"{name}.log").open("ab")
        operator = [sys.executable, "-m", "precision_operator"]
        process = subprocess.Popen(
            [*dies_with_us(), *operator, "--config", str(config), "--kubeconfig", str(self.kubeconfig)],
            env={**os.environ, "PYTHONPATH": str(self.source), "POD_NAME": name, "POD_NAMESPACE": self.system},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        self.running[name] = process
        return process

    def logs(self) -> str:
        """The end of every log, for a failure's message."""
        return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.directory.glob("*.log")))

    def stop(self) -> None:
        """End all of them."""
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(timeout=10)


@dataclass
class Scene:
    """A fleet with its metrics and an operator."""

    kubectl: Kubectl
    namespace: str
    shadow: ShadowTrainers
    operators: Operators
    prometheus: Prometheus

    def status(self, name: str = "fleet") -> Json:
        """The policy's status."""
        try:
            found = self.shadow.get(POLICIES, name)
        except (client.ApiException, urllib3.exceptions.HTTPError):
            return {}  # some tests take the API server away
        status: Json = (found or {}).get("status", {})
        return status

    def wait_phase(self, phase: str, *, seconds: float = PATIENCE_SECONDS) -> Json:
        """Wait for the policy's phase."""
        wait_for(
            lambda: self.status().get("phase") == phase,
            what=f"phase {phase}",
            seconds=seconds,
            found=lambda: f"{self.status()}\n{self.operators.logs()}",
        )
        return self.status()

    def wait_phase_through_a_restart(self, phase: str) -> None:
        """As the kubelet would, start the operator again: a watch that cannot go on ends it, at once or a while later."""
        restarts = 0

        def reached() -> bool:
            nonlocal restarts
            if self.operators.running["one"].poll() is not None:
                restarts += 1
                self.operators.start("one")
            return bool(self.status().get("phase") == phase)

        wait_for(
            reached,
            what=f"phase {phase}",
            seconds=PATIENCE_SECONDS,
            found=lambda: f"{self.status()}\n{self.operators.logs()}",
        )
        assert restarts <= 1, self.operators.logs()

    def port(self, field: str = "port") -> int:
        """Where the operator says that it serves; ``receiverPort``: alerts."""

        def serving() -> int | None:
            lines = (self.operators.directory / "one.log").read_text().splitlines(keepends=True)
            said = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
            return next((int(line[field]) for line in said if field in line), None)

        return wait_for(serving, what="the operator to serve", seconds=PATIENCE_SECONDS)

    def samples(self) -> list[Sample]:
        """The operator's own metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port()}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return [sample for family in families for sample in family.samples]

    def apply(self, *objects: Json) -> None:
        """Into the test's namespace."""
        items = [{**o, "metadata": {**o["metadata"], "namespace": self.namespace}} for o in objects]
        self.kubectl.apply({"apiVersion": "v1", "kind": "List", "items": items})

    def condition(self, kind: str, reason: str, *, seconds: float = PATIENCE_SECONDS) -> Json:
        """Wait until a condition has a reason."""

        def probe() -> Json | None:
            found = {c["type"]: c for c in self.status().get("conditions", [])}
            return found[kind] if found.get(kind, {}).get("reason") == reason else None

        return wait_for(
            probe, what=f"{kind} {reason}", seconds=seconds, found=lambda: f"{self.status()}\n{self.operators.logs()}"
        )

    def state(self, name: str = "fleet") -> State:
        """The operator's own record, in the policy's assignment."""
        return parse_assignment(self.assignment(name))

    def members(self) -> list[str]:
        """Names of the workloads that were moved."""
        return sorted(name_of(key) for key in self.state().members)

    def templates(self) -> dict[str, Json]:
        """Deployment → its pod template."""
        items = self.kubectl.json("get", "deployments", "-n", self.namespace)["items"]
        return {item["metadata"]["name"]: item["spec"]["template"] for item in items}

    def pods(self) -> dict[str, Json]:
        """Workload → its newest pod that is not on its way out."""
        items = [item for item in self.shadow.pods() if "deletionTimestamp" not in item["metadata"]]
        items.sort(key=lambda item: item["metadata"]["creationTimestamp"])
        return {item["metadata"]["labels"]["app"]: item for item in items}

    def in_mode(self, mode: str) -> set[str]:
        """Workloads all of whose running pods train in this mode."""
        return {name for name, modes in self.shadow.modes().items() if modes == {mode}}

    def revisions(self) -> dict[str, str]:
        """Deployment → its ReplicaSets: grows with every rollout."""
        sets = self.kubectl.json("get", "rs", "-n", self.namespace)["items"]
        found: dict[str, list[str]] = {}
        for item in sets:
            found.setdefault(item["metadata"]["ownerReferences"][0]["name"], []).append(item["metadata"]["name"])
        return {name: " ".join(sorted(names)) for name, names in found.items()}

    def assignment(self, name: str = "fleet") -> Json:
        """The policy's assignment; empty where there is none."""
        return self.shadow.get(ASSIGNMENTS, name) or {}


@contextmanager
def staged(
    kubectl: Kubectl, shadow: ShadowTrainers, directory: Path, *, operator: Path, settings: Json | None = None
) -> Iterator[Scene]:
    """The shadow's namespace with its metrics in a Prometheus: no workload and no operator yet."""
    with shadow, Prometheus(directory / "prometheus", scraping(shadow.target)) as prometheus:
        operators = Operators(operator, directory, prometheus.url, shadow.namespace, settings=settings or {})
        try:
            yield Scene(kubectl, shadow.namespace, shadow, operators, prometheus)
        finally:
            operators.stop()


def scraping(*targets: str) -> Json:
    """Prometheus' configuration: the exporters name the pods themselves."""
    job = {"job_name": "shadow", "honor_labels": True, "static_configs": [{"targets": list(targets)}]}
    return {"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}


NO_SPEED: Json = {"speed": {"enabled": False}}
"""A window of seconds holds too few scrapes to tell a speed on a busy machine: only what is about speed judges it."""


def promoted(scene: Scene, **spec: object) -> None:
    """A fleet in FP16."""
    scene.operators.start("one")
    scene.apply(policy(**{"criteria": NO_SPEED, **spec}))
    scene.wait_phase("Healthy")


def break_two(scene: Scene) -> None:
    """A breach in half of the hot ones."""
    scene.shadow.overflow = {HOT[0]: 0.8, HOT[1]: 0.8}


def mode_of_a_new_pod(scene: Scene, workload: str) -> str:
    """Take the pod of a workload away, and tell in which mode the next one starts."""
    old = scene.pods()[workload]["metadata"]["name"]
    scene.kubectl("delete", "pod", old, "-n", scene.namespace)

    def started() -> str | None:
        new = scene.pods().get(workload, {"metadata": {"name": old}})["metadata"]["name"]
        return scene.shadow.mode(new) if new != old else None

    return wait_for(started, what=f"a new pod of {workload}", seconds=PATIENCE_SECONDS)


def assert_all_in_fallback(scene: Scene) -> None:
    """Everything trains in FP32, and new pods will."""
    wait_for(
        lambda: all(modes == {"fp32"} for modes in scene.shadow.modes().values()),
        what="all in FP32",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{scene.shadow.modes()}\n{scene.operators.logs()}",
    )
    assignment = scene.assignment()
    assert (assignment["default"], assignment["modes"], assignment["enforce"]) == ("fp32", {}, True)


@contextmanager
def reading_nodes(kubectl: Kubectl) -> Iterator[None]:
    """The operator may read nodes, as the chart allows it where it is asked to."""
    *_, namespace, name = OPERATOR.split(":")
    kubectl("create", "clusterrole", "test-nodes", "--verb=get,list", "--resource=nodes")
    account = f"--serviceaccount={namespace}:{name}"
    kubectl("create", "clusterrolebinding", "test-nodes", "--clusterrole=test-nodes", account)
    try:
        yield
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", "test-nodes")
