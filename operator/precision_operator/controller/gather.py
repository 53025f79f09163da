"""Gather: everything that one decision may know, from the caches and from one reading of the metrics."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace

from precision_operator.api.canary import Choice
from precision_operator.api.policy import Policy, PolicyKey, Revision
from precision_operator.api.schedule import ScheduleSpec, opens_at
from precision_operator.api.spec import PolicySpec, Strategy
from precision_operator.api.state import Phase, State
from precision_operator.api.text import bounded
from precision_operator.api.wire import format_time, mapping, text
from precision_operator.controller.act import Actor
from precision_operator.controller.enforcement import Enforcement
from precision_operator.controller.halt import Halt
from precision_operator.controller.nodes import Nodes
from precision_operator.controller.preflight import Tried, WayBack
from precision_operator.controller.promotions import Promotions
from precision_operator.controller.restarts import Restarts
from precision_operator.controller.selections import Selections
from precision_operator.core.decide import HURRY_SECONDS
from precision_operator.core.leaving import late
from precision_operator.core.model import Admission, Evaluation, Observation, PodView, WorkloadView
from precision_operator.core.resting import settled
from precision_operator.core.rollback.batches import awaits_checkpoints
from precision_operator.errors import KubeError
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.port import JOBS, KubeApi
from precision_operator.reasons import Cause, Reason
from precision_operator.runtime.clock import Clock
from precision_operator.runtime.lease import LeaseElector
from precision_operator.settings import Settings
from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.plan import plan_of
from precision_operator.signals.queries import CHECKPOINT, FP32_MEMORY
from precision_operator.signals.service import EvaluationService
from precision_operator.workloads.kinds.job import finished

_LOG = logging.getLogger(__name__)


class Gatherer:
    """Fills observations. Metrics are the newest finished answer: nothing here waits for Prometheus."""

    def __init__(
        self,
        api: KubeApi,
        *,
        inventory: Inventory,
        nodes: Nodes,
        halt: Halt,
        way_back: WayBack,
        evaluator: Evaluator,
        evaluations: EvaluationService[PolicyKey],
        elector: LeaseElector,
        actor: Actor,
        enforcement: Enforcement,
        restarts: Restarts,
        promotions: Promotions,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._api = api
        self._inventory = inventory
        self._nodes = nodes
        self._halt = halt
        self._way_back = way_back
        self._evaluator = evaluator
        self._evaluations = evaluations
        self._elector = elector
        self._actor = actor
        self._enforcement = enforcement
        self._restarts = restarts
        self._promotions = promotions
        self._settings = settings
        self._clock = clock
        self._selections = Selections(inventory)

    @property
    def epoch(self) -> int:
        """Of the Lease, as in an observation that is made now."""
        return self._elector.epoch

    def versions(self, key: PolicyKey) -> tuple[str, str]:
        """The resourceVersions of policy and assignment, as the watches last reported them."""
        return self._inventory.versions(key)

    def revision(self, key: PolicyKey) -> Revision | None:
        """What decides of the policy, as the watch last reported it; None: it is not there."""
        return self._inventory.revision(key)

    def assignment_uid(self, key: PolicyKey) -> str:
        """The uid of its assignment, as the watch last reported it; empty: it is not there."""
        return self._inventory.assignment_uid(key)

    async def gather(self, key: PolicyKey, policy: Policy, state: State) -> Observation:
        """Observe the policy's world. Never raises for what Prometheus does: that stands in the observation."""
        canary_nodes, staging_nodes, admission = await asyncio.gather(
            self._canary_nodes(policy.spec),
            self._staging_nodes(policy.spec),
            self._admission(key, policy, state),
        )
        halted = self._halt.cause
        evaluation = self._latest(key, policy, state) if halted is None else None
        # The caches are read after the metrics: they are the fresher of the two.
        found = self._selections.of(key, policy, state)
        workloads, suspended = self._by_our_clock(found.workloads), self._by_our_clock(found.suspended)
        self._enforcement.doubt(key, _slipped(key.name, state, workloads))
        begins = state.phase is Phase.PENDING and self._reads(policy) and not policy.deleted
        way_back = await self._way_back.try_out(policy, workloads) if begins else Tried({})
        nodes_away = await self._nodes.away(self._late_on((*workloads, *suspended)))
        unseen = await self._unseen(key.namespace, state, suspended)
        epoch = self._elector.epoch
        # Nothing is awaited between this and the decision: two policies must not be given the same slots.
        return Observation(
            workloads=workloads,
            matching=found.matching,
            evaluation=evaluation,
            restart_slots=self._restarts.slots(key, self._settings.restart_budget, epoch=epoch),
            problem=self._evaluator.problem(plan_of(policy)),
            admission=admission,
            halted=halted,
            outside_schedule=_outside(policy.spec.schedule, self._clock.time()),
            promotion_slots=self._promotions.slots(key, self._settings.max_promoting_workloads, epoch=epoch),
            refused=self._actor.refused(key),
            canary_nodes=canary_nodes,
            staging_nodes=staging_nodes,
            way_back=way_back.why,
            way_back_open=way_back.open,
            contested=found.contested,
            suspended=suspended,
            unseen=unseen,
            nodes_away=nodes_away,
            unsupported=found.unsupported,
            writer=self._elector.identity,
            epoch=epoch,
        )

    def _by_our_clock(self, workloads: tuple[WorkloadView, ...]) -> tuple[WorkloadView, ...]:
        """A pod's grace counts from when it was seen to go: the API server's clock may differ from ours, or be set."""
        if not self._inventory.loses_pods:
            return workloads
        return tuple(
            replace(view, pods=tuple(map(self._dated, view.pods)))
            if any(pod.terminating for pod in view.pods)
            else view
            for view in workloads
        )

    def _dated(self, pod: PodView) -> PodView:
        seen = self._inventory.told_to_go(pod.uid)
        if seen is None:
            return pod
        began = round(self._clock.time() - (self._clock.monotonic() - seen))
        return replace(pod, gone_by=began + pod.grace_seconds)

    def _late_on(self, workloads: Iterable[WorkloadView]) -> frozenset[str]:
        """Nodes with pods that should be gone."""
        now = self._clock.time()
        return frozenset(pod.node for view in workloads for pod in view.pods if pod.node and late(pod, now))

    async def _unseen(self, namespace: str, state: State, seen: Iterable[WorkloadView]) -> frozenset[str]:
        """Those that the caches lack and that are not gone: a watch may be behind what the last leader saw."""
        missing = frozenset(record.uid for record in state.suspensions.values()) - {view.uid for view in seen}
        if not missing:
            return missing
        try:
            jobs = await self._api.list(JOBS, namespace)
        except KubeError as error:
            _LOG.warning("Jobs that were suspended cannot be read: %s", error, extra={"reason": error.reason})
            return missing
        return missing & {text(mapping(job.get("metadata")).get("uid")) for job in jobs if not finished(job)}

    async def _admission(self, key: PolicyKey, policy: Policy, state: State) -> Admission:
        # Nothing is promoted, or there is no assignment yet to ask for; and a rollback asks before it takes pods away.
        if policy.deleted or not state.policy_uid or state.phase is Phase.ROLLING_BACK:
            return self._enforcement.admission(key)
        begins, resting = state.phase is Phase.PENDING, settled(state)
        return await self._enforcement.current(key, generation=state.generation, patient=begins, resting=resting)

    async def _canary_nodes(self, spec: PolicySpec) -> tuple[str, ...]:
        rules = spec.rollback.canary
        asked = rules.by is Choice.NODE_LABEL and Strategy.CANARY in spec.rollback.strategies.values()
        return await self._nodes.names(rules.node_label) if asked else ()

    async def _staging_nodes(self, spec: PolicySpec) -> tuple[str, ...]:
        return await self._nodes.names(spec.staging.node_label) if spec.staging.by is Choice.NODE_LABEL else ()

    def awaits(self, key: PolicyKey, policy: Policy, state: State) -> bool:
        """Whether the first answer is still under way. What decides without it would take a start for silence."""
        return self._reads(policy) and self._latest(key, policy, state) is None

    def overdue_seconds(self, key: PolicyKey) -> float:
        """In how many seconds a pass is needed because no evaluation has ended."""
        return self._evaluations.wait_seconds(key)

    def _reads(self, policy: Policy) -> bool:
        return not policy.spec.suspend and self._halt.cause is None and self._evaluator.problem(plan_of(policy)) is None

    def _latest(self, key: PolicyKey, policy: Policy, state: State) -> Evaluation | None:
        if not self._reads(policy):
            self._evaluations.forget(key)
            return None
        checkpoints = (CHECKPOINT,) if awaits_checkpoints(policy, state, self._clock.time()) else ()
        memory = () if settled(state) else (FP32_MEMORY,)
        plan = plan_of(policy, besides=(*checkpoints, *memory), work=True)
        # While acknowledgements are awaited metrics are read at least as often as HURRY_SECONDS.
        hurry = state.phase is Phase.ROLLING_BACK or bool(state.drilled)
        every = min(plan.interval_seconds, HURRY_SECONDS) if hurry else plan.interval_seconds
        return self._evaluations.latest(key, plan, every_seconds=every, urgent=urgent(state))

    def forget(self, key: PolicyKey) -> None:
        """The policy is gone."""
        self._selections.forget(key)
        self._evaluations.forget(key)
        self._actor.forget(key)
        self._enforcement.forget(key)
        self._restarts.forget(key)
        self._promotions.forget(key)


def _outside(schedule: ScheduleSpec, now: float) -> Cause | None:
    """Why the rollout may not advance now, by the policy's schedule."""
    try:
        opens = opens_at(schedule, now)
    except (KeyError, ValueError) as error:
        message = f"spec.schedule.timeZone {schedule.time_zone!r} is not known ({type(error).__name__})"
        return Cause(Reason.UNKNOWN_TIME_ZONE, bounded(message))
    if opens is None:
        return None
    return Cause(Reason.OUTSIDE_SCHEDULE, f"the next window of spec.schedule opens at {format_time(opens)}")


def _slipped(name: str, state: State, workloads: Iterable[WorkloadView]) -> frozenset[str]:
    """Uids of pods that admission gave another mode than their workload's: it was not enforcing when they were made.

    Only pods that replace those that were taken away: of any other it is not known when it was asked for.
    """
    if not state.enforce or not state.restarts:
        return frozenset()
    return frozenset(
        pod.uid
        for workload in workloads
        if (restart := state.restarts.get(workload.key)) is not None
        for pod in workload.pods
        if pod.created_at > restart.newest and not _as_assigned(pod, name, state, workload.key)
    )


def _as_assigned(pod: PodView, name: str, state: State, key: str) -> bool:
    given = max((generation for assignment, generation in pod.admitted if assignment == name), default=-1)
    return given >= state.changed.get(key, 0) or pod.started_mode is state.assigned(key)


def urgent(state: State) -> bool:
    """A breach or a rollback is under way: this policy goes before others."""
    return state.phase is Phase.ROLLING_BACK or bool(state.failing)
