"""What metrics and the log say of a pass."""

import logging

from precision_operator.api.conditions import condition_of
from precision_operator.api.gain import NOT_MEASURED
from precision_operator.api.incident import Scope
from precision_operator.api.mitigation import news
from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.state import State
from precision_operator.api.summary import Summary
from precision_operator.api.wire import mapping, parse_time
from precision_operator.core.actions import Notify
from precision_operator.core.decide import Decision
from precision_operator.core.model import Evaluation
from precision_operator.core.rollback.drill import passed_at
from precision_operator.kube.port import JsonObject
from precision_operator.observability.metrics import Metrics, PolicyTime
from precision_operator.reasons import Reason

_LOG = logging.getLogger(__name__)

_ESCALATIONS = frozenset({Reason.ROLLBACK_EXPEDITED, Reason.ROLLBACK_ESCALATED})
"""Reasons of Events that say that a rollback needs more than was planned."""
_LATE = Reason.DEADLINE_EXCEEDED
"""The same, which the Progressing condition says."""


class Reports:
    """Tells the metrics and the log of each pass."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def measure(
        self, key: PolicyKey, decision: Decision, evaluation: Evaluation | None, body: JsonObject | None
    ) -> None:
        """Also for a policy that is gone: its rollback is finished, and what it holds stays held."""
        state, name = decision.state, (key.namespace, key.name)
        self._metrics.policy_state(*name, phase=state.phase, precision=state.precision or "")
        self._metrics.policy_suspended(*name, mapping(mapping(body).get("spec")).get("suspend") is True)
        self._metrics.policy_workloads(*name, workload_counts(decision.summary))
        self._metrics.policy_conditions(*name, {c.type: c.status for c in decision.summary.conditions})
        created = parse_time(mapping(body.get("metadata")).get("creationTimestamp")) if body is not None else None
        self._metrics.policy_times(*name, {**policy_times(state, evaluation), "created": created})
        self._metrics.policy_gain(*name, (decision.summary.gain or NOT_MEASURED).figures)

    def committed(self, policy: Policy, before: State, decision: Decision) -> None:
        """What a decision that was written has changed."""
        self._transition(policy, before, decision.state)
        self._escalations(policy, before, decision)

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._metrics.forget_policy(key.namespace, key.name)

    def _transition(self, policy: Policy, before: State, after: State) -> None:
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

    def _escalations(self, policy: Policy, before: State, decision: Decision) -> None:
        incident = decision.state.incident
        if incident is None:
            return
        raised = [a for a in decision.actions if isinstance(a, Notify) and a.reason in _ESCALATIONS]
        reasons = {notice.reason: notice.message for notice in raised}
        if _late(decision.state) and not _late(before):
            reasons[_LATE] = next(c.message for c in decision.summary.conditions if c.type == "Progressing")
        for reason, message in reasons.items():
            self._metrics.escalation(policy.namespace, policy.name, severity=incident.severity, reason=reason)
            _LOG.warning(
                "%s/%s: %s", policy.namespace, policy.name, message, extra={"reason": reason, "policy": policy.name}
            )


def _late(state: State) -> bool:
    """Something is still waited for past the rollback's deadline."""
    found = condition_of(state.conditions, "Progressing")
    return found is not None and found.reason == _LATE


def policy_times(state: State, evaluation: Evaluation | None) -> dict[PolicyTime, float | None]:
    """What alerts compare with now. A deadline counts until all train in the fallback."""
    incident = state.incident
    found: dict[PolicyTime, float | None] = {"phase": state.phase_since, "deadline": None, "predicted": None}
    found["drill"] = passed_at(state)
    if evaluation is not None and not evaluation.errors:
        found["evaluation"] = evaluation.at
    if incident is not None:
        found["rollback"] = incident.decided_at
    if incident is not None and incident.last_ack_at is None and state.returning:
        found["deadline"] = incident.deadline_at
        if incident.predicted_seconds is not None:
            found["predicted"] = (incident.expedited_at or incident.decided_at) + incident.predicted_seconds
    return found


def workload_counts(summary: Summary) -> dict[str, int]:
    """Workloads by the states that the metric names."""
    return {
        "total": summary.total,
        "moved": summary.moved,
        "breached": summary.breached,
        "unknown": summary.unknown,
        "held": summary.held,
    }
