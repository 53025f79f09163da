"""What a policy would have decided on last month's metrics: the same ``decide``, over history.

History does not react to what the policy would have done. So the fleet's *precision* is simulated: every workload is hot,
and acknowledges each request at once. The *values* are history's. They count only where the real trainers were in the
simulated precision at that time; else they are absent, which is Unknown. After a rollback the fleet is simulated in the
fallback. It starts over once history has been clean for a window, so that each breach of history is met once.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from precision_operator.api.incident import Incident
from precision_operator.api.mitigation import Rung
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery, Severity
from precision_operator.api.state import Phase, State
from precision_operator.core.actions import RequestPod
from precision_operator.core.cohorts.order import extend_cohort
from precision_operator.core.decide import Decision, decide
from precision_operator.core.evidence.readings import Breach, judge
from precision_operator.core.model import Admission, Evaluation, Observation, PodSignals, PodView, Request, WorkloadView
from precision_operator.reasons import Reason

_POD = re.compile(r"(-[a-z0-9]{5,10}-[a-z0-9]{5}|-[0-9]+)$")
_GONE_SECONDS = 86400.0
"""A workload without data stays in the fleet for this long, Unknown; then it counts as deleted."""
_GENERATED = 1
"""Generation that the simulated requests begin above."""
_KIND = "apps/Deployment"
"""Of all simulated workloads: a pod's name does not say which kind owns it."""
_ENFORCED = Admission(enforced=True, reason=Reason.ENFORCING, message="")


@dataclass(frozen=True, slots=True)
class Change:
    """One edge that would have been taken."""

    at: float
    before: Phase
    after: Phase
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Backtest:
    """The result."""

    start: float
    end: float
    decisions: int = 0
    changes: tuple[Change, ...] = ()
    incidents: tuple[Incident, ...] = ()
    seconds_in: Mapping[Phase, float] = field(default_factory=dict)
    phases: tuple[tuple[Phase, float], ...] = ()
    """Each phase and since when, in the order of time."""
    unknown_seconds: float = 0.0
    """How long at least one reading was Unknown."""
    workloads: tuple[str, ...] = ()


def workload_of(pod: str) -> str:
    """The workload, as a pod's name has it: a Deployment's or a StatefulSet's."""
    return _POD.sub("", pod)


def _answerable(policy: Policy) -> Policy:
    """Without what history cannot show: restarts, and BF16, in which no trainer was (Unknown would end no window)."""
    rollback = policy.spec.rollback
    ladder = tuple(rung for rung in rollback.mitigation.ladder if rung is not Rung.BF16)
    rollback = replace(rollback, mitigation=replace(rollback.mitigation, ladder=ladder))
    return replace(policy, spec=replace(policy.spec, rollback=rollback, delivery=Delivery.HOT))


class Simulation:
    """A fleet that obeys at once, under one policy, fed with history."""

    def __init__(self, policy: Policy, *, guard: bool) -> None:
        self._policy = _answerable(policy)
        self._guard = guard
        self._state = State()
        self._requests: dict[str, Request] = {}
        """Workload → its last request."""
        self._clean_since: float | None = None
        self._started = False
        self._result = Backtest(0.0, 0.0)
        self._changes: list[Change] = []
        self._incidents: list[Incident] = []
        self._seconds_in: dict[Phase, float] = {}
        self._phases: list[tuple[Phase, float]] = []
        self._names: dict[str, None] = {}
        self._seen: dict[str, tuple[float, list[str]]] = {}
        """Workload → when its pods were last seen, and which."""

    @property
    def decisions(self) -> int:
        """How many were taken."""
        return self._result.decisions

    def result(self) -> Backtest:
        """What came of it."""
        return replace(
            self._result,
            changes=tuple(self._changes),
            incidents=tuple(self._incidents),
            seconds_in=dict(self._seconds_in),
            phases=tuple(self._phases),
            workloads=tuple(sorted(self._names)),
        )

    def take(self, reading: Evaluation) -> None:
        """Decide on one reading; they must come in the order of time."""
        now, last = reading.at, self._result
        observation = self._observe(reading)
        if not self._started and observation.workloads:
            self._begin(observation, now)
        self._start_over(reading, now)
        before = self._state
        decision = decide(self._policy, before, observation, now)
        self._obey(decision)
        self._note(before, decision.state, now)
        elapsed = now - last.end if last.decisions else 0.0
        phase = decision.state.phase
        self._seconds_in[phase] = self._seconds_in.get(phase, 0.0) + elapsed
        if not self._phases or self._phases[-1][0] is not phase:
            self._phases.append((phase, now))
        self._result = replace(
            last,
            start=last.start if last.decisions else now,
            end=now,
            decisions=last.decisions + 1,
            unknown_seconds=last.unknown_seconds + (elapsed if decision.summary.unknown or reading.errors else 0.0),
        )

    def _begin(self, observation: Observation, now: float) -> None:
        """As a guard the fleet is promoted already; else the rollout is played too."""
        self._started = True
        if not self._guard:
            return
        spec = self._policy.spec
        members = extend_cohort(self._policy.uid, (), list(observation.workloads), size=len(observation.workloads))
        for workload in observation.workloads:
            self._requests[workload.name] = Request(_GENERATED, spec.target)
        self._state = State(
            selector=spec.selector,
            fallback=spec.fallback,
            modes=dict.fromkeys(members, spec.target),
            enforce=True,
            policy_uid=self._policy.uid,
            phase=Phase.HEALTHY,
            reason="Assumed",
            precision=spec.target,
            generation=_GENERATED,
            step_index=len(spec.stages) - 1,
            phase_since=now,
            members=members,
        )

    def _observe(self, reading: Evaluation) -> Observation:
        fleet: dict[str, list[str]] = {}
        for pod in sorted(reading.pods):
            fleet.setdefault(workload_of(pod), []).append(pod)
        self._names.update(dict.fromkeys(fleet))
        self._seen.update({name: (reading.at, pods) for name, pods in fleet.items()})
        for name, (at, pods) in list(self._seen.items()):
            if reading.at - at > _GONE_SECONDS:
                del self._seen[name]
            else:
                fleet.setdefault(name, pods)
        workloads = tuple(self._workload(name, pods) for name, pods in sorted(fleet.items()))
        signals = {name: self._signals(name, real) for name, real in reading.pods.items()}
        evaluation = replace(reading, pods=signals, continuous_since=0.0)
        return Observation(workloads, evaluation=evaluation, admission=_ENFORCED, writer="backtest")

    def _workload(self, name: str, pods: Sequence[str]) -> WorkloadView:
        request = self._requests.get(name)
        mode = request.mode if request is not None else Mode.FP32
        return WorkloadView(
            namespace=self._policy.namespace,
            key=f"{_KIND}/{name}",
            uid=name,
            hot=True,
            replicas=len(pods),
            pods=tuple(PodView(pod, pod, hot=True, started_mode=mode, request=request, ready=True) for pod in pods),
        )

    def _signals(self, pod: str, real: PodSignals) -> PodSignals:
        """The simulated mode with the values of history, where that was in this mode. Steps are made in any."""
        request = self._requests.get(workload_of(pod))
        mode = request.mode if request is not None else Mode.FP32
        generation = request.generation if request is not None else 0
        same = real.mode is mode
        return replace(
            real,
            mode=mode,
            generation=generation,
            steps=real.steps,
            values=real.values if same else {},
        )

    def _obey(self, decision: Decision) -> None:
        for action in decision.actions:
            if isinstance(action, RequestPod):
                self._requests[action.workload.name] = Request(action.generation, action.mode, action.rewind)
        self._state = decision.state

    def _note(self, before: State, after: State, now: float) -> None:
        if after.phase is not before.phase:
            self._changes.append(Change(now, before.phase, after.phase, after.reason, after.message))
        if after.incident is not None and (before.incident is None or before.incident.id != after.incident.id):
            self._incidents.append(after.incident)

    def _start_over(self, reading: Evaluation, now: float) -> None:
        """After a rollback: as if a person had asked for a retry once history was clean for a window."""
        if self._state.phase is not Phase.HELD and not self._state.held:
            self._clean_since = None
            return
        if any(self._breached(signals) for signals in reading.pods.values()):
            self._clean_since = None
            return
        self._clean_since = now if self._clean_since is None else self._clean_since
        if now - self._clean_since < self._policy.spec.evaluation.window_seconds:
            return
        self._clean_since = None
        self._changes.append(Change(now, self._state.phase, Phase.PENDING, "StartedOver", "history has been clean"))
        transition = self._state.transition_id + 1
        self._state = State(generation=self._state.generation + 1, transition_id=transition)
        self._requests.clear()
        if self._guard:
            self._begin(self._observe(reading), now)
            self._state = replace(self._state, transition_id=transition)

    def _breached(self, signals: PodSignals) -> bool:
        for criterion in self._policy.spec.criteria:
            value = signals.values.get(Signal(criterion.signal))
            if not criterion.enabled or value is None:
                continue
            reading = judge(criterion, value, failing=True)
            if isinstance(reading, Breach) and reading.severity is not Severity.P3:
                return True
        return False
