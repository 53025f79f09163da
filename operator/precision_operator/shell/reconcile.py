"""Reconcile: gather → decide → commit → act, for one policy."""

import logging
from dataclasses import dataclass, replace

from precision_operator.api.incident import Scope
from precision_operator.api.mitigation import news
from precision_operator.api.policy import Policy, parse_policy
from precision_operator.api.state import Phase, State
from precision_operator.core.actions import Notify
from precision_operator.core.decide import Decision, decide
from precision_operator.errors import NotFound, OperatorError
from precision_operator.kube.port import POLICIES, KubeApi
from precision_operator.observability.metrics import Metrics
from precision_operator.report.incident import Pass as Seen
from precision_operator.runtime.clock import Clock
from precision_operator.shell.act import Actor
from precision_operator.shell.commit import commit_status
from precision_operator.shell.gather import Gatherer
from precision_operator.shell.inventory import PolicyKey
from precision_operator.shell.investigator import Investigator
from precision_operator.shell.reporter import Reporter

_LOG = logging.getLogger(__name__)

_ESCALATIONS = frozenset({"RollbackExpedited", "RollbackEscalated"})
"""Reasons of Events that say that a rollback needs more than was planned."""
_LATE = "DeadlineExceeded"
"""The same, which the Progressing condition says."""


@dataclass(frozen=True, slots=True)
class Pass:
    """How a pass ended."""

    next_seconds: float
    """In how many seconds the policy is due again by itself."""
    failures: tuple[OperatorError, ...] = ()
    """Writes that did not go through."""


class Reconciler:
    """One pass over one policy at a time."""

    def __init__(
        self,
        api: KubeApi,
        *,
        gatherer: Gatherer,
        actor: Actor,
        metrics: Metrics,
        clock: Clock,
        reporter: Reporter | None = None,
        investigator: Investigator | None = None,
    ) -> None:
        self._api = api
        self._reporter = reporter
        self._investigator = investigator
        self._gatherer = gatherer
        self._actor = actor
        self._metrics = metrics
        self._clock = clock

    async def reconcile(self, key: PolicyKey) -> Pass | None:
        """One pass; None where the policy is gone.

        Raises:
            Conflict: somebody changed the policy meanwhile; gather again.
            KubeError: the API server did not answer as it should.
        """
        try:
            body = await self._api.get(POLICIES, key.namespace, key.name)
        except NotFound:
            self._gatherer.forget(key)
            self._metrics.forget_policy(key.namespace, key.name)
            if self._reporter is not None:
                self._reporter.gone(key)
            return None
        policy, before = parse_policy(body)
        observation = await self._gatherer.gather(key, policy, hurry=before.phase is Phase.ROLLING_BACK)
        if self._reporter is not None:
            observation = replace(observation, verified=self._reporter.verified(key))
        now, decided_at = self._clock.time(), self._clock.monotonic()
        decision = decide(policy, before, observation, now)
        # The commit comes first: a stale leader loses here, before it has touched anything.
        if policy.deleted_at is None and await commit_status(self._api, key, body, before, decision.status):
            self._report(policy, before, decision.status)
            self._report_escalations(policy, before, decision)
        emergency = decision.status.phase is Phase.ROLLING_BACK
        failures = await self._actor.act(policy, decision.actions, emergency=emergency)
        for listener in (self._reporter, self._investigator) if policy.deleted_at is None else ():
            if listener is not None:
                listener.observe(Seen(policy, before, observation, decision, now))
        self._metrics.policy_state(
            key.namespace, key.name, phase=decision.status.phase, precision=decision.status.precision or ""
        )
        self._metrics.policy_workloads(key.namespace, key.name, _counts(decision.status))
        # Counted from the decision by the clock that does not jump: the wall clock may have been set back since.
        elapsed_seconds = self._clock.monotonic() - decided_at
        return Pass(max(0.0, decision.wake_at - now - elapsed_seconds), tuple(failures))

    def _report(self, policy: Policy, before: State, after: State) -> None:
        if after.phase is not before.phase:
            self._metrics.transition(
                policy.namespace, policy.name, before=before.phase, after=after.phase, reason=after.reason
            )
            _LOG.info(
                "%s/%s: %s → %s: %s",
                policy.namespace,
                policy.name,
                before.phase,
                after.phase,
                after.message,
                extra={"reason": after.reason, "policy": policy.name, "transition_id": after.transition_id},
            )
        for window, reason in news(before.mitigations, after.mitigations):
            self._metrics.mitigation(
                policy.namespace, policy.name, signal=window.signal, rung=window.rung or "", reason=reason
            )
        new, old = after.incident, before.incident
        if new is None:
            return
        if old is None or old.id != new.id:
            self._metrics.rollback(
                policy.namespace, policy.name, severity=new.severity, reason=new.reason, scope=Scope(new.scope)
            )
            self._metrics.rollback_stage("detected_to_decided", new.decided_at - new.detected_at)
        decided_at = new.expedited_at or new.decided_at  # the hours of a canary's comparison are no delay
        if new.last_patch_at is not None and (old is None or old.last_patch_at is None):
            self._metrics.rollback_stage("decided_to_patched", new.last_patch_at - decided_at)
        if new.last_ack_at is not None and (old is None or old.last_ack_at is None):
            self._metrics.rollback_stage("decided_to_acknowledged", new.last_ack_at - decided_at)
        if new.recovered_at is not None and new.last_ack_at is not None and (old is None or old.recovered_at is None):
            self._metrics.rollback_stage("acknowledged_to_recovered", new.recovered_at - new.last_ack_at)

    def _report_escalations(self, policy: Policy, before: State, decision: Decision) -> None:
        incident = decision.status.incident
        if incident is None:
            return
        told = [a for a in decision.actions if isinstance(a, Notify) and a.reason in _ESCALATIONS]
        reasons = {notice.reason: notice.message for notice in told}
        late = _late(decision.status)
        if late is not None and _late(before) is None:
            reasons[_LATE] = late
        for reason, message in reasons.items():
            self._metrics.escalation(policy.namespace, policy.name, severity=incident.severity, reason=reason)
            _LOG.warning(
                "%s/%s: %s", policy.namespace, policy.name, message, extra={"reason": reason, "policy": policy.name}
            )


def _late(status: State) -> str | None:
    """What is still waited for past the rollback's deadline."""
    return next((c.message for c in status.conditions if c.type == "Progressing" and c.reason == _LATE), None)


def _counts(status: State) -> dict[str, int]:
    return {
        "total": status.total,
        "moved": status.moved,
        "breached": status.breached,
        "unknown": status.unknown,
        "held": len(status.held),
    }
