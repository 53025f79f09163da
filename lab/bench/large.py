"""5,000 workloads with names of 60 characters in one policy, in mid-rollback: size of the object, cost of a decision.

Both are measured twice, with workloads that are moved hot and with those that only a restart moves: of these there is more
to remember. The worse figure of each counts.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

from lab.bench.api import Json
from lab.bench.fleet import policy
from lab.cluster import Kubectl
from lab.cluster.manifests import AS_OPERATOR
from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy, parse_policy
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase, State
from precision_operator.core.actions import DeletePod, RequestPod
from precision_operator.core.decide import Decision, decide
from precision_operator.core.model import Admission, Evaluation, Observation, PodSignals, PodView, Request, WorkloadView
from precision_operator.reasons import Reason

NAMESPACE = "bench-large"
_GOOD = {signal: record.good for signal, record in SIGNALS.items()}


class Fleet:
    """Workloads with one pod each, in memory: what the caches would hold, and what Prometheus would answer."""

    def __init__(self, count: int, name_length: int, *, hot: bool) -> None:
        """``hot``: else they are found in FP16, and only a restart moves them."""
        names = [f"{i:05d}-".ljust(name_length, "x") for i in range(count)]
        one = PodView("", "", hot=hot, started_mode=Mode.FP32 if hot else Mode.FP16, ready=True)
        self._pods = {name: replace(one, name=f"{name}-0", uid=f"uid-{name}") for name in names}
        self._hot = hot
        self.breaching = False

    def observe(self, now: float) -> Observation:
        """Everything, with every process in the mode that it was asked for."""
        one = WorkloadView("bench", "", "", hot=self._hot, literal=not self._hot)
        workloads = [
            replace(one, key=f"apps/Deployment/{name}", uid=name, pods=(pod,)) for name, pod in self._pods.items()
        ]
        pods = {}
        for pod in self._pods.values():
            mode = pod.effective_mode
            values = {**_GOOD, Signal.OVERFLOW: 0.9} if self.breaching and mode is not Mode.FP32 else _GOOD
            generation = pod.request.generation if pod.request else 0
            pods[pod.name] = PodSignals(mode, generation, now, 1000.0, values)
        evaluation = Evaluation(at=now, continuous_since=0.0, pods=pods)
        admission, slots = Admission(True, Reason.ENFORCING, ""), len(self._pods)
        return Observation(tuple(workloads), evaluation=evaluation, admission=admission, restart_slots=slots)

    def carry_out(self, decision: Decision, *, share: float = 1.0) -> None:
        """Write the requests and take pods away, or a share of that: the rest is on its way."""
        writes = [action for action in decision.actions if isinstance(action, RequestPod | DeletePod)]
        for action in writes[: round(share * len(writes))]:
            name = action.workload.name
            if isinstance(action, RequestPod):
                request = Request(action.generation, action.mode, action.rewind)
                self._pods[name] = replace(self._pods[name], request=request)
            else:
                self._pods[name] = replace(self._pods[name], uid=f"new-{name}", started_mode=Mode.FP32, request=None)


def mid_rollback(kubectl: Kubectl, *, count: int, name_length: int) -> Json:
    """The worse of a hot fleet and one that is restarted, all at once; the API server must take both objects."""
    kubectl("create", "namespace", NAMESPACE)
    kubectl.wait_for_namespace(NAMESPACE)
    found = [_mid_rollback(kubectl, Fleet(count, name_length, hot=hot), count) for hot in (True, False)]
    phases = {phase for phase, _, _ in found}
    return {
        "workloads": count,
        "name_length": name_length,
        "phase": ", ".join(sorted(phases)),
        "object_bytes": max(stored for _, stored, _ in found),
        "decide_seconds": round(max(seconds for *_, seconds in found), 3),
    }


def _mid_rollback(kubectl: Kubectl, fleet: Fleet, count: int) -> tuple[Phase, int, float]:
    """Promote, break everything, and measure in the middle."""
    body = policy()
    body["spec"]["rollback"]["emergency"] = {"maxConcurrentPods": count, "expectedRestart": "10m"}
    given = parse_policy({**body, "metadata": {"name": "large", "namespace": NAMESPACE, "uid": "bench"}})
    state, now = State(), 1000.0
    state, now = _until(given, fleet, state, now, Phase.HEALTHY)
    fleet.breaching = True
    worst = 0.0
    while state.phase is not Phase.ROLLING_BACK:
        decision, seconds = _timed(given, state, fleet.observe(now), now)
        state, now, worst = decision.state, now + 5.0, max(worst, seconds)
    fleet.carry_out(decision, share=0.5)
    decision, seconds = _timed(given, state, fleet.observe(now), now)
    stored = _store(kubectl, decision.state)
    return decision.state.phase, stored, max(worst, seconds)


def _until(given: Policy, fleet: Fleet, state: State, now: float, phase: Phase) -> tuple[State, float]:
    while state.phase is not phase:
        decision = decide(given, state, fleet.observe(now), now)
        fleet.carry_out(decision)
        state, now = decision.state, now + 5.0
    return state, now


def _timed(given: Policy, state: State, observation: Observation, now: float) -> tuple[Decision, float]:
    began = time.process_time()
    decision = decide(given, state, observation, now)
    return decision, time.process_time() - began


def _store(kubectl: Kubectl, state: State) -> int:
    """Have the API server store it; bytes of the stored object, its managed fields included."""
    document = {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionAssignment",
        "metadata": {"name": "large", "namespace": NAMESPACE},
        **assignment_to_wire(state),
    }
    kubectl("create", "-f", "-", *AS_OPERATOR, input=json.dumps(document))
    path = f"/apis/precision.genesis.ai/v1alpha1/namespaces/{NAMESPACE}/precisionassignments/large"
    stored = len(kubectl("get", "--raw", path).stdout.encode())
    kubectl("delete", "precisionassignment", "large", "-n", NAMESPACE, *AS_OPERATOR)
    return stored
