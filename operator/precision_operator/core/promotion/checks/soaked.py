"""The evidence must have been good for long enough, under our own eyes."""

from precision_operator.core.promotion.checks import CheckInput
from precision_operator.reasons import Cause, Reason


def soaked(given: CheckInput) -> Cause | None:
    """Closed until the evidence is as old as the step's pause and ``minSamples`` evaluations."""
    if given.evaluation is None or given.evidence_since is None:
        return Cause(Reason.AWAITING_EVALUATION, "the evidence has not begun to count")
    spec = given.policy.spec
    needed = max(given.stage.soak_seconds, (spec.evaluation.min_samples - 1) * spec.evaluation.interval_seconds)
    # What this process did not watch without a gap does not count.
    since = max(given.evidence_since, given.evaluation.continuous_since)
    if given.evaluation.at - since < needed:
        return Cause(Reason.SOAKING, f"the evidence is good; it must stay so for {needed:g} s before the next step")
    return None
