"""The interpreter, tuned for an event loop beside kopf's thread, and for caches that live long."""

import gc
import sys

YOUNG_OBJECTS = 20_000
"""How many new objects the garbage collector waits for: a reading of 1,000 pods makes a tenth of them, and no cycles."""

SWITCH_SECONDS = 0.001
"""How long a thread may keep the interpreter from another: Python's own 5 ms would stop our loop at each of its turns
while kopf's takes in what we have just written."""


def tune() -> None:
    """Set both, for the whole process; once is enough."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def freeze() -> None:
    """Hide what lives by now from the garbage collector: it need not look through caches for every few thousand samples."""
    gc.unfreeze()  # of what was frozen before, some is garbage by now
    gc.collect()
    gc.freeze()
