"""``spec.enforcement: Observe``: what a phase decides is reported, and not done."""

from precision_operator.api.conditions import Condition, if_true
from precision_operator.api.state import Phase, State
from precision_operator.api.text import names
from precision_operator.core.actions import Notify
from precision_operator.core.facts import Facts
from precision_operator.core.outcome import Outcome
from precision_operator.reasons import Cause, Reason

WOULD_ACT = "WouldAct"
"""Type of the condition. A policy that acts has none."""


def observed(facts: Facts, outcome: Outcome) -> Outcome:
    """The state as it is, and what would have become of it."""
    would = _intended(facts, outcome.state)
    if would is not None:
        return Outcome(facts.state, waiting=Cause(Reason.WOULD_ACT, would.message), would=would)
    text = "spec.enforcement is Observe: nothing is changed"
    if outcome.waiting is not None:
        text += f", and a promotion would wait: {outcome.waiting.message}"
    return Outcome(facts.state, waiting=Cause(Reason.OBSERVING, text))


def _intended(facts: Facts, after: State) -> Cause | None:
    """Why the state would be another one; None: nobody's mode would be changed. No figure is named, for those waver."""
    before = facts.state
    reason = Reason.known(after.reason) or Reason.WOULD_ACT
    joined = sorted(after.held_keys - before.held_keys)
    if after.phase is Phase.ROLLING_BACK and before.phase is not Phase.ROLLING_BACK:
        incident = after.incident
        how = f"{incident.strategy}, {incident.severity}" if incident is not None else "at once"
        who = names([f.name for f in facts.failing if f.key]) or "the fleet"
        return Cause(reason, f"would roll back ({how}), for {reason} in {who}")
    if joined:
        named = {w.key: w.name for w in facts.workloads}
        who = names([named.get(key, key) for key in joined])
        return Cause(reason, f"would roll back {who} alone, for {reason}")
    if after.phase in (Phase.PROGRESSING, Phase.PAUSED):
        began = before.phase is Phase.PENDING or after.step_index > before.step_index
        return Cause(reason, f"would promote: {after.message}") if began else None
    if after.phase is not before.phase:
        return Cause(reason, f"would go to {after.phase}: {after.message}")
    new = frozenset(after.members) - frozenset(before.members)
    if new:
        return Cause(Reason.WOULD_ACT, f"would take in {names([w.name for w in facts.workloads if w.key in new])}")
    return None


def would_act(outcome: Outcome) -> Condition:
    """The condition: what the policy would do, were it enforced."""
    if outcome.would is None:
        return Condition(WOULD_ACT, "False", Reason.OBSERVING, "")
    return Condition(WOULD_ACT, "True", outcome.would.reason, outcome.would.message)


def would_events(before: State, outcome: Outcome) -> tuple[Notify, ...]:
    """The Event of something that would be done, once for each reason."""
    was = if_true(before.conditions, WOULD_ACT)
    if outcome.would is None or (was is not None and was.reason == outcome.would.reason):
        return ()
    return (Notify(Reason.WOULD_ACT, outcome.would.message),)
