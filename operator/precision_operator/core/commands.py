"""Which commands of people are carried out where a fleet stands: one rule for the operator and for the CLI."""

from dataclasses import replace

from precision_operator.api.canary import Verdict
from precision_operator.api.commands import Command
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Phase, State


def takes(command: Command, state: State) -> bool:
    """Whether a command has something to do: what is refused here changes nothing, now or later."""
    match command:
        case Command.ABORT:
            return state.phase is not Phase.HELD and not _is_emergency(state)
        case Command.ROLLBACK:
            # Also in Pending: after an edit of the target, or by their templates, workloads may train in less there.
            return state.by_canary or state.phase not in (Phase.ROLLING_BACK, Phase.HELD)
        case Command.RETRY:
            if state.phase is Phase.ROLLING_BACK:
                shown = state.comparison is not None and state.comparison.verdict is not Verdict.OPEN
                return state.by_canary and shown
            guarded = state.phase in (Phase.HEALTHY, Phase.DEGRADED)
            return state.phase is Phase.HELD or bool(state.held) or (guarded and bool(state.mitigations))
        case Command.PROMOTE:
            return state.by_canary or state.phase in (Phase.PROGRESSING, Phase.PAUSED)


def _is_emergency(state: State) -> bool:
    """It is rolled back as fast as can be; without a record of why, everything is asked for at once and Held comes next."""
    incident = state.incident
    most = incident is None or (incident.severity, incident.strategy) == (Severity.P0, Strategy.EMERGENCY)
    return state.phase is Phase.ROLLING_BACK and most


def carried_out(state: State, command: Command) -> State:
    """The state once this command was carried out: that counts as a transition, so that it is good for nothing else."""
    return replace(state, commands={**state.commands, command: state.transition_id})
