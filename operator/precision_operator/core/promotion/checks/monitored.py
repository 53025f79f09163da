"""Every reading of every member must be known: missing data never promotes."""

from precision_operator.api.signals import Signal
from precision_operator.api.text import names
from precision_operator.core.promotion.checks import CheckInput
from precision_operator.reasons import Cause, Reason


def monitored(given: CheckInput) -> Cause | None:
    """Closed while there is no evaluation, or a signal of a member is Unknown."""
    if given.evaluation is None:
        return Cause(Reason.AWAITING_EVALUATION, "the metrics have not been read yet")
    unknown: dict[str, tuple[Signal, Reason]] = {}
    for verdict in given.verdicts:
        for signal, why in verdict.unknown:
            unknown.setdefault(verdict.workload.name, (signal, why))
    if unknown:
        signal, why = unknown[min(unknown)]
        return Cause(why, f"no believable data for {names(list(unknown))} ({signal}: {why})")
    if not given.verdicts:
        if any(w.replicas > 0 for w, _ in given.progress):
            return Cause(Reason.AWAITING_EVALUATION, "no member of the cohort has been judged yet")
        return Cause(Reason.COHORT_NOT_RUNNING, "no member of the cohort has a pod: scale one up, or abort")
    return None
