"""Which mode is in force: the one requested, or a safer one where the sentinel says so or the model fails in it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Protocol

from ..sentinel.shell import Sentinel
from ..step.scaler import LossScaler
from ..step.steps import ModeChange
from ..values.levels import Level
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.request import NOT_ALLOWED, PrecisionRequest
from .preflight import Trial


class TrialWatch(Protocol):
    """Told, on rank 0, of the first step in a mode, and of its compilation."""

    def begin(self, mode: PrecisionMode, generation: int, *, compiles: bool = False) -> None:
        """It comes next, asked for by the request of ``generation``, or by none (0); told before each micro-batch of it."""

    def end(self) -> None:
        """It is over, well or not."""

    def give_up(self) -> None:
        """No later process is to try what is tried now, under the same request."""


class ModeControl:
    """The mode of one rank. All ranks take the same changes in the same order; weights and optimizer are FP32 in all."""

    def __init__(
        self,
        mode: PrecisionMode,
        *,
        scaler: LossScaler,
        sentinel: Sentinel | None,
        log: JsonLog,
        rank: int,
        proven: Iterable[PrecisionMode],
    ) -> None:
        """Start in ``mode``; the ``proven`` ones are not tried."""
        self.mode = self.requested = mode
        self.applied: PrecisionRequest | None = None
        """The last request applied; None before any."""
        self.on_refused: Callable[[str, str], None] | None = None
        """Told, on rank 0, of a request that was refused because the model fails in its mode: reason and message."""
        self.trial_watch: TrialWatch | None = None
        """Knows of trials that earlier processes did not survive."""
        self.watched = False
        """It was told of a trial, and not of its end."""
        self.declined = 0
        """Highest generation of a request that was refused."""
        self.trial: Trial | None = None
        """Set while the mode in force has yet to be proven, by the first step in it."""
        self._scaler, self._sentinel, self._log, self._rank = scaler, sentinel, log, rank
        self._proven = set(proven)
        self._failed: set[PrecisionMode] = set()
        """Modes the model failed in, on some rank; the same on all."""
        self._deadly: Set[PrecisionMode] = frozenset()
        """Modes that processes before this one did not survive under the request in force; the same on all ranks."""
        self._undone: ModeChange | None = None
        if mode not in self._proven:
            self.trial = Trial(PrecisionMode.FP32, PrecisionMode.FP32, None)

    @property
    def generation(self) -> int:
        """Generation of the last applied request; 0 before any."""
        return self.applied.generation if self.applied else 0

    @property
    def newest(self) -> int:
        """Highest generation of a request that was applied or refused; 0 before any."""
        return max(self.generation, self.declined)

    @property
    def proven(self) -> bool:
        """A step was computed in the mode in force, or there is no other to go back to."""
        return self.trial is None

    def failed(self, mode: PrecisionMode) -> bool:
        """Whether the model failed in it."""
        return mode in self._failed

    def has_run(self, mode: PrecisionMode) -> bool:
        """Whether a step was computed in it, or training began in it with nothing to go back to."""
        return mode in self._proven

    def pass_by(self, modes: Set[PrecisionMode]) -> None:
        """Let the sentinel enter none of ``modes`` before another request is applied. The same on all ranks."""
        self._deadly = modes

    def begin_trial(self) -> None:
        """The first step in the mode in force comes next."""
        if self.trial_watch is not None:
            self.watched = True
            self.trial_watch.begin(self.mode, self.generation)

    @contextlib.contextmanager
    def compiling(self) -> Iterator[Callable[[PrecisionMode], None]]:
        """While the model is compiled; gives what is to be told of each mode, which may be the last thing that is done."""

        def begins(mode: PrecisionMode) -> None:
            if self.trial_watch is not None and mode is not PrecisionMode.FP32:
                self.trial_watch.begin(mode, self.newest, compiles=True)

        try:
            yield begins
        finally:
            if self.trial_watch is not None:
                self.trial_watch.end()

    def end_trial(self) -> None:
        """At the boundary after a step that was watched: its update is made as well, and an optimizer takes memory too."""
        if self.trial is None and self.trial_watch is not None:
            self.watched = False
            self.trial_watch.end()

    def prove(self) -> None:
        """A step was computed in the mode in force, on all ranks."""
        self._proven.add(self.mode)
        self.trial = None

    def take_undone(self) -> ModeChange | None:
        """The way back from a mode that failed, once: for the next boundary."""
        undone, self._undone = self._undone, None
        return undone

    def apply(self, request: PrecisionRequest, step: int) -> ModeChange:
        """Change the mode before ``step``. Only with something that all ranks agreed on."""
        trial = self.trial or self._way_back(request)
        self.applied = request
        self.requested = request.mode
        self._deadly = frozenset()
        if self._sentinel is not None:
            self._sentinel.requested(step)
        change = self._change("request", trial, step)
        self.tune(request)
        return change

    def _way_back(self, request: PrecisionRequest) -> Trial:
        trial = Trial(self.mode, self.requested, self.applied)
        if request.tunes and request.mode.uses_scaler:
            trial.scaling = self._scaler.state_dict()
        if self._sentinel is not None and self._sentinel.level > Level.LOWER_SCALE:
            trial.watch = self._sentinel.state_dict()
        return trial

    def tune(self, request: PrecisionRequest) -> None:
        """What a request asks of the loss scaler; nothing in a mode that has none (the reporter says so)."""
        if request.tunes and request.mode.uses_scaler:
            self._scaler.tune(request.loss_scale_factor, request.growth_interval)

    def settle(self, step: int) -> ModeChange | None:
        """Enter the mode that the sentinel allows, if another is in force."""
        if self._sentinel is None or self._wanted() is self.mode:
            return None
        return self._change("sentinel", self.trial or Trial(self.mode, self.requested, self.applied), step)

    @contextlib.contextmanager
    def before(self, trial: Trial, failed: Set[PrecisionMode]) -> Iterator[PrecisionMode]:
        """For one pass, in the mode that :meth:`refuse` would go back to, were it for the ``failed`` ones; gives it."""
        now = self.mode, self.requested, self._failed
        self._failed = self._failed | failed
        self.mode, self.requested = trial.mode, trial.requested
        if self.applied is trial.applied:
            self.mode = self._wanted()
        try:
            yield self.mode
        finally:
            self.mode, self.requested, self._failed = now

    def refuse(
        self, trial: Trial, reasons: list[str], step: int, modes: Set[PrecisionMode], *, for_good: bool = False
    ) -> None:
        """The mode in force failed: all ranks go back to the one before, in the middle of the step.

        ``modes``: the one in force, and safer ones that failed with the same micro-batch. ``for_good``: a trial of it may
        end the script, so that no later process is to try it.
        """
        if for_good and self.trial_watch is not None:
            self.trial_watch.give_up()
        failed, self.trial = self.mode, None
        self._failed = self._failed | modes
        # Whatever comes now is not tried again: there is nothing left to go back to.
        self._proven.update({trial.mode, PrecisionMode.FP32} - self._failed)
        request = self.applied if self.applied is not trial.applied else None
        self.mode, self.requested, self.applied = trial.mode, trial.requested, trial.applied
        if request is None:  # the sentinel's own step towards FP32: the next mode that works
            self.mode = self._wanted()
        # Nothing of a request that is refused stays.
        if trial.scaling is not None:
            self._scaler.load_state_dict(trial.scaling)
        if trial.watch is not None and self._sentinel is not None:
            self._sentinel.load_state_dict(trial.watch)
        if self.mode.uses_scaler:
            self._scaler.thaw()
        self._undone = ModeChange(failed, self.mode, self.applied, step, time.time(), "preflight")
        self.tell_refused(failed, request, "; ".join(reasons))

    def tell_passed(self, reasons: list[str]) -> None:
        """Say on rank 0 that a micro-batch failed in the mode in force, and not when it was computed once more."""
        if not self._rank:
            self._log.warning(
                "trial_repeated",
                f"{self.mode.wire}: a micro-batch of the first step failed, and passed when it was computed once more "
                f"({'; '.join(reasons)}); training goes on in {self.mode.wire}; look at what the loss draws its data from",
            )

    def tell_refused(self, failed: PrecisionMode, request: PrecisionRequest | None, reasons: str) -> None:
        """Say on rank 0 that the model fails in a mode; the ``request`` for it, if there was one, is not asked again."""
        if request is not None:
            self.declined = max(self.declined, request.generation)
        if self._rank:
            return
        asked = f"request {request.generation} for {failed.wire}" if request is not None else failed.wire
        message = (
            f"{asked} refused: the model failed in it: {reasons}; training goes on in {self.mode.wire}; keep the layer in "
            "FP32 (PRECISION_FP32_MODULES, fp32_modules) and restart, or ask for another mode"
        )
        if self.on_refused is not None:
            self.on_refused(NOT_ALLOWED, message)
        else:
            self._log.warning("request_refused", message, reason=NOT_ALLOWED)

    def _wanted(self) -> PrecisionMode:
        """What the request and the sentinel come to, or the next safer mode that the model does not fail in."""
        wanted = self._sentinel.allowed(self.requested) if self._sentinel is not None else self.requested
        unfit = self._failed | self._deadly
        if wanted in unfit and wanted is PrecisionMode.MIXED_FP16:
            wanted = PrecisionMode.MIXED_BF16
        if wanted in unfit:
            wanted = PrecisionMode.FP32
        return self.mode if wanted in unfit else wanted

    def _change(self, source: str, trial: Trial, step: int) -> ModeChange:
        before = self.mode
        self.mode = self._wanted()
        self.trial = None if self.mode in self._proven else trial
        if self.mode.uses_scaler and not before.uses_scaler:
            self._scaler.thaw()
        return ModeChange(before, self.mode, self.applied, step, time.time(), source)
