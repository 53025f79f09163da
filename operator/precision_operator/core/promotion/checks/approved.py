"""A step with ``pause: {}`` waits for a person."""

from precision_operator.api.commands import answered
from precision_operator.api.state import Phase
from precision_operator.contract import PROMOTE
from precision_operator.core.promotion.checks import CheckInput
from precision_operator.reasons import Cause, Reason


def approved(given: CheckInput) -> Cause | None:
    """Closed until the promote annotation answers this very transition, and the step was shown to wait for it."""
    answer = answered(given.policy.annotations, PROMOTE, given.state.transition_id)
    if not given.stage.approval or (answer is not None and given.state.phase is Phase.PAUSED):
        return None
    name, namespace = given.policy.name, given.policy.namespace
    how = Reason.AWAITING_APPROVAL.command("promote", name=name, namespace=namespace)
    return Cause(Reason.AWAITING_APPROVAL, f"to approve the step: {how}")
