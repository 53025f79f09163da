"""What the operator watches in a workload; the words of the policy, the status and the metrics."""

from __future__ import annotations

from enum import StrEnum


class Signal(StrEnum):
    """What is judged, by the name it has in ``spec.criteria``."""

    OVERFLOW = "overflow"
    DIVERGENCE = "divergence"
    FAILURES = "failures"
    NON_FINITE = "nonFinite"
    SPEED = "speed"
    MEMORY = "memory"

    __hash__ = str.__hash__
    """As its value; that of ``Enum`` is a call of its own, tens of thousands of times an interval."""
