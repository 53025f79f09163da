"""Gather: everything that one decision may know, from the caches and from one reading of the metrics."""

from dataclasses import dataclass

from precision_operator.api.canary import Choice
from precision_operator.api.policy import Policy
from precision_operator.api.spec import PolicySpec, Strategy
from precision_operator.core.decide import HURRY_SECONDS
from precision_operator.core.model import Evaluation, Observation
from precision_operator.runtime.clock import Clock
from precision_operator.runtime.lease import LeaseElector
from precision_operator.settings import Settings
from precision_operator.shell.expectations import Expectations
from precision_operator.shell.inventory import Inventory, PolicyKey
from precision_operator.shell.nodes import LabelledNodes
from precision_operator.signals.evaluator import EvaluationPlan, Evaluator

JITTER_SHARE = 0.05
"""A reading is due this share of an interval early: a wake-up that comes a little early must not wait a whole one."""

WAKE_SECONDS = 0.5
"""However many alerts come in: no policy is read more often than this for them."""


@dataclass(slots=True)
class _Reading:
    plan: EvaluationPlan
    evaluation: Evaluation
    began: float
    """When it was asked for, by the monotonic clock: a wall clock set back must not make it look fresh."""


class Gatherer:
    """Fills observations. Readings are kept for one interval, so that watch events do not ask Prometheus again."""

    def __init__(
        self,
        *,
        inventory: Inventory,
        nodes: LabelledNodes,
        evaluator: Evaluator,
        elector: LeaseElector,
        expectations: Expectations,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._inventory = inventory
        self._nodes = nodes
        self._evaluator = evaluator
        self._elector = elector
        self._expectations = expectations
        self._settings = settings
        self._clock = clock
        self._readings: dict[PolicyKey, _Reading] = {}
        self._woken: set[PolicyKey] = set()

    async def gather(self, key: PolicyKey, policy: Policy, *, hurry: bool = False) -> Observation:
        """Observe the policy's world. Never raises for what Prometheus does: that stands in the observation.

        ``hurry``: acknowledgements are awaited, so metrics are read at least as often as HURRY_SECONDS.
        """
        plan = plan_of(policy)
        problem = self._evaluator.problem(plan)
        evaluation = None
        if problem is None and not policy.spec.suspend:
            evaluation = await self._read(key, plan, hurry=hurry)
        canary_nodes = await self._canary_nodes(policy.spec)
        # The caches are read after the metrics: they are the fresher of the two.
        selected = self._inventory.selected(policy.namespace, policy.spec.selector)
        alone = self._inventory.policies_in(key.namespace) <= {key}
        owners = {workload.name: key if alone else self._owner(key, workload.name) for workload in selected}
        workloads = tuple(workload for workload in selected if owners[workload.name] == key)
        restarting = self._inventory.restarting() | self._expectations.restarting()
        settling = sum(1 for workload in workloads if workload.settle is not None)
        return Observation(
            workloads=workloads,
            evaluation=evaluation,
            restart_slots=max(0, self._settings.restart_budget - len(restarting)),
            settle_slots=max(0, self._settings.settle_budget - settling),
            problem=problem,
            canary_nodes=canary_nodes,
            contested=tuple((name, owner.name) for name, owner in owners.items() if owner != key),
            writer=self._elector.identity,
            epoch=self._elector.epoch,
        )

    async def _canary_nodes(self, spec: PolicySpec) -> tuple[str, ...]:
        rules = spec.rollback.canary
        asked = rules.by is Choice.NODE_LABEL and Strategy.CANARY in spec.rollback.strategies.values()
        return await self._nodes.names(rules.node_label) if asked else ()

    def _owner(self, key: PolicyKey, workload: str) -> PolicyKey:
        """The oldest of the policies that select a workload; by name among those of the same second."""
        rivals = self._inventory.policies_for_workload(key.namespace, workload) | {key}
        return min(rivals, key=lambda rival: (self._inventory.created(rival), rival.name))

    async def _read(self, key: PolicyKey, plan: EvaluationPlan, *, hurry: bool) -> Evaluation:
        known = self._readings.get(key)
        woken = key in self._woken
        every = min(plan.interval_seconds, HURRY_SECONDS) if hurry else plan.interval_seconds
        due = WAKE_SECONDS if woken else every * (1.0 - JITTER_SHARE)
        now = self._clock.monotonic()
        if known is not None and known.plan == plan and now - known.began < due:
            return known.evaluation
        evaluation = await self._evaluator.evaluate(plan, no_older_seconds=WAKE_SECONDS if woken else every / 2)
        self._readings[key] = _Reading(plan, evaluation, now)
        self._woken.discard(key)
        return evaluation

    def wake(self, key: PolicyKey) -> None:
        """Read anew at the next pass, though the interval has not passed."""
        self._woken.add(key)

    def forget(self, key: PolicyKey) -> None:
        """The policy is gone."""
        self._readings.pop(key, None)
        self._woken.discard(key)


def plan_of(policy: Policy) -> EvaluationPlan:
    """What the policy's criteria need to be asked."""
    spec: PolicySpec = policy.spec
    return EvaluationPlan(
        endpoint=spec.prometheus_ref,
        namespace=policy.namespace,
        window_seconds=spec.evaluation.window_seconds,
        min_steps=spec.evaluation.min_steps,
        interval_seconds=spec.evaluation.interval_seconds,
        queries=tuple((c.signal.value, c.query) for c in spec.criteria if c.enabled),
        raw=tuple((c.signal.value, c.promql) for c in spec.criteria if c.enabled and c.promql),
    )
