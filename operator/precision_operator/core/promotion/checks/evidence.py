"""Every reading of every member must be good enough to promote."""

from precision_operator.api.signals import Signal
from precision_operator.api.text import names
from precision_operator.core.evidence.readings import promotes
from precision_operator.core.promotion.checks import CheckInput
from precision_operator.reasons import Cause, Reason


def evidence(given: CheckInput) -> Cause | None:
    """Closed while a member's signal is in breach, or not beyond its promotion level."""
    bad: dict[str, Signal] = {}
    for verdict in given.verdicts:
        for signal, reading in verdict.readings.items():
            if not promotes(given.promotion[signal], reading):
                bad.setdefault(verdict.workload.name, signal)
    if not bad:
        return None
    first = min(bad)
    beyond = "above" if given.promotion[bad[first]].lower_is_worse else "below"
    text = f"{bad[first]} is not {beyond} its promotion level in {names(list(bad))}"
    return Cause(Reason.EVIDENCE_INSUFFICIENT, text)
