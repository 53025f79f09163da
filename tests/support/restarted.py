"""Workloads of every kind that is restarted, each of one pod that trains in FP16, and what is known of their restarts."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from lab.cluster.audit import Audit
from lab.cluster.kubectl import Json
from lab.cluster.manifests import OPERATOR
from lab.demo.fleet import ACCELERATOR, FAULT, FLEET_LABELS, Trainer, deployment
from lab.images import TOOLS
from lab.restarts import KINDS
from lab.trainers import ENVIRONMENT
from lab.waiting import wait_for
from tests.support.recorded_kinds import RECORDED, recorded
from tests.support.running_fleets import Fleet

GRACE_SECONDS = 600
"""Of pods that do not go by themselves: longer than any test waits."""

CPU = f"{1485 // (7 + len(KINDS))}m"
"""One of each kind and seven more fit the node, and a machine that does much else leaves them so much."""

_UNRESPONSIVE = (
    "import signal, subprocess, sys; signal.signal(15, signal.SIG_IGN); sys.exit(subprocess.call(sys.argv[1:]))"
)
"""A container's first process that takes no SIGTERM, and starts the trainer."""


class Stop(Enum):
    """What a pod does when it is asked to go."""

    AT_ONCE = 1
    """It saves a checkpoint and ends."""
    UNRESPONSIVE = 2
    """Its first process ignores SIGTERM."""
    LINGERS = 3
    """Its preStop hook takes as long as it may."""


@dataclass(frozen=True)
class Workload:
    """One workload of one pod. Its checkpoints outlive the pod."""

    name: str
    kind: str = "Deployment"
    hot: bool = False
    steps: int = 0
    """After which the training is finished; 0: never."""
    stop: Stop = Stop.AT_ONCE
    grace_seconds: int = GRACE_SECONDS
    """What it may take to go, where it does not go at once."""
    accelerator: bool = False
    """It needs one of the node's accelerators, of which there is one for each such pod."""

    def body(self, namespace: str, checkpoints: Path) -> Json:
        """The object, as a person would apply it."""
        made = deployment(Trainer(self.name, hot=self.hot, asks_fp16=True), image=TOOLS.reference, pull_policy="Never")
        template = made["spec"]["template"]
        self._train(template["spec"], checkpoints)
        metadata = {"name": self.name, "namespace": namespace, "labels": made["metadata"]["labels"]}
        example = recorded(RECORDED[self.kind].name)
        replicas = {"replicas": 1} if "replicas" in example["spec"] else {}
        selected = {**replicas, "selector": made["spec"]["selector"], "template": template}
        spec: Json
        match self.kind:
            case "Job":
                template["spec"]["restartPolicy"] = "Never"
                spec = {"backoffLimit": 0, "completions": 1, "template": template}
            case "StatefulSet":
                on_delete = {"updateStrategy": {"type": "OnDelete"}}
                spec = {"serviceName": self.name, **on_delete, **selected}
            case _:
                spec = selected
        return {"apiVersion": example["apiVersion"], "kind": self.kind, "metadata": metadata, "spec": spec}

    def _train(self, pod: Json, checkpoints: Path) -> None:
        (container,) = pod["containers"]
        container["env"] += [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
        container["command"].append(f"--steps={self.steps}")
        container["resources"]["requests"]["cpu"] = CPU
        if self.accelerator:
            container["resources"]["limits"][ACCELERATOR] = "1"
        if self.stop is not Stop.AT_ONCE:
            pod["terminationGracePeriodSeconds"] = self.grace_seconds
        if self.stop is Stop.UNRESPONSIVE:
            container["command"] = ["python3", "-c", _UNRESPONSIVE, *container["command"]]
        if self.stop is Stop.LINGERS:
            sleep = ["python3", "-c", f"import time; time.sleep({GRACE_SECONDS})"]
            container["lifecycle"] = {"preStop": {"exec": {"command": sleep}}}
        folder = checkpoints / self.name
        folder.mkdir()
        folder.chmod(0o777)  # the trainer runs as nobody in particular
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "checkpoints")
        volume.pop("emptyDir")
        volume["hostPath"] = {"path": str(folder), "type": "Directory"}


@dataclass
class Watched:
    """A fleet of such workloads, with the logs of their pods from when they were first followed."""

    fleet: Fleet
    logs: Path
    audit_log: Path
    prometheus_url: str

    def apply(self, workloads: Sequence[Workload], checkpoints: Path) -> None:
        """Make them."""
        self.fleet.kubectl.apply(*(workload.body(self.fleet.namespace, checkpoints) for workload in workloads))

    def pods(self, name: str) -> list[Json]:
        """A workload's pods that are not on their way out."""
        words = ("get", "pods", "-n", self.fleet.namespace, "-l", f"app={name}")
        items = self.fleet.kubectl.json(*words)["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def pod(self, name: str) -> Json:
        """A workload's only such pod."""
        (pod,) = self.pods(name)
        return pod

    def found(self, kind: str, name: str) -> Json:
        """An object of the fleet's namespace."""
        return self.fleet.kubectl.json("get", kind, name, "-n", self.fleet.namespace)

    def mode(self, name: str) -> str:
        """What a workload's running pod reports; empty where it reports nothing."""
        modes = self.fleet.metrics.modes(self.fleet.namespace)
        return next(
            (modes[pod["metadata"]["name"]][0] for pod in self.pods(name) if pod["metadata"]["name"] in modes), ""
        )

    def reported(self, *names: str) -> dict[str, str]:
        """What these workloads report, once all of them do: a rollback does not wait for pods that are slow to start."""

        def modes() -> dict[str, str] | None:
            found = {name: self.mode(name) for name in names}
            return found if all(found.values()) else None

        return wait_for(modes, what=f"{', '.join(names)} to report their modes", seconds=300, every=1.0)

    def fault(self, name: str, value: str) -> None:
        """Throw the drill's switch in a workload's pod."""
        words = ("pod", self.pod(name)["metadata"]["name"], "-n", self.fleet.namespace, f"{FAULT}={value}")
        self.fleet.kubectl("annotate", "--overwrite", *words)

    def condition(self, status: Json, kind: str) -> Json:
        """One of a policy's conditions; empty where there is none."""
        return next((c for c in status.get("conditions", []) if c["type"] == kind), {})

    @contextmanager
    def followed(self, names: Sequence[str]) -> Iterator[dict[str, str]]:
        """Keep what the pods of these workloads log from now on; yields workload → pod."""
        followed = {name: self.pod(name)["metadata"]["name"] for name in names}
        with ExitStack() as stack:
            for pod in followed.values():
                out = stack.enter_context((self.logs / pod).open("wb"))
                command = [*self.fleet.kubectl.command, "logs", "-f", pod, "-n", self.fleet.namespace]
                process = stack.enter_context(subprocess.Popen(command, stdout=out, stderr=sys.stderr.fileno()))
                stack.callback(process.terminate)
            yield followed

    def events(self, pod: str, event: str, *, before: bool = False) -> list[Json]:
        """Lines of that kind of a pod that is there, or that was ``before`` and was followed: its name may be the same."""
        words = ("logs", pod, "-n", self.fleet.namespace)
        text = (self.logs / pod).read_text() if before else self.fleet.kubectl(*words).stdout
        lines = (json.loads(line) for line in text.splitlines(keepends=True) if line[0] == "{" and line[-1] == "\n")
        return [line for line in lines if line["event"] == event]

    def taken_away_at(self, pods: set[str], jobs: set[str]) -> float:
        """When the operator first took one of these pods away, or suspended one of these Jobs, by the audit log."""
        wanted = {("pods", "delete", name) for name in pods} | {("jobs", "patch", name) for name in jobs}
        writes = Audit(self.audit_log).writes([OPERATOR])
        return min(
            write.at
            for write in writes
            if write.namespace == self.fleet.namespace
            and (write.resource, write.verb, write.name) in wanted
            and write.succeeded
        )

    def graces(self) -> dict[str, list[int]]:
        """Pod → the graces in seconds that the operator named as it deleted it, in their order, by the audit log."""
        found: dict[str, list[int]] = {}
        for write in Audit(self.audit_log).writes([OPERATOR]):
            of_a_pod = (write.namespace, write.resource, write.verb) == (self.fleet.namespace, "pods", "delete")
            if of_a_pod and write.succeeded and isinstance(write.body, dict) and "gracePeriodSeconds" in write.body:
                found.setdefault(write.name, []).append(write.body["gracePeriodSeconds"])
        return found

    def asked_to_save_at(self, pod: str) -> float:
        """When the operator first asked this pod for a checkpoint, by the audit log."""
        return min(
            write.at
            for write in Audit(self.audit_log).writes([OPERATOR])
            if (write.namespace, write.resource, write.verb, write.name) == (self.fleet.namespace, "pods", "patch", pod)
            and write.succeeded
            and '\\"checkpoint\\":true' in json.dumps(write.body)
        )

    def reported_at(self, pod: str, mode: str) -> float:
        """When Prometheus first had it from a pod that it trains in this mode."""
        query = f'genesis_precision_info{{namespace="{self.fleet.namespace}",pod="{pod}",mode="{mode}"}}[15m]'
        url = f"{self.prometheus_url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        series = wait_for(lambda: _answer(url), what=f"{pod} in Prometheus, which trains in {mode}", seconds=60)
        return min(float(at) for one in series for at, _ in one["values"])


def _answer(url: str) -> list[Json]:
    """What Prometheus has; nothing while its pod is not ready, as on a busy node."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: list[Json] = json.load(answer)["data"]["result"]
    except urllib.error.URLError:
        return []
    return found


def budget(name: str, namespace: str) -> Json:
    """A PodDisruptionBudget that lets no pod of a workload of one go."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {**FLEET_LABELS, "app": name}}}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}
