"""The controller over an API server in memory, with trainers that acknowledge at once. A test lets time pass."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from precision_operator.admission.pod import admit
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.messages import Notified
from precision_operator.api.modes import Mode
from precision_operator.api.policy import PolicyKey, deleted_policy, parse_policy
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.state import State
from precision_operator.api.summary import Summary, parse_summary
from precision_operator.controller.act import Actor
from precision_operator.controller.echo import Echoes
from precision_operator.controller.enforcement import Enforcement
from precision_operator.controller.expectations import Expectations
from precision_operator.controller.fence import Fence
from precision_operator.controller.gather import Gatherer
from precision_operator.controller.halt import Halt
from precision_operator.controller.installed import InstalledPolicies
from precision_operator.controller.nodes import Nodes
from precision_operator.controller.preflight import WayBack
from precision_operator.controller.promotions import Promotions
from precision_operator.controller.reconcile import Pass, Reconciler
from precision_operator.controller.restarts import Restarts
from precision_operator.core.model import PodView
from precision_operator.inventory.caches import WATCHED, Inventory
from precision_operator.kube.events import EventRecorder
from precision_operator.kube.port import ASSIGNMENTS, DEPLOYMENTS, PODS, POLICIES, REPLICASETS
from precision_operator.observability.metrics import Metrics
from precision_operator.runtime.clock import Clock
from precision_operator.runtime.lease import LeaseElector
from precision_operator.runtime.ratelimit import RateLimiter
from precision_operator.settings import LeaseSettings, Settings
from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.port import Sample
from precision_operator.signals.queries import BUILT_IN, CHECKPOINT, FP32_MEMORY
from precision_operator.signals.service import EvaluationService
from precision_operator.workloads.reading import read_pod
from tests.support import objects as b
from tests.support.manual_clock import settle
from tests.support.samples import sample
from tests.support.server import SHIPPED, Server, install_all

KEY = PolicyKey("default", "fleet")
FLEET = {"matchLabels": {"fleet": "demo"}}
FINE = {"steps": 100.0, **{signal.value: record.good for signal, record in SIGNALS.items()}}
_WHICH = {template.split("$namespace")[0]: name for name, template in BUILT_IN.items() if name in {*FINE, "ack"}}
_BESIDES = {BUILT_IN[name].split("$namespace")[0]: name for name in (CHECKPOINT, FP32_MEMORY)}


class Trainers:
    """A Prometheus of trainers that do as they are asked at once."""

    def __init__(self, kube: Server, clock: Clock) -> None:
        self._kube = kube
        self._clock = clock
        self.bad: dict[str, dict[str, float]] = {}
        """Pod → signal → what it measures instead of something good."""
        self.silent: set[str] = set()
        """Pods whose acknowledgement is not scraped."""
        self.say_nothing_more = False
        """What they do not report is asked in vain; else that is an error, which no fleet rests with."""
        self.asked: list[float] = []
        """When acknowledgements were asked for, by the monotonic clock."""
        self.besides = Counter[str]()
        """How often each query was asked that is not always asked. They report nothing of it."""

    async def vector(self, query: str) -> Sequence[Sample]:
        """See the port."""
        besides = next((name for start, name in _BESIDES.items() if query.startswith(start)), None)
        if besides is not None:
            self.besides[besides] += 1
            return []
        which = next((name for start, name in _WHICH.items() if query.startswith(start)), "")
        if not which and self.say_nothing_more:
            return []
        if not which:
            raise LookupError(query)
        if which == "ack":
            self.asked.append(self._clock.monotonic())
            return [self._acknowledgement(pod) for pod in self._pods() if pod.name not in self.silent]
        return [sample(pod.name, self.bad.get(pod.name, {}).get(which, FINE[which])) for pod in self._pods()]

    def _pods(self) -> list[PodView]:
        return [read_pod(body).view for (plural, *_), body in sorted(self._kube.objects.items()) if plural == "pods"]

    def _acknowledgement(self, pod: PodView) -> Sample:
        mode = pod.effective_mode or Mode.FP32
        return sample(pod.name, -1.0, mode=mode.value, generation=str(pod.generation))


class Controller:
    """One leader's controller, and the fleet that it works on. ``over``: another leader's, whose API server it shares."""

    def __init__(self, clock: Clock, *, over: Controller | None = None, identity: str = "one") -> None:
        self.clock = clock
        self.kube: Server = over.kube if over is not None else Server("10.0.0.1")
        self.trainers: Trainers = over.trainers if over is not None else Trainers(self.kube, clock)
        if over is None:
            install_all(self.kube)
        self.inventory = Inventory(clock=clock.monotonic)
        self.metrics = Metrics()
        self.restarts = Restarts(clock, known=self.inventory.policy_keys)
        self.promotions = Promotions(clock, known=self.inventory.policy_keys)
        self.halt = Halt(self.kube, clock, namespace="system")
        self.enforcement = Enforcement(
            self.kube,
            echoes=Echoes(self.kube, clock),
            installed=InstalledPolicies(self.kube, clock, namespace="system", ours=SHIPPED),
            inventory=self.inventory,
            clock=clock,
        )
        self.actor = Actor(
            self.kube,
            events=EventRecorder(self.kube, identity=identity),
            limiter=RateLimiter(1000, 100, clock),
            expectations=Expectations(clock),
            enforcement=self.enforcement,
            fence=Fence(self.kube, clock),
            halt=self.halt,
            clock=clock,
        )
        evaluator = Evaluator({"default": self.trainers}, {}, clock)
        began = clock.monotonic()
        self.evaluations: EvaluationService[PolicyKey] = EvaluationService(
            evaluator, clock, finished=lambda key, urgent: None, phase=lambda plan: began
        )
        self.gatherer = Gatherer(
            self.kube,
            inventory=self.inventory,
            nodes=Nodes(self.kube, clock),
            halt=self.halt,
            way_back=WayBack(self.kube, clock),
            evaluator=evaluator,
            evaluations=self.evaluations,
            elector=LeaseElector(self.kube, LeaseSettings(), "system", identity, clock),
            actor=self.actor,
            enforcement=self.enforcement,
            restarts=self.restarts,
            promotions=self.promotions,
            settings=Settings(),
            clock=clock,
        )
        self.reconciler = Reconciler(
            self.kube,
            gatherer=self.gatherer,
            actor=self.actor,
            enforcement=self.enforcement,
            restarts=self.restarts,
            promotions=self.promotions,
            halt=self.halt,
            metrics=self.metrics,
            clock=clock,
            leads=lambda epoch: self.leads(),
            notified=lambda key: self.notified,
        )
        self.notified: tuple[Notified, ...] = ()
        """Messages that were sent, and that the state does not know of."""
        self.leads: Callable[[], bool] = lambda: True
        """Whether the Lease is held; asked before each write."""

    def fleet(self, *names: str, hot: bool = True, **spec: object) -> None:
        """A policy over these workloads, each with one pod."""
        policy = b.policy(FLEET, name="fleet")
        policy["spec"].update(spec)
        self.kube.put(POLICIES, policy)
        for name in names:
            self.workload(name, hot=hot)

    def workload(self, name: str, *, hot: bool = True) -> None:
        """A Deployment with one pod."""
        body = b.deployment(_spec(hot), name=name, uid=f"d-{name}", labels={"fleet": "demo"})
        body["metadata"]["labels"]["fleet"] = "demo"
        self.kube.put(DEPLOYMENTS, body)
        self.kube.put(REPLICASETS, b.replicaset(name=f"{name}-abc", uid=f"r-{name}", owner=f"d-{name}"))
        self.replace(name, hot=hot)

    def replace(self, name: str, *, hot: bool = True, number: int = 1, created: str = "2026-11-22T10:00:00Z") -> None:
        """A pod as its ReplicaSet makes it and admission gives it its mode."""
        body = b.pod(_spec(hot), name=f"{name}-abc-{number}", uid=f"p-{name}-{number}", owner=f"r-{name}", app=name)
        body["metadata"]["labels"]["fleet"] = "demo"
        body["metadata"]["creationTimestamp"] = created
        assignments = [body for (plural, *_), body in self.kube.objects.items() if plural == ASSIGNMENTS.plural]
        admitted: Any = admit(body, assignments) if self.kube.installed else body
        self.kube.put(PODS, copy.deepcopy(admitted))

    def watch(self) -> None:
        """The watches have caught up."""
        for resource in WATCHED:
            bodies = [body for (plural, *_), body in sorted(self.kube.objects.items()) if plural == resource.plural]
            for body in bodies:
                self.inventory.observe(resource, body, deleted=False)
            uids = [str(metadata["uid"]) for body in bodies if isinstance(metadata := body["metadata"], dict)]
            self.inventory.relisted(resource, None, uids)

    async def turn(self) -> Pass | None:
        """One pass, with caches that have caught up and, where it is due, an answer of Prometheus."""
        self.watch()
        bodies = self.kube.objects
        body, record = (bodies.get((f"precision{kind}", "default", "fleet")) for kind in ("policies", "assignments"))
        if body is not None or record is not None:
            state = parse_assignment(record) if record is not None else State()
            policy = parse_policy(body) if body is not None else deleted_policy("default", "fleet", state)
            self.gatherer.awaits(KEY, policy, state)
            await settle()
        return await self.reconciler.reconcile(KEY)

    @property
    def policy(self) -> dict[str, Any]:
        """The policy's body as it is stored: a test changes it in place."""
        body: Any = self.kube.objects["precisionpolicies", "default", "fleet"]
        return body  # type: ignore[no-any-return]

    @property
    def assigned(self) -> bool:
        """There is an assignment."""
        return ("precisionassignments", "default", "fleet") in self.kube.objects

    @property
    def state(self) -> State:
        """What the assignment holds."""
        return parse_assignment(self.kube.objects["precisionassignments", "default", "fleet"])

    @property
    def summary(self) -> Summary:
        """What the policy's status shows."""
        return parse_summary(self.policy.get("status"))

    @property
    def modes(self) -> dict[str, Mode | None]:
        """Pod → what it trains in."""
        found = [read_pod(body).view for (plural, *_), body in self.kube.objects.items() if plural == "pods"]
        return {pod.name: pod.effective_mode for pod in found}

    @property
    def events(self) -> list[str]:
        """Reasons of the Events, in order."""
        return [str(body["reason"]) for (plural, *_), body in self.kube.objects.items() if plural == "events"]


def _spec(hot: bool) -> dict[str, Any]:
    return b.hot_spec() if hot else b.pod_spec(b.container(env=copy.deepcopy(b.LITERAL)))
