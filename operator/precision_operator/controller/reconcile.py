"""Reconcile: gather → decide → commit → act, for one policy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from precision_operator.api.assignment import VERSION, parse_assignment, state_version
from precision_operator.api.messages import Notified
from precision_operator.api.policy import Policy, PolicyKey, deleted_policy, parse_policy
from precision_operator.api.state import Phase, State
from precision_operator.api.summary import lost_transition, parse_summary
from precision_operator.api.verification import Checks
from precision_operator.api.wire import mapping, text
from precision_operator.controller.act import PATIENCE_SECONDS, Actor
from precision_operator.controller.basis import Basis
from precision_operator.controller.committer import Committer, left_seconds
from precision_operator.controller.enforcement import Enforcement
from precision_operator.controller.gather import Gatherer, urgent
from precision_operator.controller.halt import Halt
from precision_operator.controller.promotions import Promotions
from precision_operator.controller.reports import Reports
from precision_operator.controller.restarts import Restarts
from precision_operator.controller.summaries import Summaries
from precision_operator.controller.writes import Write
from precision_operator.core.decide import Decision, decide
from precision_operator.core.lifecycle import lost
from precision_operator.core.model import Observation
from precision_operator.core.observer import Observer, RecordedPass
from precision_operator.core.resting import Rest, again, rest_of
from precision_operator.errors import NewerVersion, NotFound, OperatorError
from precision_operator.kube.port import ASSIGNMENTS, POLICIES, JsonObject, KubeApi, Resource
from precision_operator.observability.metrics import Metrics
from precision_operator.runtime.clock import Clock

REST_SECONDS = 300.0
"""How long at most a policy goes on without being read anew where nothing changed: watches report what does.

A pass over 1,000 workloads a minute was a quarter of what such a fleet costs at rest.
"""


@dataclass(frozen=True, slots=True)
class _Resting:
    """A policy of which the last pass found nothing to do."""

    rest: Rest
    versions: tuple[str, str]
    """The resourceVersions of policy and assignment."""
    until: float
    """By the monotonic clock."""


@dataclass(frozen=True, slots=True)
class Pass:
    """How a pass ended."""

    next_seconds: float
    """In how many seconds the policy is due again by itself."""
    failures: tuple[OperatorError, ...] = ()
    """Writes that did not go through."""
    urgent: bool = False
    """A breach or a rollback is under way."""


class Reconciler:
    """One pass over one policy at a time."""

    def __init__(
        self,
        api: KubeApi,
        *,
        gatherer: Gatherer,
        actor: Actor,
        enforcement: Enforcement,
        restarts: Restarts,
        promotions: Promotions,
        halt: Halt,
        metrics: Metrics,
        clock: Clock,
        observers: Sequence[Observer] = (),
        verified: Callable[[PolicyKey], tuple[str, Checks] | None] = lambda key: None,
        notified: Callable[[PolicyKey], tuple[Notified, ...]] = lambda key: (),
        leads: Callable[[int], bool] = lambda epoch: True,
    ) -> None:
        """A pass over one policy.

        Args:
            observers: who is shown each pass once it is carried out.
            verified: (incident, its checklist, counted) of a policy, where one was checked.
            notified: messages about a policy that were sent, and that its state does not know of.
            leads: whether the Lease of that epoch is still held.
        """
        self._api = api
        self._leads = leads
        self._observers = tuple(observers)
        self._verified = verified
        self._notified = notified
        self._resting: dict[PolicyKey, _Resting] = {}
        self._gatherer = gatherer
        self._actor = actor
        self._promotions = promotions
        self._reports = Reports(metrics)
        self._committer = Committer(
            api,
            enforcement=enforcement,
            restarts=restarts,
            halt=halt,
            reports=self._reports,
            clock=clock,
            leads=leads,
        )
        self._summaries = Summaries(api, clock)
        self._clock = clock

    async def reconcile(self, key: PolicyKey) -> Pass | None:
        """One pass; None where both the policy and its assignment are gone.

        Raises:
            Conflict: somebody changed the policy or the assignment meanwhile, or halted everything; gather again.
            LeaseLost: nothing more may be written.
            NewerVersion: a newer operator wrote the assignment; nothing is written.
            KubeError: the API server did not answer as it should.
        """
        return await self._rest(key) or await self._whole(key)

    async def _whole(self, key: PolicyKey) -> Pass | None:
        basis = Basis(self._gatherer, key)
        body, record = await self._read(POLICIES, key), await self._read(ASSIGNMENTS, key)
        if body is None and record is None:
            self._forget(key)
            return None
        basis.read(body, record)
        policy, before = _parsed(key, body, record)
        if self._gatherer.awaits(key, policy, before):
            return await self._unevaluated(key, body, policy, before)
        observation = await self._gather(key, policy, before)
        now, decided_at = self._clock.time(), self._clock.monotonic()
        decision = decide(policy, before, observation, now)
        self._promotions.note(key, decision.promoting, epoch=observation.epoch)
        seen, began = RecordedPass(policy, before, observation, decision, now), self._clock.monotonic()
        back = decision.state.rolled_back(a.workload.key for a in decision.actions if isinstance(a, Write))
        # A rollback that has something to write, or to hold, is committed with whatever is promoted beside it.
        gives_way = decision.promotes and not (back or decision.state.held_keys - before.held_keys)
        committed = await self._committer.commit(seen, basis, body, record, began=began if gives_way else None)
        if committed is None:
            return Pass(0.0)

        def holds() -> bool:
            return self._leads(observation.epoch)

        def current(write: Write) -> bool:
            return basis.stands(emergency=write.workload.key in back)

        emergency = _is_emergency(decision, back)
        acted = await self._actor.act(
            policy,
            decision.state,
            decision.actions,
            emergency=emergency,
            holds=holds,
            current=current,
            began=began,
        )
        failures = list(acted.failures)
        if holds():
            self._reports.measure(key, decision, observation.evaluation, body)
            # A breach, or a rollback's next round, may be waiting for the pass to end.
            seconds = PATIENCE_SECONDS if emergency else left_seconds(self._clock, began)
            failures += await self._show(key, body, decision, within_seconds=seconds)
        self._show_observers(seen)
        # The first commit is what admission can be asked about.
        soon = acted.again or (committed and record is None) or decision.wake_at <= now
        next_seconds = 0.0 if soon else self._next_seconds(seen, decided_at)
        rest = rest_of(seen) if not (soon or failures) else None
        if rest is not None:
            versions = _version(body), _version(record)
            self._resting[key] = _Resting(rest, versions, self._clock.monotonic() + REST_SECONDS)
        return Pass(next_seconds, tuple(failures), urgent(decision.state))

    async def _unevaluated(self, key: PolicyKey, body: JsonObject | None, policy: Policy, state: State) -> Pass:
        """The pass of a policy whose first evaluation is under way: it shows that it has begun, if nothing did yet."""
        begins = body is not None and parse_summary(body.get("status")).observed_generation <= 0
        failed: list[OperatorError] = []
        if body is not None and begins and self._leads(self._gatherer.epoch):
            failed = await self._summaries.show_first(key, body, policy, within_seconds=PATIENCE_SECONDS)
        return Pass(self._gatherer.overdue_seconds(key), tuple(failed), urgent(state))

    def _next_seconds(self, seen: RecordedPass, decided_at: float) -> float:
        """When the next pass is due. The evaluation's end is what usually brings it."""
        # Counted from the decision by the clock that does not jump: the wall clock may have been set back since.
        due_seconds = seen.decision.wake_at - seen.now - (self._clock.monotonic() - decided_at)
        return max(due_seconds, self._gatherer.overdue_seconds(seen.key))

    async def _rest(self, key: PolicyKey) -> Pass | None:
        """The pass of a policy that rests, where a new reading brought nothing else; None: a whole pass is due.

        What is not read anew is what the watches report: policy, assignment, workloads and pods.
        """
        known = self._resting.pop(key, None)
        if known is None or self._clock.monotonic() >= known.until:
            return None
        policy, before = known.rest.seen.policy, known.rest.seen.before
        if known.versions != self._gatherer.versions(key) or self._gatherer.awaits(key, policy, before):
            return None
        observation = await self._gather(key, policy, before)
        now = self._clock.time()
        decision = again(known.rest, observation, now)
        if decision is None or known.versions != self._gatherer.versions(key) or not self._leads(observation.epoch):
            return None
        self._resting[key] = known
        self._show_observers(RecordedPass(policy, before, observation, decision, now))
        return Pass(max(decision.wake_at - now, self._gatherer.overdue_seconds(key)))

    async def _gather(self, key: PolicyKey, policy: Policy, state: State) -> Observation:
        observation = await self._gatherer.gather(key, policy, state)
        return replace(observation, verified=self._verified(key), notified=self._notified(key))

    def _show_observers(self, seen: RecordedPass) -> None:
        """After the policy's deletion too: an incident is followed until its rollback is over."""
        for observer in self._observers:
            observer.observe(seen)

    def _forget(self, key: PolicyKey) -> None:
        for observer in self._observers:
            observer.gone(key)
        self._gatherer.forget(key)
        self._reports.forget(key)

    async def _read(self, resource: Resource, key: PolicyKey) -> JsonObject | None:
        try:
            return await self._api.get(resource, key.namespace, key.name)
        except NotFound:
            return None

    async def _show(
        self, key: PolicyKey, body: JsonObject | None, decision: Decision, *, within_seconds: float
    ) -> list[OperatorError]:
        """The summary, where there is a policy to show it."""
        if body is None:
            return []
        return await self._summaries.show(key, body, decision, within_seconds=within_seconds)


def _parsed(key: PolicyKey, body: JsonObject | None, record: JsonObject | None) -> tuple[Policy, State]:
    """The policy, or what its assignment kept of it; and the state, or what stands in the place of a lost one."""
    if record is not None and state_version(record) > VERSION:
        raise NewerVersion(
            f"{key.namespace}/{key.name}: expected state version {VERSION} or lower, found {state_version(record)}: "
            "a newer operator wrote it; run that version, or newer"
        )
    state = parse_assignment(record) if record is not None else State()
    if body is None:
        return deleted_policy(key.namespace, key.name, state), state
    policy = parse_policy(body)
    transition = lost_transition(mapping(body.get("status"))) if record is None else None
    return policy, state if transition is None else lost(policy, transition_id=transition)


def _version(body: JsonObject | None) -> str:
    """The resourceVersion of what was read; empty: it is not there."""
    return text(mapping(body.get("metadata")).get("resourceVersion")) if body is not None else ""


def _is_emergency(decision: Decision, back: frozenset[str]) -> bool:
    """A rollback is under way, of the fleet or of workloads by themselves; ``back``: those of it that are written to."""
    state = decision.state
    return state.phase is Phase.ROLLING_BACK or (state.alone and bool(back or state.restarts))
