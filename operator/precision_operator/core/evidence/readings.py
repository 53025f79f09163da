"""Tri-state readings: a value that is fine, a value that is a breach, or no value at all.

Absent data is Unknown, never zero and never success. NaN in a loss is a breach: something was measured, and it was not a
number. Peers get exactly these wrong (Argo Rollouts: NaN with only a failureCondition is Successful; Flagger: the last
of several series wins).
"""

import math
import sys
from dataclasses import dataclass

from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Criterion, Severity
from precision_operator.reasons import Reason

_LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Ok:
    """Measured, and not a breach."""

    value: float


@dataclass(frozen=True, slots=True)
class Breach:
    """Measured, and beyond the threshold."""

    value: float
    severity: Severity


@dataclass(frozen=True, slots=True)
class Unknown:
    """Not measured, or not in a way that can be believed."""

    reason: Reason


Reading = Ok | Breach | Unknown


def judge(criterion: Criterion, value: float, *, failing: bool) -> Reading:
    """One finite or non-finite sample against its thresholds.

    ``failing`` is whether a breach of the criterion's own severity is confirmed: then the value must come back to ``leave``
    before it is less (hysteresis). A loss that is no finite number is a breach, whichever way it points; a ratio
    that is none and not beyond its threshold (0/0, a division by zero) says nothing. Only of runs NaN says something: none
    has ended, so none has failed.
    """
    if criterion.signal is Signal.FAILURES and math.isnan(value):
        return Ok(0.0)
    threshold = criterion.leave if failing else criterion.enter
    beyond = value < threshold if criterion.lower_is_worse else value > threshold
    if beyond:
        return Breach(value, criterion.severity)
    if not math.isfinite(value):
        return Breach(value, criterion.severity) if SIGNALS[criterion.signal].of_loss else Unknown(Reason.NOT_A_NUMBER)
    if criterion.warn is not None and value > criterion.warn:
        return Breach(value, criterion.warn_severity)
    return Ok(value)


def good_range(criterion: Criterion) -> tuple[float, float]:
    """The lowest and the highest value that ``judge`` calls Ok where no breach stands, apart from NaN."""
    low, high = -_LARGEST, _LARGEST
    if criterion.lower_is_worse:
        low = max(low, criterion.enter)
    else:
        high = min(high, criterion.enter)
    return low, high if criterion.warn is None else min(high, criterion.warn)


def promotes(criterion: Criterion, reading: Reading) -> bool:
    """Whether the reading is evidence for a promotion. Unknown never is."""
    if not isinstance(reading, Ok):
        return False
    if criterion.promote_above is not None and not reading.value > criterion.promote_above:
        return False
    return criterion.promote_below is None or reading.value < criterion.promote_below
