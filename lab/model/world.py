"""A small world under ``decide``: a cluster, its metrics, and an operator that decides, commits and acts.

It stands below the port of the pure core only. The property tests and the model explorer run in this one world.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lab.model.cluster import Cluster
from precision_operator.api.assignment import OBJECT_LIMIT_BYTES, assignment_to_wire, parse_assignment
from precision_operator.api.mitigation import Rung
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy, deleted_policy
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase, State
from precision_operator.api.summary import Summary, lost_transition, parse_summary, summary_to_wire
from precision_operator.core.actions import (
    Action,
    DeleteAssignment,
    DeletePod,
    EvictPod,
    RequestPod,
    ResumeJob,
    SuspendJob,
)
from precision_operator.core.decide import Decision, decide
from precision_operator.core.lifecycle import lost
from precision_operator.core.mitigation.windows import TUNINGS
from precision_operator.core.model import (
    Admission,
    Evaluation,
    Observation,
    PodSignals,
    PromotionSlots,
    Request,
    RunsOn,
)
from precision_operator.reasons import Cause, Reason

GOOD = {signal: record.good for signal, record in SIGNALS.items()}
BAD = {signal: record.bad for signal, record in SIGNALS.items()}
OVERFLOWS, NAN, SLOW = ({signal: BAD[signal]} for signal in (Signal.OVERFLOW, Signal.NON_FINITE, Signal.SPEED))
"""What breaches P1, P0 and P2 in fleets of tests and of models."""

ECHO_SECONDS = 30.0
"""So long a rollback waits for admission before it takes pods away: a new API server may be without it for that time."""

_SUMMARY_BYTES = 16 * 1024


@dataclass
class World(Cluster):
    """Everything outside of the operator, and the operator's passes."""

    policy: Policy
    state: State = field(default_factory=State)
    summary: Summary = field(default_factory=Summary)
    """The policy's status."""
    bad: dict[str, dict[Signal, float]] = field(default_factory=dict)
    """Workload → values that differ from GOOD while it trains in reduced precision."""
    everywhere: dict[Signal, float] = field(default_factory=dict)
    """Values that differ from GOOD on all workloads, in any precision."""
    unobservable: set[str] = field(default_factory=set)
    """Workloads, or single pods, that Prometheus has no samples of."""
    checkpoints: dict[str, float] = field(default_factory=dict)
    """Workload, or single pod → when its last checkpoint was complete, where its trainers say so."""
    crowded: set[str] = field(default_factory=set)
    """Workloads whose devices have no room left for FP32."""
    halted: Cause | None = None
    """Why everything is halted on the whole cluster."""
    outside_schedule: Cause | None = None
    """Why the rollout may not advance now."""
    promotion_slots: PromotionSlots | None = None
    """What the cluster's cap leaves."""
    metrics_away: bool = False
    """Prometheus does not answer."""
    poisoned: set[str] = field(default_factory=set)
    """Workloads whose weights are NaN: non-finite losses in every precision."""
    cured_by: dict[str, Rung] = field(default_factory=dict)
    """Workload → what ends its overflow."""
    unlisted: set[str] = field(default_factory=set)
    """Workloads that the operator's caches lack: its watch is behind."""
    strangers: dict[str, PodSignals] = field(default_factory=dict)
    """Pods of other workloads, or with a forged owner, that Prometheus reports beside ours."""
    continuous_since: float = 0.0
    """Since when this operator process has watched the metrics."""
    committed_at: float = 0.0
    """When the generation of the assignment was committed."""
    writes: int = 0
    """On pods."""
    commits: int = 0
    """Of the assignment."""
    summaries: int = 0
    """Writes of the policy's status."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Workload → how many of its pods the operator has taken away, or how often it has suspended it."""
    log: list[tuple[str, str]] = field(default_factory=list)
    restart_slots: int = 5

    def observe(self) -> Observation:
        """What the operator would gather now."""
        pods: dict[str, PodSignals] = {} if self.metrics_away else dict(self.strangers)
        away = Cause(Reason.METRICS_UNAVAILABLE, "refused")
        errors = dict.fromkeys(("ack", "steps", *Signal), away) if self.metrics_away else {}
        for name, workload in self.workloads.items():
            if self.metrics_away or name in self.unobservable or name in self.crashing:
                continue
            for pod in workload.pods:
                if pod.name in self.modes and pod.name not in self.unobservable:
                    mode, generation = self.modes[pod.name]
                    lacks = 2.0**30 if name in self.crowded and mode is not Mode.FP32 else None
                    pods[pod.name] = PodSignals(
                        mode,
                        generation,
                        self.now,
                        1000.0,
                        fp32_shortage_bytes=lacks,
                        fp32_memory=1.0 if mode is Mode.FP32 else None,
                        runs_on=RunsOn(world_size=self.world_sizes[name]) if name in self.world_sizes else None,
                        checkpoint_at=self.checkpoints.get(pod.name, self.checkpoints.get(name)),
                        values=self._values(name, mode),
                    )
        evaluation = Evaluation(at=self.now, continuous_since=self.continuous_since, pods=pods, errors=errors)
        seen = Observation(
            evaluation=evaluation,
            halted=self.halted,
            outside_schedule=self.outside_schedule,
            promotion_slots=self.promotion_slots,
            restart_slots=self.restart_slots,
            admission=self._admission(),
            nodes_away=frozenset(
                pod.node
                for name in self.unreachable
                for pod in self.workloads[name].pods
                if pod.node and pod.terminating
            ),
            writer="test",
            epoch=1,
        )
        return self._selected(seen)

    def _values(self, name: str, mode: Mode) -> Mapping[Signal, float]:
        values = {**GOOD, **({Signal.SPEED: 1.0} if mode is Mode.FP32 else {}), **self.everywhere}
        if mode is Mode.FP32:
            values.pop(Signal.OVERFLOW)
        else:
            values.update(self.bad.get(name, {}))
        if mode is Mode.BF16 and self.cured_by.get(name) is Rung.BF16:
            values[Signal.OVERFLOW] = 0.0
        if name in self.poisoned:
            values[Signal.NON_FINITE] = 2.0
        return values

    def _admission(self) -> Admission:
        if self.echoed:
            return Admission(True, Reason.ENFORCING, "every API server knows the assignment")
        return Admission(None, Reason.ADMISSION_BEHIND, "an API server has not acknowledged the assignment")

    def _selected(self, seen: Observation) -> Observation:
        """What the selector in force matches, and what the policy's own does."""
        own, force = self.policy.spec.selector, self.state.selector
        after = frozenset(w.key for n, w in self.workloads.items() if own.matches(self.labels[n]))
        before = frozenset(w.key for n, w in self.workloads.items() if force.matches(self.labels[n]))
        edited = not force.empty and force != own
        selected = after | before if edited else after
        listed = [w for n, w in self.workloads.items() if n not in self.unlisted]
        workloads = sorted((w for w in listed if w.key in selected), key=lambda w: w.name)
        recorded = {record.uid for record in self.state.suspensions.values()}
        return replace(
            seen,
            workloads=tuple(workloads),
            matching=(before, after) if edited else None,
            suspended=tuple(w for w in listed if w.key in self.state.suspensions and w.key not in selected),
            unseen=frozenset(w.uid for n, w in self.workloads.items() if n in self.unlisted and w.uid in recorded),
        )

    def decide(self) -> Decision:
        """One pass, without acting."""
        return decide(self.policy, self.state, self.observe(), self.now)

    def meet_stranger(self) -> None:
        """A pod that is none of ours, though its name begins as those of a workload of ours, reports the worst."""
        worst = {Signal.NON_FINITE: 9.0, Signal.OVERFLOW: 1.0, Signal.FAILURES: 1.0}
        self.strangers[f"{min(self.workloads, default='')}-stranger"] = PodSignals(
            Mode.FP16, 99, self.now, 1000.0, worst
        )

    def commit(self, decision: Decision) -> None:
        """The state goes over the wire and back, as it does on the API server."""
        state = decision.state
        if state != self.state or self.assignment is None:
            self.commits += 1
            wire = assignment_to_wire(state)
            assert parse_assignment(wire) == state, "the state does not survive the wire"
            assert len(json.dumps(wire)) < OBJECT_LIMIT_BYTES
        if state.generation != self.state.generation:
            self.committed_at = self.now
        self.state = state
        self.publish(state)

    def report(self, decision: Decision) -> None:
        """The summary becomes the policy's status."""
        if self.policy.deleted or decision.summary == self.summary:
            return
        wire = summary_to_wire(decision.summary)
        assert summary_to_wire(parse_summary(wire)) == wire, "the summary does not survive the wire"
        assert len(json.dumps(wire, ensure_ascii=False).encode()) < _SUMMARY_BYTES
        self.summary = decision.summary
        self.summaries += 1

    def act(self, action: Action) -> None:
        """Carry out one write, with the tests that guard it."""
        match action:
            case RequestPod():
                self._request(action)
            case DeletePod():
                if action.pod.terminating and action.workload.name in self.workloads:
                    self.hasten(action.workload.name, action.pod.uid)
                    self.writes += 1
                else:
                    self._delete(action)
            case EvictPod():
                if action.workload.name not in self.budgeted:
                    self._delete(action)
            case SuspendJob():
                held_back = action.respects_budgets and action.workload.name in self.budgeted
                if self.may_take_away and self._is_job(action) and not held_back:
                    self.suspend(action.workload.name)
                    self._restarted(action.workload.name, "suspend")
            case ResumeJob():
                if self.may_take_away and self._is_job(action):
                    self.resume(action.workload.name)
                    self.writes += 1
                    self.log.append((action.workload.name, "resume"))
            case DeleteAssignment():
                self.state = State()
                self.publish(None)

    def _request(self, action: RequestPod) -> None:
        workload = self.workloads.get(action.workload.name)
        if workload is None:
            return
        pods = []
        for pod in workload.pods:
            if pod.uid == action.pod.uid and pod.request == action.pod.request:
                pod = replace(pod, request=Request(action.generation, action.mode, action.rewind))
                self.writes += 1
                flags = "".join(f" {flag}" for flag in ("rewind", "checkpoint") if getattr(action, flag))
                self.log.append((workload.name, f"request {action.mode} {action.generation}{flags}"))
                self._tune(workload.name, action)
            pods.append(pod)
        self.workloads[workload.name] = replace(workload, pods=tuple(pods))

    def _tune(self, name: str, action: RequestPod) -> None:
        rung = next((rung for rung, tuning in TUNINGS.items() if tuning == action.tuning), None)
        if rung is None:
            return
        self.log.append((name, str(rung)))
        if name not in self.unresponsive and self.cured_by.get(name) is rung:
            self.bad.pop(name, None)

    def _delete(self, action: DeletePod | EvictPod) -> None:
        if self.may_take_away and self.take_away(action.workload.name, action.pod.uid):
            self._restarted(action.workload.name, "delete pod")

    def _restarted(self, name: str, what: str) -> None:
        self.writes += 1
        self.restarts[name] = self.restarts.get(name, 0) + 1
        self.log.append((name, what))

    def _is_job(self, action: SuspendJob | ResumeJob) -> bool:
        """What the write tests: this very Job, as it was when its step was recorded."""
        job = self.workloads.get(action.workload.name)
        wanted = isinstance(action, SuspendJob)
        return (
            job is not None
            and job.uid == action.workload.uid
            and job.object_generation == action.job_generation
            and job.suspended is not wanted
        )

    @property
    def may_take_away(self) -> bool:
        """The controller's rule: replacements must get the new mode. A rollback waits for that 30 s, and no longer.

        Without its policy there is no echo to ask for; what comes back wrong is taken away once more.
        """
        state = self.state
        emergency = state.phase is Phase.ROLLING_BACK or (state.alone and bool(state.restarts))
        waited = emergency and self.now - self.committed_at >= ECHO_SECONDS
        return self.echoed or waited or self.policy.deleted

    def step(self, seconds: float = 15.0) -> Decision:
        """One whole pass and what follows from it."""
        decision = self.decide()
        self.carry_out(decision)
        self.train()
        self.turn()
        self.now = round(self.now + seconds, 3)
        return decision

    def carry_out(self, decision: Decision) -> None:
        """Commit, act, report."""
        self.commit(decision)
        for action in decision.actions:
            self.act(action)
        self.report(decision)

    def run(self, passes: int, seconds: float = 15.0) -> None:
        """Several passes."""
        for _ in range(passes):
            self.step(seconds)

    @property
    def gone(self) -> bool:
        """Policy and assignment are deleted: nobody decides anything any more."""
        return self.policy.deleted and self.assignment is None

    def delete_policy(self) -> None:
        """What is known of the policy from now on is what its assignment kept."""
        self.policy = deleted_policy(self.policy.namespace, self.policy.name, self.state)

    def recreate_policy(self, policy: Policy) -> None:
        """A policy of that name is created: its status is empty, the assignment is what it was."""
        self.policy, self.summary = policy, Summary()

    def lose_assignment(self) -> None:
        """Somebody deletes the assignment under its policy: new pods start as their templates have them."""
        transition = lost_transition(summary_to_wire(self.summary))
        self.state = lost(self.policy, transition_id=transition) if transition is not None else State()
        self.publish(None)
