"""The reader's cluster: a node, Prometheus where kube-prometheus-stack has it, and two trainers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import paths
from lab.cluster import Cluster, Kubectl
from lab.cluster.monitoring import apply_prometheus
from lab.images import TOOLS
from lab.process import run
from lab.progress import step
from lab.setup.kube import kube_binaries
from lab.waiting import wait_for
from precision_operator.api.commands import Prerequisite
from precision_operator.contract import INJECTED

SYSTEM = "precision-system"
TRAINING = "training"
POLICY = "fleet"
FAULT = "demo.precision.genesis.ai/fault"

Json = dict[str, Any]

HURRY: Json = {
    "spec": {
        "evaluation": {"interval": "1s", "window": "15s", "failureLimit": 0, "minSteps": 8},
        "criteria": {"speed": {"enabled": False}},
        "strategy": {"steps": [{"setWeight": 50}, {"setWeight": 100}]},
        "reenable": {"dwell": "0s", "backoff": "0s", "stable": "10s", "speed": 0},
    }
}
"""What the lab changes in the page's policy: times for a demonstration, and no verdict on speed, which a CPU cannot give."""


FLEET: Json = {"app": "vit", "fleet": "vision"}
"""The labels of the fleet of the quick start."""


def trainer(kind: str, *, contract: bool, name: str = "vit", fleet: Json = FLEET) -> Json:
    """A trainer as a team writes it: it reads no annotation, and knows nothing of the operator but, perhaps, one label."""
    labels = {**fleet, "kind": kind.lower()}
    inject = {"precision.genesis.ai/inject": "trainer"} if contract else {}
    container = {
        "name": "trainer",
        "image": TOOLS.reference,
        "imagePullPolicy": "Never",
        "command": [
            *("python3", "-m", "precision_trainer", "train", "transformer", "--batch-size=4"),
            *("--checkpoint-dir=/checkpoints", "--checkpoint-every=40", "--segment-steps=20"),
            *("--metrics-port=9400", "--step-interval-seconds=0.2"),
        ],
        "env": [
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "PRECISION_ALLOW_CPU", "value": "true"},
            {"name": "PRECISION_FAULT_FILE", "value": "/etc/faults/fault"},
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "300Mi"}, "limits": {"cpu": "1"}},
        "volumeMounts": [
            {"name": "checkpoints", "mountPath": "/checkpoints"},
            {"name": "faults", "mountPath": "/etc/faults"},
        ],
    }
    fault = {"path": "fault", "fieldRef": {"fieldPath": f"metadata.annotations['{FAULT}']"}}
    template = {
        "metadata": {
            "labels": {**labels, **inject},
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9400"},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [container],
            "volumes": [
                {"name": "checkpoints", "emptyDir": {}},
                {"name": "faults", "downwardAPI": {"items": [fault]}},
            ],
        },
    }
    spec: Json = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": TRAINING, "labels": labels},
        "spec": spec,
    }


@dataclass(frozen=True)
class Scene:
    """A cluster that a reader could have, and a folder in which they work."""

    kubectl: Kubectl
    prometheus: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Of the reader's shell: their programs, their kubeconfig, which names the namespace of their fleet."""
        programs = [self.folder / "venv" / "bin", kube_binaries(), "/usr/local/bin", "/usr/bin", "/bin"]
        return {
            "PATH": ":".join(map(str, programs)),
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "LANG": "C.UTF-8",
            **{name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))},
        }

    @property
    def trainers_environment(self) -> dict[str, str]:
        """Of a shell on a machine that trains: what `genesis-precision[trainer]` installs is here already, torch too."""
        programs, environment = self.folder / "trainer", self.environment
        programs.mkdir(exist_ok=True)
        script = programs / "precision-trainer"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m precision_trainer "$@"\n')
        script.chmod(0o755)
        environment["PATH"] = f"{programs}:{Path(sys.executable).parent}:{environment['PATH']}"
        environment["PYTHONPATH"] = ":".join(
            str(paths.ROOT / part) for part in ("operator", "trainer_image", "tools", "")
        )
        return environment

    def policy(self, name: str = POLICY) -> Json:
        """A policy as it stands."""
        return self.kubectl.json("get", "precisionpolicy", name, "-n", TRAINING)

    def hurry(self) -> None:
        """Give the page's policy the times of a demonstration."""
        self.kubectl("patch", "precisionpolicy", POLICY, "-n", TRAINING, "--type=merge", "-p", json.dumps(HURRY))

    def wait_for_phase(self, *phases: str) -> None:
        """Wait until the policy is in one of these phases."""

        def phase() -> str:
            return str(self.policy().get("status", {}).get("phase", ""))

        wait_for(lambda: phase() in phases, what=f"phase {' or '.join(phases)}", seconds=300, found=self._conditions)

    def wait_until_switched(self, policy: str, app: str) -> None:
        """Wait until all pods of an app were injected, and one of its workloads acknowledged the policy's mode.

        Besides, new pods get what the policy assigns. That the metrics are read shows in the acknowledgement; all of them
        are there once the workload is as old as the window of the speed.
        """

        def injected() -> list[str]:
            pods = self.kubectl.json("get", "pods", "-n", TRAINING, "-l", f"app={app}")["items"]
            return [pod["metadata"].get("annotations", {}).get(INJECTED, "") for pod in pods]

        def switched() -> bool:
            status = self.policy(policy).get("status", {})
            true = {c["type"] for c in status.get("conditions", []) if c["status"] == "True"}
            rolling_out = status.get("phase") == "Progressing"  # in a rollback, who is back in the fallback counts
            moved = rolling_out and status["moved"] >= 1
            return "AdmissionEnforced" in true and moved and set(injected()) == {"trainer"}

        def found() -> str:
            return f"injected: {injected()}; {self._conditions(policy)}"

        wait_for(switched, what=f"a workload of {policy} to acknowledge its mode", seconds=600, found=found)

    def healthy(self) -> None:
        """Bring the fleet back from whatever a page did to it: acknowledged, tried again, and all of it in the target."""
        if self.policy()["status"].get("phase") not in ("Healthy", "Progressing"):
            plugin = [self.folder / "venv" / "bin" / "kubectl-precision"]
            where = ["-n", TRAINING]
            self.wait_for_phase("Held", "Degraded", "Healthy")
            for words in (["ack", POLICY, *Prerequisite], ["retry", POLICY]):
                run([*plugin, *words, *where, "-m", "the page goes on"], env=self.environment, check=False)
        self.wait_for_phase("Healthy")

    def _conditions(self, name: str = POLICY) -> str:
        status = self.policy(name).get("status", {})
        shown = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])]
        return f"{status.get('phase')} {status.get('progress')}\n" + "\n".join(shown)


def build(cluster: Cluster, folder: Path) -> Scene:
    """Bring up what a reader has before the first page. The installation is theirs to make."""
    kubectl = cluster.kubectl
    cluster.up()
    with step("Prometheus"):
        prometheus = apply_prometheus(kubectl)
        alias = kubectl.json("get", "service", "prometheus", "-n", "monitoring")
        alias["metadata"] = {"name": "prometheus-operated", "namespace": "monitoring"}
        for key in ("clusterIP", "clusterIPs"):
            alias["spec"].pop(key, None)
        kubectl.apply({key: alias[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    scene = Scene(kubectl, prometheus, folder)
    (folder / "kubeconfig").write_bytes(kubectl.kubeconfig.read_bytes())
    kubectl_of_reader: list[str | Path] = [kube_binaries() / "kubectl", "--kubeconfig", folder / "kubeconfig"]
    run([*kubectl_of_reader, "config", "set-context", "--current", f"--namespace={TRAINING}"])
    _checkout(folder)
    run([sys.executable, "-m", "venv", folder / "venv"])
    return scene


def _checkout(folder: Path) -> None:
    """A clone's files: what a page installs with pip must not write into this checkout."""
    listed = run(["git", "-C", paths.ROOT, "ls-files", "-z"]).stdout.split("\0")
    for name in filter(None, listed):
        if (paths.ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(paths.ROOT / name, folder / name)


def processes_cpu(command: list[str], environment: dict[str, str]) -> float:
    """CPU seconds of one run of a program, with its children, in a process that did nothing else."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True); "
        "r = resource.getrusage(resource.RUSAGE_CHILDREN); print(r.ru_utime + r.ru_stime)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout)
