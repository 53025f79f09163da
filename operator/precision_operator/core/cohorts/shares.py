"""Shares of a fleet, exactly: by floating point 7 % of 100 workloads would need 8 of them."""

import math
from fractions import Fraction


def at_least(share: float, count: int) -> int:
    """The fewest that are ``share`` of ``count``, or more."""
    return math.ceil(_exact(share) * count)


def at_most(share: float, count: int) -> int:
    """The most that are ``share`` of ``count``, or less."""
    return math.floor(_exact(share) * count)


def _exact(share: float) -> Fraction:
    """The decimal number that a person wrote, not its nearest binary one."""
    return Fraction(repr(share))
