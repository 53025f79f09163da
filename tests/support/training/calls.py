"""Which Python functions run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType


def called(run: Callable[[], object]) -> set[CodeType]:
    """The code of the Python functions that ``run`` calls."""
    found = set[CodeType]()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: found.add(frame.f_code))
    try:
        run()
    finally:
        sys.setprofile(before)
    return found
