"""A namespace as the caches hold it, filled by events."""

from __future__ import annotations

from typing import Any

from precision_operator.api.policy import PolicyKey
from precision_operator.inventory.caches import Inventory, Keys
from precision_operator.kube.port import DEPLOYMENTS, PODS, POLICIES, REPLICASETS, Resource
from tests.support import objects as b

KEY = PolicyKey("default", "p")


OTHER = PolicyKey("default", "q")


TRAIN = {"matchLabels": {"app": "train"}}


NOBODY: Keys = frozenset()


Event = tuple[Resource, dict[str, Any]]


POLICY: Event = (POLICIES, b.policy())


DEPLOYMENT: Event = (DEPLOYMENTS, b.deployment(b.hot_spec()))


REPLICASET: Event = (REPLICASETS, b.replicaset())


POD: Event = (PODS, b.pod())


def filled(*events: Event) -> Inventory:
    inventory = Inventory()
    for kind, body in events or (POLICY, DEPLOYMENT, REPLICASET, POD):
        inventory.observe(kind, body, deleted=False)
    return inventory


def assignment(name: str = "p", *, uid: str = "a-1", **fields: object) -> dict[str, Any]:
    metadata = {"namespace": "default", "name": name, "uid": uid}
    return {"metadata": metadata, "selector": TRAIN, "default": "fp32", **fields}
