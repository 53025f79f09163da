"""The demo's phases, in order. Each waits on a condition of the cluster or of the trainers, never on time."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from lab.cluster.kubectl import Json
from lab.demo.fleet import (
    ACCELERATOR,
    FAULT,
    FAULTY,
    FLEET,
    LATE,
    NAMESPACE,
    Trainer,
    manifest,
    volume,
)
from lab.demo.metrics import BreachPoll, Metrics
from lab.demo.stage import (
    RELEASE,
    SYSTEM,
    Reapplier,
    Stage,
    advertise,
    install_operator,
    rollout_state,
    settle_metrics,
    templates,
    workload_of,
)
from lab.demo.timeline import Timeline
from lab.errors import LabError
from lab.waiting import wait_for
from precision_operator.api.spec import parse_spec
from precision_operator.signals.queries import BUILT_IN, render

POLICY = Path(__file__).with_name("policy.yaml")
_EVALUATION = parse_spec(yaml.safe_load(POLICY.read_text())["spec"]).evaluation
BREACH_LEVEL = 0.30
FLEET_BREACH = 2
"""25 % of six, at least 2: the policy's defaults."""

OVERFLOW = render(BUILT_IN["overflow"], NAMESPACE, _EVALUATION.window_seconds, _EVALUATION.min_steps)
"""The operator's own query, rendered as the operator renders it for this policy."""


@dataclass
class Facts:
    """What the phases leave for the report; all of it read back from the cluster, Prometheus or a process."""

    started_at: float = field(default_factory=time.time)
    phases: list[Json] = field(default_factory=list)
    fault_at: float = 0.0
    breach: BreachPoll | None = None
    offsets_before: dict[str, float] = field(default_factory=dict)
    offsets_after: dict[str, float] = field(default_factory=dict)
    rollout_before: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    rollout_after: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    finished_at: float = 0.0
    modes_after: dict[str, str] = field(default_factory=dict)
    operator_replicas: int = -1
    new_pod_modes: dict[str, str] = field(default_factory=dict)
    templates_before: dict[str, str] = field(default_factory=dict)
    templates_after: dict[str, str] = field(default_factory=dict)
    rollout_start: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    reapplier_errors: list[str] = field(default_factory=list)
    """Applications that failed."""
    prometheus_queries: int | None = None
    """Queries that the operator sent from the fault until all trained in FP32, by its own counter."""


class Story:
    """Plays the phases on a stage."""

    def __init__(self, stage: Stage, metrics: Metrics, timeline: Timeline, *, api_server: str) -> None:
        """``api_server``: a plain HTTP address of it, for the re-applier."""
        self._api_server = api_server
        self._stage = stage
        self._metrics = metrics
        self._timeline = timeline
        self.facts = Facts()

    def play(self) -> Facts:
        """All phases, in order."""
        phases: list[tuple[str, Callable[[], None]]] = [
            ("install the operator", self.install),
            ("start six trainers in FP32", self.start_fleet),
            ("roll out FP16 by evidence", self.roll_out),
            ("break two trainers, roll the fleet back", self.break_and_roll_back),
            ("look at what it left", self.look),
            ("new pods with the operator away", self.gate),
        ]
        with ExitStack() as stack:
            for title, phase in phases:
                begun = time.time()
                with self._timeline.phase(title):
                    phase()
                self.facts.phases.append({"name": title, "started_at": begun, "seconds": round(time.time() - begun, 3)})
                if phase == self.start_fleet:
                    manifests = [self._manifest(trainer) for trainer in FLEET]
                    reapplier = stack.enter_context(Reapplier(self._api_server, manifests))
                    self.facts.reapplier_errors = reapplier.errors
        return self.facts

    def install(self) -> None:
        """The chart, 2 replicas."""
        install_operator(self._stage.kubectl, self._stage.helm, self._stage.images)

    def start_fleet(self) -> None:
        """Five with the contract (a process group of two ranks, a StatefulSet and a Job among them), one restart-only on a
        full node; all in FP32.
        """
        kubectl = self._stage.kubectl
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        kubectl.wait_for_namespace(NAMESPACE)
        advertise(self._stage.kubectl, ACCELERATOR, 1)
        path = str(self._stage.volume_path) if self._stage.volume_path else None
        kubectl.apply(*volume(path), *(self._manifest(trainer) for trainer in FLEET))
        names = {trainer.name for trainer in FLEET}
        self._wait_modes(names, "fp32", seconds=300)
        self._wait_steps(names, at_least=20, seconds=180)
        self.facts.templates_before, self.facts.rollout_start = templates(self._stage), rollout_state(self._stage)

    def roll_out(self) -> None:
        """``kubectl apply`` of the 15-line policy; canary first, then the rest in steps."""
        self._stage.kubectl("apply", "-f", POLICY)
        self._follow_policy(until="Healthy", seconds=420)
        self._wait_modes({trainer.name for trainer in FLEET}, "fp16", seconds=60)

    def break_and_roll_back(self) -> None:
        """The real fault, in two of them; until every trainer says that it trains in FP32."""
        facts = self.facts
        facts.offsets_before = self._offsets()
        facts.rollout_before = rollout_state(self._stage)
        facts.breach = BreachPoll(
            self._metrics, OVERFLOW, level=BREACH_LEVEL, needed=FLEET_BREACH, workload=workload_of
        )
        facts.breach.start()
        queries_before = self._queries()
        facts.fault_at = time.time()
        names = (pod["metadata"]["name"] for pod in self._stage.pods())
        faulty = [name for name in names if workload_of(name) in FAULTY]
        self._stage.kubectl("annotate", "pod", *faulty, "-n", NAMESPACE, f"{FAULT}=overflow=0.8")
        try:
            self._follow_policy(until="Held", seconds=300)
        finally:
            facts.breach.stop()
        self._wait_modes({trainer.name for trainer in FLEET}, "fp32", seconds=120)
        facts.offsets_after = self._offsets()
        queries_after = self._queries()
        if queries_before is not None and queries_after is not None:
            facts.prometheus_queries = queries_after - queries_before

    def look(self) -> None:
        """No template was touched, and no hot pod replaced. The operator's logs are kept, for its pods go next."""
        self.facts.finished_at = time.time()
        folder = self._stage.evidence / "operator"
        folder.mkdir(exist_ok=True)
        for name in (pod["metadata"]["name"] for pod in self._stage.pods(SYSTEM)):
            # A replica that loses its Lease, as on a busy machine, begins anew: what it did before is in the log before.
            before = self._stage.kubectl("logs", name, "-n", SYSTEM, "--previous", check=False)
            log = self._stage.kubectl("logs", name, "-n", SYSTEM).stdout
            (folder / f"{name}.log").write_text((before.stdout if before.returncode == 0 else "") + log)
        self.facts.rollout_after = rollout_state(self._stage)
        self.facts.modes_after = {pod: mode for pod, (mode, _) in self._metrics.modes(NAMESPACE).items()}

    def gate(self) -> None:
        """The operator is scaled to 0; workloads whose templates ask for FP16 are made; their pods start in FP32."""
        kubectl = self._stage.kubectl
        kubectl("scale", "deployment", RELEASE, "-n", SYSTEM, "--replicas=0")
        wait_for(lambda: not self._stage.pods(SYSTEM), what="the operator's pods to be gone", seconds=60)
        found = kubectl.json("get", "deployment", RELEASE, "-n", SYSTEM)
        self.facts.operator_replicas = int(found["status"].get("replicas", 0))
        kubectl.apply(*(self._manifest(trainer) for trainer in LATE))
        names = {trainer.name for trainer in LATE}

        def answered() -> bool:
            modes = self._metrics.modes(NAMESPACE)
            self.facts.new_pod_modes = {p: mode for p, (mode, _) in modes.items() if workload_of(p) in names}
            return {workload_of(pod) for pod in self.facts.new_pod_modes} == names

        settle_metrics(answered, what="the new pods to report what they train in", seconds=180)
        late = {trainer.key for trainer in LATE}
        after = templates(self._stage)
        self.facts.templates_after = {key: template for key, template in after.items() if key not in late}

    def _manifest(self, trainer: Trainer) -> Json:
        return manifest(trainer, image=self._stage.images.trainer, pull_policy=self._stage.images.pull_policy)

    def _queries(self) -> int | None:
        pods = [pod["metadata"]["name"] for pod in self._stage.pods(SYSTEM)]
        return self._metrics.operator_queries(SYSTEM, pods)

    def _offsets(self) -> dict[str, float]:
        """Pod → global step less steps tried in this process: a constant while no step is lost."""
        query = f'genesis_training_step{{namespace="{NAMESPACE}"}} - genesis_training_steps_total{{namespace="{NAMESPACE}"}}'
        return self._metrics.by_pod(query, what="step offsets")

    def _wait_modes(self, workloads: set[str], mode: str, *, seconds: float) -> None:
        def reached() -> bool:
            alive = {p["metadata"]["name"] for p in self._stage.pods() if "deletionTimestamp" not in p["metadata"]}
            modes = {pod: m for pod, (m, _) in self._metrics.modes(NAMESPACE).items() if pod in alive}
            self._timeline.modes({workload_of(pod): m for pod, m in modes.items()})
            mine = {workload_of(pod) for pod, m in modes.items() if m == mode}
            return workloads <= mine

        settle_metrics(reached, what=f"{', '.join(sorted(workloads))} to train in {mode}", seconds=seconds)

    def _wait_steps(self, workloads: set[str], *, at_least: int, seconds: float) -> None:
        def reached() -> bool:
            steps = self._metrics.by_pod(f'genesis_training_step{{namespace="{NAMESPACE}"}}', what="steps")
            return workloads <= {workload_of(pod) for pod, step in steps.items() if step >= at_least}

        settle_metrics(reached, what=f"all trainers to reach step {at_least}", seconds=seconds)

    def _follow_policy(self, *, until: str, seconds: float) -> None:
        def reached() -> bool:
            status = self._stage.policy_status()
            modes = {workload_of(pod): mode for pod, (mode, _) in self._metrics.modes(NAMESPACE).items()}
            self._timeline.policy(status, modes)
            phase = status.get("phase")
            if until == "Healthy" and phase in ("Held", "RollingBack"):
                raise LabError(
                    "the rollout to end Healthy", f"{phase}: {status.get('message')}", "read build/demo/logs"
                )
            return phase == until

        wait_for(
            reached,
            what=f"the policy to be {until}",
            seconds=seconds,
            every=0.5,
            found=lambda: str(self._stage.policy_status()),
        )
