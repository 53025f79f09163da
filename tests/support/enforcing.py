"""One policy with its assignment, one API server, and what is known of admission there."""

from __future__ import annotations

from dataclasses import replace

from precision_operator.api.policy import PolicyKey
from precision_operator.api.selector import Selector
from precision_operator.api.state import State
from precision_operator.controller.echo import Echoes
from precision_operator.controller.enforcement import (
    Enforcement,
)
from precision_operator.controller.installed import InstalledPolicies
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.port import ASSIGNMENTS, DEPLOYMENTS, PODS, POLICIES, REPLICASETS
from tests.support import objects as b
from tests.support.manual_clock import ManualClock, finished
from tests.support.server import SHIPPED, Server, install_all

KEY = PolicyKey("default", "p")
SERVER = "https://10.0.0.1:6443"
STATE = State(generation=7, enforce=True, selector=Selector((("app", "train"),)))


class Rig:
    """One policy with its assignment of generation 7, one API server, and a workload with one pod."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.kube = Server("10.0.0.1")
        install_all(self.kube)
        self.kube.put(POLICIES, b.policy())
        self.commit(7)
        self.inventory = Inventory()
        for kind, body in ((POLICIES, b.policy()), (DEPLOYMENTS, b.deployment(b.hot_spec()))):
            self.inventory.observe(kind, body, deleted=False)
        self.inventory.observe(REPLICASETS, b.replicaset(), deleted=False)
        self.pod(1)
        self.changed: list[PolicyKey] = []
        self.echoes = Echoes(self.kube, self.clock)
        self.installed = InstalledPolicies(self.kube, self.clock, namespace="system", ours=SHIPPED)
        self.enforcement = Enforcement(
            self.kube,
            echoes=self.echoes,
            installed=self.installed,
            inventory=self.inventory,
            clock=self.clock,
            changed=self.changed.append,
        )

    def commit(self, generation: int, name: str = "p") -> None:
        self.kube.put(ASSIGNMENTS, {"metadata": {"name": name}, "generation": generation})

    async def ask_about(self, *names: str) -> None:
        """There are these policies too."""
        for name in names:
            self.kube.put(POLICIES, b.policy(name=name))
            self.commit(7, name)
            assert await self.current(name=name) is True

    def pod(self, number: int, *, seen: bool = True) -> None:
        body = b.pod(uid=f"p-{number}", name=f"train-abc-{number}")
        self.kube.put(PODS, body)
        if seen:
            self.inventory.observe(PODS, body, deleted=False)

    async def confirm(self, generation: int = 7, *, deleted: bool = False) -> bool:
        state = replace(STATE, generation=generation)
        return await finished(self.clock, self.enforcement.confirm(KEY, state, deleted=deleted))

    async def current(
        self, generation: int = 7, *, name: str = KEY.name, patient: bool = False, resting: bool = False
    ) -> bool | None:
        key = PolicyKey(KEY.namespace, name)
        answer = self.enforcement.current(key, generation=generation, patient=patient, resting=resting)
        return (await finished(self.clock, answer)).enforced

    @property
    def lists(self) -> int:
        return self.kube.reads.count(("list", "pods", "app=train"))
