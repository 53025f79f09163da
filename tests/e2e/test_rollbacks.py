"""Rollbacks of real trainers on a real kubelet that the demo does not show: gradual, and then another attempt by kubectl
alone; weights that a NaN has ruined. Both fleets go through their stories at the same time.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from lab.cluster import Kubectl
from lab.cluster.kubectl import Json
from lab.cluster.manifests import apply_product
from lab.demo.fleet import FAULT, FLEET_LABELS, Trainer, deployment
from lab.demo.metrics import Metrics
from lab.demo.stage import workload_of
from lab.images import TRAINER
from lab.waiting import wait_for
from precision_operator.api.commands import Prerequisite
from precision_operator.api.wire import parse_time
from tests.cluster.scene import Operators

pytestmark = pytest.mark.timeout(900)

PREFIX = "precision.genesis.ai"
GRADUAL = (Trainer("mild-0"), Trainer("mild-1"), Trainer("mild-2"))
POISONED = (Trainer("single"), Trainer("gang", ranks=2))
RANKS = sum(trainer.ranks for trainer in POISONED)
# The operator's answers are the matter here: the trainers' own sentinel would be faster.
ENVIRONMENT = {"PRECISION_SENTINEL": "false", "TRAINER_HEALTHY_AFTER": "20"}
COMMON: Json = {
    "selector": {"matchLabels": FLEET_LABELS},
    "evaluation": {"interval": "1s", "window": "10s", "failureLimit": 0, "minSteps": 8},
    "criteria": {"speed": {"enabled": False}},
}


@dataclass
class Fleet:
    """Trainers in a namespace of their own, and their policy."""

    kubectl: Kubectl
    namespace: str
    metrics: Metrics
    operators: Operators

    def start(self, trainers: tuple[Trainer, ...]) -> None:
        """Make the Deployments; all begin in FP32."""
        for trainer in trainers:
            made = deployment(trainer, image=TRAINER.reference, pull_policy="Never")
            made["metadata"]["namespace"] = self.namespace
            container = made["spec"]["template"]["spec"]["containers"][0]
            container["env"] += [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
            self.kubectl.apply(made)

    def follow(self, **spec: object) -> None:
        """Make the policy."""
        policy = {"apiVersion": f"{PREFIX}/v1alpha1", "kind": "PrecisionPolicy", "spec": {**COMMON, **spec}}
        self.kubectl.apply({**policy, "metadata": {"name": "fleet", "namespace": self.namespace}})

    def annotate(self, *given: str) -> None:
        """Give the policy's commands, as a person would."""
        self.kubectl("annotate", "--overwrite", "precisionpolicy", "fleet", "-n", self.namespace, *given)

    def until(self, condition: Callable[[Json], bool], *, what: str, seconds: float) -> Json:
        """Wait until the policy's status meets a condition; returns it."""

        def status() -> Json:
            found: Json = (self.kubectl.find("precisionpolicy", "fleet", "-n", self.namespace) or {}).get("status", {})
            return found

        def probe() -> Json | None:
            now = status()
            return now if now and condition(now) else None

        return wait_for(probe, what=what, seconds=seconds, found=lambda: f"{status()}\n{self.operators.logs()}")

    def until_phase(self, phase: str, *, seconds: float = 180) -> Json:
        """Wait for the policy's phase."""
        return self.until(lambda status: status.get("phase") == phase, what=f"phase {phase}", seconds=seconds)

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
        """Lines of that kind that all ranks of a workload wrote."""
        name = self.pods()[workload]["metadata"]["name"]
        lines = self.kubectl("logs", name, "-n", self.namespace).stdout.splitlines()
        said = (json.loads(line) for line in lines if line.startswith("{"))
        return [line for line in said if line.get("event") == event]

    def fault(self, workload: str, value: str) -> None:
        """Throw the drill's switch in a running pod; an empty value puts it back."""
        name = self.pods()[workload]["metadata"]["name"]
        self.kubectl("annotate", "--overwrite", "pod", name, "-n", self.namespace, f"{FAULT}={value}")


@pytest.fixture(scope="module")
def fleets(
    kubectl: Kubectl, prometheus_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Fleet, Fleet]]:
    """Two fleets, promoted and broken: one overflows mildly, the other's weights are no numbers any more."""
    apply_product(kubectl)  # the demo takes them away with it
    directory = tmp_path_factory.mktemp("rollbacks")
    metrics = Metrics(api_server="", prometheus=prometheus_url, record=directory / "prometheus.jsonl")
    namespaces = [f"{name}-{uuid.uuid4().hex[:8]}" for name in ("gradual", "poisoned")]
    for namespace in namespaces:
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        kubectl.wait_for_namespace(namespace)
    operators = Operators(kubectl.kubeconfig, directory, prometheus_url, namespaces[0])
    gradual, poisoned = (Fleet(kubectl, namespace, metrics, operators) for namespace in namespaces)
    try:
        gradual.start(GRADUAL)
        poisoned.start(POISONED)
        operators.start("one")
        _promote(gradual, poisoned)
        _break(gradual, poisoned)
        yield gradual, poisoned
    finally:
        for namespace in namespaces:  # while somebody is there to take off the finalizers
            kubectl("delete", "precisionpolicy", "--all", "-n", namespace, "--timeout=60s", check=False)
        operators.stop()
        kubectl("delete", "namespace", *namespaces, "--wait=false", check=False)


def _promote(gradual: Fleet, poisoned: Fleet) -> None:
    for fleet, count in ((gradual, len(GRADUAL)), (poisoned, len(POISONED))):
        wait_for(
            lambda f=fleet, n=count: sum(step >= 20 for step in f.values("genesis_training_step").values()) == n,
            what=f"step 20 of all trainers in {fleet.namespace}",
            seconds=300,
            found=lambda f=fleet: str(f.values("genesis_training_step")),
        )
    gradual.follow(
        strategy={"steps": [{"setWeight": 34}, {"pause": {"duration": "2s"}}, {"setWeight": 100}]},
        rollback={
            "gradual": {"sustain": "3s", "batchShare": 0.34},
            "mitigation": {"overflow": {"window": "0s"}},
        },
    )
    # In BF16 no loss scaler stands between a ruined weight and the count of losses that are no numbers.
    poisoned.follow(strategy={"steps": [{"setWeight": 100}]}, target="bf16")
    gradual.until_phase("Healthy")
    poisoned.until_phase("Healthy")


def _break(gradual: Fleet, poisoned: Fleet) -> None:
    wait_for(
        lambda: len(poisoned.values("genesis_last_healthy_checkpoint_step")) == len(POISONED),
        what="a healthy checkpoint of each",
        seconds=120,
    )
    for workload, step in poisoned.values("genesis_training_step").items():
        poisoned.fault(workload, f"nan={int(step) + 20}")
    for trainer in GRADUAL[:2]:
        gradual.fault(trainer.name, "overflow=0.2")


def test_ruined_weights_are_rewound_to_the_last_healthy_checkpoint_and_no_pod_restarts(
    fleets: tuple[Fleet, Fleet],
) -> None:
    _, fleet = fleets
    before = fleet.lives()
    status = fleet.until_phase("Held")
    incident = status["incident"]
    names = sorted(trainer.name for trainer in POISONED)
    assert (incident["severity"], incident["reason"], incident["strategy"]) == ("P0", "LossNotFinite", "Emergency")
    assert set(incident["poisoned"]) <= set(names), "who was seen first may have been rolled back by itself before"
    for workload, pod in fleet.pods().items():
        request = json.loads(pod["metadata"]["annotations"][f"{PREFIX}/request"])
        assert (request["mode"], request["rewind"]) == ("fp32", True), workload

    wait_for(
        lambda: fleet.values("genesis_rewinds_total") == dict.fromkeys(names, 1.0),
        what="each to be rewound once",
        seconds=60,
        found=lambda: str(fleet.values("genesis_rewinds_total")),
    )
    for trainer in POISONED:
        _went_back(fleet, trainer)
    assert all(math.isfinite(loss) for loss in fleet.values("genesis_training_loss").values())
    assert set(fleet.modes().values()) == {"fp32"}
    assert fleet.lives() == before


def _went_back(fleet: Fleet, trainer: Trainer) -> None:
    """All ranks to the same healthy checkpoint, because they were asked, and training went well from there."""
    rewound = fleet.events(trainer.name, "rewound")
    assert sorted(line["rank"] for line in rewound) == list(range(trainer.ranks))
    assert {line["reason"] for line in rewound} == {"request"}
    at = min(line["time"] for line in rewound)
    healthy = [line["step"] for line in fleet.events(trainer.name, "checkpoint_healthy") if line["time"] < at]
    assert {line["step"] for line in rewound} == {max(healthy)}

    def saved() -> bool:
        """The store refuses weights that are no numbers: a checkpoint made since shows that these are whole."""
        return any(line["time"] > at for line in fleet.events(trainer.name, "checkpoint"))

    wait_for(saved, what=f"a checkpoint of {trainer.name} after the rewind", seconds=60)


def test_mild_overflow_goes_down_in_batches_and_a_person_starts_it_again_by_kubectl_alone(
    fleets: tuple[Fleet, Fleet],
) -> None:
    fleet, _ = fleets
    before = fleet.lives()
    status = fleet.until_phase("Held")
    incident = status["incident"]
    assert (incident["severity"], incident["reason"], incident["strategy"]) == ("P2", "OverflowRateHigh", "Gradual")
    assert (parse_time(incident["lastAckAt"]) or math.inf) <= (parse_time(incident["deadlineAt"]) or 0.0)
    flips = {
        trainer.name: [e["time"] for e in fleet.events(trainer.name, "precision_changed") if e["to"] == "fp32"]
        for trainer in GRADUAL
    }
    assert [len(times) for times in flips.values()] == [1, 1, 1]
    # One after the other, the healthy one last: each batch of one begins when the one before it has said so.
    assert max(flips["mild-0"] + flips["mild-1"]) < flips["mild-2"][0]
    assert abs(flips["mild-0"][0] - flips["mild-1"][0]) > 0.5

    for trainer in GRADUAL[:2]:
        fleet.fault(trainer.name, "")
    number = status["transitionId"]
    fleet.annotate(*(f"{PREFIX}/ack-{item}={number}: drill" for item in Prerequisite))
    fleet.annotate(f"{PREFIX}/retry={number}: the fault is off")
    staged = fleet.until(lambda s: s["phase"] == "Progressing", what="the second attempt", seconds=120)
    assert (staged["weight"], len(staged["members"]), staged["attempts"]) == (34, 1, 1)
    fleet.until_phase("Healthy")
    wait_for(
        lambda: set(fleet.modes().values()) == {"fp16"},
        what="all to train in FP16 again",
        seconds=30,
        found=lambda: str(fleet.modes()),
    )
    assert fleet.lives() == before
