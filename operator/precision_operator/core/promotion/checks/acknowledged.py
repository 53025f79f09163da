"""Every member's own process must say that it trains in the target precision."""

from precision_operator.api.text import names
from precision_operator.core.promotion.checks import CheckInput
from precision_operator.reasons import Cause, Reason


def acknowledged(given: CheckInput) -> Cause | None:
    """Closed while a member has not acknowledged; past the progress deadline it says so."""
    waiting = [workload.name for workload, progress in given.progress if not progress.acknowledged]
    if not waiting:
        return None
    spec = given.policy.spec
    since, evaluation = given.state.step_since, given.evaluation
    if since is not None and evaluation is not None and evaluation.at - since > spec.progress_deadline_seconds:
        return Cause(
            Reason.PROGRESS_DEADLINE_EXCEEDED,
            f"not in {spec.target} after {spec.progress_deadline_seconds:.0f} s: {names(waiting)}; "
            "look at their pods, or abort",
        )
    return Cause(
        Reason.AWAITING_ACKNOWLEDGEMENT, f"waiting for the trainers of {names(waiting)} to report {spec.target}"
    )
