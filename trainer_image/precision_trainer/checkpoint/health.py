"""When a checkpoint has proven itself: pure counting over step records."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

WINDOW_STEPS = 20
BURST_STEPS = 5
"""So many overflows in WINDOW_STEPS are a burst. A few are how a growing loss scale finds its limit, and mean nothing."""


class HealthTracker:
    """Counts the good steps after each checkpoint. A non-finite step or an overflow burst starts every count anew.

    That the weights of a checkpoint were finite is checked when it is written; that training *goes on well from them* is
    what the steps after it show. So a checkpoint from just before a divergence is never tagged.
    """

    def __init__(self, good_steps: int) -> None:
        """Ask for ``good_steps`` good steps after a checkpoint."""
        self.good_steps = good_steps
        self._good = 0
        self._window: deque[bool] = deque(maxlen=WINDOW_STEPS)
        self._base: dict[int, int] = {}

    def saved(self, step: int) -> None:
        """The state before ``step`` was taken for a checkpoint; its count begins."""
        self._base[step] = self._good

    def only(self, steps: Collection[int]) -> None:
        """Forget all checkpoints but those of ``steps``."""
        self._base = {step: base for step, base in self._base.items() if step in steps}

    def forget(self, step: int) -> None:
        """The checkpoint of ``step`` was not written, or cannot be tagged."""
        self._base.pop(step, None)

    def oldest(self) -> int | None:
        """The checkpoint nearest to proof: retention must wait for it. None if there is none."""
        return min(self._base, default=None)

    def restart(self, step: int) -> None:
        """Training goes back to ``step``: what was counted after it is void."""
        self._window.clear()
        self._good = 0
        self._base = {saved: 0 for saved in self._base if saved <= step}

    def observe(self, *, overflow: bool, nonfinite: bool) -> None:
        """Take a step in: whether the scaler skipped it, and whether it was non-finite where no scaler took care of it."""
        self._window.append(overflow)
        if nonfinite or sum(self._window) >= BURST_STEPS:
            if self._good:
                self._good = 0
                self._base = dict.fromkeys(self._base, 0)
        elif not overflow:
            self._good += 1

    def proven(self) -> int | None:
        """The newest checkpoint that may be tagged now; None: none may."""
        good = [step for step, base in self._base.items() if self._good - base >= self.good_steps]
        return max(good, default=None)

    def tagged(self, step: int) -> None:
        """``step`` is tagged: it and the older ones need no more counting."""
        self._base = {saved: base for saved, base in self._base.items() if saved > step}
