"""Fleets of real trainers in namespaces of their own, and an operator beside the cluster that serves them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.cluster import ControlPlane
from lab.cluster.kubectl import Json
from lab.cluster.manifests import apply_product, operator_access
from lab.demo.fleet import Trainer
from lab.demo.metrics import Metrics
from lab.trainers import PREFIX
from lab.trainers import Fleet as Trainers
from tests.support.cluster_scene import Operators


@dataclass(frozen=True)
class Labelled(Trainer):
    """One whose template has nothing of the contract but the label that asks for it."""


def _bare(made: Json) -> Json:
    """The Deployment without the contract, and with the label."""
    template = made["spec"]["template"]
    spec, (container,) = template["spec"], template["spec"]["containers"]
    contract = {"ENABLE_FP16_TRAINING", "PRECISION_MODE", "PRECISION_POD_UID", "PRECISION_FAULT_FILE"}
    container["env"] = [entry for entry in container["env"] if entry["name"] not in contract]
    container["volumeMounts"] = [mount for mount in container["volumeMounts"] if mount["name"] != "precision"]
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "precision"]
    del container["ports"], template["metadata"]["annotations"]
    template["metadata"]["labels"][f"{PREFIX}/inject"] = container["name"]
    return made


@dataclass
class Fleet(Trainers):
    """Trainers in a namespace of their own, their policy, and the operators beside the cluster."""

    operators: Operators

    def body(self, trainer: Trainer) -> Json:
        """A trainer's Deployment; with the label alone where that is asked for."""
        made = super().body(trainer)
        return _bare(made) if isinstance(trainer, Labelled) else made

    def logs(self) -> str:
        """The operators' last lines."""
        return self.operators.logs()


@contextmanager
def side_by_side(
    plane: ControlPlane, prometheus_url: str, directory: Path, fleets: Sequence[tuple[str, Sequence[Trainer]]]
) -> Iterator[list[Fleet]]:
    """Fleets by name, each trainer past its 20th step in FP32, and an operator with the installed operator's rights."""
    kubectl = plane.kubectl
    apply_product(kubectl)  # the demo takes them away with it
    metrics = Metrics(api_server="", prometheus=prometheus_url, record=directory / "prometheus.jsonl")
    namespaces = [f"{name}-{uuid.uuid4().hex[:8]}" for name, _ in fleets]
    for namespace in namespaces:
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        kubectl.wait_for_namespace(namespace)
    operators = Operators(operator_access(plane), directory, prometheus_url, namespaces[0])
    made = [Fleet(kubectl, namespace, metrics, operators) for namespace in namespaces]
    try:
        for fleet, (_, trainers) in zip(made, fleets, strict=True):
            fleet.start(trainers)
        operators.start("one")
        for fleet, (_, trainers) in zip(made, fleets, strict=True):
            fleet.until_training(len(trainers))
        yield made
    finally:
        operators.stop()
        kubectl("delete", "namespace", *namespaces, "--wait=false", check=False)
