"""The operator as a process of its own, on a real API server with a real Prometheus."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from lab.cluster import ControlPlane, Kubectl
from lab.prometheus import Prometheus
from lab.waiting import wait_for
from precision_operator.api.commands import Prerequisite
from precision_operator.api.wire import parse_time
from tests.cluster.fleet import Json, deployment, policy
from tests.cluster.shadow import ShadowTrainers

ROOT = Path(__file__).parents[2]
HOT = [f"hot-{i}" for i in range(4)]


@dataclass
class Operators:
    """Operator processes that end with the test."""

    kubeconfig: Path
    directory: Path
    prometheus_url: str
    system: str
    settings: Json = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """One more process."""
        config = self.directory / f"{name}.yaml"
        endpoints = {"default": {"url": self.prometheus_url, "timeoutSeconds": 2}}
        lease = {"durationSeconds": 3, "renewSeconds": 2, "retrySeconds": 0.5}
        config.write_text(yaml.safe_dump({"httpPort": 0, "prometheus": endpoints, "lease": lease, **self.settings}))
        log = (self.directory / f"{name}.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, "-m", "precision_operator", "--config", str(config), "--kubeconfig", str(self.kubeconfig)],
            env={**os.environ, "PYTHONPATH": str(ROOT / "operator"), "POD_NAME": name, "POD_NAMESPACE": self.system},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        self.running[name] = process
        return process

    def logs(self) -> str:
        """The end of every log, for a failure's message."""
        return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.directory.glob("*.log")))

    def stop(self) -> None:
        """End all of them."""
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait(timeout=10)


@dataclass
class Scene:
    """A fleet with its metrics and an operator."""

    kubectl: Kubectl
    namespace: str
    shadow: ShadowTrainers
    operators: Operators

    def status(self, name: str = "fleet") -> Json:
        """The policy's status."""
        found = self.kubectl("get", "pp", name, "-n", self.namespace, "-o", "yaml", check=False)
        status: Json = (yaml.safe_load(found.stdout) or {}).get("status", {}) if found.returncode == 0 else {}
        return status

    def wait_phase(self, phase: str, *, seconds: float = 60) -> Json:
        """Wait for the policy's phase."""
        wait_for(
            lambda: self.status().get("phase") == phase,
            what=f"phase {phase}",
            seconds=seconds,
            found=lambda: f"{self.status()}\n{self.operators.logs()}",
        )
        return self.status()

    def apply(self, *objects: Json) -> None:
        """Into the test's namespace."""
        self.kubectl.apply(*({**o, "metadata": {**o["metadata"], "namespace": self.namespace}} for o in objects))

    def condition(self, kind: str, reason: str, *, seconds: float = 30) -> Json:
        """Wait until a condition has a reason."""

        def probe() -> Json | None:
            found = {c["type"]: c for c in self.status().get("conditions", [])}
            return found[kind] if found.get(kind, {}).get("reason") == reason else None

        return wait_for(
            probe, what=f"{kind} {reason}", seconds=seconds, found=lambda: f"{self.status()}\n{self.operators.logs()}"
        )

    def revisions(self) -> dict[str, str]:
        """Deployment → its ReplicaSets: grows with every rollout."""
        sets = self.kubectl.json("get", "rs", "-n", self.namespace)["items"]
        found: dict[str, list[str]] = {}
        for item in sets:
            found.setdefault(item["metadata"]["ownerReferences"][0]["name"], []).append(item["metadata"]["name"])
        return {name: " ".join(sorted(names)) for name, names in found.items()}

    def settled(self, enabled: str) -> bool:
        """All hot templates ask for it, and nothing is paused."""
        items = self.kubectl.json("get", "deploy", "-n", self.namespace)["items"]
        hot = [i for i in items if i["metadata"]["name"] in HOT]
        return all(
            i["spec"]["template"]["metadata"]["annotations"].get("precision.genesis.ai/enable-fp16") == enabled
            and not i["spec"].get("paused")
            for i in hot
        )


def scraping(target: str) -> Json:
    """Prometheus' configuration: the exporter names the pods itself."""
    job = {"job_name": "shadow", "honor_labels": True, "static_configs": [{"targets": [target]}]}
    return {"global": {"scrape_interval": "500ms"}, "scrape_configs": [job]}


@pytest.fixture
def scene(control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Four hot trainers and a literal one, their metrics in Prometheus, no operator yet."""
    with (
        ShadowTrainers(kubectl, namespace) as shadow,
        Prometheus(tmp_path / "prometheus", scraping(shadow.target)) as prometheus,
    ):
        operators = Operators(control_plane.kubeconfig, tmp_path, prometheus.url, namespace)
        scene = Scene(kubectl, namespace, shadow, operators)
        scene.apply(*(deployment(name) for name in HOT), deployment("literal", hot=False))
        wait_for(lambda: len(shadow.modes()) == 5, what="pods of all five", seconds=30)
        try:
            yield scene
        finally:
            operators.stop()


def promoted(scene: Scene, **spec: object) -> None:
    """A fleet in FP16, settled."""
    scene.operators.start("one")
    scene.apply(policy(**spec))
    scene.wait_phase("Healthy")
    wait_for(lambda: scene.settled("true"), what="all settled", seconds=30)


def break_two(scene: Scene) -> None:
    """A breach in half of the hot ones."""
    scene.shadow.overflow = {HOT[0]: 0.8, HOT[1]: 0.8}


def assert_all_down(scene: Scene) -> None:
    """Everything trains in FP32, and will."""
    wait_for(lambda: all(modes == {"fp32"} for modes in scene.shadow.modes().values()), what="all in FP32", seconds=30)
    wait_for(lambda: scene.settled("false"), what="all settled", seconds=30, found=scene.operators.logs)


def test_rolls_out_by_evidence_and_rolls_back_on_a_fleet_breach(scene: Scene) -> None:
    promoted(scene)
    assert all(modes == {"fp16"} for modes in scene.shadow.modes().values())
    before = scene.revisions()
    break_two(scene)
    status = scene.wait_phase("Held")
    assert status["incident"]["scope"] == "Fleet"
    assert status["incident"]["reason"] == "OverflowRateHigh"
    assert status["gate"] == "Closed"
    assert_all_down(scene)
    after = scene.revisions()
    assert {n: before[n] for n in HOT} == {n: after[n] for n in HOT}
    latches = scene.kubectl.json("get", "deploy", "-n", scene.namespace)["items"]
    assert {i["metadata"]["annotations"].get("precision.genesis.ai/latch") for i in latches} == {"fp32"}


def test_steady_fleet_costs_no_write(scene: Scene, control_plane: ControlPlane) -> None:
    promoted(scene)
    version = scene.kubectl.json("get", "pp", "fleet", "-n", scene.namespace)["metadata"]["resourceVersion"]
    evaluated = scene.shadow.modes()
    begun = time.monotonic()
    wait_for(lambda: time.monotonic() - begun > 6, what="a dozen evaluations", seconds=20)
    assert scene.kubectl.json("get", "pp", "fleet", "-n", scene.namespace)["metadata"]["resourceVersion"] == version
    assert scene.shadow.modes() == evaluated


def test_leader_killed_in_mid_breach_is_replaced_and_the_rollback_goes_on(scene: Scene) -> None:
    promoted(scene)
    scene.operators.start("two")
    log = scene.operators.directory / "two.log"
    wait_for(lambda: "serving" in log.read_text(), what="the standby", seconds=30)
    scene.operators.running["one"].kill()
    break_two(scene)
    scene.wait_phase("Held")
    assert_all_down(scene)
    assert scene.status()["writer"]["holder"].startswith("two")


def test_frozen_leader_that_wakes_up_writes_nothing_wrong(scene: Scene) -> None:
    promoted(scene)
    scene.operators.start("two")
    log = scene.operators.directory / "two.log"
    wait_for(lambda: "serving" in log.read_text(), what="the standby", seconds=30)
    zombie = scene.operators.running["one"]
    zombie.send_signal(signal.SIGSTOP)
    break_two(scene)
    scene.wait_phase("Held")
    zombie.send_signal(signal.SIGCONT)
    assert_all_down(scene)
    transition = scene.status()["transitionId"]
    begun = time.monotonic()
    wait_for(lambda: time.monotonic() - begun > 3, what="the zombie's next passes", seconds=20)
    assert scene.status()["transitionId"] == transition
    assert scene.status()["phase"] == "Held"


def test_fleet_without_metrics_is_not_touched_until_they_are_there(scene: Scene) -> None:
    scene.operators.start("one")
    scene.shadow.silent = True
    scene.apply(policy())
    scene.condition("Progressing", "NoSamples")
    assert all(modes == {"fp32"} for modes in scene.shadow.modes().values())
    scene.shadow.silent = False
    scene.wait_phase("Healthy")


def test_metrics_lost_in_mid_rollout_hold_it_until_they_are_back(scene: Scene) -> None:
    scene.operators.start("one")
    steps = {"steps": [{"setWeight": 25}, {"pause": {"duration": "4s"}}, {"setWeight": 100}]}
    scene.apply(policy(strategy=steps))
    scene.condition("Progressing", "Soaking")
    scene.shadow.silent = True
    scene.condition("MetricsAvailable", "NoSamples")
    assert scene.status()["weight"] == 25
    scene.shadow.silent = False
    scene.wait_phase("Healthy")


@pytest.mark.parametrize(
    ("spec", "reason", "words"),
    [
        ({"prometheusRef": {"name": "elsewhere"}}, "UnknownEndpoint", "elsewhere"),
        ({"criteria": {"overflow": {"query": "absent"}}}, "UnknownQuery", "absent"),
        ({"criteria": {"overflow": {"query": "broken"}}}, "QueryInvalid", "broken"),
        ({"selector": {"matchLabels": {"fleet": "nobody"}}}, "NoWorkloads", "spec.selector"),
        ({"delivery": "Hot", "selector": {"matchLabels": {"app": "literal"}}}, "Undeliverable", "literal"),
    ],
)
def test_policy_that_cannot_be_carried_out_says_so_and_touches_nothing(
    scene: Scene, spec: Json, reason: str, words: str
) -> None:
    scene.operators.settings = {"queries": {"broken": "sum(("}}
    scene.operators.start("one")
    before = scene.kubectl.json("get", "deploy,pods", "-n", scene.namespace)["items"]
    scene.apply(policy(**spec))
    condition = scene.condition("Accepted", reason)
    assert condition["status"] == "False"
    assert words in condition["message"]
    after = scene.kubectl.json("get", "deploy,pods", "-n", scene.namespace)["items"]
    assert [i["metadata"]["resourceVersion"] for i in before] == [i["metadata"]["resourceVersion"] for i in after]


def test_policy_created_again_over_latched_workloads_is_held(scene: Scene) -> None:
    promoted(scene)
    break_two(scene)
    generation = scene.wait_phase("Held")["generation"]
    assert_all_down(scene)
    scene.kubectl("delete", "pp", "fleet", "-n", scene.namespace, "--timeout=30s")
    scene.apply(policy())
    status = scene.wait_phase("Held")
    assert status["reason"] == "LatchedWorkloads"
    assert status["generation"] > generation


def test_mild_overflow_that_lasts_is_rolled_back_in_batches(scene: Scene) -> None:
    quick = {"gradual": {"sustain": "2s", "inFlight": "3s", "batchShare": 0.4}}
    # Windows of seconds and no patience make trainers that have just started look slow.
    promoted(scene, rollback=quick, criteria={"speed": {"enabled": False}})
    scene.shadow.overflow = dict.fromkeys(("hot-0", "hot-1", "hot-2"), 0.2)
    status = scene.wait_phase("Held")
    incident = status["incident"]
    assert (incident["severity"], incident["strategy"]) == ("P2", "Gradual")
    assert incident["lastAckAt"] <= incident["deadlineAt"]
    assert_all_down(scene)
    # Batches of two: the last request of the five came at least two acknowledgements after the first.
    assert parse_time(incident["lastPatchAt"]) - parse_time(incident["decidedAt"]) > 1.0  # type: ignore[operator]


def test_retry_starts_again_once_a_person_asks(scene: Scene) -> None:
    promoted(scene)
    break_two(scene)
    scene.wait_phase("Held")
    assert_all_down(scene)
    scene.shadow.overflow = {}
    number = scene.status()["transitionId"]
    scene.kubectl("annotate", "pp", "fleet", "-n", scene.namespace, f"precision.genesis.ai/retry={number}")
    scene.condition("Progressing", "AwaitingPrerequisites")
    given = [f"precision.genesis.ai/ack-{item}={number}: drill" for item in Prerequisite]
    scene.kubectl("annotate", "pp", "fleet", "-n", scene.namespace, *given)
    scene.wait_phase("Healthy", seconds=90)
    assert all(modes == {"fp16"} for modes in scene.shadow.modes().values())


def test_survives_a_restart_of_the_api_server(scene: Scene, control_plane: ControlPlane) -> None:
    promoted(scene)
    control_plane.stop_apiserver()
    control_plane.start_apiserver()
    if scene.operators.running["one"].poll() is not None:
        scene.operators.start("one")  # as the kubelet would: a watch that cannot go on ends the process
    break_two(scene)
    scene.wait_phase("Held", seconds=90)
    assert_all_down(scene)


def test_original_template_comes_back_when_a_restoring_policy_is_deleted(scene: Scene) -> None:
    scene.operators.start("one")
    before = scene.kubectl.json("get", "deploy", "literal", "-n", scene.namespace)["spec"]["template"]
    scene.apply(policy(deletionPolicy="Restore"))
    scene.wait_phase("Healthy")
    wait_for(lambda: scene.settled("true"), what="all settled", seconds=30)
    scene.kubectl("delete", "pp", "fleet", "-n", scene.namespace, "--timeout=30s")
    assert scene.kubectl.json("get", "deploy", "literal", "-n", scene.namespace)["spec"]["template"] == before


def test_workload_of_two_policies_belongs_to_the_older_and_the_younger_says_so(scene: Scene) -> None:
    promoted(scene)
    scene.apply(policy("younger", target="bf16"))
    wait_for(
        lambda: any(c["reason"] == "PolicyConflict" for c in scene.status("younger").get("conditions", [])),
        what="the younger policy to say PolicyConflict",
        seconds=30,
        found=lambda: str(scene.status("younger")),
    )
    assert all(modes == {"fp16"} for modes in scene.shadow.modes().values())
    assert scene.status()["phase"] == "Healthy"
