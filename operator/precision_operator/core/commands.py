"""Which commands of people are carried out where a fleet stands: one rule for the operator and for the CLI."""

from dataclasses import dataclass, replace
from typing import Literal

from precision_operator.api.canary import CanaryVerdict, Comparison
from precision_operator.api.commands import Command
from precision_operator.api.policy import Policy
from precision_operator.api.spec import PolicyEnforcement, Severity, Strategy
from precision_operator.api.state import Phase, State
from precision_operator.reasons import Reason


@dataclass(frozen=True, slots=True)
class Allowed:
    """The command is carried out."""

    def __bool__(self) -> Literal[True]:
        return True


@dataclass(frozen=True, slots=True)
class Refused:
    """It would change nothing, now or later."""

    reason: Reason
    message: str
    """What the policy is or does instead, for a person: ``is paused``."""

    def __bool__(self) -> Literal[False]:
        return False


def allowed(command: Command, policy: Policy, state: State) -> Allowed | Refused:
    """Whether a person's command has something to do.

    A rollback ends a pause, every other command waits for its end.
    """
    if policy.deleted:
        return Refused(Reason.POLICY_DELETED, "was deleted, so nobody reads its commands")
    if policy.spec.enforcement is PolicyEnforcement.OBSERVE:
        return Refused(Reason.OBSERVING, "only observes (spec.enforcement), so the operator would not act")
    if policy.spec.suspend and command in (Command.PROMOTE, Command.RETRY, Command.DRILL):
        return Refused(Reason.SUSPENDED, "is paused (spec.suspend), so the operator would not act")
    match command:
        case Command.ABORT if state.phase is Phase.HELD or _is_emergency(state):
            return Refused(Reason.ROLLED_BACK, f"is {state.phase} already")
        case Command.ROLLBACK if not state.by_canary and state.phase in (Phase.ROLLING_BACK, Phase.HELD):
            # Not in Pending: after an edit of the target, or by their templates, workloads may train in less there.
            return Refused(Reason.ROLLED_BACK, f"is {state.phase} already")
        case Command.RETRY if state.by_canary and _verdict(state) is CanaryVerdict.OPEN:
            return Refused(Reason.COMPARING_CANARY, "still compares its canary")
        case Command.RETRY if not state.by_canary and not _rolled_back(state):
            return Refused(
                Reason.NOTHING_TO_RETRY, f"is {state.phase}: nothing was rolled back that could be tried again"
            )
        case Command.PROMOTE if not state.by_canary and not _waits_for_a_person(state):
            return Refused(Reason.NOT_AWAITING_APPROVAL, "waits for no approval")
        case Command.DRILL if why := _unrest(state):
            return Refused(Reason.DRILL_REFUSED, why)
    return Allowed()


def _verdict(state: State) -> CanaryVerdict:
    """What the comparison of a canary has shown."""
    return (state.comparison or Comparison()).verdict


def _rolled_back(state: State) -> bool:
    guarded = state.phase in (Phase.HEALTHY, Phase.DEGRADED)
    return state.phase is Phase.HELD or bool(state.held) or (guarded and bool(state.mitigations))


def _waits_for_a_person(state: State) -> bool:
    worse = state.phase is Phase.PROGRESSING and _verdict(state) is CanaryVerdict.WORSE
    return state.phase is Phase.PAUSED or worse


def _unrest(state: State) -> str:
    """What a drill would be in the way of; empty: nothing."""
    if state.phase is not Phase.HEALTHY:
        return f"is {state.phase}: a drill needs a fleet that is Healthy"
    if state.drilled:
        return "is in a drill already"
    if any(failing.severity is not Severity.P3 for failing in state.failing) or any(m.open for m in state.mitigations):
        return "has a breach that stands: a drill would be in the way of its answer"
    return "restarts workloads now: a drill waits for nobody" if state.restarts or state.suspensions else ""


def _is_emergency(state: State) -> bool:
    """It is rolled back as fast as can be; without a record of why, everything is asked for at once and Held comes next."""
    incident = state.incident
    most = incident is None or (incident.severity, incident.strategy) == (Severity.P0, Strategy.EMERGENCY)
    return state.phase is Phase.ROLLING_BACK and most


def carried_out(state: State, command: Command) -> State:
    """The state once this command was carried out: that counts as a transition, so that it is good for nothing else."""
    return replace(state, commands={**state.commands, command: state.transition_id})
