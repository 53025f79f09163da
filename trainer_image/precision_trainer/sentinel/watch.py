"""What single steps come to: windows of one mode, spikes, the loss scale's trend, the distance from the FP32 baseline."""

from __future__ import annotations

from ..step.steps import StepRecord
from ..values.levels import Reason
from ..values.modes import PrecisionMode
from .detectors import LossBaseline
from .guard import Guard
from .signals import ScaleTrend, Spikes, Window
from .voice import Voice

_STEEP = -4.0
"""log2(scale) per 1000 steps: a warning. Ordinary training has about 0."""
_BLOCK_STEPS = 50
"""Of a block mean that is compared with the baseline."""


class StepWatch:
    """Takes steps in, in their order. Every rank has one, and they all hold the same."""

    def __init__(self, window_steps: int, diverged_steps: int, guard: Guard) -> None:
        """``guard`` hears of a detector that raises: none is asked from then on, and steps are counted all the same."""
        self.clock = 0
        """Steps taken in."""
        self.streak = 0
        """Bad ones in a row that no scaler skipped."""
        self.drift = False
        """The loss has left its FP32 baseline."""
        self.window = Window()
        self.look_at = 0
        """Clock from which on a good step is looked at again."""
        self._window_steps, self._diverged_steps = window_steps, diverged_steps
        self._waiting: list[StepRecord] = []
        self._mode: PrecisionMode | None = None
        self._loss_spikes, self._norm_spikes = Spikes(), Spikes()
        self._trend = ScaleTrend()
        self._baseline = LossBaseline(_BLOCK_STEPS)
        self._guard, self._detects = guard, True
        self._held_told = False

    def passes(self, record: StepRecord) -> bool:
        """Take a good step in, if nothing can come of one before :attr:`look_at`."""
        if self.clock + 1 >= self.look_at or record.mode is not self._mode:
            return False
        self.clock += 1
        # Good steps are taken in together, at a fraction of the cost.
        self._waiting.append(record)
        return True

    def observe(self, record: StepRecord) -> bool:
        """Take a step in. False: a good one that passes."""
        bad = record.bad
        if not bad and self.passes(record):
            return False
        self.clock += 1
        self.catch_up()
        if record.mode is not self._mode:
            self._mode, self.window = record.mode, Window()
            self._trend.reset()
        if bad:
            self.window.tried += 1
            self.window.skipped += record.overflow
            self.window.nonfinite += record.nonfinite
            self.window.held += record.skipped and not record.overflow
            self.streak = self.streak + 1 if record.nonfinite else 0
        else:
            self._waiting.append(record)
            self.catch_up()
        return True

    def catch_up(self) -> None:
        """Take in the good steps that wait, all of one mode and one window."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        self.window.tried += len(waiting)
        self.streak = 0
        if not self._detects:
            return
        try:
            self._detect(waiting)
        except Exception as error:  # noqa: BLE001  (whatever it is: it must not end training)
            self._detects = False
            self._guard.switch_off("detectors of spikes and drift", error)

    def _detect(self, records: list[StepRecord]) -> None:
        window, fp32 = self.window, self._mode is PrecisionMode.FP32
        for record in records:
            loss, norm = record.loss, record.grad_norm
            window.max_loss_z = max(window.max_loss_z, self._loss_spikes.observe(loss))
            if norm is not None:
                window.max_norm_z = max(window.max_norm_z, self._norm_spikes.observe(norm))
            if self._baseline.observe(loss, fp32=fp32):
                self.drift = True

    @property
    def full(self) -> bool:
        """The window is to be judged."""
        return self.window.tried >= self._window_steps or self.streak == self._diverged_steps

    def look_again(self, at: int) -> None:
        """When a good step matters next: when the window ends, or at the clock ``at``, if that is still to come."""
        self.look_at = self.clock + self._window_steps - self.window.tried
        if at > self.clock:
            self.look_at = min(self.look_at, at)

    def close(self) -> Window:
        """The window, ended; another one begins."""
        self.catch_up()
        window, self.window = self.window, Window()
        return window

    def restart(self) -> None:
        """What was seen up to here is no longer of this training: another level, or other weights."""
        self.catch_up()
        self.window, self.streak, self.drift = Window(), 0, False

    def warn(self, window: Window, record: StepRecord, voice: Voice) -> None:
        """Say what a window that ended with ``record`` showed early."""
        for z, reason, message in (
            (window.max_loss_z, Reason.LOSS_SPIKE, "loss far above its average"),
            (window.max_norm_z, Reason.GRADIENT_SPIKE, "gradient norm far above average"),
        ):
            if Spikes.is_spike(z):
                voice.warn(reason, record, message, sigmas=round(z, 1))
        # Else the weights, or the data, were found to be the cause, and that was said.
        unknown = window.weights_finite and window.fp32_finite is not False
        if 0 < window.tried == window.held and unknown and not self._held_told:
            self._held_told = True
            voice.warn(
                Reason.NONFINITE_UNEXPLAINED,
                record,
                f"expected steps that update the weights, found gradients that are not finite in all {window.tried}: "
                "each was skipped, before the optimizer or its hooks saw it; mend the loss, or mend the gradients "
                "by a hook on the parameters",
            )
        if record.mode.uses_scaler:
            slope = self._trend.observe(self.clock, record.loss_scale)
            if slope is not None and slope < _STEEP:
                fall = round(slope, 2)
                voice.warn(Reason.SCALE_FALLING, record, "the loss scale is collapsing", log2_per_1000_steps=fall)
