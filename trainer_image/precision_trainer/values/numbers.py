"""Whether a value that somebody wrote is a number. To Python a bool is one too; where a number belongs it is a mistake."""

from __future__ import annotations

import math
from typing import TypeGuard


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number that a float takes."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_whole(value: object, low: int, high: int) -> TypeGuard[int]:
    """Whether it is a whole number in [``low``, ``high``]."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
