"""The order in which the checks are asked."""

from precision_operator.core.promotion.checks import CheckInput, PromotionCheck
from precision_operator.core.promotion.checks.acknowledged import acknowledged
from precision_operator.core.promotion.checks.approved import approved
from precision_operator.core.promotion.checks.evidence import evidence
from precision_operator.core.promotion.checks.monitored import monitored
from precision_operator.core.promotion.checks.soaked import soaked
from precision_operator.reasons import Cause

CHAIN: tuple[PromotionCheck, ...] = (acknowledged, monitored, evidence, soaked, approved)
"""Each needs what those before it have found: who reports, who is seen to be judged, whose readings are good, for how long.
A person is asked last.
"""


def first_closed(given: CheckInput) -> Cause | None:
    """Why the first check that does not pass waits, or None: promote."""
    return next((why for check in CHAIN if (why := check(given)) is not None), None)
