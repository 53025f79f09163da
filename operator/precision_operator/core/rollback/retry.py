"""Another attempt after a rollback needs its prerequisites acknowledged, and time after repeated failures."""

from precision_operator.api.commands import acknowledged
from precision_operator.contract import RETRY
from precision_operator.core.facts import Facts
from precision_operator.reasons import Cause, Reason


def reenabled(facts: Facts) -> Cause | None:
    """Closed while a retry would not be followed; None where it waits for nothing but the retry itself."""
    state, rules = facts.state, facts.spec.reenable
    given = acknowledged(facts.policy.annotations, transition_id=state.transition_id)
    missing = [p for p in rules.prerequisites if p not in given]
    if missing:
        how = facts.command(Reason.AWAITING_PREREQUISITES, "ack", missing=" ".join(missing))
        return Cause(Reason.AWAITING_PREREQUISITES, f"not acknowledged yet: {', '.join(missing)}; {how}")
    since = state.incident.decided_at if state.incident is not None else facts.now
    left = since + _backoff_seconds(facts) - facts.now
    if state.attempts > 1 and left > 0:
        tried = f"{state.attempts} attempts have failed"
        return Cause(
            Reason.BACKING_OFF, f"{tried}: another one is possible {_backoff_seconds(facts):g} s after the last"
        )
    if facts.policy.annotations.get(RETRY) is None:
        return Cause(Reason.AWAITING_RETRY, f"to start again: {facts.command(Reason.AWAITING_RETRY, 'retry')}")
    return None


def _backoff_seconds(facts: Facts) -> float:
    rules = facts.spec.reenable
    # Bounded before it is raised: a count of thousands must not overflow.
    return float(
        min(rules.backoff_limit_seconds, rules.backoff_seconds * 2.0 ** min(64, max(0, facts.state.attempts - 2)))
    )
