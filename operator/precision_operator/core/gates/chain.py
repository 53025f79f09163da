"""The order in which the gates are asked."""

from precision_operator.core.gates import Gate, GateInput
from precision_operator.core.gates.acknowledged import acknowledged
from precision_operator.core.gates.approved import approved
from precision_operator.core.gates.evidence import evidence
from precision_operator.core.gates.monitored import monitored
from precision_operator.core.gates.soaked import soaked
from precision_operator.reasons import Cause

CHAIN: tuple[Gate, ...] = (acknowledged, monitored, evidence, soaked, approved)


def first_closed(given: GateInput) -> Cause | None:
    """The first gate that is closed, or None: promote."""
    return next((closed for gate in CHAIN if (closed := gate(given)) is not None), None)
