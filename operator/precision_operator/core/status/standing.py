"""Ready, Reconciling and Stalled, as kstatus defines them: what Flux, Argo CD and ``kubectl wait`` read.

Exactly one of them is true. Reconciling and Stalled are there only while they are
(https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus).
"""

from precision_operator.api.conditions import Condition
from precision_operator.api.state import Phase, State
from precision_operator.api.text import bounded
from precision_operator.core.facts import Facts
from precision_operator.reasons import Reason

_CHARACTERS = 256
"""Of a message, for tools show it in a line; the whole of it stands in ``status.message``."""


def standing(facts: Facts, state: State, *, accepted: Condition, progressing: Condition) -> tuple[Condition, ...]:
    """The conditions of a pass.

    Args:
        facts: with the state before.
        state: the one after.
        accepted: the condition Accepted of this pass.
        progressing: the condition Progressing of this pass: what is waited for.
    """
    idle = facts.paused
    if idle is not None and idle.reason is Reason.HALTED:
        return _is_not("Reconciling", idle.reason, idle.message)
    # What a person asked for is so: nothing that waits for it need wait any longer.
    if idle is not None or facts.observes:
        return (_condition("Ready", True, progressing.reason, progressing.message),)
    stalled = _stalled(state, accepted, progressing)
    if stalled is not None:
        return _is_not("Stalled", *stalled)
    if state.phase is Phase.HEALTHY:
        return (_condition("Ready", True, state.reason, state.message),)
    return _is_not("Reconciling", progressing.reason, progressing.message)


def begins(reason: Reason, message: str) -> tuple[Condition, ...]:
    """The conditions before the first decision."""
    return _is_not("Reconciling", reason, message)


def _stalled(state: State, accepted: Condition, progressing: Condition) -> tuple[str, str] | None:
    """Why it does not come nearer without a person, and that in words.

    Workloads that do not exist yet may come by themselves.
    """
    if accepted.status == "False" and accepted.reason != Reason.NO_WORKLOADS:
        return accepted.reason, accepted.message
    if state.phase in (Phase.HELD, Phase.DEGRADED):
        return state.reason, state.message
    waits = Reason.known(progressing.reason)
    return (progressing.reason, progressing.message) if waits is not None and waits.stuck else None


def _is_not(kind: str, reason: str, message: str) -> tuple[Condition, ...]:
    return _condition("Ready", False, reason, message), _condition(kind, True, reason, message)


def _condition(kind: str, true: bool, reason: str, message: str) -> Condition:
    # The API server refuses a status with a condition without a reason, and a damaged record may have none.
    return Condition(kind, "True" if true else "False", reason or Reason.STATE_LOST, bounded(message, _CHARACTERS))
