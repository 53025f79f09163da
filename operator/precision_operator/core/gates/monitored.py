"""Every reading of every member must be known: missing data never promotes."""

from precision_operator.core.gates import Closed, GateInput, names
from precision_operator.reasons import Reason


def monitored(given: GateInput) -> Closed | None:
    """Closed while there is no evaluation, or a signal of a member is Unknown."""
    if given.evaluation is None:
        return Closed(Reason.AWAITING_EVALUATION, "the metrics have not been read yet")
    unknown: dict[str, str] = {}
    for verdict in given.verdicts:
        for signal, why in verdict.unknown:
            unknown.setdefault(verdict.workload.name, f"{signal}: {why}")
    if unknown:
        first = min(unknown)
        return Closed(
            unknown[first].split(": ")[1], f"no believable data for {names(list(unknown))} ({unknown[first]})"
        )
    if not given.verdicts:
        if any(w.replicas > 0 for w, _ in given.progress):
            return Closed(Reason.AWAITING_EVALUATION, "no member of the cohort has been judged yet")
        return Closed(Reason.COHORT_NOT_RUNNING, "no member of the cohort has a pod: scale one up, or abort")
    return None
