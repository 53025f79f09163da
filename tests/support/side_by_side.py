"""Several fleets at once, each in a namespace of its own, under one operator and one Prometheus: what they wait for,
they wait for together.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from lab.cluster import ControlPlane
from lab.prometheus import Prometheus
from lab.waiting import wait_for
from precision_operator.contract import REQUEST
from tests.support.cluster_fleet import Json, deployment
from tests.support.cluster_scene import HOT, PATIENCE_SECONDS, Operators, Scene, scraping
from tests.support.shadow_trainers import ShadowTrainers

LITERAL = "literal"


@contextmanager
def side_by_side(
    control_plane: ControlPlane,
    directory: Path,
    names: Iterable[str],
    *,
    operator: Path,
    hot: int = 2,
    enabled: str = "false",
    settings: Json | None = None,
) -> Iterator[dict[str, Scene]]:
    """One scene a name: ``hot`` hot trainers and a literal one, and an operator that serves all of them.

    ``enabled``: what their templates say; "true" starts them in FP16 where admission has nothing to say.
    """
    kubectl = control_plane.kubectl
    with ExitStack() as stack:
        shadows: dict[str, ShadowTrainers] = {}
        for name in names:
            namespace = f"{name}-{uuid.uuid4().hex[:8]}"
            kubectl("create", "namespace", namespace)
            stack.callback(kubectl, "delete", "namespace", namespace, "--wait=false")
            kubectl.wait_for_namespace(namespace)
            shadows[name] = stack.enter_context(ShadowTrainers(kubectl, namespace))
        targets = (shadow.target for shadow in shadows.values())
        prometheus = stack.enter_context(Prometheus(directory / "prometheus", scraping(*targets)))
        system = next(iter(shadows.values())).namespace
        operators = Operators(operator, directory, prometheus.url, system, settings or {})
        stack.callback(operators.stop)
        operators.start("one")
        scenes = {
            name: Scene(kubectl, shadow.namespace, shadow, operators, prometheus) for name, shadow in shadows.items()
        }
        for scene in scenes.values():
            scene.apply(*fleet(hot=hot, enabled=enabled))
        for name, scene in scenes.items():
            complete = partial(_has_pods_of, scene, hot + 1)
            wait_for(complete, what=f"the pods of {name}", seconds=PATIENCE_SECONDS)
        yield scenes


def fleet(*, hot: int, enabled: str = "false") -> list[Json]:
    """The Deployments of a scene."""
    hot_ones = [deployment(workload, enabled=enabled) for workload in HOT[:hot]]
    return [*hot_ones, deployment(LITERAL, hot=False, enabled=enabled)]


def _has_pods_of(scene: Scene, workloads: int) -> bool:
    return len(scene.shadow.modes()) == workloads


def bind(scene: Scene, place: Mapping[str, str], *, label: str) -> list[str]:
    """Put pods on nodes, as a scheduler does: workload → its node, which gets a label. Returns the nodes' names."""
    running = scene.pods()
    names = {node: f"{scene.namespace}-{node}" for node in place.values()}
    for node, name in names.items():
        metadata = {"name": name, "labels": {label: node}}
        scene.kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    for workload, node in place.items():
        pod, target = running[workload]["metadata"]["name"], {"kind": "Node", "name": names[node]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        path = f"/api/v1/namespaces/{scene.namespace}/pods/{pod}/binding"
        scene.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(binding))
    return list(names.values())


def requested(scene: Scene) -> dict[str, Json]:
    """Hot workload → what its running pod was last asked for."""
    found = {name: pod["metadata"].get("annotations", {}) for name, pod in scene.pods().items() if name in HOT}
    return {name: json.loads(annotations[REQUEST]) for name, annotations in found.items() if REQUEST in annotations}


def reported(scene: Scene) -> dict[str, tuple[str, int]]:
    """Pod → (mode, generation) that its process reports, as Prometheus scraped it."""
    series = scene.prometheus.query(f'genesis_precision_info{{namespace="{scene.namespace}"}}')
    return {s["metric"]["pod"]: (s["metric"]["mode"], int(s["metric"]["generation"])) for s in series}
