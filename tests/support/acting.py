"""An actor over an API server in memory, with all that it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lab.model.policies import policy
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.selector import Selector
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.controller.act import Acted, Actor
from precision_operator.controller.echo import Echoes
from precision_operator.controller.enforcement import Enforcement
from precision_operator.controller.expectations import Expectations
from precision_operator.controller.fence import Fence
from precision_operator.controller.halt import Halt
from precision_operator.controller.installed import InstalledPolicies
from precision_operator.core.actions import Action, DeletePod, RequestPod, ResumeJob
from precision_operator.core.model import WorkloadView
from precision_operator.errors import KubeError
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.events import EventRecorder
from precision_operator.kube.port import ASSIGNMENTS, JOBS, PODS, POLICIES
from precision_operator.runtime.ratelimit import RateLimiter
from tests.support.fake_kube import Key
from tests.support.manual_clock import ManualClock, finished, settle
from tests.support.server import SHIPPED, Server, install_all
from tests.support.views import pod, workload

KEY = PolicyKey("ns", "fleet")
SERVER = "https://10.0.0.1:6443"
POLICY = policy()
INCIDENT = Incident(
    id="fleet-1",
    severity=Severity.P0,
    scope=Scope.FLEET,
    reason="NonFinite",
    message="NaN",
    workloads=(),
    detected_at=0.0,
    decided_at=0.0,
    deadline_at=300.0,
)
STATE = State(generation=7, enforce=True, selector=Selector((("fleet", "demo"),)))
EMERGENCY = replace(STATE, phase=Phase.ROLLING_BACK, incident=INCIDENT)
GRADUAL = replace(EMERGENCY, incident=replace(INCIDENT, strategy=Strategy.GRADUAL))
HELD_ALONE = workload("held")
ALONE = replace(STATE, phase=Phase.DEGRADED, incident=INCIDENT, held=(HeldWorkload(HELD_ALONE.key, "NonFinite", 0.0),))
"""That one is rolled back by itself; what :func:`request` and :func:`deletion` are of is not."""


class Rig:
    """An actor over an API server in memory with these pods, and the assignment that was committed."""

    def __init__(self, *pods: str, per_second: float = 1000, at_once: int = 100) -> None:
        self.clock = ManualClock()
        self.kube = Server("10.0.0.1")
        install_all(self.kube)
        for name in ("fleet", "other"):
            self.kube.put(POLICIES, {"metadata": {"namespace": "ns", "name": name}})
            self.kube.put(ASSIGNMENTS, {"metadata": {"namespace": "ns", "name": name}, "generation": 7})
        for name in pods:
            self.kube.put(
                PODS, {"metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}", "annotations": {"a": "b"}}}
            )
        self.limiter = RateLimiter(per_second, at_once, self.clock)
        self.enforcement = Enforcement(
            self.kube,
            echoes=Echoes(self.kube, self.clock),
            installed=InstalledPolicies(self.kube, self.clock, namespace="system", ours=SHIPPED),
            inventory=Inventory(),
            clock=self.clock,
        )
        self.halt = Halt(self.kube, self.clock, namespace="system")
        self.actor = Actor(
            self.kube,
            events=EventRecorder(self.kube, identity="one"),
            limiter=self.limiter,
            expectations=Expectations(self.clock),
            enforcement=self.enforcement,
            fence=Fence(self.kube, self.clock),
            halt=self.halt,
            clock=self.clock,
        )
        self.order: list[str] = []
        """Writes to pods and Jobs, in order."""
        self.refuse: dict[str, KubeError] = {}
        """Name → what a write to it meets."""
        self.kube.before_write = self._before_write

    def _before_write(self, verb: str, key: Key) -> None:
        plural, _, name = key
        if plural in ("pods", "pods/eviction", "jobs"):
            done = {"pods/eviction": "evict", "jobs": "patch job"}.get(plural, verb)
            self.order.append(f"{done} {name}{' after the echo' if self.kube.asked else ''}")
            if name in self.refuse:
                raise self.refuse[name]

    def put_job(self, name: str, *, suspend: bool = False) -> None:
        """A Job that the API server has."""
        self.kube.put(
            JOBS,
            {
                "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}", "generation": 1},
                "spec": {"suspend": suspend},
            },
        )

    def suspended(self, name: str) -> bool:
        """Whether a Job is suspended."""
        body: Any = self.kube.objects["jobs", "ns", name]
        return bool(body["spec"]["suspend"])

    async def act(
        self, *actions: Action, state: State = STATE, emergency: bool = True, policy: Policy = POLICY
    ) -> Acted:
        """One pass' actions, and the Events that are sent beside it."""
        acted = await finished(self.clock, self.actor.act(policy, state, actions, emergency=emergency))
        await settle()
        return acted

    @property
    def events(self) -> list[tuple[str, int]]:
        """(reason, how often) of each."""
        found: Any = [body for (plural, *_), body in self.kube.objects.items() if plural == "events"]
        return [(body["reason"], body["count"]) for body in found]

    @property
    def pods(self) -> list[str]:
        """Names of those that are there."""
        return [name for plural, _, name in sorted(self.kube.objects) if plural == "pods"]

    def reasons(self, acted: Acted) -> list[str]:
        """Of what failed."""
        return [failure.reason for failure in acted.failures]


def request(name: str, **fields: object) -> RequestPod:
    """Ask this pod for FP32."""
    return RequestPod(workload(), pod(name, **fields), Mode.FP32, 7)


def deletion(name: str) -> DeletePod:
    """Take this pod away."""
    return DeletePod(workload(), pod(name), 7)


def job(name: str = "train", *, suspended: bool = False) -> WorkloadView:
    """The Job that :meth:`Rig.put_job` makes."""
    return workload(name, key=f"batch/Job/{name}", uid=f"uid-{name}", object_name=name, suspended=suspended)


def resumption(name: str = "train") -> ResumeJob:
    """End the suspension of this Job."""
    return ResumeJob(job(name, suspended=True), 7, 1)


def held_deletion(name: str) -> DeletePod:
    """The same of the workload that is rolled back by itself in ``ALONE``."""
    return DeletePod(HELD_ALONE, pod(name), 7)
