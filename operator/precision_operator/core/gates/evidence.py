"""Every reading of every member must be good enough to promote."""

from precision_operator.core.gates import Closed, GateInput, names
from precision_operator.core.readings import promotes


def evidence(given: GateInput) -> Closed | None:
    """Closed while a member's signal is in breach, or not below its promotion level."""
    bad: dict[str, str] = {}
    for verdict in given.verdicts:
        for signal, reading in verdict.readings.items():
            if not promotes(given.promotion[signal], reading):
                bad.setdefault(verdict.workload.name, signal)
    if not bad:
        return None
    first = min(bad)
    return Closed("EvidenceInsufficient", f"{bad[first]} is not below its promotion level in {names(list(bad))}")
