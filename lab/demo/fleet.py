"""The six trainers of the demo, of three kinds, and those that come late."""

from dataclasses import dataclass
from typing import Any, Literal

NAMESPACE = "training"
FLEET_LABELS = {"fleet": "demo"}
FAULT = "demo.precision.genesis.ai/fault"
METRICS_PORT = 9400
STEP_SECONDS = 0.25
"""Least time between two steps: seven ranks share two cores with a whole control plane."""
JOB_STEPS = 40_000
"""Steps of a Job's training, nearly three hours at that pace: it outlasts the demo, and it has an end."""

ACCELERATOR = "demo.precision.genesis.ai/accelerator"
"""An extended resource of which the node has exactly one: what holds it must be gone before a replacement starts."""

LITERAL = "trainer-literal"
"""Restart-only, with the default strategy, on a node that has no room for a second pod of it."""
VOLUME_PATH = "checkpoints/trainer-literal"

Json = dict[str, Any]
Kind = Literal["Deployment", "StatefulSet", "Job"]


@dataclass(frozen=True)
class Trainer:
    """One workload of the fleet."""

    name: str
    ranks: int = 1
    hot: bool = True
    asks_fp16: bool = False
    kind: Kind = "Deployment"

    @property
    def key(self) -> str:
        """``StatefulSet/trainer-2``: a name alone tells one workload only among those of its kind."""
        return f"{self.kind}/{self.name}"

    @property
    def command(self) -> list[str]:
        """torchrun for a process group, plain Python else."""
        launcher = ["python3", "-m"]
        if self.ranks > 1:
            launcher += ["precision_trainer.torchrun", "--standalone", f"--nproc-per-node={self.ranks}", "-m"]
        return [
            *launcher,
            "precision_trainer",
            "train",
            "transformer",
            "--batch-size=4",
            "--checkpoint-dir=/checkpoints",
            "--checkpoint-every=40",
            "--segment-steps=20",
            f"--metrics-port={METRICS_PORT}",
            f"--step-interval-seconds={STEP_SECONDS}",
            *([f"--steps={JOB_STEPS}"] if self.kind == "Job" else []),
        ]


FLEET = (
    Trainer("trainer-0"),
    Trainer("trainer-1"),
    Trainer("trainer-2", kind="StatefulSet"),
    Trainer("trainer-3", kind="Job"),
    Trainer("trainer-ddp", ranks=2),
    Trainer(LITERAL, hot=False),
)
FAULTY = ("trainer-1", "trainer-ddp")
LATE = (Trainer("late-hot", asks_fp16=True), Trainer("late-literal", hot=False, asks_fp16=True))
"""New workloads whose templates ask for FP16, made while nobody watches."""


def manifest(trainer: Trainer, *, image: str, pull_policy: str) -> Json:
    """The workload of a trainer, of its kind."""
    made = {"Deployment": deployment, "StatefulSet": statefulset, "Job": job}
    return made[trainer.kind](trainer, image=image, pull_policy=pull_policy)


def deployment(trainer: Trainer, *, image: str, pull_policy: str) -> Json:
    """The Deployment of a trainer, with the contract (docs/contract.md) or with a literal value."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    spec = {
        "replicas": 1,
        "strategy": rolling if trainer.name == LITERAL else {"type": "Recreate"},
        "selector": {"matchLabels": {"app": trainer.name}},
        "template": _template(trainer, image=image, pull_policy=pull_policy),
    }
    return _workload("apps/v1", "Deployment", trainer, spec)


def statefulset(trainer: Trainer, *, image: str, pull_policy: str) -> Json:
    """As :func:`deployment`, a StatefulSet of one pod."""
    spec = {
        "replicas": 1,
        "serviceName": trainer.name,
        "selector": {"matchLabels": {"app": trainer.name}},
        "template": _template(trainer, image=image, pull_policy=pull_policy),
    }
    return _workload("apps/v1", "StatefulSet", trainer, spec)


def job(trainer: Trainer, *, image: str, pull_policy: str) -> Json:
    """As :func:`deployment`, a Job with one completion. It does not state ``suspend``, so the operator may suspend it."""
    template = _template(trainer, image=image, pull_policy=pull_policy)
    template["spec"]["restartPolicy"] = "Never"
    return _workload("batch/v1", "Job", trainer, {"completions": 1, "parallelism": 1, "template": template})


def _workload(api_version: str, kind: Kind, trainer: Trainer, spec: Json) -> Json:
    labels = {**FLEET_LABELS, "app": trainer.name}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": trainer.name, "namespace": NAMESPACE, "labels": labels},
        "spec": spec,
    }


def _template(trainer: Trainer, *, image: str, pull_policy: str) -> Json:
    """The pod template, alike in all kinds."""
    annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(METRICS_PORT)}
    if trainer.hot:
        annotations["precision.genesis.ai/enable-fp16"] = "true" if trainer.asks_fp16 else "false"
        if trainer.asks_fp16:
            annotations["precision.genesis.ai/mode"] = "fp16"
    durable = trainer.name == LITERAL
    container = {
        "name": "trainer",
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": trainer.command,
        "env": _environment(trainer),
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT}],
        "resources": {
            "requests": {"cpu": "50m", "memory": "300Mi"},
            "limits": {"cpu": str(trainer.ranks), **({ACCELERATOR: "1"} if durable else {})},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "checkpoints", "mountPath": "/checkpoints"},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "precision", "mountPath": "/etc/precision", "readOnly": True},
        ],
    }
    checkpoints: Json = {"persistentVolumeClaim": {"claimName": LITERAL}} if durable else {"emptyDir": {}}
    return {
        "metadata": {"labels": {**FLEET_LABELS, "app": trainer.name}, "annotations": annotations},
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 30,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "runAsGroup": 65532,
                "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "checkpoints", **checkpoints},
                {"name": "tmp", "emptyDir": {}},
                {"name": "precision", "downwardAPI": {"items": _files(trainer)}},
            ],
        },
    }


def _environment(trainer: Trainer) -> list[Json]:
    common: list[Json] = [
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "PRECISION_ALLOW_CPU", "value": "true"},
        {"name": "PRECISION_FAULT_FILE", "value": "/etc/precision/fault"},
        {"name": "PRECISION_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]
    if not trainer.hot:
        return [{"name": "ENABLE_FP16_TRAINING", "value": "true" if trainer.asks_fp16 else "false"}, *common]
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['precision.genesis.ai/{key}']"}}}
        for name, key in (("ENABLE_FP16_TRAINING", "enable-fp16"), ("PRECISION_MODE", "mode"))
    ] + common


def _files(trainer: Trainer) -> list[Json]:
    wanted = {"fault": FAULT}
    if trainer.hot:
        wanted["request"] = "precision.genesis.ai/request"
    return [
        {"path": path, "fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}
        for path, annotation in wanted.items()
    ]


def volume(host_path: str | None) -> list[Json]:
    """The literal trainer's volume: a static local one where we know the node, else the cluster's default class."""
    claim: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": LITERAL, "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    if host_path is None:
        return [claim]
    claim["spec"].update({"storageClassName": "", "volumeName": LITERAL})
    local: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": LITERAL},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "hostPath": {"path": host_path, "type": "Directory"},
            "claimRef": {"namespace": NAMESPACE, "name": LITERAL},
        },
    }
    return [local, claim]
