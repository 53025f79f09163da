"""A Deployment of several pods that train alone, moved pod by pod (``unit: Pod``)."""

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.core.model import PodView

STEPS: dict[str, object] = {
    "steps": [{"setWeight": 20}, {"pause": {}}, {"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]
}


def replicas(count: int = 10, *, world_size: int = 1, **spec: object) -> World:
    """One Deployment of several pods, each a process group of this size; every step waits for a person."""
    world = World(policy(**{**FAST, "strategy": STEPS, "unit": "Pod", **spec}))
    world.add("a", pods=count)
    world.world_sizes["a"] = world_size
    return world


def asked(world: World, name: str = "a") -> set[str]:
    """Uids of the pods that were asked for FP16."""
    return {pod.uid for pod in world.workloads[name].pods if pod.effective_mode is Mode.FP16}


def pods(world: World, name: str = "a") -> tuple[PodView, ...]:
    """Of one workload, as they are observed."""
    return world.workloads[name].pods
