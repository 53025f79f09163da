"""A small world under ``decide``: workloads, their controller and their trainers, as values.

It stands below the port of the pure core only: what the real API server, Deployment controller and trainer do with the same
writes is held in tests/cluster and tests/e2e. The property tests and the model explorer run in this one world.
"""

from dataclasses import dataclass, field, replace

from precision_operator.api.mitigation import Rung
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.signals import Signal
from precision_operator.api.state import State, parse_state, state_to_wire
from precision_operator.contract import FINALIZER
from precision_operator.core.actions import (
    Action,
    GuardPolicy,
    Latch,
    ReleasePolicy,
    RequestPod,
    Restore,
    Settle,
    SettleStage,
    WriteTemplate,
)
from precision_operator.core.decide import Decision, decide
from precision_operator.core.model import (
    Evaluation,
    Observation,
    PodSignals,
    PodView,
    Request,
    SettleIntent,
    WorkloadView,
)
from precision_operator.core.windows import TUNINGS

GOOD = {
    Signal.OVERFLOW: 0.0,
    Signal.DIVERGENCE: -0.1,
    Signal.FAILURES: 0.0,
    Signal.NON_FINITE: 0.0,
    Signal.SPEED: 1.0,
    Signal.MEMORY: 0.6,
}


@dataclass
class World:
    """Everything outside of the operator."""

    policy: Policy
    state: State = field(default_factory=State)
    workloads: dict[str, WorkloadView] = field(default_factory=dict)
    modes: dict[str, tuple[Mode, int]] = field(default_factory=dict)
    """What each pod's process really trains in, and the generation it applied."""
    bad: dict[str, dict[Signal, float]] = field(default_factory=dict)
    """Workload → values that differ from GOOD while it trains in reduced precision."""
    everywhere: dict[Signal, float] = field(default_factory=dict)
    """Values that differ from GOOD on all workloads, in any precision."""
    blind: set[str] = field(default_factory=set)
    """Workloads, or single pods, that Prometheus does not see."""
    down: bool = False
    """Prometheus is away."""
    deaf: set[str] = field(default_factory=set)
    """Workloads, or single pods, whose trainers take no request."""
    crashing: set[str] = field(default_factory=set)
    """Workloads whose pods crash, whatever their precision: no metrics, no request taken."""
    poisoned: set[str] = field(default_factory=set)
    """Workloads whose weights are NaN: non-finite losses in every precision."""
    referenced: dict[str, Mode] = field(default_factory=dict)
    """Workload → the mode that a ConfigMap gives its pods, where its template takes it from there."""
    cured_by: dict[str, Rung] = field(default_factory=dict)
    """Workload → what ends its overflow."""
    originals: dict[str, Mode | None] = field(default_factory=dict)
    """Workload → what its template said before our first write."""
    continuous_since: float = 0.0
    """Since when this operator process has watched the metrics."""
    now: float = 1000.0
    writes: int = 0
    status_writes: int = 0
    restarts: dict[str, int] = field(default_factory=dict)
    log: list[tuple[str, str]] = field(default_factory=list)
    restart_slots: int = 5
    serial: int = 0

    def add(self, name: str, *, hot: bool = True, pods: int = 1, mode: Mode = Mode.FP32) -> None:
        """A new workload, its pods running in ``mode``."""
        workload = WorkloadView(
            namespace="ns",
            name=name,
            uid=f"uid-{name}",
            hot=hot,
            literal=not hot,
            template_mode=mode,
            replicas=pods,
            updated_replicas=pods,
        )
        self.workloads[name] = workload
        self._start_pods(name)

    def add_referencing(self, name: str, mode: Mode, *, pods: int = 1) -> None:
        """A new workload that takes its mode from a ConfigMap: only its processes know which it is."""
        self.add(name, hot=False, pods=pods)
        self.referenced[name] = mode
        self.workloads[name] = replace(self.workloads[name], template_mode=None)
        self._start_pods(name)

    def _start_pods(self, name: str) -> None:
        workload = self.workloads[name]
        pods = []
        for _ in range(workload.replicas):
            self.serial += 1
            pod = PodView(
                name=f"{name}-{self.serial}",
                uid=f"pod-{self.serial}",
                hot=workload.hot,
                started_mode=workload.template_mode,
                request=workload.template_request if workload.hot else None,
                ready=name not in self.crashing,
                crashing=name in self.crashing,
            )
            pods.append(pod)
            generation = pod.request.generation if pod.request else 0
            self.modes[pod.name] = (pod.effective_mode or self.referenced[name], generation)
        self.workloads[name] = replace(workload, pods=tuple(pods), updated_replicas=workload.replicas, observed=True)

    def observe(self) -> Observation:
        """What the operator would gather now."""
        pods: dict[str, PodSignals] = {}
        errors = {}
        if self.down:
            errors = dict.fromkeys(("ack", "steps", *Signal), "MetricsUnavailable: refused")
        for workload in self.workloads.values():
            if self.down or workload.name in self.blind | self.crashing:
                continue
            for pod in workload.pods:
                if pod.name in self.blind:
                    continue
                mode, generation = self.modes[pod.name]
                values = {**GOOD, **self.everywhere}
                if mode is Mode.FP32:
                    values.pop(Signal.OVERFLOW)
                else:
                    values.update(self.bad.get(workload.name, {}))
                if mode is Mode.BF16 and self.cured_by.get(workload.name) is Rung.BF16:
                    values[Signal.OVERFLOW] = 0.0
                if workload.name in self.poisoned:
                    values[Signal.NON_FINITE] = 2.0
                pods[pod.name] = PodSignals(mode, generation, self.now, 1000.0, values)
        evaluation = Evaluation(at=self.now, continuous_since=self.continuous_since, pods=pods, errors=errors)
        return Observation(
            workloads=tuple(sorted(self.workloads.values(), key=lambda w: w.name)),
            evaluation=evaluation,
            restart_slots=self.restart_slots,
            writer="test",
            epoch=1,
        )

    def decide(self) -> Decision:
        """One pass, without acting."""
        return decide(self.policy, self.state, self.observe(), self.now)

    def commit(self, decision: Decision) -> None:
        """The state goes over the wire and back, as it does on the API server."""
        if decision.state != self.state:
            self.status_writes += 1
            assert parse_state(state_to_wire(decision.state)) == decision.state, (
                "the state does not survive the wire"
            )
        self.state = decision.state

    def act(self, action: Action) -> None:
        """Carry out one write, with the tests that guard it."""
        match action:
            case Latch():
                latched = self._guarded(action)
                if latched is not None:
                    self.workloads[latched.name] = replace(latched, latch=action.mode)
            case RequestPod():
                self._request(action)
            case WriteTemplate():
                self._write_template(action)
            case Settle():
                self._settle(action)
            case Restore():
                self._restore(action)
            case GuardPolicy():
                self.policy = replace(self.policy, finalizers=(FINALIZER,))
            case ReleasePolicy():
                self.policy = replace(self.policy, finalizers=())

    def _request(self, action: RequestPod) -> None:
        workload = self.workloads.get(action.workload.name)
        if workload is None:
            return
        pods = []
        for pod in workload.pods:
            if pod.uid == action.pod.uid and pod.request == action.pod.request:
                pod = replace(pod, request=Request(action.generation, action.mode))
                self.writes += 1
                flag = " rewind" if action.rewind else ""
                self.log.append((workload.name, f"request {action.mode} {action.generation}{flag}"))
                self._tune(workload.name, action)
            pods.append(pod)
        self.workloads[workload.name] = replace(workload, pods=tuple(pods))

    def _tune(self, name: str, action: RequestPod) -> None:
        rung = next((rung for rung, tuning in TUNINGS.items() if tuning == action.tuning), None)
        if rung is None:
            return
        self.log.append((name, str(rung)))
        if name not in self.deaf and self.cured_by.get(name) is rung:
            self.bad.pop(name, None)

    def _guarded(self, action: WriteTemplate | Settle | Latch) -> WorkloadView | None:
        workload = self.workloads.get(action.workload.name)
        if workload is None or workload.generation_raw != action.workload.generation_raw:
            return None
        self.writes += 1
        if not workload.has_original:
            self.originals[workload.name] = workload.template_mode
        return replace(workload, generation_raw=str(action.generation), has_original=True)

    def _write_template(self, action: WriteTemplate) -> None:
        workload = self._guarded(action)
        if workload is None:
            return
        request = Request(action.generation, action.mode) if workload.hot else None
        self.workloads[workload.name] = replace(
            workload,
            template_mode=action.mode,
            template_request=request,
            latch=action.latch,
            observed=True,
            paused=workload.settle.was_paused if workload.settle else workload.paused,
            settle=None,
        )
        if workload.pods:
            self.restarts[workload.name] = self.restarts.get(workload.name, 0) + 1
        self.log.append((workload.name, f"template {action.mode}"))
        self._start_pods(workload.name)

    def _restore(self, action: Restore) -> None:
        workload = self.workloads.get(action.workload.name)
        if workload is None or workload.generation_raw != action.workload.generation_raw or not workload.has_original:
            return
        self.writes += 1
        restarts = workload.template_mode is not self.originals[workload.name] or workload.template_request is not None
        self.workloads[workload.name] = replace(
            workload,
            template_mode=self.originals.pop(workload.name),
            template_request=None,
            has_original=False,
            latch=None,
            settle=None,
            paused=workload.settle.was_paused if workload.settle else workload.paused,
        )
        if restarts:
            self._start_pods(workload.name)

    def _settle(self, action: Settle) -> None:
        current = self.workloads.get(action.workload.name)
        if current is None or current.settle != action.workload.settle:
            return  # the write tests the settle annotation too
        if action.stage is SettleStage.REPLICASET and not current.paused:
            return  # the adapter refuses: the controller would roll out
        workload = self._guarded(action)
        if workload is None:
            return
        match action.stage:
            case SettleStage.PAUSE:
                seen = action.workload
                if current.paused is not seen.paused:
                    return  # the write tests this as well: else a second pause would take the first for the owner's
                was_paused = seen.settle.was_paused if seen.settle else seen.paused
                intent = SettleIntent(action.generation, action.mode, was_paused)
                workload = replace(workload, settle=intent, paused=True)
            case SettleStage.REPLICASET:
                workload = replace(workload, updated_replicas=0)
            case SettleStage.RESUME:
                assert workload.settle is not None
                workload = replace(
                    workload,
                    template_mode=action.mode,
                    template_request=Request(action.generation, action.mode),
                    latch=action.latch,
                    paused=workload.settle.was_paused,
                    settle=None,
                    updated_replicas=workload.replicas,
                )
        self.workloads[workload.name] = workload

    def train(self, name: str | None = None) -> None:
        """Trainers take the request at their next step boundary."""
        for workload in self.workloads.values():
            if name not in (None, workload.name) or workload.name in self.deaf | self.crashing:
                continue
            for pod in workload.pods:
                _, applied = self.modes[pod.name]
                if pod.hot and pod.request and pod.request.generation > applied and pod.name not in self.deaf:
                    self.modes[pod.name] = (pod.request.mode, pod.request.generation)

    def step(self, seconds: float = 15.0) -> Decision:
        """One whole pass and what follows from it."""
        decision = self.decide()
        self.commit(decision)
        for action in decision.actions:
            self.act(action)
        self.train()
        self.now = round(self.now + seconds, 3)
        return decision

    def run(self, passes: int, seconds: float = 15.0) -> None:
        """Several passes."""
        for _ in range(passes):
            self.step(seconds)

    def really_in(self, mode: Mode) -> set[str]:
        """The workloads whose processes all train in ``mode``."""
        return {
            w.name for w in self.workloads.values() if w.pods and all(self.modes[p.name][0] is mode for p in w.pods)
        }
