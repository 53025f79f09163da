"""Fleets of real trainers in namespaces of their own, with a policy each, as a person handles them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab.cluster import Kubectl
from lab.cluster.kubectl import Json
from lab.demo.fleet import FAULT, FLEET_LABELS, Trainer, deployment
from lab.demo.metrics import Metrics
from lab.demo.stage import workload_of
from lab.images import TOOLS
from lab.waiting import wait_for
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.state import State

PREFIX = "precision.genesis.ai"
# The operator's answers are the matter here: the trainers' own sentinel would be faster.
ENVIRONMENT = {"PRECISION_SENTINEL": "false", "TRAINER_HEALTHY_AFTER": "20"}
COMMON: Json = {
    "selector": {"matchLabels": FLEET_LABELS},
    "evaluation": {"interval": "1s", "window": "10s", "failureLimit": 0, "minSteps": 8},
    "criteria": {"speed": {"enabled": False}},
    "reenable": {"dwell": "0s"},
}


@dataclass
class Fleet:
    """Trainers in a namespace of their own, and their policy."""

    kubectl: Kubectl
    namespace: str
    metrics: Metrics

    def start(self, trainers: Sequence[Trainer]) -> None:
        """Make the Deployments; all begin in FP32."""
        self.kubectl.apply(*(self.body(trainer) for trainer in trainers))

    def body(self, trainer: Trainer) -> Json:
        """A trainer's Deployment."""
        made = deployment(trainer, image=TOOLS.reference, pull_policy="Never")
        made["metadata"]["namespace"] = self.namespace
        container = made["spec"]["template"]["spec"]["containers"][0]
        container["env"] += [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
        return made

    def logs(self) -> str:
        """The operators' last lines, for a failure's message; empty where this process has none of its own."""
        return ""

    def until_training(self, count: int) -> None:
        """Wait until ``count`` trainers are past their 20th step."""

        def steps() -> dict[str, float]:
            return self.metrics.by_pod(f'genesis_training_step{{namespace="{self.namespace}"}}')

        wait_for(
            lambda: sum(step >= 20 for step in steps().values()) == count,
            what=f"step 20 of all {count} trainers in {self.namespace}",
            seconds=300,
            found=lambda: str(steps()),
        )

    def follow(self, **spec: object) -> None:
        """Make the policy."""
        policy = {"apiVersion": f"{PREFIX}/v1alpha1", "kind": "PrecisionPolicy", "spec": {**COMMON, **spec}}
        self.kubectl.apply({**policy, "metadata": {"name": "fleet", "namespace": self.namespace}})

    def suspend(self, suspended: bool) -> None:
        """Keep the operator from looking and deciding, or let it again."""
        patch = json.dumps({"spec": {"suspend": suspended}})
        self.kubectl("patch", "precisionpolicy", "fleet", "-n", self.namespace, "--type=merge", "-p", patch)

    def annotate(self, *given: str) -> None:
        """Give the policy commands, as a person would."""
        self.kubectl("annotate", "--overwrite", "precisionpolicy", "fleet", "-n", self.namespace, *given)

    def status(self) -> Json:
        """The policy's status; empty where there is none yet."""
        found: Json = (self.kubectl.find("precisionpolicy", "fleet", "-n", self.namespace) or {}).get("status", {})
        return found

    def until(self, condition: Callable[[Json], bool], *, what: str, seconds: float) -> Json:
        """Wait until the policy's status meets a condition; returns it."""

        def probe() -> Json | None:
            now = self.status()
            return now if now and condition(now) else None

        return wait_for(probe, what=what, seconds=seconds, found=lambda: f"{self.status()}\n{self.logs()}")

    def until_phase(self, phase: str, *, seconds: float = 180) -> Json:
        """Wait for the policy's phase."""
        return self.until(lambda status: status.get("phase") == phase, what=f"phase {phase}", seconds=seconds)

    def state(self) -> State:
        """The operator's own record, in the policy's assignment."""
        return parse_assignment(self.kubectl.json("get", "precisionassignment", "fleet", "-n", self.namespace))

    def pods(self) -> dict[str, Json]:
        """Workload → its only pod."""
        items = self.kubectl.json("get", "pods", "-n", self.namespace)["items"]
        return {workload_of(item["metadata"]["name"]): item for item in items}

    def lives(self) -> dict[str, tuple[str, int]]:
        """Workload → (its pod's uid, restarts of its container): as long as it is the same, no process was lost."""
        return {
            workload: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
            for workload, pod in self.pods().items()
        }

    def modes(self) -> dict[str, str]:
        """Workload → the mode that its process reports."""
        return {workload_of(pod): mode for pod, (mode, _) in self.metrics.modes(self.namespace).items()}

    def values(self, name: str) -> dict[str, float]:
        """Workload → value of one of its metrics."""
        found = self.metrics.by_pod(f'{name}{{namespace="{self.namespace}"}}')
        return {workload_of(pod): value for pod, value in found.items()}

    def events(self, workload: str, event: str) -> list[Json]:
        """Lines of that kind of all ranks of a workload."""
        name = self.pods()[workload]["metadata"]["name"]
        lines = self.kubectl("logs", name, "-n", self.namespace).stdout.splitlines(keepends=True)
        written = (json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n"))
        return [line for line in written if line.get("event") == event]

    def fault(self, workload: str, value: str) -> None:
        """Throw the drill's switch in a running pod; an empty value puts it back."""
        name = self.pods()[workload]["metadata"]["name"]
        self.kubectl("annotate", "--overwrite", "pod", name, "-n", self.namespace, f"{FAULT}={value}")
